"""What BookKeeper says of itself: bookies over their admin API, and whoever has a session with the metadata service.

Invariants
- Values only: nothing in it reads, waits or changes.
- What nobody could tell is None where a fact stands, never a fact of zeros.

Threads: any.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True)
class BookieFacts:
    """What one bookie says of itself over its admin API."""

    read_only: bool
    used_bytes: int
    total_bytes: int
    used_percent: float
    """Of its fullest ledger directory."""
    config: Mapping[str, str] | None = None
    """Keys of its configuration that somebody set, as it runs with them; None: it did not tell."""

    @property
    def free_bytes(self) -> int:
        return self.total_bytes - self.used_bytes


@dataclass(frozen=True)
class ClusterFacts:
    """What the metadata service says, told by some bookie or auto-recovery pod that has a session with it."""

    instance_id: str
    writable: frozenset[str]
    """Bookie ids."""
    read_only: frozenset[str]
    cookies: frozenset[str]
    """Bookie ids that have a cookie."""
    under_replicated: int
    auditor: str | None
    """None: none is elected."""
    last_audit: float | None
    """When the last complete audit of the bookies began; seconds since 1970. None: there was none."""
    autorecovery_enabled: bool
    lost_bookie_recovery_delay: int
    """Seconds."""
    unrecoverable: int | None = None
    """Ledgers with an entry of which no bookie has a copy, by the last complete check of replicas; None: not known."""

    @property
    def registered(self) -> frozenset[str]:
        return self.writable | self.read_only


@dataclass(frozen=True)
class Proof:
    """Uncached reads of this very pass: who needs the bookie still?"""

    bookie_id: str
    ledgers: int
    """Ledgers that name it."""
    marks: int
    """Under-replicated ledgers that name it."""
    registered: bool
    auditor: str | None
    last_audit: float | None
    instance_id: str
    claims: int = 0
    """Ledgers that are being re-replicated or recovered, and may come to name it."""

    def holds(self, *, instance_id: str, drained_since: float) -> bool:
        """Whether its cookie and its volumes may be deleted."""
        return (
            self.ledgers == 0
            and self.marks == 0
            and self.claims == 0
            and not self.registered
            and self.auditor is not None
            and self.last_audit is not None
            and self.last_audit > drained_since
            and bool(instance_id)
            and self.instance_id == instance_id
        )


class DrainPhase(StrEnum):
    ABSENT = "absent"
    """Nobody drains it."""
    RUNNING = "running"
    BLOCKED = "blocked"
    """Nothing moves; `DrainFacts.blockers` tells why."""
    INTERRUPTED = "interrupted"
    """It was begun, and nobody works on it: begin it again."""
    DRAINED = "drained"
    """Proven: no ledger named it when its drain ended."""
    REFUSED = "refused"


@dataclass(frozen=True)
class DrainFacts:
    bookie_id: str
    phase: DrainPhase
    ledgers_left: int | None = None
    bytes_left: int | None = None
    eta_seconds: int | None = None
    blockers: tuple[str, ...] = ()
    """The first twenty, each with its ledger and the reason."""
    message: str = ""
    proven_ledgers: int | None = None
    """Ledgers that were looked at for the proof that nothing names it; None: not proven."""


@dataclass(frozen=True)
class Outlook:
    """What a drain of a bookie would have to do, and why it would not be begun."""

    bookie_id: str
    ledgers: int
    """Ledgers that name it."""
    refusals: tuple[str, ...] = ()
    open_ledgers: int = 0
    """Of these, those that are not closed: what they hold is not in `nbytes`."""
    nbytes: int = 0
    """To copy; an estimate, of closed ledgers."""
    largest_ensemble: int = 0
    """Of any ledger of the cluster; 0: older bookies do not tell."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class SafetyFacts:
    """What would become of ledgers if these bookies went now."""

    bookies: frozenset[str]
    below_ack_quorum: int
    """Not counting those whose ack quorum is as large as their write quorum and whose other copies all stay: of these
    no bookie could ever be stopped."""
    without_copy: int
    unknown: int
    examples: tuple[str, ...] = ()
    unrecoverable_hash: str = ""
    """Of the sorted ids of ledgers without a copy: what a person accepts the loss of."""
    unrecoverable: tuple[int, ...] = ()
    """These ids; empty where not all of them are known."""

    @property
    def safe(self) -> bool:
        return self.below_ack_quorum == 0 and self.without_copy == 0 and self.unknown == 0
