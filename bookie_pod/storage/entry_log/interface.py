"""What the parts of the entry logs, and those who use them, have in common."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

Row = tuple[int, bytes, int]
"""Entry id, entry, location."""


class EntryCheck(Protocol):
    """Looks at entries that are served. Any thread."""

    def problem(self, location: int, ledger_id: int, entry_id: int, entry: bytes) -> str | None:
        """What is wrong with the entry; None: nothing."""
        ...

    def sound(self, ledger_id: int, rows: list[Row]) -> list[Row]:
        """The rows before the first one with a problem."""
        ...


RotationListener = Callable[[int], None]
"""Called with the id of a log that was rotated, on the appending thread with the append lock held: only
note it.
"""


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
