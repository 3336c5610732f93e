"""The state of a rebuild of indexes in one ledger directory, for its observers.

Threads: that of the rebuild writes; any may read single fields.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class RebuildPhase(Enum):
    """The current step; the value is used in the admin API."""

    WAITING = "waiting"
    """Idle, or another directory is done first."""
    COLLECTION = "waiting for garbage collection"
    """A pass that has begun ends at the next entry log; none begins until the rebuild has ended."""
    LEDGERS = "ledgers"
    """Looking for ledgers that the ledger index lacks."""
    LOGS = "entry logs"
    """Reading entry logs."""
    ROWS = "old rows"
    """Looking at the rows of the old index that no entry log confirmed."""
    SWAP = "putting in place"


class RebuildOutcome(Enum):
    """The result of the last rebuild of a directory."""

    NONE = "none"
    """There was none since the bookie was started."""
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    """Stopped by request, or because the bookie stopped: the old index is used."""
    DAMAGED = "damaged"
    """Entry logs are damaged, and that was not accepted: the old index is used."""
    FAILED = "failed"
    """The old index is used, if `detail` does not say otherwise."""


@dataclass(frozen=True, slots=True)
class RebuildRequest:
    """A request for a rebuild."""

    folders: tuple[str, ...] = ()
    """`current` folders of the ledger directories; empty: all."""
    locations: bool = True
    ledgers: bool = True
    accept_damage: bool = False
    """Use the new location index although entry logs are damaged."""


@dataclass(slots=True)
class RebuildState:
    """One directory. Counts are those of the rebuild that runs or ran last; times are ms since the epoch, 0: never."""

    folder: str
    phase: RebuildPhase = RebuildPhase.WAITING
    outcome: RebuildOutcome = RebuildOutcome.NONE
    detail: str = ""
    """The reason why it failed, was refused or was stopped."""
    started_ms: int = 0
    ended_ms: int = 0
    bytes_done: int = 0
    """Bytes of entry logs that were read."""
    bytes_total: int = 0
    logs: int = 0
    entries: int = 0
    """Entries of known ledgers that the logs hold, copies included."""
    unknown_ledger_entries: int = 0
    """Entries of ledgers that are not known: they were deleted."""
    rows_changed: int = 0
    """Rows that the old index lacked or had otherwise."""
    rows_salvaged: int = 0
    """Rows that only the old index had, and that lead to their entries."""
    rows_dangling: int = 0
    """Rows that lead to no readable entry and were kept: reads of them fail, as before, and do not deny them."""
    ledgers: int = 0
    """Ledgers in the new ledger index."""
    ledgers_restored: int = 0
    """The number of these ledgers that the old index lacked; they are fenced."""
    ledgers_without_key: int = 0
    """The number of these ledgers whose master key neither a journal nor the metadata service knows."""
    damages: list[str] = field(default_factory=list)
    """Damaged entry logs, the first ones: ledgers that lie behind the damage only may be missing."""
    journal_damages: list[str] = field(default_factory=list)
    """Damaged journals, the first ones: keys in them may be missing."""
    unreadable: str = ""
    """The reason why the old location index could not be read to its end."""
    backups: list[str] = field(default_factory=list)
    """Paths of the old databases."""
