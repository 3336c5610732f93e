"""How often bookies are drawn. Seeds are fixed, so these bounds are either always met or never."""

from collections import Counter
from dataclasses import replace
from random import Random

import pytest

from bookie_client.distribution import Quorums
from bookie_client.placement.policy import EnsembleRequest
from bookie_client.placement.rack_aware import RackAwarePlacement
from bookie_client.placement.random_choice import RandomPlacement
from bookie_client.placement.region_aware import RegionAwarePlacement
from bookie_client.placement.weighted import WeightedPlacement
from bookie_client.placement.zone_aware import ZoneAwarePlacement
from tests.unit.bookie_client.placement.clusters import cluster_of, racks

DRAWS = 6000
CHI_SQUARE_999 = {1: 10.83, 5: 20.52, 8: 26.12, 11: 31.26}
"""By degrees of freedom: exceeded once in a thousand draws of a fair policy."""


def drawn(policy, cluster, quorums=(3, 3, 2), draws=DRAWS):
    random = Random(7)
    request = EnsembleRequest(quorums=Quorums(*quorums), cluster=cluster, random=random)
    return [policy.new_ensemble(request).ensemble for _ in range(draws)]


def chi_square(counts, expected):
    return sum((counts[name] - share) ** 2 / share for name, share in expected.items())


EVEN = cluster_of({f"{region}{rack}{i}": f"/{region}/{rack}" for region in "ew" for rack in "abc" for i in range(2)})


@pytest.mark.parametrize(
    "policy",
    [RandomPlacement(), RackAwarePlacement(), RegionAwarePlacement(), ZoneAwarePlacement(enforce=False)],
    ids=lambda policy: policy.name,
)
def test_alike_bookies_get_alike_loads_at_every_position(policy):
    ensembles = drawn(policy, EVEN)
    for position in range(3):
        counts = Counter(ensemble[position] for ensemble in ensembles)
        assert chi_square(counts, dict.fromkeys(EVEN.writable, DRAWS / 12)) < CHI_SQUARE_999[11]


def test_the_bound_would_notice_an_unfair_draw():
    one_a_third_likelier = replace(EVEN, weights=dict.fromkeys(EVEN.writable, 3.0) | {"ea0": 4.0})
    counts = Counter(ensemble[0] for ensemble in drawn(RandomPlacement(), one_a_third_likelier))
    assert chi_square(counts, dict.fromkeys(EVEN.writable, DRAWS / 12)) > CHI_SQUARE_999[11]


def test_weights_are_proportions():
    free = {"b0": 1000, "b1": 2000, "b2": 3000, "b3": 1000, "b4": 2000, "b5": 3000}
    cluster = cluster_of(dict.fromkeys(free), free_bytes=free)
    counts = Counter(ensemble[0] for ensemble in drawn(WeightedPlacement(RandomPlacement()), cluster, (1, 1, 1)))
    assert chi_square(counts, {b: DRAWS * share / 12000 for b, share in free.items()}) < CHI_SQUARE_999[5]


def test_an_empty_bookie_does_not_get_everything():
    free = {f"b{i}": 100 for i in range(8)} | {"new": 10**6}
    cluster = cluster_of(dict.fromkeys(free), free_bytes=free)
    counts = Counter(ensemble[0] for ensemble in drawn(WeightedPlacement(RandomPlacement()), cluster, (1, 1, 1)))
    expected = dict.fromkeys(free, DRAWS / 11) | {"new": DRAWS * 3 / 11}
    assert chi_square(counts, expected) < CHI_SQUARE_999[8]


def test_weights_count_inside_the_rules():
    locations = racks(a=2, b=2)
    cluster = cluster_of(locations, free_bytes={"a-0": 300, "a-1": 100, "b-0": 100, "b-1": 300})
    ensembles = drawn(WeightedPlacement(RackAwarePlacement()), cluster, (2, 2, 2))
    assert all({member[0] for member in ensemble} == {"a", "b"} for ensemble in ensembles)
    of_a = Counter(member for ensemble in ensembles for member in ensemble if member[0] == "a")
    # One of rack a in each: the first place by weight among all, the second by weight inside the rack.
    assert chi_square(of_a, {"a-0": DRAWS * 3 / 4, "a-1": DRAWS / 4}) < CHI_SQUARE_999[1]


def test_without_known_space_weights_change_nothing():
    assert drawn(WeightedPlacement(RackAwarePlacement()), EVEN, draws=20) == drawn(RackAwarePlacement(), EVEN, draws=20)
