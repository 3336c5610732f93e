"""Facts that BookKeeper reports: bookies over their admin API, and pods that have a session with the metadata service.

Invariants
- Values only: nothing in it reads, waits or changes.
- An unknown fact is None, never a fact of zeros.

Threads: any.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True)
class BookieFacts:
    """Facts about one bookie, from its admin API."""

    read_only: bool
    used_bytes: int
    total_bytes: int
    used_percent: float
    """Use of its fullest ledger directory."""
    config: Mapping[str, str] | None = None
    """Keys that are set in its configuration, as it runs with them; None: unknown."""
    entry_log_bytes: int | None = None
    """Bytes of its own on its file systems; None: unknown."""
    file_systems: frozenset[str] = frozenset()
    """Ids of its file systems; empty: unknown."""

    @property
    def stored_bytes(self) -> int:
        """Bytes that a drain would have to copy at most. If unknown, all that is used."""
        return self.used_bytes if self.entry_log_bytes is None else min(self.entry_log_bytes, self.used_bytes)

    @property
    def free_bytes(self) -> int:
        return self.total_bytes - self.used_bytes


@dataclass(frozen=True)
class ClusterFacts:
    """Facts in the metadata service, from a bookie or auto-recovery pod that has a session with it."""

    instance_id: str
    writable: frozenset[str]
    """Ids of bookies that take writes."""
    read_only: frozenset[str]
    cookies: frozenset[str]
    """Bookie ids that have a cookie."""
    under_replicated: int
    auditor: str | None
    """None: none is elected."""
    last_audit: float | None
    """Time at which the last complete audit of the bookies began; seconds since 1970. None: there was none."""
    autorecovery_enabled: bool
    lost_bookie_recovery_delay: int
    """Seconds."""
    unrecoverable: int | None = None
    """Ledgers with an entry of which no bookie has a copy, by the last complete check of replicas; None: not known."""
    unchecked: frozenset[str] | None = None
    """Bookies that were away, and whose copies the auditor has not looked at since; None: unknown."""
    silent_since: float | None = None
    """Time at which this process first saw this auditor, if it has not listed such bookies since. None: not known."""

    @property
    def registered(self) -> frozenset[str]:
        return self.writable | self.read_only


@dataclass(frozen=True)
class Proof:
    """Uncached reads of this very pass: what still needs the bookie?"""

    bookie_id: str
    ledgers: int
    """Ledgers that name it."""
    marks: int
    """Number of under-replicated ledgers that name it."""
    registered: bool
    auditor: str | None
    last_audit: float | None
    instance_id: str
    claims: int = 0
    """Ledgers that are being re-replicated or recovered, and may come to name it."""

    def holds(self, *, instance_id: str, drained_since: float) -> bool:
        """Return whether its cookie and its volumes may be deleted."""
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


@dataclass(frozen=True)
class Member:
    """A member of the etcd that the operator runs, as its list has it."""

    id: int
    name: str
    """Name of its pod; empty: it was added, and has never started."""
    peer_urls: tuple[str, ...]


@dataclass(frozen=True)
class MemberHealth:
    """The state of a member that answers, as it tells it."""

    id: int
    leader: int
    """Id of the leader; 0: it knows none."""
    version: str = ""
    database_bytes: int = 0
    errors: tuple[str, ...] = ()

    @property
    def full(self) -> bool:
        """Return whether etcd's space is used up: it takes no writes."""
        return any("NOSPACE" in each for each in self.errors)

    @property
    def serves(self) -> bool:
        """Return whether it belongs to a majority, and finds nothing wrong but that the space is used up."""
        return self.leader != 0 and all("NOSPACE" in each for each in self.errors)


@dataclass(frozen=True)
class EtcdFacts:
    members: tuple[Member, ...]
    health: Mapping[str, MemberHealth]
    """Health by pod name, of the members that answer."""


class DrainPhase(StrEnum):
    ABSENT = "absent"
    """The bookie is not being drained."""
    RUNNING = "running"
    BLOCKED = "blocked"
    """The drain makes no progress; `DrainFacts.blockers` says why."""
    INTERRUPTED = "interrupted"
    """The drain was begun, and no process works on it: begin it again."""
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
    """The work that a drain of a bookie would have, and the reasons for which it would be refused."""

    bookie_id: str
    ledgers: int
    """Ledgers that name it."""
    refusals: tuple[str, ...] = ()
    open_ledgers: int = 0
    """Number of these ledgers that are not closed: their bytes are not in `nbytes`."""
    nbytes: int = 0
    """Bytes to copy; an estimate, of closed ledgers."""
    largest_ensemble: int = 0
    """Largest ensemble of any ledger of the cluster; 0: older bookies do not report it."""
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class SafetyFacts:
    """The risk to ledgers if these bookies went now."""

    bookies: frozenset[str]
    below_ack_quorum: int
    """Number of ledgers below their ack quorum.

    It does not count those whose ack quorum is as large as their write quorum and whose other copies all stay: of these
    no bookie could ever be stopped.
    """
    without_copy: int
    unknown: int
    examples: tuple[str, ...] = ()
    unrecoverable_hash: str = ""
    """Hash of the sorted ids of ledgers without a copy: a person accepts the loss of exactly these."""
    unrecoverable: tuple[int, ...] = ()
    """Ids of ledgers without a copy; empty where not all of them are known."""

    @property
    def safe(self) -> bool:
        return self.below_ack_quorum == 0 and self.without_copy == 0 and self.unknown == 0
