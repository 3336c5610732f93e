"""Who may call what over gRPC, and what the audit trail says of it."""

from __future__ import annotations

import json

import grpc
import pytest
from grpc import StatusCode

from bookie_pod.config.sections.service import AccessConfig
from bookie_protocol.ledger_service import ledger_service_pb2 as pb
from bookie_protocol.ledger_service.ledger_service_pb2_grpc import LedgerServiceStub
from tests.support.certificates import Certificates

from .conftest import serve

NEW = pb.CreateRequest(ensemble_size=1, write_quorum=1, ack_quorum=1, password=b"of-it")
ELSEWHERE = (("x-forwarded-for", "10.0.0.7"),)
NO_ANSWER = "Internal error from Core"
"""What the client's library says of itself when it writes a request to a call that has been answered already."""


async def code(call):
    """How a call ends; None: the library lost the answer."""
    try:
        if hasattr(call, "__aiter__"):
            async for _ in call:
                pass
        else:
            await call
    except grpc.aio.AioRpcError as error:
        return None if error.details() == NO_ANSWER else error.code()
    return StatusCode.OK


def calls(stub, ledger_id, **shown):
    """One of each role, as it is tried one after the other."""
    return {
        "reader": lambda: stub.GetMetadata(pb.GetMetadataRequest(ledger_id=ledger_id), **shown),
        "reader, a stream": lambda: stub.List(pb.ListRequest(), **shown),
        "writer": lambda: stub.Create(NEW, **shown),
        "writer, a stream": lambda: stub.Append(iter([pb.AppendRequest(create=NEW, entries=[b"x"])]), **shown),
        "admin": lambda: stub.Delete(pb.DeleteRequest(ledger_id=ledger_id), **shown),
    }


async def codes(stub, ledger_id, **shown):
    found = []
    for call in calls(stub, ledger_id, **shown).values():
        while (ended := await code(call())) is None:
            pass
        found.append(ended)
    return found


async def made(stub, **shown):
    return (await stub.Create(NEW, **shown)).metadata.ledger_id


async def test_a_port_that_knows_nobody_serves_its_own_machine_alone(cluster):
    async with serve(cluster) as served:
        ledger_id = await made(served.stub)
        assert await codes(served.stub, ledger_id, metadata=ELSEWHERE) == [StatusCode.UNAUTHENTICATED] * 5
        assert await codes(served.stub, ledger_id) == [StatusCode.OK] * 5


async def test_who_means_it_lets_everybody_in(cluster):
    async with serve(cluster, rules=AccessConfig(allow_insecure=True)) as served:
        assert await codes(served.stub, await made(served.stub), metadata=ELSEWHERE) == [StatusCode.OK] * 5


TOKENS = "all\nlook viewer\nread reader\nwrite writer app-7\nrun operator\n"
OK, NO, WHO = StatusCode.OK, StatusCode.PERMISSION_DENIED, StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ("all", [OK] * 5),
        ("write", [OK, OK, OK, OK, NO]),
        ("read", [OK, OK, NO, NO, NO]),
        ("look", [NO] * 5),
        ("run", [NO] * 5),
        ("none", [WHO] * 5),
    ],
)
async def test_each_token_may_what_its_roles_allow(cluster, tmp_path, token, expected):
    (tmp_path / "tokens").write_text(TOKENS)
    async with serve(cluster, port={"auth_token_file": str(tmp_path / "tokens")}) as served:
        ledger_id = await made(served.stub, metadata=(("authorization", "Bearer all"),))
        assert await codes(served.stub, ledger_id, metadata=(("authorization", f"Bearer {token}"),)) == expected


async def test_a_read_that_recovers_is_a_change(cluster, tmp_path):
    (tmp_path / "tokens").write_text(TOKENS)
    log = tmp_path / "audit.log"
    rules = AccessConfig(audit_log_file=str(log))
    async with serve(cluster, port={"auth_token_file": str(tmp_path / "tokens")}, rules=rules) as served:

        def shown(token):
            return (("authorization", f"Bearer {token}"),)

        def read(token, *, recover, password=b"of-it"):
            request = pb.ReadRequest(ledger_id=ledger_id, password=password, recover=recover)
            return code(served.stub.Read(request, metadata=shown(token)))

        async def state():
            return (
                await served.stub.GetMetadata(pb.GetMetadataRequest(ledger_id=ledger_id), metadata=shown("read"))
            ).state

        ledger_id = await made(served.stub, metadata=shown("write"))
        assert await read("read", recover=True) is NO
        assert await state() == pb.LedgerMetadata.OPEN
        assert await read("read", recover=False) is OK
        assert await read("write", recover=True, password=b"another") is NO
        assert await read("write", recover=True) is OK
        assert await state() == pb.LedgerMetadata.CLOSED
    lines = [json.loads(line) for line in log.read_text().splitlines()][1:]
    told = [(line["what"].rpartition("/")[2], line["who"], line["outcome"], line["of"]["ledger_id"]) for line in lines]
    assert told == [
        ("Read", "token of line 3", "refused", ledger_id),
        ("Read", "app-7", "refused", ledger_id),
        ("Read", "app-7", "done", ledger_id),
    ]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    made = Certificates(tmp_path_factory.mktemp("certificates")).make_all()
    made.make_named("server", "DNS:localhost")
    made.make_unit("writer", "0:writer")
    return made


