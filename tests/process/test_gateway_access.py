"""The gateway of a cluster that demands certificates everywhere, and a token."""

from __future__ import annotations

import grpc
import pytest

from bookie_protocol.ledger_service import ledger_service_pb2 as pb
from bookie_protocol.ledger_service.ledger_service_pb2_grpc import LedgerServiceStub
from tests.support.guarded_grpc import GuardedGrpc
from tests.support.standalone_command import StandaloneCommand

QUORUMS = {"ensemble_size": 1, "write_quorum": 1, "ack_quorum": 1}


@pytest.fixture(scope="module")
def access(tmp_path_factory):
    return GuardedGrpc(tmp_path_factory.mktemp("access"), client_certificates=True)


@pytest.fixture(scope="module")
def address(access, tmp_path_factory):
    bookies = {f"--set={key}={value}" for key, value in access.certificates.settings(demand_client=True).items()}
    data = tmp_path_factory.mktemp("standalone") / "data"
    with StandaloneCommand(data, "--bookies", "1", *access.arguments, *bookies) as cluster:
        yield cluster.grpc[0]


async def test_who_shows_certificate_and_token_writes_and_reads(access, address):
    shown = access.credentials(token=access.token, certificate="client")
    async with grpc.aio.secure_channel(address, shown) as channel:
        stub = LedgerServiceStub(channel)
        first = pb.AppendRequest(create=pb.CreateRequest(**QUORUMS), entries=[b"x"] * 1000)
        responses = [response async for response in stub.Append(iter([first]))]
        assert (responses[-1].last_entry_id, responses[-1].closed) == (999, True)
        request = pb.ReadRequest(ledger_id=responses[-1].ledger_id)
        read = [entry async for response in stub.Read(request) for entry in response.entries]
        assert read == [b"x"] * 1000


@pytest.mark.parametrize(
    ("token", "certificate", "code"),
    [
        (None, "client", grpc.StatusCode.UNAUTHENTICATED),
        ("wrong", "client", grpc.StatusCode.UNAUTHENTICATED),
        ("kept-secret-of-the-port", None, grpc.StatusCode.UNAVAILABLE),
        ("kept-secret-of-the-port", "unknown", grpc.StatusCode.UNAVAILABLE),
    ],
)
async def test_others_are_refused(access, address, token, certificate, code):
    shown = access.credentials(token=token, certificate=certificate)
    async with grpc.aio.secure_channel(address, shown) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await LedgerServiceStub(channel).Create(pb.CreateRequest(**QUORUMS), timeout=10)
        assert raised.value.code() is code
        if code is grpc.StatusCode.UNAUTHENTICATED:
            assert "grpcServerAuthTokenFile" in raised.value.details()
