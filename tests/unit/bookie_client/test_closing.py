"""Closing is carried out once: a cancelled call goes on behind its caller, and a second call waits for it."""

from __future__ import annotations

import asyncio
import signal
import threading

import pytest

from bookie_client.batches import Batches
from bookie_client.blocking import BlockingClient
from bookie_client.client import Client
from bookie_protocol.errors import CouldNotTell, MetadataUnavailable
from bookie_protocol.lasting import Ending
from tests.support.memory_metadata import MemoryMetadata
from tests.support.until import until


async def cancelled_after(turns, work):
    task = asyncio.create_task(work)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])


@pytest.mark.parametrize("turns", range(12))
async def test_client_that_was_cancelled_while_it_closed_closes_completely(three, turns):
    client = three.client()
    await client.start()
    ledger = await client.create(write_quorum=3, ack_quorum=2)
    await ledger.append(b"x")
    before = {each for each in asyncio.all_tasks() if "_accept" in repr(each)} | {asyncio.current_task()}
    for server in three.servers.values():
        server.hold = True
    await ledger.submit(bytes(200_000))
    await cancelled_after(turns, client.close())
    for server in three.servers.values():
        server.release()
    await client.close()
    await until(lambda: not any(server.connections for server in three.servers.values()))
    assert not {each.get_name() for each in asyncio.all_tasks() - before if "_accept" not in repr(each)}


@pytest.mark.parametrize("turns", range(4))
async def test_reader_that_was_cancelled_while_it_closed_leaves_no_task(three, turns):
    async with three.client() as client, client.create(write_quorum=3, ack_quorum=2) as ledger:
        await ledger.append(b"x")
        reader = await client.open(ledger.ledger_id)
        tail = asyncio.create_task(anext(reader.tail(5)))
        await until(lambda: any(each.long_polls for each in map(three.bookie, three.servers)))
        await cancelled_after(turns, reader.close())
        await reader.close()
        await asyncio.wait([tail])
        assert tail.exception() is not None
        left = {each.get_name() for each in asyncio.all_tasks()}
        assert not [name for name in left if "LAC of" in name or "metadata of" in name or "close reader" in name]


async def test_second_call_waits_for_the_first_and_gets_its_outcome():
    ending, gate, runs = Ending("test"), asyncio.Event(), []

    async def work():
        runs.append(1)
        await gate.wait()
        raise CouldNotTell("the end failed")

    await cancelled_after(1, ending.reach(work))
    second = asyncio.create_task(ending.reach(work))
    await asyncio.sleep(0)
    assert not second.done()
    gate.set()
    for call in (second, ending.reach(work)):
        with pytest.raises(CouldNotTell):
            await call
    assert runs == [1]


async def test_work_is_tried_again_after_an_error_that_allows_it():
    outcomes = [MetadataUnavailable("away"), None]
    ending = Ending("test", again=lambda error: isinstance(error, MetadataUnavailable))

    async def work():
        if (error := outcomes.pop(0)) is not None:
            raise error

    with pytest.raises(MetadataUnavailable):
        await ending.reach(work)
    await ending.reach(work)
    await ending.reach(work)
    assert outcomes == []


async def test_batches_end_their_iterator_though_closing_was_cancelled():
    ended = []

    async def items():
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(True)

    batches = Batches(items(), lambda _: 1)
    assert await batches.take() == [1]
    await cancelled_after(1, batches.close())
    await batches.close()
    assert ended == [True]


def test_blocking_client_that_is_closed_by_two_threads_is_closed_when_either_returns():
    client = BlockingClient(MemoryMetadata())
    client.start()
    thread = client._thread
    alive = []

    def close():
        client.close()
        alive.append(thread._thread.is_alive())

    threads = [threading.Thread(target=close) for _ in range(3)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert alive == [False] * 3


@pytest.mark.timeout(20)
def test_blocking_client_is_closed_by_a_signal_handler_that_interrupts_its_close(monkeypatch):
    client = BlockingClient(MemoryMetadata())
    client.start()
    thread, parts = client._thread, client._client._parts
    close, alive = parts._close, []

    async def close_when_interrupted():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
        await until(lambda: alive)
        await close()

    def on_signal(*_):
        alive.append(True)
        client.close()
        alive.append(thread._thread.is_alive())

    monkeypatch.setattr(parts, "_close", close_when_interrupted)
    before = signal.signal(signal.SIGUSR1, on_signal)
    try:
        client.close()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert alive == [True, False]


def test_client_that_was_closed_starts_again_on_another_loop():
    client = BlockingClient(MemoryMetadata())
    for _ in range(2):
        with client:
            assert list(client.list()) == []


@pytest.mark.parametrize("turns", range(6))
async def test_client_that_is_closed_while_it_starts_is_closed(monkeypatch, turns):
    opened, closed = [], []

    async def connect(uri, options):
        for _ in range(4):
            await asyncio.sleep(0)
        opened.append(MemoryMetadata())
        monkeypatch.setattr(opened[-1], "close", closing)
        return opened[-1]

    async def closing():
        closed.append(1)

    monkeypatch.setattr("bookie_protocol.metadata_service.uri.connect_metadata_service", connect)
    before = asyncio.all_tasks()
    client = Client("zk://nowhere/ledgers")
    starting = asyncio.create_task(client.start())
    for _ in range(turns):
        await asyncio.sleep(0)
    await client.close()
    await asyncio.wait([starting])
    if starting.exception() is None:
        await client.close()
    assert (len(opened), asyncio.all_tasks()) == (len(closed), before)
    await client.start()
    await client.close()
    assert (len(opened), asyncio.all_tasks()) == (len(closed), before)


async def test_client_that_runs_is_not_started_a_second_time(three):
    async with three.client() as client, client.create(write_quorum=3, ack_quorum=2) as ledger:
        with pytest.raises(RuntimeError):
            await client.start()
        assert await ledger.append(b"x") == 0
