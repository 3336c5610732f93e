"""What the index says about one log: the last word on whether it may go.

Invariants
- A row counts as long as nothing proves that the entry was never acknowledged: see `find_row_behind`.
- Nothing here changes anything.

Threads: the garbage collection thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from bookie_pod.storage.entry_log.format import split_location
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
    """As `find_row_behind`, at the positions that `concerns` holds for."""
    rows = 0
    for ledger_id in storage.ledger_ids():
        for entry_id, location in storage.rows(ledger_id):
            rows += 1
            if rows % ROWS_PER_BREATH == 0:
                breathe()
            found, at = split_location(location)
            if found != log_id or not concerns(at):
                continue
            if closed or not storage.index_may_run_ahead or is_there(storage, location, ledger_id, entry_id):
                return IndexedEntry(ledger_id, entry_id, at)
        breathe()
    return None


def is_there(storage: CollectedStorage, location: int, ledger_id: int, entry_id: int) -> bool:
    """Whether the entry lies at this place; false if the log is gone, or ends before it, or other bytes are there.

    `StorageFault` if nobody can tell: a read that failed proves nothing.
    """
    if not storage.logs.exists(split_location(location)[0]):
        return False
    try:
        storage.logs.read(location, ledger_id, entry_id)
    except EntryDamaged:
        return False
    return True
