"""Where a pod's own clients put copies, from its configuration."""

from __future__ import annotations

import pytest

from bookie_client.placement.options import PlacementOptions
from bookie_pod.client_options import client_placement
from bookie_pod.config.load import load_config
from bookie_protocol.errors import InvalidConfiguration


def placement(**keys: str) -> PlacementOptions:
    return client_placement(load_config(environ={}, overrides=keys), local_bookie="bookie-0:3181")


def test_what_nobody_set_is_left_to_the_client() -> None:
    assert placement() == PlacementOptions(local_bookie="bookie-0:3181")


def test_javas_classes_and_keys() -> None:
    made = placement(
        ensemblePlacementPolicy="org.apache.bookkeeper.client.RegionAwareEnsemblePlacementPolicy",
        reppRegionsToWrite="east;west",
        enforceMinNumRacksPerWriteQuorum="yes",
        minNumRacksPerWriteQuorum="3",
        diskWeightBasedPlacementEnabled="true",
    )
    assert (made.policy, made.regions_to_write) == ("region-aware", ("east", "west"))
    assert (made.enforce_racks, made.min_racks, made.weighted) == (True, 3, True)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"ensemblePlacementPolicy": "com.example.Own"}, "ensemblePlacementPolicy com.example.Own is not known"),
        ({"reppDnsResolverClass": "org.example.TableMapping"}, "needs networkTopologyTableFileName"),
    ],
)
def test_what_is_not_known_is_refused(keys: dict[str, str], said: str) -> None:
    with pytest.raises(InvalidConfiguration, match=said):
        placement(**keys)
