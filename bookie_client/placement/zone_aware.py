"""Zone-aware placement: write sets span zones, and upgrade domains where a zone comes twice.

A location is `/zone/upgrade-domain`. One part alone is a zone whose upgrade domain is not known; the rule about
domains does not bind it. A bookie without a location counts as one of the default zone.

- A write set needs `min_zones`; d = min(Qw, `desired_zones`) are preferred, by keeping the zones of the d - 1
  neighbours on either side out, then of d - 2, and so on. Among equals an upgrade domain that the zone does not use
  nearby goes first.
- In a write set where a zone comes more than once it uses at least two upgrade domains.
- `enforce`: E is a multiple of Qw and Qw > `min_zones`, or the request is refused; bookies of the default zone are
  never taken; nothing is relaxed. Without it the rules are given up step by step, and the answer says so. (The
  reference then chooses at random.)

Pure; any thread.

Source: docs/internals/client-protocol.md, section 16.4.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

from bookie_client.distribution import Quorums
from bookie_client.placement.policy import Adherence, AdherenceReport, ClusterView
from bookie_client.placement.rack_aware import positions
from bookie_client.placement.rule_based import Level, RuleBasedPlacement
from bookie_client.placement.search import Labels, Windows, WriteSet, WriteSetRule, can_span, windows_of
from bookie_client.placement.topology import DEFAULT_UPGRADE_DOMAIN, DEFAULT_ZONE, Location
from bookie_protocol.errors import BadRequest

UNKNOWN_ZONE: Location = (DEFAULT_ZONE, DEFAULT_UPGRADE_DOMAIN)


@dataclass(frozen=True, slots=True)
class ZoneRule(WriteSetRule):
    """A rule: each write set spans `minimum` zones (`desired` if it can).

    With `upgrade_domains`, members in the same zone span two of its upgrade domains."""

    windows: Windows
    minimum: int
    desired: int
    upgrade_domains: bool = True
    domains: ClassVar[int] = 2

    def problem(self, labels: Labels, write_set: WriteSet) -> str | None:
        members = [labels[member] for member in write_set]
        if not can_span([label and label[0] for label in members], self.minimum):
            zones = sorted({label[0] for label in members if label is not None})
            return f"write set {positions(write_set)} in {', '.join(zones)} only, {self.minimum} zones are needed"
        if self.upgrade_domains and None not in members:
            return _shared_domain(members, write_set)
        return None

    def preference(self, labels: Labels, position: int, label: Location) -> tuple[int, ...]:
        near = self._nearest(labels, position, label[0])
        in_same_domain = any(labels[member] == label for member in self.windows.neighbours[position])
        return (
            int(label == UNKNOWN_ZONE),
            min(self.desired - near, self.desired - self.minimum + 1),
            int(in_same_domain),
        )

    def _nearest(self, labels: Labels, position: int, zone: str) -> int:
        """Steps on the ring to the next member of the same zone; `desired` if it is farther or there is none."""
        size = len(labels)
        for steps in range(1, self.desired):
            for other in (labels[(position + steps) % size], labels[position - steps]):
                if other is not None and other[0] == zone:
                    return steps
        return self.desired


class ZoneAwarePlacement(RuleBasedPlacement):
    """`min_zones`: `minNumZonesPerWriteQuorum`; `desired_zones`: `desiredNumZonesPerWriteQuorum`; `enforce`:
    `enforceStrictZoneawarePlacement`."""

    name = "zone-aware"

    def __init__(self, *, min_zones: int = 2, desired_zones: int = 3, enforce: bool = True) -> None:
        if not 1 <= min_zones <= desired_zones:
            raise BadRequest(
                f"minNumZonesPerWriteQuorum is {min_zones} and desiredNumZonesPerWriteQuorum {desired_zones}; needed is"
                " 1 <= minimum <= desired"
            )
        self.min_zones = min_zones
        self.desired_zones = desired_zones
        self.enforce = enforce

    @property
    def rule(self) -> str:
        how = "enforced" if self.enforce else "relaxed when it must be"
        return f"{self.name}: write sets in at least {self.min_zones} zones, {self.desired_zones} desired, {how}"

    def label(self, location: Location | None) -> Location:
        return location[:2] if location else UNKNOWN_ZONE

    def spread(self, labels: Collection[Location], quorums: Quorums) -> bool:
        return len({label[0] for label in labels}) >= min(quorums.write, self.min_zones)

    def unfit(self, bookie: str, location: Location | None) -> str | None:
        return "its zone is not known" if self.enforce and location is None else None

    def levels(self, quorums: Quorums, cluster: ClusterView, *, replacing: bool) -> Sequence[Level]:
        misfit = self._misfit(quorums)
        if misfit is not None and not replacing:
            raise BadRequest(f"{misfit}; choose other quorums, or enforceStrictZoneawarePlacement=false")
        minimum, desired = self._zones(quorums)
        windows = windows_of(quorums)
        levels = [Level(ZoneRule(windows, minimum, desired))]
        if not self.enforce:
            given_up: tuple[str, ...] = ("a zone may use one upgrade domain in a write set",)
            levels.append(Level(ZoneRule(windows, minimum, desired, upgrade_domains=False), given_up))
            for lower in range(minimum - 1, 0, -1):
                zones = f"write sets may lie in {lower} instead of {minimum} zones"
                levels.append(Level(ZoneRule(windows, lower, desired, upgrade_domains=False), (*given_up, zones)))
        return levels

    def verdict(self, labels: Sequence[Location], quorums: Quorums, cluster: ClusterView) -> AdherenceReport:
        minimum, desired = self._zones(quorums)
        windows = windows_of(quorums)
        hard = ZoneRule(windows, minimum, desired)
        problems = [found for one in windows.all if (found := hard.problem(labels, one)) is not None]
        if misfit := self._misfit(quorums):
            problems.append(misfit)
        unknown = [position for position, label in enumerate(labels) if label == UNKNOWN_ZONE]
        if unknown:
            problems.append(f"zones of the members {positions(tuple(unknown))} are not known")
        if problems:
            return AdherenceReport(Adherence.FAIL, tuple(problems))
        soft = ZoneRule(windows, desired, desired, upgrade_domains=False)
        problems = [found for one in windows.all if (found := soft.problem(labels, one)) is not None]
        return AdherenceReport(Adherence.MEETS_SOFT if problems else Adherence.MEETS_STRICT, tuple(problems))

    def _zones(self, quorums: Quorums) -> tuple[int, int]:
        return min(quorums.write, self.min_zones), min(quorums.write, self.desired_zones)

    def _misfit(self, quorums: Quorums) -> str | None:
        """Return why strict placement can never serve these quorums; None if it can."""
        if not self.enforce:
            return None
        if quorums.ensemble % quorums.write:
            return (
                f"strict zone-aware placement needs an ensemble ({quorums.ensemble}) that is a multiple of the write"
                f" quorum ({quorums.write})"
            )
        if quorums.write <= self.min_zones:
            return (
                f"strict zone-aware placement needs a write quorum ({quorums.write}) above minNumZonesPerWriteQuorum"
                f" ({self.min_zones})"
            )
        return None


def _shared_domain(members: Sequence[Location | None], write_set: WriteSet) -> str | None:
    domains: dict[str, list[str | None]] = {}
    for label in members:
        if label is not None:
            domains.setdefault(label[0], []).append(label[1] if len(label) > 1 else None)
    for zone, used in domains.items():
        if len(used) > 1 and None not in used and len(set(used)) == 1:
            return f"write set {positions(write_set)}: zone {zone} uses upgrade domain {used[0]} only"
    return None
