"""What an operator of the cluster decides by, in one answer each: the port, and the facts that it hands over.

Invariants
- Every fact is read from the metadata service for this very answer. What cannot be read is an error of the whole
  answer: no number stands for "not known".

Threads: event loop.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class ClusterFacts:
    """What the metadata service says about the cluster, read for this answer."""

    instance_id: str
    """Of the cluster: another one, another cluster."""
    writable: list[str]
    """Ids of the bookies that are registered writable, in order."""
    read_only: list[str]
    """Ids of those that are registered read-only. One that changes just now may be in both lists."""
    cookies: list[str]
    """Ids of the bookies that have a cookie."""
    under_replicated: int
    """Ledgers that are marked as under-replicated."""
    auditor: str | None
    """Who is the auditor; null: nobody."""
    last_audit_ms: int | None
    """When the last complete audit of the bookies began, in ms since 1970; null: there was none, or its auditor is one
    of Java's, which do not tell."""
    autorecovery_enabled: bool
    """Auto-recovery may run."""
    lost_bookie_recovery_delay_seconds: int
    """As it is stored; while nobody has stored one, `lostBookieRecoveryDelay` of the process that answers."""
    unrecoverable: int | None
    """Ledgers with an entry of which no bookie has a copy, as the last complete check of replicas found; null: there
    was none."""


@dataclass(frozen=True, slots=True)
class DrainProof:
    """Whether anything needs a bookie: a full listing of the ledgers and marks, made for this answer."""

    bookie_id: str
    """The bookie."""
    ledgers: int
    """Ledgers that name it, without those that were given up."""
    open_ledgers: int
    """Of these, those that are not closed."""
    marks: int
    """Under-replicated ledgers whose mark names it, without those that were given up."""
    accepted_losses: int
    """Ledgers of either kind that were given up, and name it still."""
    first_ledgers: list[int]
    """The first ones of either kind."""
    claims: int
    """Ledgers that are being re-replicated or recovered, and may come to name it, without those that were given up."""
    first_claims: list[int]
    """The first of these."""
    registered: bool
    """It is registered, writable or read-only: before the listing or after it."""
    auditor: str | None
    """Who is the auditor; null: nobody."""
    last_audit_ms: int | None
    """When the last complete audit of the bookies began, in ms since 1970; null: there was none, or its auditor is one
    of Java's, which do not tell."""
    instance_id: str
    """Of the cluster that was listed."""
    ledgers_seen: int
    """Ledgers of the cluster that were looked at."""
    begun_ms: int
    """When the listing began, in ms since 1970."""


class FactsPort(Protocol):
    """Facts about the cluster. `MetadataError`: they cannot be read."""

    async def cluster(self) -> ClusterFacts: ...
    async def proof(self, bookie_id: str, accepted_losses: AbstractSet[int]) -> DrainProof:
        """`accepted_losses`: ledgers whose data was given up."""
        ...
