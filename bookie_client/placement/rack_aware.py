"""Rack-aware placement: every write set spans several racks.

A rack is a whole location: `/region/rack` is another rack than `/other/rack`. Bookies whose location is not known share
the default rack.

- A write set needs m = min(Qw, `min_racks`) racks. If that cannot be had, m is lowered step by step and the answer
  says so; with `enforce` the request fails instead, and bookies of the default rack are never taken.
- Beyond the minimum, racks that are used least go first, in the write sets of the position and then in the
  ensemble. A replacement follows the same order: with as many racks as members that is the rack of the failed bookie,
  with more racks the load of a failure is spread over all unused ones.
- The first member comes from this client's own rack, if it is known, unless `ignore_local`.

Pure; any thread.

Source: docs/internals/client-protocol.md, section 16.2.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

from bookie_client.distribution import Quorums
from bookie_client.placement.policy import Adherence, AdherenceReport, ClusterView
from bookie_client.placement.rule_based import Level, RuleBasedPlacement
from bookie_client.placement.search import Labels, Windows, WriteSet, can_span, windows_of
from bookie_client.placement.topology import DEFAULT_RACK, Location, format_location
from bookie_protocol.errors import BadRequest

UNKNOWN_RACK: Location = (DEFAULT_RACK,)


@dataclass(frozen=True, slots=True)
class RackRule:
    """A rule: each write set spans `minimum` racks."""

    windows: Windows
    minimum: int
    local: Location | None = None
    domains: ClassVar[int] = 1

    def objection(self, labels: Labels, position: int) -> str | None:
        for write_set in self.windows.through[position]:
            if not can_span([labels[member] for member in write_set], self.minimum):
                return too_few("racks", write_set, labels, self.minimum)
        return None

    def preference(self, labels: Labels, position: int, label: Location) -> tuple[int, ...]:
        near = sum(labels[member] == label for member in self.windows.neighbours[position])
        return near, labels.count(label), int(self._is_first(labels) and label != self.local)

    def _is_first(self, labels: Labels) -> bool:
        return self.local is not None and not any(labels)


class RackAwarePlacement(RuleBasedPlacement):
    """`min_racks`: `minNumRacksPerWriteQuorum`; `enforce`: `enforceMinNumRacksPerWriteQuorum`; `ignore_local`:
    `ignoreLocalNodeInPlacementPolicy`."""

    name = "rack-aware"

    def __init__(self, *, min_racks: int = 2, enforce: bool = False, ignore_local: bool = False) -> None:
        if min_racks < 1:
            raise BadRequest(f"minNumRacksPerWriteQuorum must be at least 1, not {min_racks}")
        self.min_racks = min_racks
        self.enforce = enforce
        self.ignore_local = ignore_local

    @property
    def rule(self) -> str:
        how = "enforced" if self.enforce else "relaxed when it must be"
        return f"{self.name}: write sets on at least {self.min_racks} racks, {how}"

    def label(self, location: Location | None) -> Location:
        return location or UNKNOWN_RACK

    def spread(self, labels: Collection[Location], quorums: Quorums) -> bool:
        return len(set(labels)) >= min(quorums.write, self.min_racks)

    def unfit(self, bookie: str, location: Location | None) -> str | None:
        return "its rack is not known" if self.enforce and location is None else None

    def levels(self, quorums: Quorums, cluster: ClusterView, *, replacing: bool) -> Sequence[Level]:
        minimum = min(quorums.write, self.min_racks)
        local = None if self.ignore_local else cluster.topology.local
        windows = windows_of(quorums)
        levels = [Level(RackRule(windows, minimum, local))]
        if not self.enforce:
            for lower in range(minimum - 1, 0, -1):
                given_up = f"write sets may lie on {lower} instead of {minimum} racks"
                levels.append(Level(RackRule(windows, lower, local), (given_up,)))
        return levels

    def verdict(self, labels: Sequence[Location], quorums: Quorums, cluster: ClusterView) -> AdherenceReport:
        minimum = min(quorums.write, self.min_racks)
        problems = []
        for write_set in windows_of(quorums).all:
            racks = [labels[member] for member in write_set]
            if not can_span(racks, minimum):
                problems.append(too_few("racks", write_set, labels, minimum))
            elif self.enforce and UNKNOWN_RACK in racks:
                problems.append(f"write set {positions(write_set)}: a member's rack is not known")
        return AdherenceReport(Adherence.FAIL if problems else Adherence.MEETS_STRICT, tuple(problems))


def too_few(what: str, write_set: WriteSet, labels: Labels, minimum: int) -> str:
    """Return the words for a write set that does not span enough places."""
    places = sorted({format_location(label) for member in write_set if (label := labels[member]) is not None})
    return f"write set {positions(write_set)} on {', '.join(places)} only, {minimum} {what} are needed"


def positions(write_set: WriteSet) -> str:
    """`[0 1 2]`."""
    return f"[{' '.join(map(str, write_set))}]"
