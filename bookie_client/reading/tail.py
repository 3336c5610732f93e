"""Tailing: the entries of a ledger as they become confirmed, until it is closed and read to its end.

Invariants
- Entries come in order, without gaps, each once, and never above the LAC.
- The iteration ends behind the last entry of the closed ledger; it never takes silence for the end.
- A moment in which no bookie can be reached does not end it: a confirmed entry is asked for again, after pauses
  that double up to `MAX_PAUSE`, for as long as the client's options say. That holds also while some of its copies are
  damaged and the others cannot be reached. An error that waiting does not mend (damage everywhere, a wrong password,
  no such entry) is raised at once.
- Nothing is under way after it ended, was cancelled, or was closed (`aclose`).

Event loop only.

Source: reference client protocol, section 12.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing
from typing import Final

from bookie_client.reading.entry import LedgerEntry
from bookie_client.reading.followed import FollowedLedger
from bookie_client.reading.lac_follower import LacFollower
from bookie_client.reading.read_failure import may_pass
from bookie_protocol.errors import PodkeeperError, fresh

ReadBatches = Callable[[int, int], AsyncGenerator[Sequence[LedgerEntry], None]]
"""Reads confirmed entries, from the first id to the last."""

FIRST_PAUSE: Final = 0.05
MAX_PAUSE: Final = 1.0
"""Seconds between two attempts."""


async def tail(
    ledger: FollowedLedger, follower: LacFollower, read: ReadBatches, start: int, patience: float
) -> AsyncIterator[LedgerEntry]:
    """Raises what reading an entry raises, `NoSuchLedger` when the ledger was deleted while it was open, and
    `LedgerClosed` when its handle was closed. `patience`: seconds for which an entry that no bookie serves at
    present is tried."""
    entry_id = start
    retry = _Retry(ledger, patience)
    async with follower.attached():
        while True:
            came_along = await follower.reach(entry_id) if ledger.lac < entry_id else None
            if ledger.lac < entry_id:
                return
            if came_along is not None:
                entry_id += 1
                yield came_along
                continue
            try:
                async with aclosing(read(entry_id, ledger.lac)) as batches:
                    async for batch in batches:
                        for entry in batch:
                            entry_id = entry.entry_id + 1
                            yield entry
            except PodkeeperError as error:
                if not may_pass(error):
                    raise
                await retry.pause(entry_id, error)


class _Retry:
    """Pauses between attempts to read one entry, and their end."""

    def __init__(self, ledger: FollowedLedger, patience: float) -> None:
        self._ledger = ledger
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._entry_id = -1
        self._pause = self._until = 0.0

    async def pause(self, entry_id: int, error: PodkeeperError) -> None:
        """Wait until this entry may be tried again. Raises `error` when it was tried for long enough, or what
        ended the handle meanwhile."""
        now = self._loop.time()
        if entry_id != self._entry_id:
            self._entry_id, self._pause, self._until = entry_id, 0.0, now + self._patience
        if now >= self._until or self._ledger.is_deleted:
            raise fresh(error)
        self._pause = min(max(2 * self._pause, FIRST_PAUSE), MAX_PAUSE)
        again = min(now + self._pause, self._until)
        while self._ledger.failure is None and (left := again - self._loop.time()) > 0:
            await asyncio.wait({self._ledger.next_change}, timeout=left)
        if self._ledger.failure is not None:
            raise fresh(self._ledger.failure)
