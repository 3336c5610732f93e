"""Whether copies that were just made, and are named by the metadata by now, are all there.

A bookie collects what no metadata name, once it has the ledger's lock. Where a lock ended before its holder knew,
copies may go after they were acknowledged and before they are named; afterwards they stay.

Bookies that list their entries are believed; of those that do not (Java's with DbLedgerStorage never answer) the first
entry is read: whoever collects a ledger takes all of it that is there.

Event loop only.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Final

from bookie_client.client import Client
from bookie_client.replication.copy_adds import TargetFailed
from bookie_client.replication.fragments import Fragment
from bookie_client.replication.throttle import ReplicationThrottle
from bookie_protocol.errors import BookieTimeout, CopyLost, NotThere, PodkeeperError

LISTS_TO_GIVE_UP: Final = 3
"""A bookie that was silent so often in a row is not asked for lists again."""
YIELD_EVERY: Final = 20_000
"""Entries compared before other tasks get their turn."""


class NewCopies:
    """Looks for one client. Bounded by the number of bookies."""

    def __init__(self, client: Client, throttle: ReplicationThrottle) -> None:
        self._operations = client.operations
        self._throttle = throttle
        self._silences: Counter[str] = Counter()

    async def check(self, fragment: Fragment, position: int, bookie: str) -> None:
        """Raises `TargetFailed`: the bookie lacks an entry that striping puts at this position."""
        missing = await self._missing(fragment, position, bookie)
        if missing is not None:
            said = f"ledger {fragment.ledger_id}: the new copy of entry {missing} on {bookie} has gone again"
            raise TargetFailed(bookie, CopyLost(said))

    async def _missing(self, fragment: Fragment, position: int, bookie: str) -> int | None:
        """The first entry that is not there; None: all are, as far as the bookie tells."""
        entries = fragment.entries_of(position)
        if self._silences[bookie] < LISTS_TO_GIVE_UP:
            await self._throttle.read(0)
            try:
                listed = await self._operations.entries_of_ledger(bookie, fragment.ledger_id)
            except NotThere:
                return entries[0]
            except BookieTimeout:
                self._silences[bookie] += 1
            except PodkeeperError:
                pass
            else:
                self._silences.pop(bookie, None)
                for looked_at, entry_id in enumerate(entries, 1):
                    if entry_id not in listed:
                        return entry_id
                    if not looked_at % YIELD_EVERY:
                        await asyncio.sleep(0)
                return None
        await self._throttle.read(0)
        try:
            await self._operations.read_entry(bookie, fragment.ledger_id, entries[0])
        except NotThere:
            return entries[0]
        except PodkeeperError:
            return None  # it does not answer: the checks of lost and silent bookies see to that
        return None
