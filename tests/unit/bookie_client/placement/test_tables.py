"""Worked examples of the reference, policy by policy."""

from collections import Counter
from dataclasses import replace

import pytest

from bookie_client.distribution import Quorums
from bookie_client.placement import search
from bookie_client.placement.policy import Adherence
from bookie_client.placement.rack_aware import RackAwarePlacement
from bookie_client.placement.random_choice import LocalBookiePlacement, RandomPlacement
from bookie_client.placement.region_aware import RegionAwarePlacement
from bookie_client.placement.search import windows_of
from bookie_client.placement.weighted import weights_of
from bookie_client.placement.zone_aware import ZoneAwarePlacement
from bookie_protocol.errors import BadRequest, NotEnoughBookies
from tests.unit.bookie_client.placement.clusters import choose, cluster_of, racks, replacing

STRICT, SOFT, FAIL = Adherence.MEETS_STRICT, Adherence.MEETS_SOFT, Adherence.FAIL
SEEDS = range(40)


def places(cluster, ensemble):
    return ["/".join(cluster.topology.location(bookie) or ("?",)) for bookie in ensemble]


def check(policy, locations, quorums):
    """The verdict on an ensemble that stands in these places, one bookie each."""
    cluster = cluster_of({f"b{i}": place for i, place in enumerate(locations)})
    return policy.check(tuple(f"b{i}" for i in range(len(locations))), Quorums(*quorums), cluster).adherence


def test_write_sets_of_a_striped_ensemble():
    windows = windows_of(Quorums(4, 2, 2))
    assert set(windows.all) == {(0, 1), (1, 2), (2, 3), (0, 3)}
    assert set(windows.through[0]) == {(0, 1), (0, 3)}
    assert windows.neighbours[0] == (1, 3)
    assert windows_of(Quorums(3, 3, 2)).all == ((0, 1, 2),)


@pytest.mark.parametrize("policy", [RandomPlacement(), RackAwarePlacement()], ids=lambda policy: policy.name)
def test_of_quarantined_bookies_no_more_are_taken_than_it_takes(policy):
    cluster = cluster_of(racks(a=3, b=3), quarantined=frozenset({"a-0", "a-1", "b-0", "b-1"}))
    for seed in SEEDS:
        assert {"a-2", "b-2"} < set(choose(policy, cluster, (3, 3, 2), seed).ensemble)


def test_a_quarantined_bookie_is_taken_before_a_rack_rule_is_relaxed_and_a_silent_one_is_not():
    cluster = cluster_of(racks(a=2, b=1), quarantined=frozenset({"b-0"}))
    silent = replace(cluster, unreachable=frozenset({"b-0"}))
    for seed in SEEDS:
        placement = choose(RackAwarePlacement(), cluster, (2, 2, 2), seed)
        assert ("b-0" in placement.ensemble, placement.relaxed) == (True, ())
        assert choose(RackAwarePlacement(), silent, (2, 2, 2), seed).relaxed


# --- rack-aware -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("locations", "quorums", "policy", "expected"),
    [
        (["/a", "/b", "/c"], (3, 2, 2), RackAwarePlacement(), STRICT),
        (["/a", "/b", "/a"], (3, 2, 2), RackAwarePlacement(), FAIL),  # the write set of positions 2 and 0
        (["/a", "/b", "/a", "/b"], (4, 2, 2), RackAwarePlacement(), STRICT),
        (["/a", "/b", "/a"], (3, 3, 2), RackAwarePlacement(), STRICT),
        (["/a", "/b", "/a"], (3, 3, 2), RackAwarePlacement(min_racks=3), FAIL),
        (["/a", "/b"], (2, 2, 2), RackAwarePlacement(min_racks=3), STRICT),  # no more than the write quorum
        (["/a", "/a"], (2, 1, 1), RackAwarePlacement(), STRICT),
        (["/a", "/a", "/a"], (3, 3, 2), RackAwarePlacement(), FAIL),
        (["/e/a", "/w/a"], (2, 2, 2), RackAwarePlacement(), STRICT),  # a rack is the whole location
        (["/a", None, None], (3, 3, 2), RackAwarePlacement(), STRICT),  # the default rack is a rack,
        (["/a", None, "/b"], (3, 3, 2), RackAwarePlacement(enforce=True), FAIL),  # unless racks are enforced
        ([None, None, None], (3, 3, 2), RackAwarePlacement(), FAIL),
    ],
)
def test_rack_aware_adherence(locations, quorums, policy, expected):
    assert check(policy, locations, quorums) is expected


