"""Entry logs: the files that hold the entries (reference disk formats, 4 to 6)."""

from bookie_pod.storage.entry_log.directories import DiskState, LedgerDirs, LedgerDirStates
from bookie_pod.storage.entry_log.format import make_location, split_location
from bookie_pod.storage.entry_log.interface import EntryLogger, EntryLogStats
from bookie_pod.storage.entry_log.logger import DefaultEntryLogger
from bookie_pod.storage.entry_log.options import EntryLogOptions
from bookie_pod.storage.entry_log.scanned import LedgersMap, ScanEnd, ScanOutcome

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
