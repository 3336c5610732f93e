"""What callers of the gateway make it hold: counted in bytes, shared, and taken from those who are in the way."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress

import grpc
import pytest

from bookie_pod.client_memory import BEGUN_LEAVES, Share
from bookie_pod.server.grpc.receiving import FIRST_SHARE
from bookie_protocol.ledger_service import ledger_service_pb2 as pb
from bookie_protocol.ledger_service.ledger_service_pb2_grpc import LedgerServiceStub
from tests.support.until import until
from tests.unit.bookie_pod.gateway.calls import batches, error_of, read_all, rest_of, write
from tests.unit.bookie_pod.gateway.conftest import serve

KB, MB = 1 << 10, 1 << 20
LIMIT = 8 * MB


@asynccontextmanager
async def channels(served, count):
    """With a connection each."""
    made = [
        grpc.aio.insecure_channel(f"127.0.0.1:{served.server.port}", options=(("grpc.use_local_subchannel_pool", 1),))
        for _ in range(count)
    ]
    try:
        yield made
    finally:
        for channel in made:
            await channel.close()


@asynccontextmanager
async def connections(served, count):
    """Stubs with a connection each."""
    async with channels(served, count) as made:
        yield [LedgerServiceStub(channel) for channel in made]


class Peak:
    """The most that was held or foreseen, looked at whenever it is more."""

    def __init__(self, memory, monkeypatch):
        self.nbytes = 0
        before, taken = memory.relieve, Share.take

        def relieve(now, wanted=0):
            before(now, wanted)
            self.nbytes = max(self.nbytes, memory.total)

        def take(share, nbytes, **more):
            fits = taken(share, nbytes, **more)
            self.nbytes = max(self.nbytes, memory.total)
            return fits

        monkeypatch.setattr(memory, "relieve", relieve)
        monkeypatch.setattr(Share, "take", take)


async def test_messages_of_many_appends_wait_for_room(cluster, monkeypatch):
    async with serve(cluster, LIMIT, max_message_bytes=MB, max_pending_bytes=2 * MB) as served:
        peak = Peak(served.memory, monkeypatch)
        for server in cluster.servers.values():
            server.hold = True
        payload = bytes(900 * KB)
        appends = [asyncio.create_task(write(served.stub, *batches(1, 1, 1, payload=payload))) for _ in range(20)]
        await until(lambda: served.level("PENDING_BYTES") > MB)
        await asyncio.sleep(0.1)
        for server in cluster.servers.values():
            server.release()
        for responses in await asyncio.gather(*appends):
            assert (responses[-1].last_entry_id, responses[-1].closed) == (2, True)
        assert MB < peak.nbytes <= LIMIT + 2 * MB  # a message counts twice once it is there
        await until(lambda: served.memory.total == 0)


async def test_reads_that_nobody_takes_hold_a_part_and_others_go_on(cluster, monkeypatch):
    async with serve(cluster, LIMIT) as served:
        ledger_id = (await write(served.stub, *[pb.AppendRequest(entries=[bytes(64 * KB)] * 8)] * 12))[0].ledger_id
        peak = Peak(served.memory, monkeypatch)
        async with connections(served, 2) as (greedy, modest):
            untaken = [greedy.Read(pb.ReadRequest(ledger_id=ledger_id)) for _ in range(40)]
            await until(lambda: served.memory.total > LIMIT // 4)
            taken = await read_all(modest, ledger_id=ledger_id)
            assert sum(len(response.entries) for response in taken) == 96
            assert peak.nbytes <= LIMIT
            for call in untaken:
                call.cancel()
        await until(lambda: served.memory.total == 0)


async def test_who_does_not_take_what_it_asked_for_makes_way(cluster, monkeypatch):
    """Fifteen connections want more than all that reads may have. Whoever comes then waits until those before it, who
    come in turns, have lost their calls."""
    async with serve(cluster, LIMIT) as served:
        ledger_id = (await write(served.stub, *[pb.AppendRequest(entries=[bytes(64 * KB)] * 8)] * 12))[0].ledger_id
        peak = Peak(served.memory, monkeypatch)
        async with connections(served, 15) as stubs:
            untaken = [stub.Read(pb.ReadRequest(ledger_id=ledger_id)) for stub in stubs]
            await until(lambda: served.level("OPEN_STREAMS") == len(untaken))
            await until(lambda: served.memory.total > LIMIT - LIMIT // BEGUN_LEAVES - 3 * MB // 2)
            taken = await read_all(served.stub, ledger_id=ledger_id)
            assert sum(len(response.entries) for response in taken) == 96
            assert peak.nbytes <= LIMIT
            assert served.memory.cut_off > 0
            codes = []
            for call in untaken:
                with suppress(grpc.aio.AioRpcError):
                    await rest_of(call)
                codes.append((await call.code()).name)
            assert set(codes) == {"OK", "RESOURCE_EXHAUSTED"}
        await until(lambda: served.memory.total == 0)


async def test_what_is_given_with_a_ledger_is_bounded(cluster):
    async with serve(cluster, LIMIT) as served:
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await served.stub.Create(pb.CreateRequest(password=bytes(40 * KB), custom_metadata={"a": bytes(40 * KB)}))
        assert error_of(raised)[:2] == ("INVALID_ARGUMENT", "BadRequest")
        large = pb.CreateRequest(custom_metadata={"a": bytes(60 * KB)})
        kept = []
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            while True:
                kept.append((await served.stub.Create(large)).metadata.ledger_id)
        assert error_of(raised)[:2] == ("RESOURCE_EXHAUSTED", "TooManyRequests")
        assert len(kept) == 17
        await until(lambda: served.memory.held < LIMIT // 8)  # the last request is let go when it is answered
        await served.stub.Close(pb.CloseRequest(ledger_id=kept[0]))
        kept[0] = (await served.stub.Create(large)).metadata.ledger_id
        for ledger_id in kept:
            await served.stub.Close(pb.CloseRequest(ledger_id=ledger_id))
        assert served.memory.held == 0


async def test_no_connection_has_more_streams_than_are_left(cluster):
    async with serve(cluster, max_streams=8) as served, connections(served, 2) as (greedy, modest):
        kept = (await served.stub.Create(pb.CreateRequest())).metadata.ledger_id
        tails = []
        for _ in range(4):
            tails.append(greedy.Tail(pb.TailRequest(ledger_id=kept)))
            await until(lambda: served.level("OPEN_STREAMS") == len(tails))
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await read_all(greedy, ledger_id=kept)
        assert error_of(raised)[:2] == ("RESOURCE_EXHAUSTED", "TooManyRequests")
        assert len(await read_all(modest, ledger_id=kept)) == 1
        tails[0].cancel()
        await until(lambda: served.level("OPEN_STREAMS") == 3)
        assert len(await read_all(greedy, ledger_id=kept)) == 1


async def test_silent_streams_reserve_nothing(cluster):
    """A stream may be silent for hours; at first room is kept for its first message."""
    async with serve(cluster, LIMIT, max_message_bytes=4 * MB) as served:
        silent = [served.stub.Append() for _ in range(10)]
        await until(lambda: served.memory.total > 0)
        assert served.memory.total <= LIMIT
        assert len(await write(served.stub, *batches(2))) >= 2
        for call in silent:
            call.cancel()
        await until(lambda: served.memory.total == 0)


def unary(channel, served, name):
    """A call with one request, which is sent as it is."""
    service = next(iter(served.gateway.names))
    return channel.unary_unary(f"/{service}/{name}")


async def test_large_requests_of_calls_that_want_a_few_bytes(cluster, monkeypatch):
    """They are received a few at a time, and not looked at."""
    async with serve(cluster, LIMIT, max_message_bytes=2 * MB) as served, channels(served, 8) as made:
        peak = Peak(served.memory, monkeypatch)
        junk = b"\xa2\x06\x80\x89\x7a" + bytes(2_000_000)  # one unknown field

        async def refused(channel):
            with pytest.raises(grpc.aio.AioRpcError) as raised:
                await unary(channel, served, "GetMetadata")(junk)
            return raised.value.code().name, raised.value.details()

        async with asyncio.timeout(20):
            told = set(await asyncio.gather(*(refused(channel) for channel in made for _ in range(6))))
        assert told == {("INVALID_ARGUMENT", "a request of 2000005 bytes; at most 131072 are possible")}
        assert MB <= peak.nbytes <= LIMIT
        assert served.memory.cut_off == 0
        await until(lambda: served.memory.total == 0)


async def test_calls_whose_request_does_not_come_make_way(cluster, monkeypatch):
    monkeypatch.setattr("bookie_pod.client_memory.STUCK_S", 0.05)
    monkeypatch.setattr("bookie_pod.server.grpc.receiving.SILENT_S", 0.01)
    async with serve(cluster, LIMIT) as served, channels(served, FIRST_SHARE) as made:
        service = next(iter(served.gateway.names))
        silent = [channel.stream_unary(f"/{service}/GetMetadata")() for channel in made]
        await until(lambda: served.memory.held == LIMIT)
        assert served.memory.cut_off == 0, "nobody waits"
        ledger_id = (await served.stub.Create(pb.CreateRequest())).metadata.ledger_id
        assert ledger_id >= 0
        assert served.memory.cut_off > 0
        assert served.memory.total <= LIMIT
        for call in silent:
            call.cancel()
        await served.stub.Close(pb.CloseRequest(ledger_id=ledger_id))
        await until(lambda: served.memory.total == 0)


async def test_what_is_no_request_is_told_so(served):
    name = next(iter(served.gateway.names))
    call = served.channel.unary_unary(f"/{name}/Delete")
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await call(b"\xff" * 100)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