def test_as_many_racks_as_there_are():
    cluster = cluster_of(racks(a=5, b=5, c=5))
    for seed in SEEDS:
        assert Counter(places(cluster, choose(RackAwarePlacement(), cluster, (3, 3, 2), seed).ensemble)) == {
            "a": 1,
            "b": 1,
            "c": 1,
        }
        five = Counter(places(cluster, choose(RackAwarePlacement(), cluster, (5, 3, 2), seed).ensemble))
        assert sorted(five.values()) == [1, 2, 2]


def test_a_scarce_rack_is_not_wasted():
    # Position 2 must not take the only bookie of c: positions 3 and 0 would then be left with one rack.
    cluster = cluster_of(racks(a=2, b=2, c=1))
    for seed in range(200):
        placement = choose(RackAwarePlacement(), cluster, (4, 2, 2), seed)
        assert (placement.relaxed, placement.report.adherence) == ((), STRICT)


def test_one_rack_is_random_choice_that_says_so():
    cluster = cluster_of(racks(a=6))
    chosen = Counter()
    for seed in range(600):
        placement = choose(RackAwarePlacement(), cluster, (3, 3, 2), seed)
        assert placement.report.adherence is FAIL
        assert placement.relaxed == ("write sets may lie on 1 instead of 2 racks",)
        chosen.update(placement.ensemble)
    assert all(220 < count < 380 for count in chosen.values())
    assert len(chosen) == 6


def test_racks_are_given_up_one_by_one():
    cluster = cluster_of(racks(a=3, b=3))
    placement = choose(RackAwarePlacement(min_racks=3), cluster, (4, 4, 2))
    assert placement.relaxed == ("write sets may lie on 2 instead of 3 racks",)
    assert Counter(places(cluster, placement.ensemble)) == {"a": 2, "b": 2}


def test_enforced_racks_are_never_given_up():
    with pytest.raises(NotEnoughBookies, match="2 racks"):
        choose(RackAwarePlacement(enforce=True), cluster_of(racks(a=6)), (3, 3, 2))
    # Bookies of the default rack do not count.
    with pytest.raises(NotEnoughBookies, match=r"x0: .*rack.*x1: "):
        choose(RackAwarePlacement(enforce=True), cluster_of(racks(a=2) | {"x0": None, "x1": None}), (3, 2, 2))


def test_the_first_member_comes_from_the_own_rack():
    cluster = cluster_of(racks(a=2, b=9, c=9), local=("a",))
    first = {places(cluster, choose(RackAwarePlacement(), cluster, (3, 2, 2), s).ensemble)[0] for s in SEEDS}
    assert first == {"a"}
    ignoring = RackAwarePlacement(ignore_local=True)
    assert len({places(cluster, choose(ignoring, cluster, (3, 2, 2), s).ensemble)[0] for s in SEEDS}) > 1


def test_a_replacement_keeps_the_racks_apart():
    cluster = cluster_of(racks(a=3, b=3, c=3))
    for seed in SEEDS:
        placement = RackAwarePlacement().replacement(replacing(cluster, ["a-0", "b-0", "c-0"], [1], (3, 3, 2), seed))
        assert places(cluster, placement.ensemble) == ["a", "b", "c"]


