"""The gateway in real bookies: what a client sees when its pod goes away."""

from __future__ import annotations

import os
import signal

import grpc
import psutil
import pytest

from bookie_client.blocking import BlockingClient
from bookie_protocol.ledger_service import ledger_service_pb2 as pb
from bookie_protocol.ledger_service.ledger_service_pb2_grpc import LedgerServiceStub
from tests.support.standalone_command import StandaloneCommand
from tests.support.until import until


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with StandaloneCommand(tmp_path_factory.mktemp("standalone") / "data") as cluster:
        yield cluster


async def appending(stub, **options):
    """A call that has written one entry, and its ledger."""
    call = stub.Append(**options)
    create = pb.CreateRequest(ensemble_size=3, write_quorum=3, ack_quorum=2)
    await call.write(pb.AppendRequest(create=create, entries=[b"stored"]))
    ledger_id = (await call.read()).ledger_id
    assert (await call.read()).last_entry_id == 0
    return call, ledger_id


async def finish(call):
    """To its end: whatever it is told later would come to the event loop of the next test."""
    await call.done_writing()
    while await call.read() is not grpc.aio.EOF:
        pass


async def test_every_gateway_serves_every_ledger(cluster):
    async with (
        grpc.aio.insecure_channel(cluster.grpc[0]) as first,
        grpc.aio.insecure_channel(cluster.grpc[1]) as second,
    ):
        call, ledger_id = await appending(LedgerServiceStub(first))
        tail = LedgerServiceStub(second).Tail(pb.TailRequest(ledger_id=ledger_id, first_entry_id=0))
        await call.write(pb.AppendRequest(entries=[b"more"] * 10_000))
        await finish(call)
        entries = [entry async for response in tail for entry in response.entries]
        assert entries == [b"stored"] + [b"more"] * 10_000


async def test_a_gateway_that_dies_is_begun_anew_and_costs_no_acknowledged_entry(cluster):
    bookie, gateway = cluster.ready["bookies"][0]["pid"], who_listens_at(cluster.grpc[0])
    assert psutil.Process(gateway).ppid() == bookie
    async with grpc.aio.insecure_channel(cluster.grpc[0]) as channel:
        call, ledger_id = await appending(LedgerServiceStub(channel))
        os.kill(gateway, signal.SIGKILL)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            while await call.read() is not grpc.aio.EOF:
                pass
        assert raised.value.code() is grpc.StatusCode.UNAVAILABLE
    # On a connection of its own: a write to the dead one may find its call ended, which gRPC calls an internal error.
    own = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(cluster.grpc[0], options=own) as channel:
        later, _ = await appending(LedgerServiceStub(channel), wait_for_ready=True, timeout=30)
        await finish(later)
    assert psutil.Process(bookie).is_running()
    with BlockingClient(cluster.uri) as client:
        assert client.recover(ledger_id).last_entry_id == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_a_pod_that_goes_away_leaves_what_was_acknowledged(cluster, number):
    async with grpc.aio.insecure_channel(cluster.grpc[2]) as channel:
        call, ledger_id = await appending(LedgerServiceStub(channel))
        gateway = who_listens_at(cluster.grpc[2])
        os.kill(psutil.Process(gateway).ppid(), number)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            while await call.read() is not grpc.aio.EOF:
                pass
        assert raised.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.FAILED_PRECONDITION)
    with BlockingClient(cluster.uri) as client:
        await until(lambda: client.metadata(ledger_id).is_closed, 20)  # the gateway ends with its bookie, in good order
        metadata = client.recover(ledger_id)
        assert (metadata.is_closed, metadata.last_entry_id) == (True, 0)
        with client.open(ledger_id) as reader:
            assert [entry.payload for entry in reader.entries()] == [b"stored"]
    count = 1 if number == signal.SIGTERM else 2
    await until(lambda: cluster.errors.read_text().count("bookie-3 is back") == count, 60)


def who_listens_at(address):
    """A gateway that was started again is another process."""
    port = int(address.rpartition(":")[2])
    (found,) = {
        each.pid for each in psutil.net_connections("tcp") if each.laddr.port == port and each.status == "LISTEN"
    }
    return found
