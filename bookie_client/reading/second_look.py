"""Reads that look at the metadata once more when entries could not be read: a writer may have begun a new segment, or a
copy may have moved, since the handle learnt of it last.

Event loop only.

Source: reference client protocol, section 11.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from bookie_client.reading.entry import LedgerEntry
from bookie_client.reading.range_read import RangeRead
from bookie_client.reading.reader import EntryReader
from bookie_protocol.errors import PodkeeperError

T = TypeVar("T")
Refresh = Callable[[], Awaitable[bool]]
"""Reads the metadata that the reader goes by; whether they are news. Does not raise when nobody can tell."""


def batches_with_second_look(
    reader: EntryReader, first: int, last: int, *, bound: int, refresh: Refresh
) -> AsyncGenerator[Sequence[LedgerEntry], None]:
    """As `EntryReader.batches`. What cannot be read is tried again for as long as the metadata have news."""
    return _batches(reader, first, last, reader.range(first, last, bound=bound), refresh)


async def read_with_second_look(
    reader: EntryReader,
    first: int,
    last: int,
    part: Callable[[Sequence[LedgerEntry]], Iterable[T]],
    *,
    bound: int,
    refresh: Refresh,
) -> list[T]:
    """What `part` gives of all of them, one thing of each; one bad entry fails the whole range. It costs less than
    iterating."""
    found: list[T] = []
    reading = reader.read_into(found, first, last, part, bound=bound)
    while True:
        try:
            await reading
            return found
        except PodkeeperError:
            if not await refresh():
                raise
        reading = reader.read_into(found, first + len(found), last, part, bound=last)


def whole(entries: Sequence[LedgerEntry]) -> Sequence[LedgerEntry]:
    """The part that is everything."""
    return entries


async def _batches(
    reader: EntryReader, first: int, last: int, reading: RangeRead, refresh: Refresh
) -> AsyncGenerator[Sequence[LedgerEntry], None]:
    while True:
        try:
            try:
                while (batch := await reading.next()) is not None:
                    first += len(batch)
                    yield batch
            finally:
                await reading.stop()
            return
        except PodkeeperError:
            if not await refresh():
                raise
        reading = reader.range(first, last, bound=last)
