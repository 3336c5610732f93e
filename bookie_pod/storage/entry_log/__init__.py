"""Entry logs: the files that hold the entries (reference disk formats, 4 to 6)."""

from bookie_pod.storage.entry_log.directories import DiskState, LedgerDirs, LedgerDirStates
from bookie_pod.storage.entry_log.format import make_location, split_location
from bookie_pod.storage.entry_log.interface import (
    EntryLogger,
    EntryLogStats,
    LedgersMap,
    ScanEnd,
    ScanOutcome,
)
from bookie_pod.storage.entry_log.logger import DefaultEntryLogger
from bookie_pod.storage.entry_log.options import EntryLogOptions

__all__ = [
    "DefaultEntryLogger",
    "DiskState",
    "EntryLogOptions",
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
