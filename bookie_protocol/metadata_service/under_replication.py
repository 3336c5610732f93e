"""Under-replicated ledgers and the election of the auditor: what auditors, replication workers and tools share.

Auditors mark ledgers that lost replicas; workers lock a marked ledger, restore it and take the mark away. Java daemons
and ours share one cluster: every name and byte is the reference's.

Invariants
- A mark goes only if the ledger was not marked again since its lock was taken.
- A lock belongs to one session and ends with it; no session removes another's lock. What is done under a lock is sent
  in its session (`LedgerLock.session_id`), or looked at again afterwards: work may go on after the lock has ended.
- Reading never creates anything: a cluster that never ran auto-recovery looks like one without marks.

Errors: those of `interface` (`MetadataUnavailable` where the state is unknown, `MetadataNotFound` without a cluster);
`MetadataDamaged` for a node that cannot be read, or a tree of another layout.

Only `lock` and `release` take a `timeout`, for those who cannot wait for that of the session.

Threads: the event loop on which the service was opened.

Sources: docs/internals/metadata-layout.md, sections 10 and 11; docs/internals/auto-recovery.md, sections 2, 3.3, 4 and
6.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum

from bookie_protocol.metadata_service.findings import Failure, Finding, all_of
from bookie_protocol.versioned import Identity, is_moved

ReplicaPredicate = Callable[[Collection[str]], bool]
"""Chooses marks by their missing replicas."""


@dataclass(frozen=True, slots=True)
class UnderreplicatedLedger:
    """A mark. `replicas`: bookies whose copies are missing (none: the placement policy is not met).

    `ctime_ms`: when it was marked, since the epoch; None if the marking process does not record that. `damage`: what is
    stored of the mark cannot be read, for this reason; which copies are missing is not known then. `findings`: the
    reasons that were recorded; `failures`: attempts to repair the ledger since the last of them.
    """

    ledger_id: int
    replicas: tuple[str, ...]
    ctime_ms: int | None = None
    damage: str | None = None
    findings: tuple[Finding, ...] = ()
    failures: tuple[Failure, ...] = ()

    @property
    def doubts(self) -> tuple[Finding, ...]:
        """Return the questions that a repair has to answer: the findings, and `UNKNOWN` for each bookie without one."""
        explained = {finding.bookie for finding in self.findings}
        return (*self.findings, *all_of(bookie for bookie in self.replicas if bookie not in explained))


Rest = Callable[[UnderreplicatedLedger], float]
"""Returns the seconds for which a ledger with this mark is skipped; 0 if it may be locked now."""


@dataclass(frozen=True, slots=True)
class LedgerLock:
    """A lock of ours. `mark`: as it was when the lock was taken; None: locked without a mark."""

    ledger_id: int
    mark: Identity | None
    session_id: int


@dataclass(frozen=True, slots=True)
class LockHolder:
    """The holder of a lock, by the host name that it wrote. The other fields differ once the lock is taken again."""

    host: str
    session_id: int
    creation: int
    """Creation of the lock's node: another one each time that the lock is taken."""

    def may_be(self, other: LockHolder | None) -> bool:
        """Return False if `other` is another lock. A lock that moves to another metadata service with its ledger gets
        another owner and creation."""
        if other is None or self == other:
            return other is not None
        return self.host == other.host and is_moved(self.creation) != is_moved(other.creation)


class AuditorCheck(Enum):
    """The periodic checks whose last complete run is recorded; the value is the node's name."""

    ALL_LEDGERS = "checkallledgersctime"
    PLACEMENT_POLICY = "placementpolicycheckctime"
    REPLICAS = "replicascheckctime"
