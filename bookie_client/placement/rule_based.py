"""The common part of all policies that are a list of rules, strictest first.

A policy says which place a bookie counts as, who is never taken, and which rules to try one after the other. From
that follow new ensembles, replacements, mending, the adherence check and the reasons of a refusal.

Invariants
- Quarantined bookies are taken before a rule is relaxed, because they answer. Rules are relaxed before bookies are
  taken that do not answer: they protect nothing now.
- As many failed members as possible are replaced, even if a rule has to be relaxed for it.

Pure; any thread.

Source: docs/internals/client-protocol.md, sections 3, 7.3 and 16.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from typing import Final

from bookie_client.distribution import Quorums
from bookie_client.placement.policy import (
    Adherence,
    AdherenceReport,
    ClusterView,
    EnsembleRequest,
    Placement,
    ReplacementRequest,
)
from bookie_client.placement.search import Effort, Kind, Rule, fill
from bookie_client.placement.topology import Location, Topology, format_location
from bookie_protocol.errors import NotEnoughBookies

MAX_NAMED: Final = 12
"""Maximum number of bookies named in one message; of the others only the number is given."""


def no_ensemble(
    quorums: Quorums, rule: str, candidates: Iterable[str], refusals: Mapping[str, str], cluster: ClusterView
) -> str:
    """A new ensemble cannot be made."""
    found = sorted(candidates)
    size = quorums.ensemble
    named = _named(found, cluster)
    if len(found) < size:
        text = f"an ensemble of {size} needs {size} writable bookies and there are {len(found)} ({named})"
    else:
        text = (
            f"no ensemble of {size} with write quorum {quorums.write} obeys the placement policy ({rule}): "
            f"{len(found)} bookies can be taken ({named})"
        )
    return f"{text}{_refused(refusals)}; start more bookies or ask for a smaller ensemble"


def no_spare(rule: str, candidates: Iterable[str], refusals: Mapping[str, str], cluster: ClusterView) -> str:
    """A failed member cannot be replaced."""
    found = sorted(candidates)
    text = f"no spare bookie that obeys the placement policy ({rule}): " if found else "no spare bookie: "
    return f"{text}{_named(found, cluster)}{_refused(refusals)}"


def _named(bookies: list[str], cluster: ClusterView) -> str:
    place = cluster.topology.location
    return _listed([f"{b} at {format_location(place(b))}" if place(b) else b for b in bookies]) or "none"


def _refused(refusals: Mapping[str, str]) -> str:
    if not refusals:
        return ""
    return f"; refused: {_listed([f'{bookie}: {reason}' for bookie, reason in sorted(refusals.items())])}"


def _listed(items: list[str]) -> str:
    text = ", ".join(items[:MAX_NAMED])
    return text if len(items) <= MAX_NAMED else f"{text} and {len(items) - MAX_NAMED} more"


MAX_SUBSETS: Final = 128
"""Sets of positions that are tried, for each number of positions, when not all can be filled or mended."""

_Candidates = Mapping[Kind, Sequence[str]]


@dataclass(frozen=True, slots=True)
class Level:
    """One rule to try; `relaxed`: what it gives up compared with the first one."""

    rule: Rule
    relaxed: tuple[str, ...] = ()


class RuleBasedPlacement(ABC):
    """The five functions of `PlacementPolicy`, from the four that a policy defines."""

    name: str

    @property
    @abstractmethod
    def rule(self) -> str:
        """Return what the policy demands, in a few words for people."""

    @abstractmethod
    def label(self, location: Location | None) -> Location:
        """Return the place that a bookie with this location counts as; None: its location is not known."""

    @abstractmethod
    def levels(self, quorums: Quorums, cluster: ClusterView, *, replacing: bool) -> Sequence[Level]:
        """Return the rules to try, strictest first. Raises `BadRequest` for quorums that can never obey, but never when
        `replacing`: the ledger exists, and its copies have to be restored whatever its numbers."""

    @abstractmethod
    def verdict(self, labels: Sequence[Location], quorums: Quorums, cluster: ClusterView) -> AdherenceReport:
        """Judge an ensemble whose members have these locations."""

    def spread(self, labels: Collection[Location], quorums: Quorums) -> bool:
        """Return True if bookies at these locations cover enough fault domains for a write set."""
        return True

    def unfit(self, bookie: str, location: Location | None) -> str | None:
        """Return why this bookie, at this location, is never taken; None if it may be."""
        return None

    # --- PlacementPolicy ------------------------------------------------------------------------------------

    def new_ensemble(self, request: EnsembleRequest) -> Placement:
        quorums, cluster = request.quorums, request.cluster
        levels = self.levels(quorums, cluster, replacing=False)
        empty = [None] * quorums.ensemble
        effort = Effort()
        for candidates in self._pools(cluster, frozenset()):
            for level in levels:
                positions = range(quorums.ensemble)
                chosen = fill(empty, positions, candidates, level.rule, request.random, cluster.weights, effort)
                if chosen is not None:
                    ensemble = tuple(chosen[position] for position in range(quorums.ensemble))
                    return Placement(ensemble, self.check(ensemble, quorums, cluster), level.relaxed)
        refusals = self.refusals(cluster)
        found = cluster.writable - refusals.keys()
        raise NotEnoughBookies(no_ensemble(quorums, self.rule, found, refusals, cluster))

    def replacement(self, request: ReplacementRequest) -> Placement:
        wanted = _positions(request)
        levels = self.levels(request.quorums, request.cluster, replacing=True)
        effort = request.effort
        for count in range(len(wanted), 0, -1):
            for holes in islice(combinations(wanted, count), MAX_SUBSETS if effort.left else 1):
                placement = self._refill(request, holes, levels)
                if placement is not None:
                    return placement
        return self._unchanged(request)

    def mend(self, request: ReplacementRequest) -> Placement:
        failed = _positions(request)
        levels = self.levels(request.quorums, request.cluster, replacing=True)[:1]
        others = [position for position in range(len(request.ensemble)) if position not in failed]
        request.random.shuffle(others)
        effort = request.effort
        for count in range(len(others) + 1):
            for moved in islice(combinations(others, count), MAX_SUBSETS):
                if not effort.left:
                    return self.replacement(request)
                effort.spend(len(request.ensemble))
                if self._hopeless(request, levels[0].rule, {*failed, *moved}):
                    continue
                placement = self._refill(request, sorted((*failed, *moved)), levels)
                if placement is not None and placement.report.adherence is not Adherence.FAIL:
                    return placement
        return self.replacement(request)

    def check(self, ensemble: tuple[str, ...], quorums: Quorums, cluster: ClusterView) -> AdherenceReport:
        return self.verdict([self._label_of(bookie, cluster) for bookie in ensemble], quorums, cluster)

    def refusals(self, cluster: ClusterView) -> Mapping[str, str]:
        refused = {}
        for bookie in cluster.writable | cluster.read_only | cluster.excluded.keys():
            reason = self._refusal(bookie, cluster)
            if reason is not None:
                refused[bookie] = reason
        return refused

    def objection(
        self, ensemble: tuple[str, ...], position: int, bookie: str, quorums: Quorums, cluster: ClusterView
    ) -> str | None:
        labels = [self._label_of(member, cluster) for member in ensemble]
        labels[position] = self._label_of(bookie, cluster)
        return self.levels(quorums, cluster, replacing=True)[0].rule.objection(labels, position)

    # --- AcknowledgementRule --------------------------------------------------------------------------------

    def acknowledgements_suffice(self, bookies: frozenset[str], quorums: Quorums, topology: Topology) -> bool:
        return self.spread({self.label(topology.location(bookie)) for bookie in bookies}, quorums)

    # --- inside ---------------------------------------------------------------------------------------------

    def _label_of(self, bookie: str, cluster: ClusterView) -> Location:
        return self.label(cluster.topology.location(bookie))

    def _refusal(self, bookie: str, cluster: ClusterView) -> str | None:
        if bookie in cluster.excluded:
            return cluster.excluded[bookie]
        if bookie not in cluster.writable:
            return "read-only"
        return self.unfit(bookie, cluster.topology.location(bookie))

    def _pools(self, cluster: ClusterView, taken: frozenset[str]) -> Iterator[_Candidates]:
        """Yield the candidates: first without the bookies that do not answer, then with them."""
        pool: dict[Kind, list[str]] = {}
        silent: dict[Kind, list[str]] = {}
        for bookie in sorted(cluster.writable - taken - cluster.excluded.keys()):
            location = cluster.topology.location(bookie)
            if self.unfit(bookie, location) is None:
                unreachable = bookie in cluster.unreachable
                kind = Kind(unreachable, bookie in cluster.quarantined, self.label(location))
                (silent if unreachable else pool).setdefault(kind, []).append(bookie)
        yield pool
        if silent:
            yield pool | silent

    def _hopeless(self, request: ReplacementRequest, rule: Rule, holes: Collection[int]) -> bool:
        """Return True if the members that would stay break the rule, whichever bookies join them."""
        labels = self._labels(request, holes)
        return any(
            label is not None and rule.objection(labels, position) is not None for position, label in enumerate(labels)
        )

    def _labels(self, request: ReplacementRequest, holes: Collection[int]) -> list[Location | None]:
        return [
            None if position in holes else self._label_of(bookie, request.cluster)
            for position, bookie in enumerate(request.ensemble)
        ]

    def _refill(self, request: ReplacementRequest, holes: Sequence[int], levels: Sequence[Level]) -> Placement | None:
        cluster = request.cluster
        labels = self._labels(request, holes)
        for candidates in self._pools(cluster, _taken(request)):
            for level in levels:
                chosen = fill(labels, holes, candidates, level.rule, request.random, cluster.weights, request.effort)
                if chosen is not None:
                    ensemble = tuple(chosen.get(p, bookie) for p, bookie in enumerate(request.ensemble))
                    unfilled = {p: self._no_spare(request) for p in _positions(request) if p not in holes}
                    report = self.check(ensemble, request.quorums, cluster)
                    return Placement(ensemble, report, level.relaxed, unfilled)
        return None

    def _unchanged(self, request: ReplacementRequest) -> Placement:
        report = self.check(request.ensemble, request.quorums, request.cluster)
        unfilled = {position: self._no_spare(request) for position in _positions(request)}
        return Placement(request.ensemble, report, unfilled=unfilled)

    def _no_spare(self, request: ReplacementRequest) -> str:
        taken, cluster = _taken(request), request.cluster
        refusals = {bookie: why for bookie, why in self.refusals(cluster).items() if bookie not in taken}
        return no_spare(self.rule, cluster.writable - taken - refusals.keys(), refusals, cluster)


def _positions(request: ReplacementRequest) -> list[int]:
    """Positions whose failed bookie is still there."""
    return [position for position, bookie in sorted(request.failed.items()) if request.ensemble[position] == bookie]


def _taken(request: ReplacementRequest) -> frozenset[str]:
    return frozenset(request.ensemble) | frozenset(request.failed.values())
