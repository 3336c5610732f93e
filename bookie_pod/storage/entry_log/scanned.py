"""What a pass over an entry log found, and how far it can be trusted.

Invariants
- A scan says how it ended. Only a clean end vouches that the log holds nothing else; on the word of any other nothing
  is deleted.
- The ledgers map of a log is its own, read from its tail, or counted by a scan; `LedgersMap.end` tells which.

Threads: `ScanEnd` and `LedgersMap` are values, for any thread. A `LogScan` belongs to the thread that iterates it.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from bookie_pod.storage.entry_log.ledger_sizes import LedgerSizes

T_co = TypeVar("T_co", covariant=True)


class ScanOutcome(Enum):
    """How the scan of a log ended."""

    CLEAN = "clean"
    """The last record ends where the file ends (or only padding follows)."""
    TORN = "torn"
    """The last record reaches beyond the end: normal for a log that was active at a crash, damage
    otherwise.
    """
    DAMAGED = "damaged"
    """Bytes that are no record; what follows them was not read."""


@dataclass(frozen=True, slots=True)
class ScanEnd:
    """Where and how a scan ended. Nothing may be deleted on the word of a scan that is not `clean`."""

    outcome: ScanOutcome
    position: int
    """Offset in the file of the first byte that was not understood; the end of the records if clean."""
    detail: str
    """What was found there, for a message."""

    @property
    def clean(self) -> bool:
        return self.outcome is ScanOutcome.CLEAN


@dataclass(frozen=True, slots=True)
class LedgersMap:
    """Bytes per ledger in one log, including the 4-byte size of each entry."""

    ledgers: LedgerSizes
    end: ScanEnd | None
    """None: read from the log's own map. Otherwise counted by a scan, which ended thus."""
    map_offset: int | None = None
    """Where the entries of a log end that was once complete, by its header; None: it names no map."""
    checked: bool = False
    """The log's own map, and a check sum proves it."""

    @property
    def closed(self) -> bool:
        """The log's header names a map, so the log was once complete."""
        return self.map_offset is not None

    @property
    def complete(self) -> bool:
        """Whether what was found is what a log in good order has: all of it, or a torn end of one that was active at a
        crash. See `missing_from` for how far that can be trusted."""
        if self.missing_from is None:
            return True
        return self.end is not None and self.end.outcome is ScanOutcome.TORN and not self.closed

    @property
    def missing_from(self) -> int | None:
        """Where entries may begin that were not seen; None: every entry of the log is accounted for.

        A log that was active at a crash may end in the middle of an entry that nobody points to, and one that was not
        synced may have lost parts of it. Whether that is so, or the log is damaged, only the index can tell.
        """
        if self.end is None:
            return None
        if not self.end.clean:
            return self.end.position
        if self.map_offset is not None and self.end.position < self.map_offset:
            return self.end.position  # cut between two entries
        return None
