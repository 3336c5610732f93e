"""Tailing: the entries of a ledger as they become confirmed, until it is closed and read to its end.

Invariants
- Entries come in order, without gaps, each once, and never above the LAC.
- The iteration ends behind the last entry of the closed ledger; it never takes silence for the end.
- Nothing is under way after it ended, was cancelled, or was closed (`aclose`).

Event loop only.

Source: reference client protocol, section 12.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing

from bookie_client.reading.entry import LedgerEntry
from bookie_client.reading.followed import FollowedLedger
from bookie_client.reading.lac_follower import LacFollower

ReadBatches = Callable[[int, int], AsyncGenerator[list[LedgerEntry], None]]
"""Reads confirmed entries, from the first id to the last."""


async def tail(
    ledger: FollowedLedger, follower: LacFollower, read: ReadBatches, start: int
) -> AsyncIterator[LedgerEntry]:
    """Raises what reading an entry raises, `NoSuchLedger` when the ledger was deleted while it was open, and
    `LedgerClosed` when its handle was closed."""
    entry_id = start
    async with follower.attached():
        while True:
            came_along = await follower.reach(entry_id) if ledger.lac < entry_id else None
            if ledger.lac < entry_id:
                return
            if came_along is not None:
                entry_id += 1
                yield came_along
                continue
            async with aclosing(read(entry_id, ledger.lac)) as batches:
                async for batch in batches:
                    for entry in batch:
                        entry_id = entry.entry_id + 1
                        yield entry
