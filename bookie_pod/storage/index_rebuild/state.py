"""What a rebuild of indexes does in one ledger directory, for whoever watches it.

Threads: that of the rebuild writes; any may read single fields.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class RebuildPhase(Enum):
    """What goes on; the value stands in the admin API."""

    WAITING = "waiting"
    """Nothing, or another directory is done first."""
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
    """How the last rebuild of a directory ended."""

    NONE = "none"
    """There was none since the bookie was started."""
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    """By request, or because the bookie stopped: the old index is used."""
    DAMAGED = "damaged"
    """Entry logs are damaged, and that was not accepted: the old index is used."""
    FAILED = "failed"
    """The old index is used, if `detail` does not say otherwise."""


@dataclass(frozen=True, slots=True)
class RebuildRequest:
    """What is wanted."""

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
    """Why it failed, was refused or was stopped."""
    started_ms: int = 0
    ended_ms: int = 0
    bytes_done: int = 0
    """Of entry logs."""
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
    """Rows that lead nowhere and were kept: reads of these entries fail, as before, and do not deny them."""
    ledgers: int = 0
    """Ledgers in the new ledger index."""
    ledgers_restored: int = 0
    """Of these, ledgers that the old one lacked; they are fenced."""
    ledgers_without_key: int = 0
    """Of these, ledgers whose master key neither a journal nor the metadata service knows."""
    damages: list[str] = field(default_factory=list)
    """Damaged entry logs, the first ones: ledgers that lie behind the damage only may be missing."""
    journal_damages: list[str] = field(default_factory=list)
    """Damaged journals, the first ones: keys in them may be missing."""
    unreadable: str = ""
    """Why the old location index could not be read to its end."""
    backups: list[str] = field(default_factory=list)
    """Paths of the old databases."""
