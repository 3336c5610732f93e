"""Entry logs: the files that hold the entries (reference disk formats, 4 to 6).

`EntryLogger` (`logger`): `append_run(ledger_id, entry_ids, entries) -> locations`, `flush()` (to the OS), `sync()`
(everything), `checkpoint()` (rotated logs), `read(location, ledger_id, entry_id)`, `read_run(...)`, `scan(log_id)`
with an explicit end, `ledgers_map(log_id)`, `is_flushed(log_id)`, `delete(log_id)`. A location is `(log id << 32) |
offset of the entry's first byte`. A failed write may be repeated; after a failed sync every call fails until
`abandon_unsynced()`, and the caller appends again what it appended since the last successful sync.
"""

from bookie_pod.storage.entry_log.directories import DiskState, LedgerDirs, LedgerDirStates
from bookie_pod.storage.entry_log.format import make_location, split_location
from bookie_pod.storage.entry_log.interface import EntryLogStats
from bookie_pod.storage.entry_log.logger import EntryLogger
from bookie_pod.storage.entry_log.scan import LedgersMap, ScanEnd, ScanOutcome

__all__ = [
    "DiskState",
    "EntryLogStats",
    "EntryLogger",
    "LedgerDirStates",
    "LedgerDirs",
    "LedgersMap",
    "ScanEnd",
    "ScanOutcome",
    "make_location",
    "split_location",
]
