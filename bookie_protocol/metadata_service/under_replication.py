"""Under-replicated ledgers and the election of the auditor: what auditors, replication workers and tools share.

Auditors mark ledgers that lost replicas; workers lock a marked ledger, restore it and take the mark away. Java daemons
and ours share one cluster: every name and byte is the reference's.

Invariants
- A mark goes only if nobody marked the ledger again since its lock was taken.
- A lock belongs to one session and ends with it; nobody removes another's lock. What is done under a lock is sent in
  its session (`LedgerLock.session_id`), or looked at again afterwards: work may go on after the lock has ended.
- Reading never creates anything: a cluster where nobody ever ran auto-recovery looks like one without marks.

Errors: those of `interface` (`MetadataUnavailable` where nothing can be told, `MetadataNotFound` without a cluster);
`MetadataDamaged` for a node that cannot be read, or a tree of another layout.

Threads: the event loop on which the service was opened.

Sources: reference metadata layout, sections 10 and 11; reference auto-recovery, sections 2, 3.3, 4 and 6.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from bookie_protocol.metadata_service.subscription import Subscription
from bookie_protocol.metadata_service.versioned import Versioned


@dataclass(frozen=True, slots=True)
class UnderreplicatedLedger:
    """A mark. `replicas`: bookies whose copies are missing (none: the placement policy is not met).

    `ctime_ms`: when it was marked, since the epoch; None if whoever marked it does not record that. `damage`: what is
    stored of the mark cannot be read, for this reason; which copies are missing is not known then.
    """

    ledger_id: int
    replicas: tuple[str, ...]
    ctime_ms: int | None = None
    damage: str | None = None


@dataclass(frozen=True, slots=True)
class LedgerLock:
    """A lock of ours. `mark_version` and `mark_created_ms` are the mark's when the lock was taken; None: locked without
    a mark."""

    ledger_id: int
    mark_version: int | None
    session_id: int
    mark_created_ms: int | None = None


@dataclass(frozen=True, slots=True)
class LockHolder:
    """Who holds a lock, by the host name that the holder wrote. One that is taken anew differs in the rest."""

    host: str
    session_id: int
    since_ms: int
    """When it was taken, by the clock of the metadata service."""


class AuditorCheck(Enum):
    """The periodic checks whose last complete run is recorded; the value is the node's name."""

    ALL_LEDGERS = "checkallledgersctime"
    PLACEMENT_POLICY = "placementpolicycheckctime"
    REPLICAS = "replicascheckctime"


ReplicaPredicate = Callable[[Collection[str]], bool]
"""Chooses marks by their missing replicas."""


