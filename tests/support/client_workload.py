"""A loaded ledger: a writer, readers that tail it and read ranges of it, all of which look at what they get.

Invariants
- Every entry's bytes follow from its id, and every reader compares them: nothing lost, doubled or out of order.
- `stop` raises whatever went wrong in any of them.

Event loop only.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack
from random import Random

from bookie_client import Client, ClientOptions, LedgerReader, LedgerWriter
from tests.support.until import until

PASSWORD = b"workload"
APPENDERS = 16
_PAUSE = 0.05
"""Seconds between two appends of one of them, and between two reads of ranges: three hundred appends a second, which
leave the processors to those whom the test is about."""
_PROGRESS_SECONDS = 60.0


def payload(entry_id: int) -> bytes:
    return b"entry %d " % entry_id * (1 + entry_id % 60)


class Workload:
    """An async context manager; leaving it stops everything, and checks the whole ledger."""

    def __init__(self, uri: str, options: ClientOptions, quorums: tuple[int, int, int] = (3, 3, 2)) -> None:
        self._uri = uri
        self._options = options
        self._quorums = quorums
        self._going = True
        self._stack = AsyncExitStack()
        self._appenders: list[asyncio.Task[None]] = []
        self._readers: list[asyncio.Task[None]] = []
        self.tailed: dict[int, int] = {}
        """Entries that each tail has seen."""
        self.ranges_read = 0
        self.longest_append = 0.0
        """Seconds."""
        self.longest_range = 0.0
        """Seconds."""
        self.client: Client
        self.ledger: LedgerWriter

    async def __aenter__(self) -> Workload:
        self.client = await self._stack.enter_async_context(Client(self._uri, self._options))
        ensemble, write_quorum, ack_quorum = self._quorums
        self.ledger = await self.client.create(
            ensemble=ensemble, write_quorum=write_quorum, ack_quorum=ack_quorum, password=PASSWORD
        )
        for version in (2, 3):
            options = ClientOptions(
                protocol_version=version, read_timeout=self._options.read_timeout, long_poll_timeout=1.0
            )
            reading = await self._stack.enter_async_context(Client(self._uri, options))
            reader = await self._stack.enter_async_context(reading.open(self.ledger.ledger_id, password=PASSWORD))
            self._readers += [asyncio.create_task(self._tail(reader, version))]
            self._readers += [asyncio.create_task(self._read_ranges(reader, Random(version)))]
        self._appenders = [asyncio.create_task(self._append()) for _ in range(APPENDERS)]
        await self.progress(200)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        try:
            if kind is None:
                await self._stop()
            else:
                for task in self._appenders + self._readers:
                    task.cancel()
                await asyncio.gather(*self._appenders, *self._readers, return_exceptions=True)
        finally:
            await self._stack.aclose()

    async def progress(self, further: int) -> None:
        """Wait until so many further entries are acknowledged, and the tails have come as far. Raises what failed."""
        end = self.ledger.last_add_confirmed + further
        await until(lambda: self._failed() or self.ledger.last_add_confirmed >= end, _PROGRESS_SECONDS)
        await until(lambda: self._failed() or min(self.tailed.values()) >= end, _PROGRESS_SECONDS)
        for task in self._failed():
            task.result()

    def forget_latencies(self) -> None:
        """Measure from here on."""
        self.longest_append = self.longest_range = 0.0

    async def _stop(self) -> None:
        self._going = False
        await asyncio.gather(*self._appenders)
        await self.ledger.close()
        await asyncio.gather(*self._readers)
        count = self.ledger.last_add_confirmed + 1
        assert set(self.tailed.values()) == {count}
        async with self.client.open(self.ledger.ledger_id, password=PASSWORD) as reader:
            assert reader.is_closed
            found = [entry.payload async for entry in reader.entries()]
        assert found == [payload(entry_id) for entry_id in range(count)]

    def _failed(self) -> list[asyncio.Task[None]]:
        return [task for task in self._appenders + self._readers if task.done()]

    async def _append(self) -> None:
        while self._going:
            began, wanted = time.monotonic(), self.ledger.last_add_pushed + 1
            assert await self.ledger.append(payload(wanted)) == wanted
            self.longest_append = max(self.longest_append, time.monotonic() - began)
            await asyncio.sleep(_PAUSE)

    async def _tail(self, reader: LedgerReader, name: int) -> None:
        self.tailed[name] = 0
        async for entry in reader.tail():
            assert entry.entry_id == self.tailed[name]
            assert entry.payload == payload(entry.entry_id)
            self.tailed[name] += 1

    async def _read_ranges(self, reader: LedgerReader, random: Random) -> None:
        while self._going:
            last = random.randint(-1, reader.last_add_confirmed)
            first = max(0, last - 50)
            began = time.monotonic()
            found = await reader.read(first, last)
            self.longest_range = max(self.longest_range, time.monotonic() - began)
            assert [entry.payload for entry in found] == [payload(entry_id) for entry_id in range(first, last + 1)]
            self.ranges_read += 1
            await asyncio.sleep(_PAUSE)
