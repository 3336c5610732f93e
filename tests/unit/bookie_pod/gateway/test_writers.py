"""Writers that the gateway keeps: one call at a time, so many of them; every one ends, and closes its ledger."""

from __future__ import annotations

import asyncio
import time

import grpc
import pytest

from bookie_protocol.ledger_service import ledger_service_pb2 as pb
from tests.support.until import until
from tests.unit.bookie_pod.gateway.calls import CLOSED, error_of, read_all, rest_of
from tests.unit.bookie_pod.gateway.conftest import serve


async def test_a_cancelled_append_closes_its_ledger(cluster, served, stub):
    call = stub.Append()
    await call.write(pb.AppendRequest(create=pb.CreateRequest(), entries=[b"a", b"b"]))
    ledger_id = (await call.read()).ledger_id
    assert (await call.read()).last_entry_id == 1
    call.cancel()
    await until(lambda: cluster.stored(ledger_id).is_closed)
    assert cluster.stored(ledger_id).last_entry_id == 1
    await until(lambda: (served.writers, served.level("OPEN_STREAMS")) == (0, 0))


async def test_a_deadline_ends_calls_and_what_they_opened(cluster, served, stub):
    first = pb.AppendRequest(create=pb.CreateRequest(), entries=[b"a"])
    call = stub.Append(timeout=0.3)
    await call.write(first)
    ledger_id = (await call.read()).ledger_id
    tail = stub.Tail(pb.TailRequest(ledger_id=ledger_id, first_entry_id=5), timeout=0.2)
    for each in (tail, call):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            while await each.read() is not grpc.aio.EOF:
                pass
        assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await until(lambda: cluster.stored(ledger_id).is_closed)
    await until(lambda: (served.writers, served.level("OPEN_STREAMS")) == (0, 0))


async def test_a_connection_that_is_lost_closes_the_ledger(cluster, served):
    channel = grpc.aio.insecure_channel(f"127.0.0.1:{served.server.port}", [("grpc.use_local_subchannel_pool", 1)])
    append = channel.stream_stream(
        "/podkeeper.ledger.v1.LedgerService/Append",
        request_serializer=pb.AppendRequest.SerializeToString,
        response_deserializer=pb.AppendResponse.FromString,
    )
    call = append()
    await call.write(pb.AppendRequest(create=pb.CreateRequest(), entries=[b"a"]))
    ledger_id = (await call.read()).ledger_id
    await channel.close()
    await until(lambda: cluster.stored(ledger_id).is_closed)


async def test_a_create_that_is_cancelled_half_way_leaves_no_writer(cluster, served, stub, monkeypatch):
    gate, ledgers = asyncio.Event(), cluster.metadata.ledgers
    create = ledgers.create
    entered, cancelled = asyncio.Event(), asyncio.Event()
    writers = served.gateway._writers
    create_writer = writers.create

    async def watched(arguments):
        try:
            return await create_writer(arguments)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def slow(metadata, **options):
        entered.set()
        await gate.wait()
        return await create(metadata, **options)

    monkeypatch.setattr(ledgers, "create", slow)
    monkeypatch.setattr(writers, "create", watched)
    call = stub.Create(pb.CreateRequest(ledger_id=7))
    waiting = asyncio.ensure_future(call.code())
    await entered.wait()
    call.cancel()
    await waiting
    await cancelled.wait()
    assert served.writers == 1
    gate.set()
    await until(lambda: served.writers == 0)
    assert cluster.stored(7).is_closed


async def test_idle_writers_are_ended(cluster):
    async with serve(cluster, idle_writer_seconds=0.2) as served:
        kept = (await served.stub.Create(pb.CreateRequest())).metadata.ledger_id
        call = served.stub.Append()
        await call.write(pb.AppendRequest(create=pb.CreateRequest(), entries=[b"a"]))
        ledger_id = (await call.read()).ledger_id
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            while True:
                await call.read()
        code, reason, message = error_of(raised)
        assert (code, reason) == ("FAILED_PRECONDITION", "LedgerClosed")
        assert "gatewayIdleWriterSeconds" in message
        await until(lambda: cluster.stored(ledger_id).is_closed and cluster.stored(kept).is_closed)
        assert cluster.stored(ledger_id).last_entry_id == 0


async def test_a_writer_that_is_used_is_not_idle(cluster):
    async with serve(cluster, idle_writer_seconds=1.0) as served:  # far above a pause, for machines that are busy
        call = served.stub.Append()
        await call.write(pb.AppendRequest(create=pb.CreateRequest()))
        for _ in range(15):
            await call.write(pb.AppendRequest(entries=[b"x"]))
            await asyncio.sleep(0.1)
        await call.done_writing()
        assert [response async for response in call][-1].closed


