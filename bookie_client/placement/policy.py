"""The interface of a placement policy: its questions and its answers.

Invariants
- A policy is a pure function: the bookies, their locations, free space and the source of randomness are
  arguments. The same arguments and the same seed give the same answer, whatever order bookies are listed in.
- An ensemble never holds a bookie twice, nor one that is excluded or not writable.
- An answer that gives up a rule says so (`Placement.relaxed`); a rule that is enforced is never given up.

Any thread.

Source: docs/internals/client-protocol.md, sections 3, 7.3 and 16.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from random import Random
from typing import Protocol, runtime_checkable

from bookie_client.distribution import Quorums
from bookie_client.placement.search import Effort
from bookie_client.placement.topology import UNKNOWN_TOPOLOGY, Topology


class Adherence(Enum):
    """The degree to which an ensemble obeys its policy. MEETS_SOFT: it meets the minimum, but not what is desired."""

    MEETS_STRICT = "MEETS_STRICT"
    MEETS_SOFT = "MEETS_SOFT"
    FAIL = "FAIL"


@dataclass(frozen=True, slots=True)
class AdherenceReport:
    """The verdict on an ensemble; `problems` names each write set that is not as desired."""

    adherence: Adherence
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """The bookies at one moment, as a policy sees them."""

    writable: frozenset[str]
    read_only: frozenset[str] = frozenset()
    quarantined: frozenset[str] = frozenset()
    """Writable bookies that answer, with many errors lately: the others go first among those in fault domains that are
    equally good."""
    unreachable: frozenset[str] = frozenset()
    """Writable bookies that do not answer: taken only when the others do not suffice."""
    excluded: Mapping[str, str] = field(default_factory=dict)
    """Never taken; bookie id -> why (draining, chosen elsewhere, failed just now)."""
    topology: Topology = UNKNOWN_TOPOLOGY
    free_bytes: Mapping[str, int] = field(default_factory=dict)
    """Free disk space in bytes as bookies reported it, where it is known."""
    weights: Mapping[str, float] = field(default_factory=dict)
    """Relative likelihood of being drawn; empty: all alike. Set by `WeightedPlacement`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsembleRequest:
    """A new ledger's ensemble is wanted."""

    quorums: Quorums
    cluster: ClusterView
    random: Random
    custom_metadata: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacementRequest:
    """Replacements for the members at some positions are wanted; `failed`: position -> bookie id.

    A position whose bookie was exchanged meanwhile is left as it is.
    """

    ensemble: tuple[str, ...]
    failed: Mapping[int, str]
    quorums: Quorums
    cluster: ClusterView
    random: Random
    effort: Effort = field(default_factory=Effort)
    """Shared by all requests of one search for spares."""


@dataclass(frozen=True, slots=True)
class Placement:
    """A choice. `relaxed`: the rules that were given up to get it; empty when all hold.

    `unfilled` (replacements only): positions that keep their old bookie because there is no spare, and why.
    """

    ensemble: tuple[str, ...]
    report: AdherenceReport
    relaxed: tuple[str, ...] = ()
    unfilled: Mapping[int, str] = field(default_factory=dict)


class PlacementPolicy(Protocol):
    """The questions that the write path, the auditor and the operator ask of a placement policy."""

    @property
    def name(self) -> str:
        """Return the name, as in `Client(placement=...)`."""
        ...

    @property
    def rule(self) -> str:
        """Return what the policy demands, in a few words for people."""
        ...

    def new_ensemble(self, request: EnsembleRequest) -> Placement:
        """E different bookies. Raises `NotEnoughBookies`, `BadRequest` (quorums that can never obey an enforced
        rule)."""
        ...

    def replacement(self, request: ReplacementRequest) -> Placement:
        """Return the ensemble with as many failed members replaced as possible. Never raises."""
        ...

    def mend(self, request: ReplacementRequest) -> Placement:
        """Return the ensemble with the failed members replaced, and as few others exchanged as the rule needs.

        No member changes position. If nothing helps, only failed members are replaced and the report says FAIL."""
        ...

    def check(self, ensemble: tuple[str, ...], quorums: Quorums, cluster: ClusterView) -> AdherenceReport:
        """Judge an existing ensemble by the policy."""
        ...

    def refusals(self, cluster: ClusterView) -> Mapping[str, str]:
        """Return the bookies that are never taken now, and why; the other writable ones are candidates."""
        ...

    def objection(
        self, ensemble: tuple[str, ...], position: int, bookie: str, quorums: Quorums, cluster: ClusterView
    ) -> str | None:
        """Return why `bookie` may not take `position` of this ensemble; None if it may."""
        ...


@runtime_checkable
class AcknowledgementRule(Protocol):
    """An optional part of a policy: which sets of acknowledgements suffice."""

    def acknowledgements_suffice(self, bookies: frozenset[str], quorums: Quorums, topology: Topology) -> bool:
        """Return True if these bookies lie in as many fault domains as the policy demands of a write set. Their number
        is not judged.

        They are the bookies of one write set that acknowledged an add."""
        ...
