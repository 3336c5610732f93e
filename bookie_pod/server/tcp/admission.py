"""Whether an add may be admitted right now, and who is told when that changes.

Invariants
- `hot` is False whenever any reason exists to look at an add before admitting it: read-only mode, a full half of a
  write cache, a journal whose queue is at its limit, too many adds in progress.
- Nothing waits here: connections park their adds and register; `refresh` tells them when there may be room, and only
  when something has changed for them: a directory that is full must not make every acknowledgement of the others
  walk through all that waits for it.
- `adds_in_progress` counts cold adds when they are admitted and hot adds when their socket read is submitted: the limit
  on adds in progress may be passed by what one socket read holds.

Threads: event loop only; the storage and the journals hop to it before they call.

Source: reference wire protocol, section 10.3; bookie behaviour, sections 1.4 and 3.1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from bookie_pod.storage.engines.interface import LedgerStorage


class JournalLoad(Protocol):
    """The load of one journal."""

    def has_room(self) -> bool:
        """Whether its limits on unacknowledged records and bytes allow more."""
        ...


class WriteAdmission:
    """The gate in front of the write cache and the journals."""

    def __init__(
        self,
        storage: LedgerStorage,
        journals: Sequence[JournalLoad],
        *,
        adds_in_progress_max: int = 0,
    ) -> None:
        self._storage = storage
        self._journals = journals
        self._adds_in_progress_max = adds_in_progress_max
        self._read_only = False
        self._high_priority_writes = True
        self._full: set[int] = set()
        """A ledger of each directory whose active half is full, or more than one."""
        self._waiting: dict[Callable[[], None], None] = {}
        self._changed = False
        """Something that somebody may wait for has changed, or changes with the next acknowledgement."""
        self.adds_in_progress = 0
        self.parked_adds = 0
        """Adds that wait in connections, over all of them."""
        self.parked_bytes = 0
        self.hot = True
        storage.on_space(self._on_space)

    # --- read-only mode -------------------------------------------------------------------------------------

    def set_mode(self, *, read_only: bool, high_priority_writes: bool) -> None:
        """The bookie changed its mode. High-priority adds may still pass a read-only bookie that has disk headroom."""
        self._read_only = read_only
        self._high_priority_writes = high_priority_writes
        self._changed = True
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
        if self._too_many_in_progress() or not self._journals[ledger_id % len(self._journals)].has_room():
            self._changed = True  # any acknowledgement may make room
            return False
        return True

    def cache_full(self, ledger_id: int) -> bool:
        """True if it is the write cache that has no room for this ledger: then an add waits for a limited time only."""
        return self._storage.is_full(ledger_id)

    def filled(self, ledger_id: int) -> None:
        """The write cache that this ledger's entries go to is full: flush it, and let the next adds wait."""
        self._full.add(ledger_id)
        self.hot = False
        self._storage.request_flush(ledger_id)

    def started(self, entries: int) -> None:
        self.adds_in_progress += entries
        self.hot = not self._read_only and not self._blocked()

    def finished(self, entries: int) -> None:
        self.adds_in_progress -= entries
        if not self.hot or self._waiting:
            self.refresh()

    def refresh(self) -> None:
        """Look again; tell those who wait if something may pass, or is to be refused."""
        if self._full:
            self._full = {ledger_id for ledger_id in self._full if self._storage.is_full(ledger_id)}
        self.hot = not self._read_only and not self._blocked()
        if self._waiting and self._changed and (self._read_only or not self._too_many_in_progress()):
            self._changed = False
            waiting, self._waiting = self._waiting, {}
            for callback in waiting:
                callback()

    def wait(self, callback: Callable[[], None]) -> None:
        """Call `callback` once, when there may be room."""
        self._waiting[callback] = None

    def stop_waiting(self, callback: Callable[[], None]) -> None:
        self._waiting.pop(callback, None)

    def _on_space(self) -> None:
        self._changed = True
        self.refresh()

    def _blocked(self) -> bool:
        return bool(self._full) or self._journals_full() or self._too_many_in_progress()

    def _journals_full(self) -> bool:
        for journal in self._journals:  # noqa: SIM110 - runs per batch, a generator costs more
            if not journal.has_room():
                return True
        return False

    def _too_many_in_progress(self) -> bool:
        return 0 < self._adds_in_progress_max <= self.adds_in_progress