def test_with_more_racks_than_members_a_failure_does_not_fall_on_one_survivor():
    cluster = cluster_of(racks(a=2, b=2, c=2, d=2, e=2))
    chosen = Counter(
        RackAwarePlacement().replacement(replacing(cluster, ["a-0", "b-0", "c-0"], [1], (3, 3, 2), seed)).ensemble[1]
        for seed in range(300)
    )
    assert set(chosen) == {"b-1", "d-0", "d-1", "e-0", "e-1"}
    assert all(30 < count < 90 for count in chosen.values())


def test_an_enforced_replacement_that_cannot_obey_is_not_made():
    cluster = cluster_of(racks(a=4, b=1))
    placement = RackAwarePlacement(enforce=True).replacement(replacing(cluster, ["a-0", "a-1", "b-0"], [2], (3, 3, 2)))
    assert placement.ensemble == ("a-0", "a-1", "b-0")
    assert "no spare bookie that obeys" in placement.unfilled[2]
    relaxed = RackAwarePlacement().replacement(replacing(cluster, ["a-0", "a-1", "b-0"], [2], (3, 3, 2)))
    assert relaxed.ensemble[2] in ("a-2", "a-3")
    assert relaxed.relaxed
    assert relaxed.report.adherence is FAIL


def test_mending_moves_the_member_that_is_in_the_way():
    cluster = cluster_of(racks(a=4, b=4))
    for seed in SEEDS:
        placement = RackAwarePlacement().mend(replacing(cluster, ["a-0", "a-1", "a-2"], [], (3, 3, 2), seed))
        assert Counter(places(cluster, placement.ensemble)) == {"a": 2, "b": 1}
    intact = ("a-0", "b-0", "a-1")
    assert RackAwarePlacement().mend(replacing(cluster, intact, [], (3, 3, 2))).ensemble == intact


def test_what_cannot_be_mended_stays():
    cluster = cluster_of(racks(a=6))
    placement = RackAwarePlacement().mend(replacing(cluster, ["a-0", "a-1", "a-2"], [], (3, 3, 2)))
    assert placement.ensemble == ("a-0", "a-1", "a-2")
    assert placement.report.adherence is FAIL


# --- region-aware -----------------------------------------------------------------------------------------


def regions(**members):
    return {f"{region}-{i}": f"/{region}/r{i % 2}" for region, count in members.items() for i in range(count)}


@pytest.mark.parametrize(
    ("quorums", "least", "accepted"),
    [
        ((3, 3, 2), 2, False),  # two of three may be in one region
        ((3, 3, 3), 2, True),
        ((4, 4, 3), 2, True),
        ((4, 4, 2), 2, False),
        ((5, 5, 4), 2, True),
        ((6, 6, 5), 3, True),
        ((6, 6, 4), 3, False),
        ((2, 2, 2), 3, False),  # fewer acknowledgements than regions
    ],
)
def test_quorums_that_can_survive_the_loss_of_regions(quorums, least, accepted):
    policy = RegionAwarePlacement(regions_to_write=["e", "w", "n"], min_regions_for_durability=least)
    cluster = cluster_of(regions(e=6, w=6, n=6))
    if accepted:
        assert choose(policy, cluster, quorums).report.adherence is STRICT
    else:
        with pytest.raises(BadRequest, match="reppMinimumRegionsForDurability"):
            choose(policy, cluster, quorums)


def test_without_named_regions_there_is_no_durability_rule():
    assert choose(RegionAwarePlacement(), cluster_of(regions(e=3, w=3)), (3, 3, 2)).relaxed == ()


def test_regions_are_spread_evenly_the_own_first():
    cluster = cluster_of(regions(e=4, w=4, n=4), local=("w", "r0"))
    for seed in SEEDS:
        ensemble = places(cluster, choose(RegionAwarePlacement(), cluster, (4, 4, 3), seed).ensemble)
        assert ensemble[0].startswith("w/")
        assert Counter(place[0] for place in ensemble) == {"w": 2, "e": 1, "n": 1}
        assert {place for place in ensemble if place[0] == "w"} == {"w/r0", "w/r1"}  # rack-aware inside


