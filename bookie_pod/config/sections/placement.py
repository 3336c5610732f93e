"""The placement of copies by auto-recovery, and of new ledgers by the gateway. Frozen; any thread may read.

`bookie_client.placement.java_keys` gives the texts of these keys their meaning and checks them.

Source: docs/internals/client-protocol.md, section 16.
"""

from __future__ import annotations

from dataclasses import dataclass

from bookie_pod.config.keys import INT_MAX, key


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementConfig:
    """Placement of copies by auto-recovery, and of new ledgers by the gateway

    Set these as the clients that write have them. A key that is not set has the client's default."""

    policy: str | None = key(
        "ensemblePlacementPolicy",
        None,
        derived="rack-aware",
    )
    """Class of the placement policy, with or without its package: `DefaultEnsemblePlacementPolicy` (random),
    `RackawareEnsemblePlacementPolicy`, `RegionAwareEnsemblePlacementPolicy`, `ZoneawareEnsemblePlacementPolicy`."""
    resolver: str | None = key("reppDnsResolverClass", None)
    """`ScriptBasedMapping`, `TableMapping`, or, for the racks that `pulsar-admin bookies set-bookie-rack` stores,
    Pulsar's `BookieRackAffinityMapping` (older: `ZkBookieRackAffinityMapping`). Unset: the script or the file if one
    is named, else the locations that bookies publish (`networkLocation`)."""
    script: str | None = key("networkTopologyScriptFileName", None)
    """Script that prints a location such as `/zone/rack` for each host that it is given."""
    script_arguments: int = key("networkTopologyScriptNumberArgs", 100, at_least=1, at_most=INT_MAX)
    """Hosts that the script is given at a time."""
    table: str | None = key("networkTopologyTableFileName", None, own=True)
    """File with lines of a host and its location."""
    min_racks: int = key("minNumRacksPerWriteQuorum", 2, at_least=1, at_most=INT_MAX)
    """Racks that the copies of an entry span."""
    enforce_racks: bool = key("enforceMinNumRacksPerWriteQuorum", False)
    """Rather no copy than one that leaves them on fewer racks."""
    ignore_local: bool = key("ignoreLocalNodeInPlacementPolicy", False)
    """Do not begin with this process's own rack or region."""
    regions: str | None = key("reppRegionsToWrite", None)
    """Regions to use, separated by semicolons. Unset: all."""
    min_regions: int = key("reppMinimumRegionsForDurability", 2, at_least=0, at_most=INT_MAX)
    """Regions that the copies of an entry span; counts where regions are named."""
    enforce_durability: bool = key("reppEnableDurabilityEnforcementInReplace", True)
    """Rather no replacement than one that leaves an entry on fewer regions."""
    validate_regions: bool = key("reppEnableValidation", True)
    """Rather no ensemble than one that leaves an entry on fewer regions."""
    min_zones: int = key("minNumZonesPerWriteQuorum", 2, at_least=1, at_most=INT_MAX)
    """Zones that the copies of an entry span."""
    desired_zones: int = key("desiredNumZonesPerWriteQuorum", 3, at_least=1, at_most=INT_MAX)
    """Zones that the copies of an entry should span."""
    enforce_zones: bool = key("enforceStrictZoneawarePlacement", True)
    """Rather no copy than one that leaves them on fewer zones."""
    weighted: bool = key("diskWeightBasedPlacementEnabled", False)
    """Prefer bookies with more free space."""
    max_weight_multiple: int = key("bookieMaxMultipleForWeightBasedPlacement", 3, at_least=0, at_most=INT_MAX)
    """Weights are at most this many times the median. 0: no limit."""
    free_space_interval_s: int = key("getBookieInfoIntervalSeconds", 86_400, at_least=1, at_most=INT_MAX)
    """Seconds between questions for a bookie's free space."""
    free_space_retry_interval_s: int = key("getBookieInfoRetryIntervalSeconds", 60, at_least=1, at_most=INT_MAX)
    """Seconds until a bookie that did not answer is asked again."""
