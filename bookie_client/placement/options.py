"""Options of placement, the policy and the topology source that follow from them.

`Client(placement=...)` takes a policy's name, these options, or a policy of the application's own.

Pure; any thread.

Source: docs/internals/client-protocol.md, section 16.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bookie_client.placement.policy import PlacementPolicy
from bookie_client.placement.rack_aware import RackAwarePlacement
from bookie_client.placement.random_choice import LocalBookiePlacement, RandomPlacement
from bookie_client.placement.region_aware import RegionAwarePlacement
from bookie_client.placement.sources import (
    REGION_AND_RACK,
    ZONE_AND_DOMAIN,
    FileLocations,
    MappedLocations,
    PublishedLocations,
    PulsarRacks,
    ScriptLocations,
    TopologySource,
)
from bookie_client.placement.weighted import WeightedPlacement
from bookie_client.placement.zone_aware import ZoneAwarePlacement
from bookie_protocol.errors import BadRequest

POLICIES: Final = ("random", "rack-aware", "region-aware", "zone-aware", "local")


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementOptions:
    """Options of placement, immutable. The Java client's key follows each option that has one."""

    policy: str = "rack-aware"
    """One of `POLICIES` (`ensemblePlacementPolicy`). Rack-aware is random while fewer than two racks are known."""
    local_bookie: str | None = None
    """Policy "local": the one bookie that is used."""

    topology_file: str | None = None
    """File with network locations: a table of hosts and racks, JSON or YAML. Read again when it changes."""
    topology_script: str | None = None
    """Script that prints a location for each host it gets (`networkTopologyScriptFileName`)."""
    topology_script_arguments: int = 100
    """Hosts in one run of the script (`networkTopologyScriptNumberArgs`)."""
    locations: Mapping[str, str] | None = None
    """Network locations by bookie id or host."""
    pulsar_racks: bool = False
    """The racks that `pulsar-admin bookies set-bookie-rack` stores (`reppDnsResolverClass` of Apache Pulsar). With none
    of the four, what bookies publish is used."""
    local_location: str | None = None
    """Location of this client, such as `/region/rack`. None: as the file, script or mapping locates this host."""
    topology_refresh: float = 10.0
    """Seconds between looks whether locations changed."""

    min_racks: int = 2
    """Racks that each write set spans (`minNumRacksPerWriteQuorum`)."""
    enforce_racks: bool = False
    """Fail rather than use fewer racks (`enforceMinNumRacksPerWriteQuorum`)."""
    ignore_local: bool = False
    """Do not begin with this client's own rack or region (`ignoreLocalNodeInPlacementPolicy`)."""

    regions_to_write: tuple[str, ...] = ()
    """Empty: all (`reppRegionsToWrite`). Durability counts only when regions are named."""
    min_regions_for_durability: int = 2
    """Regions without which no entry is acknowledged; 0: no such rule (`reppMinimumRegionsForDurability`)."""
    enforce_durability_in_replacement: bool = True
    """Rather no replacement than one that breaks durability (`reppEnableDurabilityEnforcementInReplace`)."""
    validate_regions: bool = True
    """Rather no ensemble than one that breaks durability (`reppEnableValidation`)."""
    disallowed_regions: tuple[str, ...] = ()
    """Regions that get nothing new."""

    min_zones: int = 2
    """Zones that each write set spans (`minNumZonesPerWriteQuorum`)."""
    desired_zones: int = 3
    """Zones that each write set should span (`desiredNumZonesPerWriteQuorum`)."""
    enforce_zones: bool = True
    """Fail rather than use fewer zones (`enforceStrictZoneawarePlacement`)."""

    weighted: bool = False
    """Draw bookies in proportion to their free disk space (`diskWeightBasedPlacementEnabled`)."""
    max_weight_multiple: float = 3.0
    """Weights are at most this many times the median; 0: no limit (`bookieMaxMultipleForWeightBasedPlacement`)."""
    free_space_interval: float = 86400.0
    """Seconds between questions for a bookie's free space (`getBookieInfoIntervalSeconds`)."""
    free_space_retry_interval: float = 60.0
    """Seconds until a bookie that did not answer is asked again (`getBookieInfoRetryIntervalSeconds`)."""

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise BadRequest(f"there is no placement policy {self.policy!r}; it is one of {', '.join(POLICIES)}")
        given = (self.topology_file, self.topology_script, self.locations, self.pulsar_racks or None)
        if sum(one is not None for one in given) > 1:
            raise BadRequest("network locations come from a file, a script, a mapping or Pulsar: give one of them")
        for name in ("topology_refresh", "free_space_interval", "free_space_retry_interval"):
            if getattr(self, name) <= 0:
                raise BadRequest(f"placement option {name} must be positive, not {getattr(self, name)}")

    @property
    def needs_locations(self) -> bool:
        """Return True if the policy, or reads that prefer near copies, use locations of bookies."""
        told = self.topology_file or self.topology_script or self.locations or self.local_location
        return self.policy not in ("random", "local") or bool(told)


def make_policy(options: PlacementOptions) -> PlacementPolicy:
    """Return the policy that these options describe. Raises `BadRequest`."""
    policy = _unweighted(options)
    return WeightedPlacement(policy, max_multiple=options.max_weight_multiple) if options.weighted else policy


def make_source(options: PlacementOptions) -> TopologySource:
    """Return the source of network locations that these options describe. Raises `BadRequest`."""
    if options.topology_file is not None:
        return FileLocations(options.topology_file)
    if options.topology_script is not None:
        return ScriptLocations(options.topology_script, max_arguments=options.topology_script_arguments)
    if options.locations is not None:
        return MappedLocations(options.locations)
    if options.pulsar_racks:
        return PulsarRacks()
    return PublishedLocations(ZONE_AND_DOMAIN if options.policy == "zone-aware" else REGION_AND_RACK)


def _unweighted(options: PlacementOptions) -> PlacementPolicy:
    match options.policy:
        case "rack-aware":
            return RackAwarePlacement(
                min_racks=options.min_racks, enforce=options.enforce_racks, ignore_local=options.ignore_local
            )
        case "region-aware":
            return RegionAwarePlacement(
                regions_to_write=options.regions_to_write,
                min_regions_for_durability=options.min_regions_for_durability,
                enforce_in_replacement=options.enforce_durability_in_replacement,
                validate=options.validate_regions,
                disallowed_regions=options.disallowed_regions,
                min_racks=options.min_racks,
                enforce_racks=options.enforce_racks,
                ignore_local=options.ignore_local,
            )
        case "zone-aware":
            return ZoneAwarePlacement(
                min_zones=options.min_zones, desired_zones=options.desired_zones, enforce=options.enforce_zones
            )
        case "local":
            if options.local_bookie is None:
                raise BadRequest("placement policy 'local' needs local_bookie, the id of the bookie on this host")
            return LocalBookiePlacement(options.local_bookie)
        case _:
            return RandomPlacement()