def test_named_regions_only_and_none_that_is_disallowed():
    cluster = cluster_of(regions(e=4, w=4, n=4))
    policy = RegionAwarePlacement(regions_to_write=["e", "w"])
    for seed in SEEDS:
        assert {place[0] for place in places(cluster, choose(policy, cluster, (4, 4, 3), seed).ensemble)} == {"e", "w"}
    closed = RegionAwarePlacement(disallowed_regions=["e"])
    assert {place[0] for place in places(cluster, choose(closed, cluster, (4, 4, 3)).ensemble)} == {"w", "n"}
    assert closed.refusals(cluster)["e-0"] == "placement in region e is disallowed"


def test_durability_that_cannot_be_had_fails_unless_validation_is_off():
    cluster = cluster_of(regions(e=9, w=1))
    policy = RegionAwarePlacement(regions_to_write=["e", "w"])
    with pytest.raises(NotEnoughBookies, match="than 2"):
        choose(policy, cluster, (5, 5, 4))
    lenient = RegionAwarePlacement(regions_to_write=["e", "w"], validate=False)
    placement = choose(lenient, cluster, (5, 5, 4))
    assert placement.relaxed[0] == "an ack quorum may lie in fewer than 2 regions"
    assert placement.report.adherence is FAIL


def test_durability_in_replacements_can_be_enforced_apart():
    cluster = cluster_of(regions(e=9, w=1))
    request = replacing(cluster, ["e-0", "e-1", "w-0"], [2], (3, 3, 3))
    policy = RegionAwarePlacement(regions_to_write=["e", "w"])
    assert policy.replacement(request).ensemble == request.ensemble
    lenient = RegionAwarePlacement(regions_to_write=["e", "w"], enforce_in_replacement=False)
    assert lenient.replacement(request).ensemble[2].startswith("e-")


@pytest.mark.parametrize("quorums", [(3, 3, 2), (3, 2, 1), (2, 2, 1)])
def test_ledgers_whose_quorums_no_region_rule_fits_are_repaired_as_well_as_can_be(quorums):
    """They exist: made before the rule, or by somebody without it."""
    cluster = cluster_of(regions(e=4, w=4))
    policy = RegionAwarePlacement(regions_to_write=["e", "w"], enforce_in_replacement=True)
    ensemble = ["e-0", "e-1", "w-0"][: quorums[0]]
    for change in (policy.replacement, policy.mend):
        placement = change(replacing(cluster, ensemble, [1], quorums))
        assert placement.ensemble[1] not in ensemble
        assert placement.relaxed[0] == "an ack quorum may lie in fewer than 2 regions"
        assert placement.report.adherence is FAIL
        assert len({bookie[0] for bookie in placement.ensemble}) == 2
    objection = policy.objection(tuple(ensemble), 1, "w-1", Quorums(*quorums), cluster)
    assert objection is None if quorums != (3, 2, 1) else "on /w/r0, /w/r1 only, 2 regions" in objection


def test_one_region_is_rack_aware():
    cluster = cluster_of(regions(e=6))
    for seed in SEEDS:
        assert len(set(places(cluster, choose(RegionAwarePlacement(), cluster, (3, 3, 2), seed).ensemble))) == 2


@pytest.mark.parametrize(
    ("locations", "policy", "expected"),
    [
        (["/e/1", "/w/1", "/e/2"], RegionAwarePlacement(), STRICT),
        (["/e/1", "/e/1", "/e/1"], RegionAwarePlacement(), SOFT),
        (["/e/1", "/w/1", "/e/2"], RegionAwarePlacement(regions_to_write="ew"), STRICT),
        (["/e/1", "/e/2", "/e/3"], RegionAwarePlacement(regions_to_write="ew"), FAIL),
    ],
)
def test_region_aware_adherence(locations, policy, expected):
    assert check(policy, locations, (3, 3, 3)) is expected


