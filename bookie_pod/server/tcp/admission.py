"""The admission of adds, and the notification of waiting connections when it changes.

Invariants
- `hot` is False whenever any reason exists to look at an add before admitting it: read-only mode, a full half of a
  write cache, a journal whose queue is at its limit, too many adds in progress.
- Connections park their adds and register for the *place* where they wait. Ledgers of one place share their write cache
  and their journal, so that the answer to one of them holds for all. There are few places, whatever the number of
  ledgers and connections: what an acknowledgement costs depends on what it admits, not on what waits.
- The connection that waits longest for a place goes first, for one turn, and then queues behind the others: none waits
  for one that has much.
- `adds_in_progress` counts cold adds when they are admitted and hot adds when their socket read is submitted: the limit
  on adds in progress may be passed by what one socket read holds.

Threads: event loop only; the storage and the journals hop to it before they call.

Source: docs/internals/wire-protocol.md, section 10.3; docs/internals/bookie-behaviour.md, sections 1.4 and 3.1.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, Protocol

from bookie_pod.storage.engines.interface import LedgerStorage
from bookie_pod.storage.journal.journal import Journal

PARKED_BYTES_MAX: Final = 64 * 1024 * 1024
"""Bytes of adds that wait in connections, over all of them, at which those read nothing more."""


class WaitingAdds(Protocol):
    """The adds of one connection that wait: `parked_adds.ParkedAdds`, which knows this module."""

    def admit_some(self, place: int) -> bool:
        """There is room: admit what one turn allows. Whether more wait for this place."""
        ...

    def mode_changed(self) -> None:
        """Refuse what the bookie does not take any more."""
        ...


class WriteAdmission:
    """The gate in front of the write cache and the journals."""

    def __init__(
        self,
        storage: LedgerStorage,
        journals: Sequence[Journal],
        *,
        adds_in_progress_max: int = 0,
        parked_bytes_max: int = PARKED_BYTES_MAX,
    ) -> None:
        self._storage = storage
        self._journals = journals
        self._adds_in_progress_max = adds_in_progress_max
        self._read_only = False
        self._high_priority_writes = True
        self._places = math.lcm(storage.write_caches, len(journals))
        self._full: set[int] = set()
        """The write caches whose active half is full."""
        self._waiting: dict[int, OrderedDict[WaitingAdds, None]] = {}
        """The waiting adds by place, those that wait longest in front."""
        self._admitting = False
        self._again = False
        """True if the admitted adds have made room at once, as without journaled data."""
        self.adds_in_progress = 0
        self.parked_adds = 0
        """Adds that wait in connections, over all of them."""
        self.parked_bytes = 0
        self.parked_bytes_max = parked_bytes_max
        self.hot = True
        storage.on_space(self.refresh)

    # --- read-only mode -------------------------------------------------------------------------------------

    def set_mode(self, *, read_only: bool, high_priority_writes: bool) -> None:
        """The bookie changed its mode. High-priority adds may still pass a read-only bookie that has disk headroom."""
        self._read_only = read_only
        self._high_priority_writes = high_priority_writes
        for waiting in {each: None for place in self._waiting.values() for each in place}:
            waiting.mode_changed()
        self.refresh()

    def refuses(self, *, high_priority: bool) -> bool:
        """True if the bookie is read-only for this kind of add."""
        return self._read_only and not (high_priority and self._high_priority_writes)

    @property
    def read_only(self) -> bool:
        return self._read_only

    # --- room -----------------------------------------------------------------------------------------------

    def has_room(self, ledger_id: int) -> bool:
        """True if an add of this ledger can be admitted without waiting."""
        if self._storage.is_full(ledger_id):
            self.filled(ledger_id)
            return False
        return not self._too_many_in_progress() and self._journals[ledger_id % len(self._journals)].has_room()

    def place_of(self, ledger_id: int) -> int:
        """Return the place where an add of this ledger waits; a place is the id of a ledger that would wait there."""
        return ledger_id % self._places

    def cache_full(self, ledger_id: int) -> bool:
        """True if it is the write cache that has no room for this ledger: then an add waits for a limited time only."""
        return self._storage.is_full(ledger_id)

    def filled(self, ledger_id: int) -> None:
        """The write cache that this ledger's entries go to is full: flush it, and let the next adds wait."""
        self._full.add(ledger_id % self._storage.write_caches)
        self.hot = False
        self._storage.request_flush(ledger_id)

    def started(self, entries: int) -> None:
        self.adds_in_progress += entries
        self.hot = not self._read_only and not self._blocked()

    def finished(self, entries: int) -> None:
        self.adds_in_progress -= entries
        self.acknowledged()

    def acknowledged(self) -> None:
        """A journal has acknowledged something, and so may have room."""
        if not self.hot or self._waiting:
            self.refresh()

    def refresh(self) -> None:
        """Look again, and admit what waits as far as there is room."""
        if self._full:
            self._full = {cache for cache in self._full if self._storage.is_full(cache)}
        self.hot = not self._read_only and not self._blocked()
        if not self._waiting:
            return
        self._again = True
        if self._admitting:
            return
        self._admitting = True
        try:
            while self._again:
                self._again = False
                for place in tuple(self._waiting):
                    self._admit(place)
        finally:
            self._admitting = False

    def _admit(self, place: int) -> None:
        while (waiting := self._waiting.get(place)) and not self._storage.is_full(place) and self.has_room(place):
            first = next(iter(waiting))
            if first.admit_some(place):
                if first in waiting:
                    waiting.move_to_end(first)
            else:
                self.stop_waiting(place, first)

    def wait(self, place: int, adds: WaitingAdds) -> None:
        """Have `adds` admitted when there is room at `place`."""
        self._waiting.setdefault(place, OrderedDict()).setdefault(adds)

    def stop_waiting(self, place: int, adds: WaitingAdds) -> None:
        """Remove these adds from the place; no error if none of them wait there."""
        waiting = self._waiting.get(place)
        if waiting is not None:
            waiting.pop(adds, None)
            if not waiting:
                del self._waiting[place]

    def _blocked(self) -> bool:
        return bool(self._full) or self._journals_full() or self._too_many_in_progress()

    def _journals_full(self) -> bool:
        for journal in self._journals:  # noqa: SIM110 - runs per batch, a generator costs more
            if not journal.has_room():
                return True
        return False

    def _too_many_in_progress(self) -> bool:
        return 0 < self._adds_in_progress_max <= self.adds_in_progress
