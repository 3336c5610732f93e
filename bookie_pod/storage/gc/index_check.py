"""The check of one log against the index: the last word on whether the log may go.

Invariants
- A row counts as long as nothing proves that the entry was never acknowledged: see `find_row_behind`.
- One look through the index answers for all logs of a pass (`IndexedRows`): after an unclean stop many are left over.
  Where it is not enough, or others have changed the index since, the index is looked through for that log alone.
- Nothing here changes anything.

Threads: the one that checks: garbage collection's, or the scrubber's.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from bookie_pod.storage.entry_log.format import make_location, split_location
from bookie_pod.storage.entry_log.interface import DigestUnknown
from bookie_pod.storage.gc.storage import CollectedStorage
from bookie_protocol.errors import EntryDamaged

ROWS_PER_BREATH: Final = 1024


class IndexedEntry(NamedTuple):
    """An entry that the index places in the log."""

    ledger_id: int
    entry_id: int
    position: int


def find_row_behind(
    storage: CollectedStorage, log_id: int, position: int, *, closed: bool, breathe: Callable[[], None]
) -> IndexedEntry | None:
    """An entry whose row points into the log, at or behind `position`; None: there is none.

    Looks through the whole index, so it is for logs that are damaged, torn, or left over from a crash. `breathe` is
    called now and then and may raise. `StorageFault` if the index cannot be read.

    An index that may run ahead of its logs can hold rows of entries that a power cut took: in a log that was never
    closed they count only if the entry is there.
    """
    return find_row(storage, log_id, lambda at: at >= position, closed=closed, breathe=breathe)


def find_row(
    storage: CollectedStorage,
    log_id: int,
    concerns: Callable[[int], bool],
    *,
    closed: bool,
    breathe: Callable[[], None],
) -> IndexedEntry | None:
    """Find a row as `find_row_behind` does, at the positions for which `concerns` is true."""
    for ledger_id, entry_id, location in _all_rows(storage, breathe):
        found, at = split_location(location)
        if found != log_id or not concerns(at):
            continue
        if closed or not storage.index_may_run_ahead or is_there(storage, location, ledger_id, entry_id):
            return IndexedEntry(ledger_id, entry_id, at)
    return None


def _all_rows(storage: CollectedStorage, breathe: Callable[[], None]) -> Iterator[tuple[int, int, int]]:
    """(ledger, entry, location) of everything in the index."""
    rows = 0
    for ledger_id in storage.ledger_ids():
        for entry_id, location in storage.rows(ledger_id):
            rows += 1
            if rows % ROWS_PER_BREATH == 0:
                breathe()
            yield ledger_id, entry_id, location
        breathe()


def was_synced(
    storage: CollectedStorage, rows: IndexedRows, location: int, ledger_id: int, entry_id: int, entry: bytes
) -> bool:
    """Return whether this entry, to which no row points, was durable, for all we know.

    A power cut may leave whole records with parts of their bytes: one that is not sound was never synced, if nothing
    proves that its log was and the index places nothing at or behind it. Raises `DigestUnknown` if that decides and is
    unknown, another `StorageFault` if the log or the index cannot be read.
    """
    log_id, position = split_location(location)
    if storage.is_unsynced(location):
        return False
    try:
        if storage.logs.is_proved_synced(log_id) or storage.logs.is_sound(ledger_id, entry_id, entry):
            return True
    except DigestUnknown:
        if rows.behind(log_id, position, closed=False) is None:
            raise
        return True
    return rows.behind(log_id, position, closed=False) is not None


class RowsOfLog(NamedTuple):
    """The rows that point into one log."""

    rows: int
    positions: int
    """Their sum."""
    last: IndexedEntry
    """The one with the highest position."""


class IndexedRows:
    """The rows of the index by log."""

    def __init__(self, storage: CollectedStorage, breathe: Callable[[], None]) -> None:
        """`breathe` is called now and then in a look through the index."""
        self._storage = storage
        self._breathe = breathe
        self._known: dict[int, RowsOfLog] | None = None

    def begin_pass(self) -> None:
        """Begin a pass: results of earlier passes are too old."""
        self._known = None

    def behind(self, log_id: int, position: int, *, closed: bool) -> IndexedEntry | None:
        """Find a row as `find_row_behind` does, maybe without rows newer than the first question of this pass."""
        found = self._rows().get(log_id)
        if found is None or found.last.position < position:
            return None
        last = found.last
        stands = self._storage.location_of(last.ledger_id, last.entry_id) == make_location(log_id, last.position)
        if stands and (closed or not self._storage.index_may_run_ahead):
            return last
        return self.behind_now(log_id, position, closed=closed)

    def behind_now(self, log_id: int, position: int, *, closed: bool) -> IndexedEntry | None:
        """`find_row_behind`."""
        return find_row_behind(self._storage, log_id, position, closed=closed, breathe=self._breathe)

    def unseen(self, log_id: int, seen: array[int], matched: tuple[int, int]) -> IndexedEntry | None:
        """A row that points to none of the positions `seen`, which ascend, in a log that was never closed; None: there
        is none. `matched`: how many of them the index names, and their sum."""
        found = self._rows().get(log_id)
        if matched == ((found.rows, found.positions) if found is not None else (0, 0)):
            return None

        def is_unseen(position: int) -> bool:
            at = bisect_left(seen, position)
            return at == len(seen) or seen[at] != position

        return find_row(self._storage, log_id, is_unseen, closed=False, breathe=self._breathe)

    def _rows(self) -> dict[int, RowsOfLog]:
        if self._known is None:
            self._known = self._look_through()
        return self._known

    def _look_through(self) -> dict[int, RowsOfLog]:
        counts: Counter[int] = Counter()
        sums: Counter[int] = Counter()
        last: dict[int, IndexedEntry] = {}
        for ledger_id, entry_id, location in _all_rows(self._storage, self._breathe):
            log_id, at = split_location(location)
            counts[log_id] += 1
            sums[log_id] += at
            known = last.get(log_id)
            if known is None or at > known.position:
                last[log_id] = IndexedEntry(ledger_id, entry_id, at)
        return {log_id: RowsOfLog(count, sums[log_id], last[log_id]) for log_id, count in counts.items()}


def is_there(storage: CollectedStorage, location: int, ledger_id: int, entry_id: int) -> bool:
    """Return whether the entry lies at this place; False if the log is gone, ends before it, or holds other bytes
    there.

    Raises `StorageFault` if that cannot be determined: a read that failed proves nothing.
    """
    if not storage.logs.exists(split_location(location)[0]):
        return False
    try:
        storage.logs.read(location, ledger_id, entry_id)
    except EntryDamaged:
        return False
    return True