def test_more_regions_needed_than_named():
    with pytest.raises(BadRequest, match=r"reppMinimumRegionsForDurability.*reppRegionsToWrite"):
        RegionAwarePlacement(regions_to_write=["e", "w"], min_regions_for_durability=3)


# --- zone-aware -------------------------------------------------------------------------------------------


def zones(**members):
    return {f"{zone}-{i}": f"/{zone}/ud{i % 3}" for zone, count in members.items() for i in range(count)}


@pytest.mark.parametrize(
    ("locations", "quorums", "expected"),
    [
        (["/a/1", "/b/1", "/c/1"], (3, 3, 2), STRICT),
        (["/a/1", "/b/1", "/a/2"], (3, 3, 2), SOFT),
        (["/a/1", "/b/1", "/a/1"], (3, 3, 2), FAIL),  # a zone twice, but one upgrade domain
        (["/a/1", "/a/2", "/a/3"], (3, 3, 2), FAIL),
        (["/a/1", "/b/1", None], (3, 3, 2), FAIL),
        (["/a/1", "/b/1"], (2, 2, 2), FAIL),  # the write quorum is not above the minimum
        (["/a/1", "/b/1", "/c/1", "/d/1"], (4, 3, 2), FAIL),  # not a multiple of the write quorum
        (["/a/1", "/b/1", "/c/1", "/a/1", "/b/1", "/c/1"], (6, 3, 2), STRICT),
        (["/a/1", "/b/1", "/c/1", "/a/1", "/c/1", "/b/1"], (6, 3, 2), FAIL),  # positions 2, 3, 4: c twice
        (["/a", "/b", "/a"], (3, 3, 2), SOFT),  # upgrade domains are not known
    ],
)
def test_zone_aware_adherence(locations, quorums, expected):
    assert check(ZoneAwarePlacement(), locations, quorums) is expected


def test_desired_zones_as_far_as_there_are_some():
    three, two = cluster_of(zones(a=3, b=3, c=3)), cluster_of(zones(a=3, b=3))
    for seed in SEEDS:
        for quorums in ((3, 3, 2), (6, 3, 2)):
            assert choose(ZoneAwarePlacement(), three, quorums, seed).report.adherence is STRICT
            assert choose(ZoneAwarePlacement(), two, quorums, seed).report.adherence is SOFT


def test_a_zone_that_comes_twice_uses_two_upgrade_domains():
    cluster = cluster_of({"a0": "/a/1", "a1": "/a/1", "a2": "/a/1", "b0": "/b/1", "b1": "/b/2"})
    for seed in SEEDS:
        ensemble = choose(ZoneAwarePlacement(), cluster, (3, 3, 2), seed).ensemble
        assert {"b0", "b1"} < set(ensemble)


@pytest.mark.parametrize(("quorums", "message"), [((4, 3, 2), "multiple"), ((2, 2, 2), "above minNumZones")])
def test_quorums_that_strict_placement_refuses(quorums, message):
    with pytest.raises(BadRequest, match=message):
        choose(ZoneAwarePlacement(), cluster_of(zones(a=3, b=3, c=3)), quorums)


def test_bookies_without_a_zone():
    cluster = cluster_of(zones(a=1, b=1) | {"x": None})
    with pytest.raises(NotEnoughBookies, match=r"x: .*zone"):
        choose(ZoneAwarePlacement(), cluster, (3, 3, 2))
    lenient = choose(ZoneAwarePlacement(enforce=False), cluster, (3, 3, 2))
    assert (set(lenient.ensemble), lenient.relaxed, lenient.report.adherence) == ({"a-0", "b-0", "x"}, (), FAIL)


