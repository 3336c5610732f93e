"""The common interface of the parts of the entry logs, and of their users."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from bookie_protocol.errors import StorageFault

Row = tuple[int, bytes, int]
"""Entry id, entry, location."""
RotationListener = Callable[[int], None]
"""Called with the id of a log that was rotated, on the appending thread with the append lock held: only
note it.
"""


class DigestUnknown(StorageFault):
    """The digest type of the entry's ledger is not known at the moment, so the entry may be sound or damaged."""


class EntryCheck(Protocol):
    """Looks at entries. Any thread."""

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
