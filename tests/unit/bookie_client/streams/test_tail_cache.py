"""Readers that follow one stream share what one of them reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress

import pytest

from bookie_client.reading.entry import LedgerEntry
from bookie_client.streams.model import StreamPosition
from bookie_client.streams.tail_cache import OVERHEAD, SharedTail, TailCache, position_after
from bookie_protocol.errors import NoSuchStream
from tests.support.until import until

LARGE = 1 << 20
SIX = 6 * (OVERHEAD + 2)


class Source:
    """A stream of ledgers with ten entries each, of which so many are confirmed; `reads` counts entries that a tail of
    it gave."""

    def __init__(self) -> None:
        self.entries: list[LedgerEntry] = []
        self.reads = 0
        self.failure: Exception | None = None
        self._grew = asyncio.Event()

    def grow(self, count: int) -> None:
        for number in range(len(self.entries), len(self.entries) + count):
            self.entries.append(LedgerEntry(number // 10, number % 10, 0, b"%02d" % number))
        self._grew.set()
        self._grew = asyncio.Event()

    def fail(self, error: Exception) -> None:
        self.failure = error
        self._grew.set()

    @property
    def end(self) -> StreamPosition:
        return position_after(self.entries[-1]) if self.entries else StreamPosition(-1, 0)

    async def tail(self, start: StreamPosition) -> AsyncGenerator[LedgerEntry, None]:
        at = 10 * start.ledger_id + start.entry_id if start.ledger_id >= 0 else 0
        while True:
            if at < len(self.entries):
                self.reads += 1
                at += 1
                yield self.entries[at - 1]
            elif self.failure is not None:
                raise self.failure
            else:
                await self._grew.wait()


class Reader:
    """A task that collects what it is given, as fast as `gate` is open."""

    def __init__(self, cache: TailCache, source: Source, start: StreamPosition) -> None:
        self.found: list[bytes] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.task = asyncio.create_task(self._run(cache.entries("s", start, source.end, source.tail)))

    async def _run(self, entries: AsyncGenerator[LedgerEntry, None]) -> None:
        async with aclosing(entries):
            async for entry in entries:
                self.found.append(entry.payload)
                await self.gate.wait()

    async def stop(self) -> None:
        self.task.cancel()
        with suppress(asyncio.CancelledError):
            await self.task


def payloads(first: int, last: int) -> list[bytes]:
    return [b"%02d" % number for number in range(first, last)]


async def test_many_readers_cost_the_reads_of_one() -> None:
    source, cache = Source(), TailCache(LARGE)
    source.grow(5)
    readers = [Reader(cache, source, source.end) for _ in range(20)]
    await asyncio.sleep(0)
    for _ in range(8):
        source.grow(5)
        await until(lambda: all(each.found[-1:] == [source.entries[-1].payload] for each in readers))
    assert all(each.found == payloads(5, 45) for each in readers)
    assert source.reads == 40
    for each in readers:
        await each.stop()
    assert cache._tails == {}
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "shared tail"]


async def test_reader_that_begins_earlier_comes_up_with_the_others() -> None:
    source, cache = Source(), TailCache(LARGE)
    source.grow(15)
    late = Reader(cache, source, source.end)
    early = Reader(cache, source, StreamPosition(0, 3))
    await until(lambda: len(early.found) == 12)
    source.grow(10)
    await until(lambda: len(late.found) == 10 and len(early.found) == 22)
    assert (early.found, late.found) == (payloads(3, 25), payloads(15, 25))
    assert source.reads <= 12 + 10 + 1
    for each in (early, late):
        await each.stop()


async def test_slow_reader_misses_nothing_and_holds_up_nobody() -> None:
    source, cache = Source(), TailCache(SIX)
    slow, fast = Reader(cache, source, source.end), Reader(cache, source, source.end)
    slow.gate.clear()
    for _ in range(30):
        source.grow(1)
        await until(lambda: fast.found[-1:] == [source.entries[-1].payload])
    assert slow.found == payloads(0, 1)
    slow.gate.set()
    await until(lambda: len(slow.found) == 30)
    assert slow.found == fast.found == payloads(0, 30)
    for each in (slow, fast):
        await each.stop()


async def test_what_is_kept_is_bounded() -> None:
    source = Source()
    shared = SharedTail(source.end, source.tail, SIX)
    source.grow(200)
    await until(lambda: shared.number_of(source.end) is not None)
    assert len(shared._kept) <= 6
    assert len(shared._numbers) <= 2 * 6 + 2
    assert shared.number_of(StreamPosition(0, 0)) is None
    await shared.stop()


async def test_error_ends_every_reader_behind_what_was_kept() -> None:
    source, cache = Source(), TailCache(LARGE)
    readers = [Reader(cache, source, source.end) for _ in range(3)]
    source.grow(3)
    source.fail(NoSuchStream("gone"))
    for each in readers:
        with pytest.raises(NoSuchStream):
            await each.task
        assert each.found == payloads(0, 3)
    source.failure = None
    again = Reader(cache, source, source.end)
    await asyncio.sleep(0)
    source.grow(2)
    await until(lambda: again.found == payloads(3, 5))
    await again.stop()


async def test_cancelled_reader_disturbs_no_other() -> None:
    source, cache = Source(), TailCache(LARGE)
    first, other = Reader(cache, source, source.end), Reader(cache, source, source.end)
    await asyncio.sleep(0)
    await first.stop()
    source.grow(3)
    await until(lambda: other.found == payloads(0, 3))
    await other.stop()


async def test_a_tail_that_was_cancelled_from_within_ends_its_readers() -> None:
    async def cancelled(start: StreamPosition) -> AsyncGenerator[LedgerEntry, None]:
        await asyncio.sleep(0)
        raise asyncio.CancelledError
        yield

    entries = TailCache(LARGE).entries("s", StreamPosition(-1, 0), StreamPosition(-1, 0), cancelled)
    reading = asyncio.create_task(anext(entries))  # type: ignore[arg-type]
    async with asyncio.timeout(5):
        await asyncio.wait({reading})
    assert reading.cancelled()
