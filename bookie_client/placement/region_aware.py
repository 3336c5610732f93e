"""Region-aware placement: ensembles spread evenly over regions, and over racks inside each.

The first part of a location is the region, the whole location the rack. Bookies whose location is not known share the
default region.

- Without `regions_to_write` every region takes part; write sets span at least two regions and `min_racks` racks where
  that is possible, and the answer says when it was not.
- With it only these regions are written to, and entries survive the loss of `min_regions_for_durability` - 1 of them:
  no ack quorum fits into so few regions. New ledgers whose quorums make that impossible are refused; those that exist
  (made before the rule, or by a client without it) are repaired as well as can be, and the answer says so.
- The region of this client goes first when regions are equally used, unless `ignore_local`.
- Adherence: FAIL when durability is violated, MEETS_SOFT when a write set lies in one region, or on too few racks,
  although there are more. (The reference always says strict.)

Pure; any thread.

Source: docs/internals/client-protocol.md, section 16.3.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import ClassVar

from bookie_client.distribution import Quorums
from bookie_client.placement.policy import Adherence, AdherenceReport, ClusterView
from bookie_client.placement.rack_aware import positions, too_few
from bookie_client.placement.rule_based import Level, RuleBasedPlacement
from bookie_client.placement.search import Labels, Windows, WriteSet, WriteSetRule, can_span, windows_of
from bookie_client.placement.topology import DEFAULT_RACK, DEFAULT_REGION, Location
from bookie_protocol.errors import BadRequest

UNKNOWN_PLACE: Location = (DEFAULT_REGION, DEFAULT_RACK)


@dataclass(frozen=True, slots=True)
class RegionRule(WriteSetRule):
    """A rule: each write set spans `min_regions` regions and `min_racks` racks, and no `ack` of its members lie in
    `min_durable` - 1 regions (0: no such demand)."""

    windows: Windows
    min_regions: int
    min_racks: int
    ack: int = 0
    min_durable: int = 0
    local: str | None = None
    domains: ClassVar[int] = 2

    def problem(self, labels: Labels, write_set: WriteSet) -> str | None:
        regions = [_region(labels[member]) for member in write_set]
        if self.min_durable:
            fullest = Counter(region for region in regions if region is not None).most_common(self.min_durable - 1)
            if sum(count for _, count in fullest) >= self.ack:
                return (
                    f"write set {positions(write_set)}: {self.ack} acknowledgements may come from"
                    f" {', '.join(region for region, _ in fullest)} alone, {self.min_durable} regions are needed"
                )
        if not can_span(regions, self.min_regions):
            return too_few("regions", write_set, labels, self.min_regions)
        if not can_span([labels[member] for member in write_set], self.min_racks):
            return too_few("racks", write_set, labels, self.min_racks)
        return None

    def preference(self, labels: Labels, position: int, label: Location) -> tuple[int, ...]:
        region = label[0]
        neighbours = self.windows.neighbours[position]
        return (
            sum(_region(other) == region for other in labels),
            sum(_region(labels[member]) == region for member in neighbours),
            int(self.local is not None and region != self.local),
            sum(labels[member] == label for member in neighbours),
            labels.count(label),
        )


class RegionAwarePlacement(RuleBasedPlacement):
    """`regions_to_write`: `reppRegionsToWrite`; `min_regions_for_durability`: `reppMinimumRegionsForDurability`;
    `enforce_in_replacement`: `reppEnableDurabilityEnforcementInReplace`; `validate`: `reppEnableValidation`;
    `disallowed_regions`: regions that get nothing new; the others as in `RackAwarePlacement`."""

    name = "region-aware"

    def __init__(
        self,
        *,
        regions_to_write: Collection[str] = (),
        min_regions_for_durability: int = 2,
        enforce_in_replacement: bool = True,
        validate: bool = True,
        disallowed_regions: Collection[str] = (),
        min_racks: int = 2,
        enforce_racks: bool = False,
        ignore_local: bool = False,
    ) -> None:
        self.regions_to_write = tuple(dict.fromkeys(regions_to_write))
        self.disallowed_regions = frozenset(disallowed_regions)
        self.min_durable = max(min_regions_for_durability, 0) if self.regions_to_write else 0
        self.enforce_in_replacement = enforce_in_replacement
        self.validate = validate
        self.min_racks = min_racks
        self.enforce_racks = enforce_racks
        self.ignore_local = ignore_local
        if min_racks < 1:
            raise BadRequest(f"minNumRacksPerWriteQuorum must be at least 1, not {min_racks}")
        if self.min_durable > len(self.regions_to_write):
            raise BadRequest(
                f"reppMinimumRegionsForDurability is {self.min_durable}, but reppRegionsToWrite names only"
                f" {len(self.regions_to_write)} regions ({', '.join(self.regions_to_write)})"
            )

    @property
    def rule(self) -> str:
        where = f"regions {', '.join(self.regions_to_write)}" if self.regions_to_write else "all regions"
        durable = f", no ack quorum in fewer than {self.min_durable}" if self.min_durable else ""
        return f"{self.name}: spread over {where}{durable}, {self.min_racks} racks in each write set"

    def label(self, location: Location | None) -> Location:
        return location or UNKNOWN_PLACE

    def spread(self, labels: Collection[Location], quorums: Quorums) -> bool:
        regions = {label[0] for label in labels}
        return len(regions) >= min(quorums.write, self.min_durable) and len(set(labels)) >= min(
            quorums.write, self.min_racks
        )

    def unfit(self, bookie: str, location: Location | None) -> str | None:
        return self._unfit_place(location)

    def levels(self, quorums: Quorums, cluster: ClusterView, *, replacing: bool) -> Sequence[Level]:
        durable = self.min_durable
        misfit = self._misfit(quorums)
        if misfit is not None and not replacing:
            raise BadRequest(misfit)
        regions = min(quorums.write, 2, len(self._regions(cluster)))
        racks = min(quorums.write, self.min_racks)
        local = cluster.topology.local
        own = None if self.ignore_local or local is None else local[0]
        windows = windows_of(quorums)

        def level(regions: int, racks: int, durable: int, *relaxed: str) -> Level:
            return Level(RegionRule(windows, regions, racks, quorums.ack, durable, own), relaxed)

        one_region = "write sets may lie in one region"
        few_racks = f"write sets may lie on fewer than {racks} racks"
        fragile = f"an ack quorum may lie in fewer than {durable} regions"
        if misfit is not None:
            return [
                level(regions, racks, 0, fragile),
                level(1, racks, 0, fragile, one_region),
                *([] if self.enforce_racks else [level(1, 1, 0, fragile, one_region, few_racks)]),
            ]
        levels = [level(regions, racks, durable)]
        if regions > 1 and durable < 2:
            levels.append(level(1, racks, durable, one_region))
        if not self.enforce_racks:
            levels.append(level(1, 1, durable, few_racks))
        hard = self.enforce_in_replacement if replacing else self.validate
        if durable and not hard:
            levels.append(level(1, 1, 0, fragile, few_racks))
        return levels

    def verdict(self, labels: Sequence[Location], quorums: Quorums, cluster: ClusterView) -> AdherenceReport:
        windows = windows_of(quorums)
        durable = RegionRule(windows, 1, 1, quorums.ack, self.min_durable)
        problems = [found for one in windows.all if (found := durable.problem(labels, one)) is not None]
        if problems:
            return AdherenceReport(Adherence.FAIL, tuple(problems))
        regions = min(quorums.write, 2, len(self._regions(cluster)))
        spread = RegionRule(windows, regions, min(quorums.write, self.min_racks))
        problems = [found for one in windows.all if (found := spread.problem(labels, one)) is not None]
        return AdherenceReport(Adherence.MEETS_SOFT if problems else Adherence.MEETS_STRICT, tuple(problems))

    def _unfit_place(self, location: Location | None) -> str | None:
        region = self.label(location)[0]
        if region in self.disallowed_regions:
            return f"placement in region {region} is disallowed"
        if self.regions_to_write and region not in self.regions_to_write:
            return f"region {region} is not one to write to"
        if self.enforce_racks and location is None:
            return "its rack is not known"
        return None

    def _regions(self, cluster: ClusterView) -> set[str]:
        """Regions that take writes now."""
        places = {cluster.topology.location(bookie) for bookie in cluster.writable - cluster.excluded.keys()}
        return {self.label(place)[0] for place in places if self._unfit_place(place) is None}

    def _misfit(self, quorums: Quorums) -> str | None:
        """Return why no ensemble with these quorums can be durable; None if some can."""
        ack, write, regions = quorums.ack, quorums.write, self.min_durable
        if not regions or (ack >= regions and ack > write - write // regions):
            return None
        return (
            f"an ack quorum of {ack} out of {write} may lie in fewer than {regions} regions"
            f" (reppMinimumRegionsForDurability); it must be at least {max(regions, write - write // regions + 1)}"
        )


def _region(label: Location | None) -> str | None:
    return label[0] if label is not None else None