class UnderReplication(Protocol):
    """The tree `underreplication`. `timeout` as in `interface`: seconds for each request, None for the default."""

    # --- marks ------------------------------------------------------------------------------------------------

    async def mark(
        self, ledger_id: int, missing_replicas: Collection[str], *, ctime_ms: int | None, timeout: float | None = None
    ) -> None:
        """Mark a ledger; replicas join those of an existing mark, which stays as it is if it has them all.

        `ctime_ms` None: the time is not recorded (`storeSystemTimeAsLedgerUnderreplicatedMarkTime=false`).
        """
        ...

    async def renew(self, ledger_id: int, *, timeout: float | None = None) -> bool:
        """See that a mark outlives a repair under way, which may have looked too early; False: there is no mark."""
        ...

    async def count(self, *, timeout: float | None = None) -> int:
        """How many ledgers are marked, without reading the marks: of many, those whose directories are there."""
        ...

    async def read(self, ledger_id: int, *, timeout: float | None = None) -> UnderreplicatedLedger | None:
        """The mark of a ledger; None: it is not marked."""
        ...

    def list(
        self, predicate: ReplicaPredicate | None = None, *, timeout: float | None = None
    ) -> AsyncIterator[UnderreplicatedLedger]:
        """Every mark, in ascending order of ids, bounded in memory. Marks made or removed meanwhile may show; one that
        is damaged says so, unless there is a predicate, which it cannot be asked for."""
        ...

    async def unmark(self, ledger_id: int, *, timeout: float | None = None) -> None:
        """Remove a mark, whoever set it (the ledger was deleted). None is fine."""
        ...

    # --- locks ------------------------------------------------------------------------------------------------

    async def acquire(self, *, skip: Collection[int] = (), timeout: float | None = None) -> LedgerLock:
        """Lock a marked ledger; waits, without limit, for one and for auto-recovery to be enabled.

        Every mark has its turn: the tree is walked in random order, and passes over ledgers that are in `skip`, which
        may change meanwhile. `timeout` is for each request.
        """
        ...

    async def try_acquire(self, *, timeout: float | None = None) -> LedgerLock | None:
        """As `acquire`, but None at once if nothing can be locked or auto-recovery is disabled."""
        ...

    async def lock(self, ledger_id: int, *, timeout: float | None = None) -> LedgerLock:
        """Lock one ledger, marked or not. `MetadataExists`: it is locked already."""
        ...

    async def mark_replicated(self, lock: LedgerLock, *, timeout: float | None = None) -> None:
        """Remove the mark unless it was renewed since, then the lock. With a lock that was given back nothing is done.
        `SessionEnded`: the lock had ended, and the mark stands."""
        ...

    async def release(self, lock: LedgerLock, *, timeout: float | None = None) -> None:
        """Give a lock back; one that ended with its session is fine, and so is one that was given back before."""
        ...

    async def locked_by(self, ledger_id: int, *, timeout: float | None = None) -> str | None:
        """Who holds the lock of this ledger (a host name, as the holder wrote it); None: nobody."""
        ...

    async def holders(self, *, timeout: float | None = None) -> Mapping[int, LockHolder]:
        """All locks, as of now: whoever took one before this call is among them, or has given it back."""
        ...

    async def locks(self, *, timeout: float | None = None) -> Mapping[int, str]:
        """All locks: ledger id and the host of its holder."""
        ...

    # --- auto-recovery on and off -----------------------------------------------------------------------------

    async def is_enabled(self, *, timeout: float | None = None) -> bool:
        """Whether auto-recovery is enabled in this cluster; it is until somebody disables it."""
        ...

    async def enable(self, *, timeout: float | None = None) -> None:
        """`MetadataNotFound`: it is enabled already."""
        ...

    async def disable(self, *, timeout: float | None = None) -> None:
        """`MetadataExists`: it is disabled already."""
        ...

    def watch_enabled(self) -> Subscription[bool]:
        """Whether auto-recovery is enabled, now and after each change."""
        ...

    # --- what auditors agree on -------------------------------------------------------------------------------

    async def lost_bookie_recovery_delay(self, *, timeout: float | None = None) -> int | None:
        """Seconds between the loss of a bookie and its audit; None: nobody set it."""
        ...

    async def initialize_lost_bookie_recovery_delay(self, seconds: int, *, timeout: float | None = None) -> bool:
        """Set the delay unless one is set; whether this call did it."""
        ...

    async def set_lost_bookie_recovery_delay(self, seconds: int, *, timeout: float | None = None) -> None:
        """Set the delay. Setting the present value again asks the auditor for an audit now."""
        ...

    def watch_lost_bookie_recovery_delay(self) -> Subscription[Versioned[int] | None]:
        """The delay, now and after each write, also of the same value (then with a greater version)."""
        ...

    async def check_time(self, check: AuditorCheck, *, timeout: float | None = None) -> int | None:
        """When this check last ran to its end, in ms since the epoch; None: never."""
        ...

    async def set_check_time(self, check: AuditorCheck, time_ms: int, *, timeout: float | None = None) -> None: ...


class Auditorship(Protocol):
    """A won election; it ends with `resign`, or with the session that held the vote."""

    @property
    def bookie_id(self) -> str: ...

    async def lost(self) -> None:
        """Return when the vote is gone. While nobody can tell, it is not."""
        ...

    async def resign(self) -> None:
        """Take the vote back, so that the next candidate wins. Calling it again is fine."""
        ...


class AuditorElection(Protocol):
    """One auditor in a cluster: the candidate with the oldest vote."""

    async def elect(self, bookie_id: str, *, timeout: float | None = None) -> Auditorship:
        """Vote, and wait until it is our turn; cancelling takes the vote back. One candidacy at a time in a session."""
        ...

    async def current_auditor(self, *, timeout: float | None = None) -> str | None:
        """The bookie id of the oldest vote; None: there is no auditor."""
        ...
