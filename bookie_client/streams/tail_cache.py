"""The latest entries of a stream, read once for all readers of one `Streams` that follow its end.

Each reader that follows a stream reads every entry from the bookies itself. Where many readers of one process follow
the same stream, one tail (`SharedTail`) reads for all of them and keeps the newest entries, up to a number of bytes. A
reader that is behind these reads by itself until it has come up.

Invariants
- A reader gets the entries that a tail of its own would give, in the same order, each once. Entries that are kept may
  have been truncated since; a tail of its own may have read them before that, too.
- Whatever ends the shared tail ends every reader, behind the entries that were kept, as it would end its own tail.
- The bytes of payloads that are kept are bounded; the newest entry is kept whatever its size.
- A shared tail runs while it has readers, and nothing is under way behind the last of them.

Event loop only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Final

from bookie_client.reading.entry import LedgerEntry
from bookie_client.streams.model import StreamPosition
from bookie_protocol.errors import PodkeeperError, fresh

OVERHEAD: Final = 400
"""Bytes that an entry counts besides its payload."""

Tail = Callable[[StreamPosition], AsyncGenerator[LedgerEntry, None]]
"""A tail of one stream from a position on, which reads from the bookies."""


def position_of(entry: LedgerEntry) -> StreamPosition:
    """Return the position of an entry."""
    return StreamPosition(entry.ledger_id, entry.entry_id)


def position_after(entry: LedgerEntry) -> StreamPosition:
    """Return the position behind an entry."""
    return StreamPosition(entry.ledger_id, entry.entry_id + 1)


class SharedTail:
    """The newest entries of one stream. Made by `TailCache`.

    Entries have numbers in the order in which they were read; a position is known by the entry that follows it.
    """

    def __init__(self, begin: StreamPosition, tail: Tail, max_bytes: int) -> None:
        self.users = 0
        self._tail = tail
        self._max_bytes = max_bytes
        self._kept: deque[tuple[StreamPosition, LedgerEntry]] = deque()
        self._first = 0
        self._nbytes = 0
        self._end = begin
        self._numbers: dict[StreamPosition, int] = {begin: 0}
        self._failure: BaseException | None = None
        self._changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._run(), name="shared tail")

    @property
    def has_ended(self) -> bool:
        """Return True if no more entries come."""
        return self._failure is not None

    def number_of(self, position: StreamPosition) -> int | None:
        """Return the number of the entry that follows a position; None if it is not kept any more, or not yet."""
        return self._numbers.get(position)

    async def entries(self, number: int) -> AsyncGenerator[LedgerEntry, None]:
        """Entries from this number on, as they come. Ends where the next one is not kept any more; raises what ended
        the tail."""
        while number >= self._first:
            at = number - self._first
            if at < len(self._kept):
                number += 1
                yield self._kept[at][1]
            elif self._failure is not None:
                raise fresh(self._failure) if isinstance(self._failure, PodkeeperError) else self._failure
            else:
                if self._changed.done():
                    self._changed = asyncio.get_running_loop().create_future()
                # Not awaited itself: a reader that is cancelled would cancel it for all.
                await asyncio.wait({self._changed})

    async def stop(self) -> None:
        """End it."""
        self._task.cancel()
        await asyncio.wait({self._task})

    async def _run(self) -> None:
        try:
            async with aclosing(self._tail(self._end)) as entries:
                async for entry in entries:
                    self._keep(entry)
            self._failure = RuntimeError("a tail has no end")
        except (Exception, asyncio.CancelledError) as error:  # what the tail waits for may be cancelled, too
            self._failure = error
        self._tell()

    def _keep(self, entry: LedgerEntry) -> None:
        number = self._first + len(self._kept)
        before = self._end
        self._kept.append((before, entry))
        self._numbers[position_of(entry)] = number
        self._end = position_after(entry)
        self._numbers[self._end] = number + 1
        self._nbytes += len(entry.payload) + OVERHEAD
        while self._nbytes > self._max_bytes and len(self._kept) > 1:
            gone_before, gone = self._kept.popleft()
            self._first += 1
            self._nbytes -= len(gone.payload) + OVERHEAD
            for position in (gone_before, position_of(gone)):
                if self._numbers.get(position, self._first) < self._first:
                    del self._numbers[position]
        self._tell()

    def _tell(self) -> None:
        if not self._changed.done():
            self._changed.set_result(None)


class TailCache:
    """The shared tails of one `Streams`, by name of the stream. `max_bytes`: of each of them."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._tails: dict[str, SharedTail] = {}

    async def entries(
        self, name: str, start: StreamPosition, latest: StreamPosition, tail: Tail
    ) -> AsyncGenerator[LedgerEntry, None]:
        """The entries of a stream from `start` on, without an end. `latest`: where a shared tail begins if there is
        none. Raises as `tail`."""
        position = start
        async with self._attached(name, latest, tail) as shared:
            while True:
                number = shared.number_of(position)
                source = tail(position) if number is None else shared.entries(number)
                async with aclosing(source) as entries:
                    async for entry in entries:
                        position = position_after(entry)
                        yield entry
                        if number is None and shared.number_of(position) is not None:
                            break  # it has come up with the shared tail

    @asynccontextmanager
    async def _attached(self, name: str, latest: StreamPosition, tail: Tail) -> AsyncIterator[SharedTail]:
        shared = self._tails.get(name)
        if shared is None or shared.has_ended:
            shared = self._tails[name] = SharedTail(latest, tail, self._max_bytes)
        shared.users += 1
        try:
            yield shared
        finally:
            shared.users -= 1
            if not shared.users:
                if self._tails.get(name) is shared:
                    del self._tails[name]
                await shared.stop()