@pytest.mark.parametrize(("name", "expected"), [("writer", [OK, OK, OK, OK, NO]), ("client", [OK] * 5)])
async def test_a_certificate_may_what_the_role_in_its_subject_allows(cluster, certificates, tmp_path, name, expected):
    def read(file):
        return (certificates.folder / file).read_bytes()

    port = {
        "tls_enable": True,
        "client_authentication": True,
        "certificate_path": str(certificates.folder / "server.pem"),
        "key_path": str(certificates.folder / "server.key"),
        "trust_store_path": str(certificates.folder / "authority.pem"),
    }
    log = tmp_path / "audit.log"
    async with serve(cluster, port=port, rules=AccessConfig(audit_log_file=str(log))) as served:
        shown = grpc.ssl_channel_credentials(read("authority.pem"), read(f"{name}.key"), read(f"{name}.pem"))
        async with grpc.aio.secure_channel(f"localhost:{served.server.port}", shown) as channel:
            stub = LedgerServiceStub(channel)
            assert await codes(stub, await made(stub), metadata=ELSEWHERE) == expected
    assert {json.loads(line)["who"] for line in log.read_text().splitlines()} == {name}


async def test_a_password_that_is_given_must_be_that_of_the_ledger(served):
    ledger_id = await made(served.stub)

    def delete(**given):
        return code(served.stub.Delete(pb.DeleteRequest(ledger_id=ledger_id, **given)))

    assert await delete(password=b"another") is NO
    assert await delete(password=b"") is NO
    assert await code(served.stub.GetMetadata(pb.GetMetadataRequest(ledger_id=ledger_id))) is OK
    assert await delete(password=b"of-it") is OK
    assert await code(served.stub.GetMetadata(pb.GetMetadataRequest(ledger_id=ledger_id))) is StatusCode.NOT_FOUND
    assert await delete(password=b"another") is OK  # it is not there


async def test_each_change_is_one_line(cluster, tmp_path):
    (tmp_path / "tokens").write_text(TOKENS)
    log = tmp_path / "audit.log"
    rules = AccessConfig(audit_log_file=str(log))
    async with serve(cluster, port={"auth_token_file": str(tmp_path / "tokens")}, rules=rules) as served:
        shown = (("authorization", "Bearer write"), ("x-request-id", "r-1"))
        ledger_id = await made(served.stub, metadata=shown)
        requests = iter([pb.AppendRequest(create=NEW, entries=[b"payload"])])
        assert await code(served.stub.Append(requests, metadata=shown)) is OK
        wrong = pb.RecoverRequest(ledger_id=ledger_id, password=b"wrong")
        assert await code(served.stub.Recover(wrong, metadata=shown)) is NO
        assert await code(served.stub.Recover(pb.RecoverRequest(ledger_id=99), metadata=shown)) is StatusCode.NOT_FOUND
        assert await code(served.stub.Delete(pb.DeleteRequest(ledger_id=ledger_id), metadata=shown)) is NO
        assert await code(served.stub.List(pb.ListRequest(), metadata=shown)) is OK
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    assert {(line["via"], line["who"], line["from"]) for line in lines} == {("grpc", "app-7", "127.0.0.1")}
    assert lines[0]["request"] == "r-1"
    told = [(line["what"].rpartition("/")[2], line["outcome"], line.get("of", {}).get("ledger_id")) for line in lines]
    assert told == [
        ("Create", "done", ledger_id),
        ("Append", "done", told[1][2]),
        ("Recover", "refused", ledger_id),
        ("Recover", "failed", 99),
        ("Delete", "refused", None),
    ]
    assert told[1][2] not in (None, ledger_id)
    assert "of-it" not in log.read_text()