def test_zones_are_given_up_step_by_step():
    lenient = ZoneAwarePlacement(enforce=False)
    one_domain = choose(lenient, cluster_of({"a0": "/a/1", "a1": "/a/1", "b": "/b/1"}), (3, 3, 2))
    assert one_domain.relaxed == ("a zone may use one upgrade domain in a write set",)
    one_zone = choose(lenient, cluster_of(zones(a=4)), (3, 3, 2))
    assert one_zone.relaxed[-1] == "write sets may lie in 1 instead of 2 zones"


def test_a_zone_aware_replacement_prefers_the_desired_zones():
    cluster = cluster_of(zones(a=3, b=3, c=3))
    for seed in SEEDS:
        placement = ZoneAwarePlacement().replacement(replacing(cluster, ["a-0", "b-0", "c-0"], [2], (3, 3, 2), seed))
        assert placement.ensemble[2] in ("c-1", "c-2")


# --- weights and the local bookie -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("free", "multiple", "expected"),
    [
        ({"a": 10, "b": 20, "c": 30}, 3, {"a": 10, "b": 20, "c": 30}),
        ({"a": 10, "b": 20, "c": 900}, 3, {"a": 10, "b": 20, "c": 60}),  # at most three times the median
        ({"a": 10, "b": 20, "c": 900}, 0, {"a": 10, "b": 20, "c": 900}),
        ({"a": 0, "b": 20, "c": 30}, 3, {"a": 20, "b": 20, "c": 30}),  # full counts as the smallest
        ({"b": 20, "c": 30}, 3, {"a": 20, "b": 20, "c": 30}),  # so does one that did not tell
        ({"a": 10, "b": 30}, 1, {"a": 10, "b": 10, "c": 10}),  # median of 10, 30 and 10
        ({}, 3, {}),
        ({"a": 0, "b": 0}, 3, {}),
    ],
)
def test_weights(free, multiple, expected):
    assert weights_of("abc", free, multiple) == expected


def test_the_local_bookie_and_nobody_else():
    cluster = cluster_of(racks(a=3))
    policy = LocalBookiePlacement("a-1")
    assert choose(policy, cluster, (1, 1, 1)).ensemble == ("a-1",)
    with pytest.raises(BadRequest, match="ensembles of 1"):
        choose(policy, cluster, (2, 2, 2))
    assert policy.replacement(replacing(cluster, ["a-1"], [0], (1, 1, 1))).unfilled.keys() == {0}
    assert policy.check(("a-0",), Quorums(1, 1, 1), cluster).adherence is FAIL
    with pytest.raises(NotEnoughBookies, match=r"a-0: .*a-1"):
        choose(LocalBookiePlacement("a-1"), cluster_of(racks(a=1)), (1, 1, 1))


def test_a_long_refusal_is_cut():
    cluster = cluster_of({f"b{i:03}": None for i in range(100)})
    with pytest.raises(NotEnoughBookies) as refused:
        choose(RackAwarePlacement(enforce=True), cluster, (3, 3, 2))
    assert len(str(refused.value)) < 1000
    assert "and 88 more" in str(refused.value)


@pytest.mark.parametrize("policy", [RegionAwarePlacement(regions_to_write="ew"), ZoneAwarePlacement(enforce=False)])
def test_the_work_for_one_answer_is_bounded(policy, monkeypatch):
    """Also where no rule can be met, over all levels and all sets of positions: the event loop waits for it."""
    looks, objection = 0, search._Search._draw

    def counting(self, untried):
        nonlocal looks
        looks += 1
        return objection(self, untried)

    monkeypatch.setattr(search._Search, "_draw", counting)
    cluster = cluster_of({f"e-{i}": f"/e/r{i % 9}" for i in range(20)})
    request = replacing(cluster, [f"e-{i}" for i in range(13)], [0, 1], (13, 9, 7))
    policy.mend(request)
    assert looks <= 2 * search.MAX_EFFORT + 1000
