"""Options, names and the Java client's keys."""

import pytest

from bookie_client.placement.inputs import PlacementInputs
from bookie_client.placement.java_keys import PLACEMENT_KEYS, placement_options
from bookie_client.placement.options import POLICIES, PlacementOptions, make_policy, make_source
from bookie_client.placement.rack_aware import RackAwarePlacement
from bookie_client.placement.random_choice import LocalBookiePlacement, RandomPlacement
from bookie_client.placement.region_aware import RegionAwarePlacement
from bookie_client.placement.sources import (
    FileLocations,
    MappedLocations,
    PublishedLocations,
    PulsarRacks,
    ScriptLocations,
)
from bookie_client.placement.weighted import WeightedPlacement
from bookie_client.placement.zone_aware import ZoneAwarePlacement
from bookie_protocol.errors import BadRequest

PACKAGE = "org.apache.bookkeeper.client."


def test_every_policy_has_a_name():
    kinds = [RandomPlacement, RackAwarePlacement, RegionAwarePlacement, ZoneAwarePlacement, LocalBookiePlacement]
    for name, kind in zip(POLICIES, kinds, strict=True):
        policy = make_policy(PlacementOptions(policy=name, local_bookie="b0"))
        assert type(policy) is kind
        assert policy.name == name
    assert PlacementInputs("zone-aware").policy.name == "zone-aware"
    assert PlacementInputs(PlacementOptions()).policy.name == "rack-aware"
    mine = RackAwarePlacement(min_racks=3)
    assert PlacementInputs(mine).policy is mine


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "rackaware"}, "'rackaware'"),
        ({"topology_file": "a", "topology_script": "b"}, "them"),
        ({"topology_refresh": 0}, "topology_refresh"),
    ],
)
def test_options_that_make_no_sense(options, message):
    with pytest.raises(BadRequest, match=message):
        PlacementOptions(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"policy": "local"}, "needs local_bookie"),
        ({"min_racks": 0}, "minNumRacksPerWriteQuorum"),
        ({"policy": "region-aware", "min_racks": 0}, "minNumRacksPerWriteQuorum"),
        ({"policy": "zone-aware", "min_zones": 4}, "minNumZonesPerWriteQuorum is 4"),
        ({"weighted": True, "max_weight_multiple": -1}, "negative"),
    ],
)
def test_policies_that_make_no_sense(options, message):
    with pytest.raises(BadRequest, match=message):
        make_policy(PlacementOptions(**options))


def test_sources():
    assert type(make_source(PlacementOptions())) is PublishedLocations
    assert type(make_source(PlacementOptions(topology_file="f"))) is FileLocations
    assert type(make_source(PlacementOptions(topology_script="s"))) is ScriptLocations
    assert type(make_source(PlacementOptions(locations={"b": "/a"}))) is MappedLocations


def test_random_placement_asks_nobody_where_bookies_stand():
    assert not PlacementOptions(policy="random").needs_locations
    assert PlacementOptions(policy="random", local_location="/a").needs_locations
    assert PlacementOptions().needs_locations


# --- Java keys --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("java", "name"),
    [
        (PACKAGE + "RackawareEnsemblePlacementPolicy", "rack-aware"),
        (PACKAGE + "DefaultEnsemblePlacementPolicy", "random"),
        (PACKAGE + "RegionAwareEnsemblePlacementPolicy", "region-aware"),
        (PACKAGE + "ZoneawareEnsemblePlacementPolicy", "zone-aware"),
        ("org.apache.bookkeeper.bookie.LocalBookieEnsemblePlacementPolicy", "local"),
    ],
)
def test_policy_classes(java, name):
    assert placement_options({"ensemblePlacementPolicy": java}, local_bookie="b0").policy == name


def test_no_keys_are_the_defaults():
    assert placement_options({}) == PlacementOptions()
    assert placement_options({"journalDirectories": "/j", "minNumRacksPerWriteQuorum": " "}) == PlacementOptions()


def test_every_key():
    given = {
        "networkTopologyScriptFileName": "/bin/topology",
        "networkTopologyScriptNumberArgs": "7",
        "minNumRacksPerWriteQuorum": "3",
        "enforceMinNumRacksPerWriteQuorum": "TRUE",
        "ignoreLocalNodeInPlacementPolicy": "true",
        "reppRegionsToWrite": "R1;R2; R3;",
        "reppMinimumRegionsForDurability": "3",
        "reppEnableDurabilityEnforcementInReplace": "false",
        "reppEnableValidation": "false",
        "minNumZonesPerWriteQuorum": "1",
        "desiredNumZonesPerWriteQuorum": "2",
        "enforceStrictZoneawarePlacement": "false",
        "diskWeightBasedPlacementEnabled": "true",
        "bookieMaxMultipleForWeightBasedPlacement": "5",
        "getBookieInfoIntervalSeconds": "600",
        "getBookieInfoRetryIntervalSeconds": "6",
    }
    assert given.keys() < PLACEMENT_KEYS
    options = placement_options(given)
    assert options == PlacementOptions(
        topology_script="/bin/topology",
        topology_script_arguments=7,
        min_racks=3,
        enforce_racks=True,
        ignore_local=True,
        regions_to_write=("R1", "R2", "R3"),
        min_regions_for_durability=3,
        enforce_durability_in_replacement=False,
        validate_regions=False,
        min_zones=1,
        desired_zones=2,
        enforce_zones=False,
        weighted=True,
        max_weight_multiple=5.0,
        free_space_interval=600.0,
        free_space_retry_interval=6.0,
    )
    assert type(make_policy(options)) is WeightedPlacement


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"ensemblePlacementPolicy": "com.example.Mine"}, "ensemblePlacementPolicy"),
        ({"reppDnsResolverClass": "com.example.Mine"}, "reppDnsResolverClass"),
        ({"minNumRacksPerWriteQuorum": "two"}, "minNumRacksPerWriteQuorum"),
        ({"reppEnableValidation": "yes"}, "reppEnableValidation"),
        ({"reppDnsResolverClass": "org.apache.bookkeeper.net.TableMapping"}, "needs networkTopologyTableFileName"),
    ],
)
def test_keys_that_make_no_sense(keys, message):
    with pytest.raises(BadRequest, match=message):
        placement_options(keys)


def test_the_resolver_decides_between_script_and_table():
    both = {"networkTopologyScriptFileName": "/s", "networkTopologyTableFileName": "/t"}
    package = "org.apache.bookkeeper.net."
    assert placement_options(both).topology_script == "/s"
    assert placement_options(both | {"reppDnsResolverClass": package + "ScriptBasedMapping"}).topology_script == "/s"
    for mapping in ("org.apache.pulsar.zookeeper.ZkBookieRackAffinityMapping", "BookieRackAffinityMapping"):
        pulsar = placement_options(both | {"reppDnsResolverClass": mapping})
        assert (pulsar.pulsar_racks, pulsar.topology_file, pulsar.topology_script) == (True, None, None)
        assert type(make_source(pulsar)) is PulsarRacks
    table = placement_options(both | {"reppDnsResolverClass": package + "TableMapping"})
    assert (table.topology_file, table.topology_script) == ("/t", None)
    assert placement_options({"networkTopologyTableFileName": "/t"}).topology_file == "/t"
