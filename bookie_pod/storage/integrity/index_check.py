"""What the scrubber checks of the index: that every row of a ledger leads to its entry, and the digests of entries in
logs whose framing is damaged.

Invariants
- A fault is a finding only if the index still names that place afterwards: compaction and deletions go on meanwhile.
- Nothing raises for what is damaged; `ScrubStopped` ends a check, a `StorageFault` says that it could not be made.

Threads: the scrubber's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Final

from bookie_pod.storage.entry_log.format import SIZE_BYTES, split_location
from bookie_pod.storage.gc.storage import CollectedStorage
from bookie_pod.storage.integrity.entry_check import EntryCheck, Pay, Report, ScrubCounts, entry_damage
from bookie_protocol.errors import EntryDamaged, ResourcesShort, StorageFault

ROWS_AT_ONCE: Final = 256


class IndexCheck:
    """Checks that the index leads to the entries."""

    def __init__(
        self, storage: CollectedStorage, entries: EntryCheck, report: Report, pay: Pay, counts: ScrubCounts
    ) -> None:
        self._storage = storage
        self._entries = entries
        self._report = report
        self._pay = pay
        self._counts = counts
        self._open_ends: dict[int, int | None] = {}
        """Where logs end that were never closed; None for one that was."""

    def check(
        self, ledger_id: int, first_entry: int, is_sound: Callable[[int], bool], checked: Callable[[int], None]
    ) -> None:
        """Check the rows of one ledger from `first_entry` on. `is_sound(log id)`: this pass saw that log whole, so its
        digests are known. `StorageFault` if the index cannot be read."""
        for rows in _chunks(self._storage, ledger_id, first_entry):
            for entry_id, location in rows:
                if not self._storage.has_ledger(ledger_id):
                    return
                size = self._row(ledger_id, entry_id, location, is_sound)
                self._pay(1, SIZE_BYTES + size)
                self._counts.rows += 1
                checked(entry_id)

    def _row(self, ledger_id: int, entry_id: int, location: int, is_sound: Callable[[int], bool]) -> int:
        """Check one row; the size of the entry, 0 if there is none."""
        while True:
            try:
                entry = self._storage.logs.read(location, ledger_id, entry_id)
            except ResourcesShort:
                raise
            except StorageFault as error:
                now = self._storage.location_of(ledger_id, entry_id)
                if now not in (0, location):
                    location = now  # compaction moved it meanwhile
                    continue
                if now and self._storage.has_ledger(ledger_id) and not self._was_never_synced(error, location):
                    self._report(entry_damage(str(error), ledger_id, entry_id, location))
                return 0
            if not is_sound(split_location(location)[0]):
                problem = self._entries.problem(ledger_id, entry_id, entry)
                if problem is not None and self._storage.location_of(ledger_id, entry_id) == location:
                    self._report(entry_damage(problem, ledger_id, entry_id, location))
            return len(entry)

    def _was_never_synced(self, error: StorageFault, location: int) -> bool:
        """Whether nothing but the row is left of an add whose bytes a power cut took: it was not acknowledged, or the
        replay would have given it another place."""
        if not self._storage.index_may_run_ahead or not isinstance(error, EntryDamaged):
            return False
        log_id, position = split_location(location)
        if not self._storage.logs.exists(log_id):
            return False
        if log_id not in self._open_ends:
            found = self._storage.logs.ledgers_map(log_id, self._pay)
            self._open_ends[log_id] = None if found.end is None or found.closed else found.end.position
        end = self._open_ends[log_id]
        return end is not None and position >= end


def _chunks(storage: CollectedStorage, ledger_id: int, first_entry: int) -> Iterator[list[tuple[int, int]]]:
    """Rows in lists, so that no iteration of the index stays open while the scrubber waits."""
    while True:
        rows = list(islice(storage.rows(ledger_id, first_entry), ROWS_AT_ONCE))
        if rows:
            yield rows
        if len(rows) < ROWS_AT_ONCE:
            return
        first_entry = rows[-1][0] + 1
