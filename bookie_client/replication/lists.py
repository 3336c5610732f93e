"""Lists of the entries that bookies hold, and their comparison with striping.

A bookie that was silent `LISTS_TO_GIVE_UP` times in a row when it was asked for a list is not asked for
`SILENT_SECONDS`: Java's with DbLedgerStorage never answer. Requests that were under way together, as when a bookie
stands still for a moment, count once.

Event loop only. Bounded by the number of bookies.

Source: docs/internals/wire-protocol.md, section 8.8.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

from bookie_client.replication.fragments import StripedEntries
from bookie_client.replication.throttle import ReplicationThrottle
from bookie_protocol.errors import BookieTimeout, NotThere
from bookie_protocol.logs import get_logger
from bookie_protocol.wire.availability import Availability

_log = get_logger(__name__)

LISTS_TO_GIVE_UP: Final = 3
SILENT_SECONDS: Final = 600.0
YIELD_EVERY: Final = 20_000
"""Entries compared before other tasks get their turn."""
AskStored = Callable[[str, int], Awaitable[Availability]]
"""`BookieOperations.entries_of_ledger`."""


@dataclass(slots=True)
class _Silence:
    """`times`: requests in a row without an answer, as they count. `counted_at`: when the last of them ended."""

    times: int = 0
    counted_at: float = 0.0

    @property
    def until(self) -> float:
        return self.counted_at + SILENT_SECONDS if self.times >= LISTS_TO_GIVE_UP else 0.0


class Silences:
    """The bookies that returned no list when they were asked last. Any number of `Lists` may share it."""

    def __init__(self) -> None:
        self._by_bookie: dict[str, _Silence] = {}

    def is_silent(self, bookie: str) -> bool:
        """Return True if the bookie need not be asked now."""
        found = self._by_bookie.get(bookie)
        return found is not None and asyncio.get_running_loop().time() < found.until

    def add(self, bookie: str, asked_at: float) -> None:
        """A request of that moment got no answer."""
        found = self._by_bookie.setdefault(bookie, _Silence())
        if asked_at < found.counted_at:
            return
        found.times, found.counted_at = found.times + 1, asyncio.get_running_loop().time()
        if found.times == LISTS_TO_GIVE_UP:
            _log.warning("a bookie does not list its entries; it is asked again later", bookie=bookie)

    def forget(self, bookie: str) -> None:
        """It answered."""
        self._by_bookie.pop(bookie, None)


class Lists:
    """Asks bookies for lists, at the pace of a throttle."""

    def __init__(self, ask: AskStored, throttle: ReplicationThrottle, silences: Silences | None = None) -> None:
        self._ask = ask
        self._throttle = throttle
        self._silences = Silences() if silences is None else silences

    async def of(self, bookie: str, ledger_id: int) -> Availability | None:
        """Return the entries that the bookie lists of a ledger; None if it is silent. Raises its other errors."""
        if self._silences.is_silent(bookie):
            return None
        await self._throttle.read(0)
        asked_at = asyncio.get_running_loop().time()
        try:
            listed = await self._ask(bookie, ledger_id)
        except BookieTimeout:
            self._silences.add(bookie, asked_at)
            return None
        except NotThere:
            self._silences.forget(bookie)
            raise
        self._silences.forget(bookie)
        return listed


async def first_missing(entries: StripedEntries, listed: Availability) -> int | None:
    """Return the first entry that the list lacks; None if it has all. The event loop has its turns meanwhile."""
    for looked_at, entry_id in enumerate(entries, 1):
        if entry_id not in listed:
            return entry_id
        if not looked_at % YIELD_EVERY:
            await asyncio.sleep(0)
    return None
