"""The Java client's configuration keys of placement, as written in `bk_server.conf` and client configurations.

Unknown policy or resolver classes, and values that cannot be read, are refused with a line that names the key;
everything else about placement that the reference knows and that has no meaning here is left out on purpose
(`networkTopologyStabilizePeriodSeconds`: last known locations are always kept).

Pure; any thread.

Source: docs/internals/client-protocol.md, sections 16 and 22.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final

from bookie_client.placement.options import PlacementOptions
from bookie_protocol.errors import BadRequest

POLICY_KEY: Final = "ensemblePlacementPolicy"
RESOLVER_KEY: Final = "reppDnsResolverClass"
SCRIPT_KEY: Final = "networkTopologyScriptFileName"
TABLE_KEY: Final = "networkTopologyTableFileName"
"""Podkeeper's own: the file of a table mapping, which the reference leaves to the Hadoop configuration."""

_POLICIES: Final = {
    "DefaultEnsemblePlacementPolicy": "random",
    "RackawareEnsemblePlacementPolicy": "rack-aware",
    "RegionAwareEnsemblePlacementPolicy": "region-aware",
    "ZoneawareEnsemblePlacementPolicy": "zone-aware",
    "LocalBookieEnsemblePlacementPolicy": "local",
}
_PULSAR: Final = "pulsar"
_RESOLVERS: Final = {
    "ScriptBasedMapping": SCRIPT_KEY,
    "TableMapping": TABLE_KEY,
    "BookieRackAffinityMapping": _PULSAR,
    "ZkBookieRackAffinityMapping": _PULSAR,  # the name before Pulsar 2.10, which its configuration still ships
}


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError("true or false")
    return text.lower() == "true"


def _integer(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise ValueError("a whole number") from None


def _number(text: str) -> float:
    return float(_integer(text))


def _regions(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(";") if part.strip())


_OPTIONS: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = {
    "networkTopologyScriptNumberArgs": ("topology_script_arguments", _integer),
    "minNumRacksPerWriteQuorum": ("min_racks", _integer),
    "enforceMinNumRacksPerWriteQuorum": ("enforce_racks", _boolean),
    "ignoreLocalNodeInPlacementPolicy": ("ignore_local", _boolean),
    "reppRegionsToWrite": ("regions_to_write", _regions),
    "reppMinimumRegionsForDurability": ("min_regions_for_durability", _integer),
    "reppEnableDurabilityEnforcementInReplace": ("enforce_durability_in_replacement", _boolean),
    "reppEnableValidation": ("validate_regions", _boolean),
    "minNumZonesPerWriteQuorum": ("min_zones", _integer),
    "desiredNumZonesPerWriteQuorum": ("desired_zones", _integer),
    "enforceStrictZoneawarePlacement": ("enforce_zones", _boolean),
    "diskWeightBasedPlacementEnabled": ("weighted", _boolean),
    "bookieMaxMultipleForWeightBasedPlacement": ("max_weight_multiple", _number),
    "getBookieInfoIntervalSeconds": ("free_space_interval", _number),
    "getBookieInfoRetryIntervalSeconds": ("free_space_retry_interval", _number),
}

PLACEMENT_KEYS: Final = frozenset({POLICY_KEY, RESOLVER_KEY, SCRIPT_KEY, TABLE_KEY, *_OPTIONS})
"""Every key that `placement_options` reads."""


def placement_options(keys: Mapping[str, str], *, local_bookie: str | None = None) -> PlacementOptions:
    """Return the options that Java keys describe; other keys are left alone. Raises `BadRequest`.

    `local_bookie`: the bookie on this host, for the policy that uses no other.
    """
    given: dict[str, Any] = {}
    for key, (option, read) in _OPTIONS.items():
        text = keys.get(key, "").strip()
        if text:
            try:
                given[option] = read(text)
            except ValueError as error:
                raise BadRequest(f"{key} must be {error}, not {text!r}") from None
    policy = keys.get(POLICY_KEY, "").strip()
    if policy:
        given["policy"] = _known(POLICY_KEY, policy, _POLICIES)
    options = PlacementOptions(**given, local_bookie=local_bookie)
    return _with_source(options, keys)


def _with_source(options: PlacementOptions, keys: Mapping[str, str]) -> PlacementOptions:
    script, table = keys.get(SCRIPT_KEY, "").strip() or None, keys.get(TABLE_KEY, "").strip() or None
    resolver = keys.get(RESOLVER_KEY, "").strip()
    wanted = _known(RESOLVER_KEY, resolver, _RESOLVERS) if resolver else None
    if wanted == _PULSAR:
        return replace(options, pulsar_racks=True)
    if wanted == TABLE_KEY and table is None:
        raise BadRequest(f"{RESOLVER_KEY} {resolver} needs {TABLE_KEY}, the file with lines of `host /rack`")
    if table is not None and (wanted == TABLE_KEY or script is None):
        return replace(options, topology_file=table)
    return replace(options, topology_script=script)


def _known(key: str, class_name: str, known: Mapping[str, str]) -> str:
    try:
        return known[class_name.rpartition(".")[2]]
    except KeyError:
        raise BadRequest(f"{key} {class_name} is not known; it is one of {', '.join(known)}") from None