async def test_time_in_which_the_gateway_did_not_run_is_no_idleness(cluster):
    async with serve(cluster, idle_writer_seconds=0.4) as served:
        call = served.stub.Append()
        await call.write(pb.AppendRequest(create=pb.CreateRequest()))
        await call.read()
        for _ in range(2):
            time.sleep(0.5)  # noqa: ASYNC251 - nothing runs here meanwhile, as in a paused process
            await call.write(pb.AppendRequest(entries=[b"x"]))
            await call.read()
        await call.done_writing()
        assert (await call.read()).closed


async def test_limits_on_writers_and_streams(cluster):
    async with serve(cluster, max_open_writers=2, max_streams=1) as served:
        kept = [(await served.stub.Create(pb.CreateRequest())).metadata.ledger_id for _ in range(2)]
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await served.stub.Create(pb.CreateRequest())
        assert error_of(raised)[:2] == ("RESOURCE_EXHAUSTED", "TooManyRequests")
        await served.stub.Close(pb.CloseRequest(ledger_id=kept[0]))
        await served.stub.Create(pb.CreateRequest())
        tail = served.stub.Tail(pb.TailRequest(ledger_id=kept[1], first_entry_id=0))
        await until(lambda: served.level("OPEN_STREAMS") == 1)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await read_all(served.stub, ledger_id=kept[0])
        assert error_of(raised)[:2] == ("RESOURCE_EXHAUSTED", "TooManyRequests")
        tail.cancel()
        await until(lambda: served.level("OPEN_STREAMS") == 0)
        assert len(await read_all(served.stub, ledger_id=kept[0])) == 1


async def test_one_call_at_a_time_uses_a_writer(stub):
    kept = (await stub.Create(pb.CreateRequest())).metadata.ledger_id
    first = pb.AppendRequest(existing=pb.ExistingWriter(ledger_id=kept))
    call = stub.Append()
    await call.write(first)
    await call.read()
    for other in (
        lambda: anext(aiter(stub.Append(iter([first])))),
        lambda: stub.Close(pb.CloseRequest(ledger_id=kept)),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await other()
        assert error_of(raised)[:2] == ("INVALID_ARGUMENT", "BadRequest")
    await call.done_writing()
    assert (await rest_of(call))[-1].closed


def hold_writes(ledgers, monkeypatch):
    """From now on writes of metadata wait; returns the events "one has begun" and "they may go on"."""
    begun, go_on, stored = asyncio.Event(), asyncio.Event(), ledgers.write

    async def held(*args, **more):
        begun.set()
        await go_on.wait()
        return await stored(*args, **more)

    monkeypatch.setattr(ledgers, "write", held)
    return begun, go_on


async def test_stopping_waits_for_a_close_under_way(cluster, monkeypatch):
    async with serve(cluster) as served:
        ledger_id = (await served.stub.Create(pb.CreateRequest())).metadata.ledger_id
        begun, go_on = hold_writes(cluster.metadata.ledgers, monkeypatch)
        closing = asyncio.ensure_future(served.stub.Close(pb.CloseRequest(ledger_id=ledger_id)))
        await begun.wait()
        stopping = asyncio.create_task(served.gateway.stop())
        await asyncio.wait([stopping], timeout=0.2)
        assert not stopping.done()
        go_on.set()
        await stopping
        assert (await closing).state == CLOSED
    assert cluster.stored(ledger_id).is_closed


async def test_a_close_whose_call_was_cancelled_goes_on(cluster, monkeypatch):
    async with serve(cluster) as served:
        ledger_id = (await served.stub.Create(pb.CreateRequest())).metadata.ledger_id
        begun, go_on = hold_writes(cluster.metadata.ledgers, monkeypatch)
        closing = asyncio.ensure_future(served.stub.Close(pb.CloseRequest(ledger_id=ledger_id)))
        await begun.wait()
        closing.cancel()
        await asyncio.wait([closing])
        assert served.writers == 1
        go_on.set()
        await until(lambda: served.writers == 0)
    assert cluster.stored(ledger_id).is_closed


async def test_stopping_closes_the_ledgers_that_are_written(cluster):
    async with serve(cluster) as served:
        kept = (await served.stub.Create(pb.CreateRequest())).metadata.ledger_id
        call = served.stub.Append()
        await call.write(pb.AppendRequest(create=pb.CreateRequest(), entries=[b"a"]))
        ledger_id = (await call.read()).ledger_id
        await call.read()
        await served.server.stop()
        assert (cluster.stored(kept).is_closed, cluster.stored(ledger_id).is_closed) == (True, True)
        assert cluster.stored(ledger_id).last_entry_id == 0
