"""Reads that look at the metadata once more when entries could not be read: a writer may have begun a new segment, or a
copy may have moved, since the handle learnt of it last.

Event loop only.

Source: reference client protocol, section 11.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing

from bookie_client.reading.entry import LedgerEntry
from bookie_client.reading.reader import EntryReader
from bookie_protocol.errors import PodkeeperError

Refresh = Callable[[], Awaitable[bool]]
"""Reads the metadata that the reader goes by; whether they are news. Does not raise when nobody can tell."""


def batches_with_second_look(
    reader: EntryReader, first: int, last: int, *, bound: int, refresh: Refresh
) -> AsyncGenerator[Sequence[LedgerEntry], None]:
    """As `EntryReader.batches`. What cannot be read is tried again for as long as the metadata have news."""
    return _batches(reader, first, last, reader.batches(first, last, bound=bound), refresh)


async def read_with_second_look(
    reader: EntryReader, first: int, last: int, *, bound: int, refresh: Refresh
) -> list[LedgerEntry]:
    """All of them; one bad entry fails the whole range."""
    entries: list[LedgerEntry] = []
    reading = reader.read_into(entries, first, last, bound=bound)
    while True:
        try:
            await reading
            return entries
        except PodkeeperError:
            if not await refresh():
                raise
        reading = reader.read_into(entries, first + len(entries), last, bound=last)


async def _batches(
    reader: EntryReader,
    first: int,
    last: int,
    batches: AsyncGenerator[Sequence[LedgerEntry], None],
    refresh: Refresh,
) -> AsyncGenerator[Sequence[LedgerEntry], None]:
    while True:
        try:
            async with aclosing(batches):
                async for batch in batches:
                    first += len(batch)
                    yield batch
            return
        except PodkeeperError:
            if not await refresh():
                raise
        batches = reader.batches(first, last, bound=last)
