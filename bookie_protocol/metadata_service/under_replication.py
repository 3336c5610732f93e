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

Only `lock` and `release` take a `timeout`, for those who cannot wait for that of the session.

Threads: the event loop on which the service was opened.

Sources: reference metadata layout, sections 10 and 11; reference auto-recovery, sections 2, 3.3, 4 and 6.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum


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
