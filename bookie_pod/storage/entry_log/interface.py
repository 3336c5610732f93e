"""The common interface of the parts of the entry logs, and of their users."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Protocol

from bookie_pod.storage.entry_log.scan import LedgersMap, LogScan
from bookie_protocol.errors import StorageFault

Row = tuple[int, bytes, int]
"""Entry id, entry, location."""
RotationListener = Callable[[int], None]
"""Called with the id of a log that was rotated, on the appending thread with the append lock held: only
note it.
"""


class DigestUnknown(StorageFault):
    """The digest type of the entry's ledger is not known at the moment, so the entry may be sound or damaged."""


class ReadableLogs(Protocol):
    """Entry logs that are read: those of a bookie that runs (`EntryLogger`), or of a stopped one (`StoredLogs`)."""

    def log_ids(self) -> list[int]: ...
    def exists(self, log_id: int) -> bool: ...
    def size(self, log_id: int) -> int: ...
    def read(self, location: int, ledger_id: int, entry_id: int) -> bytes: ...
    def scan(self, log_id: int, ledgers: Container[int] | None = None) -> LogScan[bytes]: ...
    def scan_sizes(self, log_id: int, ledgers: Container[int] | None = None) -> LogScan[int]: ...
    def entries_end(self, log_id: int) -> int | None: ...
    def is_proved_synced(self, log_id: int) -> bool: ...
    def has_foreign(self, first: int) -> bool: ...
    def ledgers_map(self, log_id: int) -> LedgersMap: ...
    def make_durable(self, log_id: int) -> None: ...


class LedgerGone(Exception):
    """The ledger was deleted, and perhaps made again, before all its entries were appended."""


class EntryCheck(Protocol):
    """Looks at entries. Any thread. `integrity` implements it, which entry logs must not import."""

    def problem(self, ledger_id: int, entry_id: int, entry: bytes) -> str | None:
        """Say what is wrong with the entry, None if nothing can be seen with its digest type. Raises
        `DigestUnknown`."""
        ...

    def served(self, location: int, ledger_id: int, entry_id: int, entry: bytes) -> str | None:
        """Say what is wrong with an entry that is to be served, and report it. Return None also if
        that is unknown."""
        ...

    def sound(self, ledger_id: int, rows: list[Row]) -> list[Row]:
        """The rows before the first one with a problem."""
        ...


@dataclass(slots=True)
class EntryLogStats:
    """Counters since the logger was opened; written under the logger's locks, read by anybody."""

    entries_appended: int = 0
    logs_rotated: int = 0
    logs_deleted: int = 0
    syncs: int = 0
    damaged_reads: int = 0
    """Reads that failed because the bytes were not the entry asked for."""

    @property
    def written(self) -> int:
        """Grows with everything that is brought to the disks."""
        return self.entries_appended + self.syncs
