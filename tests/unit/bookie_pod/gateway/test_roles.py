"""Who may call what over gRPC, and what the audit trail says of it."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import dataclass, field, replace

import grpc
import pytest
from grpc import StatusCode

from bookie_pod.config.sections.service import AccessConfig
from bookie_pod.gateway import service
from bookie_pod.roles import Caller
from bookie_protocol.errors import TooManyRequests
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


TOKENS = """all-of-the-roles
looks-and-no-more viewer
reads-of-ledgers reader
writes-to-ledger writer app-7
runs-the-cluster operator
"""
OK, NO, WHO = StatusCode.OK, StatusCode.PERMISSION_DENIED, StatusCode.UNAUTHENTICATED


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        ("all-of-the-roles", [OK] * 5),
        ("writes-to-ledger", [OK, OK, OK, OK, NO]),
        ("reads-of-ledgers", [OK, OK, NO, NO, NO]),
        ("looks-and-no-more", [NO] * 5),
        ("runs-the-cluster", [NO] * 5),
        ("none", [WHO] * 5),
    ],
)
async def test_each_token_may_what_its_roles_allow(cluster, tmp_path, token, expected):
    (tmp_path / "tokens").write_text(TOKENS)
    async with serve(cluster, port={"auth_token_file": str(tmp_path / "tokens")}) as served:
        ledger_id = await made(served.stub, metadata=(("authorization", "Bearer all-of-the-roles"),))
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
                await served.stub.GetMetadata(
                    pb.GetMetadataRequest(ledger_id=ledger_id), metadata=shown("reads-of-ledgers")
                )
            ).state

        ledger_id = await made(served.stub, metadata=shown("writes-to-ledger"))
        assert await read("reads-of-ledgers", recover=True) is NO
        assert await state() == pb.LedgerMetadata.OPEN
        assert await read("reads-of-ledgers", recover=False) is OK
        assert await read("writes-to-ledger", recover=True, password=b"another") is NO
        assert await read("writes-to-ledger", recover=True) is OK
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
    made.make_unit("writer", "0:client,writer")
    made.make_unit("reader", "0:reader")
    return made


@pytest.mark.parametrize(
    ("name", "expected"), [("writer", [OK, OK, OK, OK, NO]), ("client", [NO] * 5), ("reader", [OK, OK, NO, NO, NO])]
)
async def test_a_certificate_may_what_the_role_in_its_subject_allows(cluster, certificates, tmp_path, name, expected):
    port = {
        "tls_enable": True,
        "client_authentication": True,
        "certificate_path": str(certificates.folder / "server.pem"),
        "key_path": str(certificates.folder / "server.key"),
        "trust_store_path": str(certificates.folder / "authority.pem"),
    }
    log = tmp_path / "audit.log"
    async with serve(cluster, port=port, rules=AccessConfig(audit_log_file=str(log))) as served:

        def channel(of):
            authority, key, chain = (
                (certificates.folder / file).read_bytes() for file in ("authority.pem", f"{of}.key", f"{of}.pem")
            )
            shown = grpc.ssl_channel_credentials(authority, key, chain)
            return grpc.aio.secure_channel(f"localhost:{served.server.port}", shown)

        async with channel("writer") as writer, channel(name) as asks:
            ledger_id = await made(LedgerServiceStub(writer))
            assert await codes(LedgerServiceStub(asks), ledger_id, metadata=ELSEWHERE) == expected
    assert {json.loads(line)["who"] for line in log.read_text().splitlines()} == {name, "writer"}


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


async def test_a_password_deletes_no_ledger_that_was_made_again_since_it_was_compared(served, monkeypatch):
    """The next one has another password; the caller is told about that one, and it stays."""
    ledger_id = await made(served.stub)
    client = served.gateway._client
    ledgers, delete_this, second = client.metadata_service.ledgers, client.metadata_service.ledgers.delete_this, []

    async def overtaken(stored, **more):
        if not second:
            second.append(ledgers.make(replace(stored.value, creation_token=1, password=b"of another")))
        await delete_this(stored, **more)

    monkeypatch.setattr(ledgers, "delete_this", overtaken)
    assert await code(served.stub.Delete(pb.DeleteRequest(ledger_id=ledger_id, password=b"of-it"))) is NO
    assert ledgers.stored[ledger_id] is second[0]


async def test_who_guesses_a_password_is_told_slowly_and_stands_in_the_trail(cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(service, "GUESS_S", 0.05)
    (tmp_path / "tokens").write_text(TOKENS)
    log = tmp_path / "audit.log"
    rules = AccessConfig(audit_log_file=str(log))
    async with serve(cluster, port={"auth_token_file": str(tmp_path / "tokens")}, rules=rules) as served:
        writer, reader = ((("authorization", f"Bearer {token}"),) for token in ("writes-to-ledger", "reads-of-ledgers"))
        ledger_id = await made(served.stub, metadata=writer)
        began = time.monotonic()
        guesses = (pb.ReadRequest(ledger_id=ledger_id, password=b"guess %d" % number) for number in range(4))
        told = await asyncio.gather(*(code(served.stub.Read(guess, metadata=reader)) for guess in guesses))
        assert told == [NO] * 4
        assert time.monotonic() - began >= 4 * 0.05
        right = pb.ReadRequest(ledger_id=ledger_id, password=b"of-it")
        assert await code(served.stub.Read(right, metadata=reader)) is OK
    refused = [line for each in log.read_text().splitlines() if (line := json.loads(each))["outcome"] == "refused"]
    assert [(line["who"], line["what"].rpartition("/")[2]) for line in refused] == [("token of line 3", "Read")] * 4
    assert "guess" not in log.read_text()


async def test_only_a_wrong_password_is_told_slowly(cluster, tmp_path, monkeypatch):
    slowed = []

    async def slow_down(self, caller):
        slowed.append(caller.name)

    monkeypatch.setattr(service.WrongPasswords, "slow_down", slow_down)
    (tmp_path / "tokens").write_text(TOKENS)
    async with serve(cluster, port={"auth_token_file": str(tmp_path / "tokens")}) as served:
        writer, reader = ((("authorization", f"Bearer {token}"),) for token in ("writes-to-ledger", "reads-of-ledgers"))
        ledger_id = await made(served.stub, metadata=writer)
        may_not = pb.ReadRequest(ledger_id=ledger_id, password=b"of-it", recover=True)
        assert await code(served.stub.Read(may_not, metadata=reader)) is NO
        assert slowed == []
        wrong = pb.ReadRequest(ledger_id=ledger_id, password=b"wrong")
        for call in (served.stub.Read, served.stub.Tail):
            assert await code(call(wrong, metadata=reader)) is NO
        for call, request in (
            (served.stub.Close, pb.CloseRequest(ledger_id=ledger_id, password=b"wrong")),
            (served.stub.Recover, pb.RecoverRequest(ledger_id=ledger_id, password=b"wrong")),
        ):
            assert await code(call(request, metadata=writer)) is NO
        append = served.stub.Append(metadata=writer)
        await append.write(pb.AppendRequest(existing=pb.ExistingWriter(ledger_id=ledger_id, password=b"wrong")))
        assert await code(append) is NO
    assert slowed == ["token of line 3"] * 2 + ["app-7"] * 3


async def test_each_change_is_one_line(cluster, tmp_path):
    (tmp_path / "tokens").write_text(TOKENS)
    log = tmp_path / "audit.log"
    rules = AccessConfig(audit_log_file=str(log))
    async with serve(cluster, port={"auth_token_file": str(tmp_path / "tokens")}, rules=rules) as served:
        shown = (("authorization", "Bearer writes-to-ledger"), ("x-request-id", "r-1"))
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


@dataclass
class Guesses:
    """Set once a call with a wrong password is slowed down, and once that has ended."""

    begun: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)


@pytest.fixture
def guesses(monkeypatch):
    found, slow_down = Guesses(), service.WrongPasswords.slow_down

    async def watched(self, caller):
        found.begun.set()
        try:
            await slow_down(self, caller)
        finally:
            found.ended.set()

    monkeypatch.setattr(service.WrongPasswords, "slow_down", watched)
    return found


async def test_a_guess_that_is_cancelled_delays_the_next_call_of_its_caller(cluster, tmp_path, monkeypatch, guesses):
    monkeypatch.setattr(service, "GUESS_S", 0.3)
    (tmp_path / "tokens").write_text(TOKENS)
    async with serve(cluster, port={"auth_token_file": str(tmp_path / "tokens")}) as served:
        writer, reader = ((("authorization", f"Bearer {token}"),) for token in ("writes-to-ledger", "reads-of-ledgers"))
        ledger_id = await made(served.stub, metadata=writer)
        began = time.monotonic()
        guess = asyncio.ensure_future(
            code(served.stub.Read(pb.ReadRequest(ledger_id=ledger_id, password=b"wrong"), metadata=reader))
        )
        await guesses.begun.wait()
        guess.cancel()
        await guesses.ended.wait()
        right = pb.ReadRequest(ledger_id=ledger_id, password=b"of-it")
        assert await code(served.stub.Read(right, metadata=reader)) is OK
        assert time.monotonic() - began > 0.29


async def test_a_guess_that_is_cancelled_delays_no_call_without_a_password(cluster, tmp_path, monkeypatch, guesses):
    monkeypatch.setattr(service, "GUESS_S", 3600)
    (tmp_path / "tokens").write_text(TOKENS)
    async with serve(cluster, port={"auth_token_file": str(tmp_path / "tokens")}) as served:
        shown = {"metadata": (("authorization", "Bearer all-of-the-roles"),)}
        ledger_id = await made(served.stub, **shown)
        guess = asyncio.ensure_future(
            code(served.stub.Close(pb.CloseRequest(ledger_id=ledger_id, password=b"wrong"), **shown))
        )
        await guesses.begun.wait()
        guess.cancel()
        await guesses.ended.wait()
        async with asyncio.timeout(60):
            assert await codes(served.stub, ledger_id, **shown) == [OK] * 5


def caller(address="10.0.0.7"):
    return Caller("app", address, frozenset())


async def test_each_cancelled_guess_costs_its_caller_the_full_time(monkeypatch):
    monkeypatch.setattr(service, "GUESS_S", 0.05)
    guesses, began = service.WrongPasswords(), time.monotonic()
    told = [asyncio.create_task(guesses.slow_down(caller())) for _ in range(4)]
    await asyncio.sleep(0)
    for each in told:
        each.cancel()
    await asyncio.gather(*told, return_exceptions=True)
    with pytest.raises(StopIteration):
        guesses.wait_for_cancelled(caller("10.0.0.8")).send(None)  # which waits for nothing
    await guesses.wait_for_cancelled(caller())
    assert time.monotonic() - began > 0.19


async def test_guesses_that_are_told_delay_no_other_call(monkeypatch):
    monkeypatch.setattr(service, "GUESS_S", 0.01)
    guesses = service.WrongPasswords()
    await guesses.slow_down(caller())
    waits = asyncio.create_task(guesses.slow_down(caller()))
    await asyncio.sleep(0)
    with pytest.raises(StopIteration):
        guesses.wait_for_cancelled(caller()).send(None)
    await waits


async def test_few_refusals_of_a_name_wait_and_others_cost_their_caller_the_time(monkeypatch):
    monkeypatch.setattr(service, "GUESS_S", 3600)
    guesses = service.WrongPasswords()
    told = [asyncio.create_task(guesses.slow_down(caller())) for _ in range(service.MOST_WAITING + 5)]
    for refused in told[service.MOST_WAITING :]:
        with pytest.raises(TooManyRequests):
            await refused
    owing = [asyncio.create_task(guesses.wait_for_cancelled(caller())) for _ in range(service.MOST_WAITING + 1)]
    with pytest.raises(TooManyRequests):
        await owing.pop()
    with pytest.raises(StopIteration):
        guesses.wait_for_cancelled(caller("10.0.0.8")).send(None)  # which waits for nothing
    for each in (*told, *owing):
        each.cancel()
    await asyncio.gather(*told, *owing, return_exceptions=True)
    assert not guesses._waiting
