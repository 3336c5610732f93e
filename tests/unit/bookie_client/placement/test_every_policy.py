"""What holds for every policy, cluster and seed."""

from collections import Counter
from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookie_client.placement.policy import Adherence
from bookie_client.placement.rack_aware import RackAwarePlacement
from bookie_client.placement.random_choice import RandomPlacement
from bookie_client.placement.region_aware import RegionAwarePlacement
from bookie_client.placement.weighted import WeightedPlacement
from bookie_client.placement.zone_aware import UNKNOWN_ZONE, ZoneAwarePlacement
from bookie_protocol.errors import BadRequest, NotEnoughBookies
from tests.unit.bookie_client.placement.clusters import (
    choose,
    clusters,
    possible,
    replacing,
    sizes,
    spans,
    survives,
    write_sets,
)

LENIENT = [
    RandomPlacement(),
    RackAwarePlacement(),
    RackAwarePlacement(min_racks=3),
    RegionAwarePlacement(),
    ZoneAwarePlacement(enforce=False),
    WeightedPlacement(RackAwarePlacement()),
]
STRICT = [
    RackAwarePlacement(enforce=True),
    RackAwarePlacement(min_racks=3, enforce=True),
    RegionAwarePlacement(regions_to_write=["east", "west"]),
    RegionAwarePlacement(regions_to_write=["east", "west"], enforce_racks=True),
    ZoneAwarePlacement(min_zones=1, desired_zones=2),
]
EVERY = LENIENT + STRICT
SEEDS = st.integers(0, 2**32)


def usable(cluster):
    return cluster.writable - cluster.excluded.keys()


def attempt(policy, cluster, quorums, seed):
    """The placement; None when it is refused."""
    try:
        return choose(policy, cluster, quorums, seed)
    except (NotEnoughBookies, BadRequest):
        return None


@given(policy=st.sampled_from(EVERY), cluster=clusters(), quorums=sizes(), seed=SEEDS)
def test_an_ensemble_is_of_different_usable_bookies_and_repeats_with_its_seed(policy, cluster, quorums, seed):
    placement = attempt(policy, cluster, quorums, seed)
    again = replace(cluster, writable=frozenset(sorted(cluster.writable, reverse=True)))
    assert attempt(policy, again, quorums, seed) == placement
    if placement is None:
        assert policy not in LENIENT or len(usable(cluster)) < quorums[0]
        return
    members = placement.ensemble
    assert len(members) == len(set(members)) == quorums[0]
    assert usable(cluster) >= set(members)
    assert not policy.refusals(cluster).keys() & set(members)
    assert placement.report == policy.check(members, replacing(cluster, members, [], quorums).quorums, cluster)
    if placement.report.adherence is Adherence.FAIL:
        assert placement.relaxed or isinstance(policy, ZoneAwarePlacement)  # nobody's zone may be known
        assert policy in LENIENT


@pytest.mark.parametrize("policy", LENIENT, ids=lambda policy: policy.rule)
@given(cluster=clusters(), quorums=sizes(), seed=SEEDS)
def test_silent_bookies_are_taken_only_as_far_as_the_others_do_not_suffice(policy, cluster, quorums, seed):
    placement = attempt(policy, cluster, quorums, seed)
    if placement is not None:
        healthy = usable(cluster) - cluster.unreachable
        taken = set(placement.ensemble) & cluster.unreachable
        if len(healthy) >= quorums[0]:
            assert not taken
        elif isinstance(policy, RandomPlacement):
            assert len(taken) == quorums[0] - len(healthy)


def free_labels(policy, bookies, cluster):
    fit = [b for b in bookies if policy.unfit(b, cluster.topology.location(b)) is None]
    return Counter(policy.label(cluster.topology.location(b)) for b in fit)


def rule_of(policy, quorums, cluster):
    """What the policy promises, said in another way than it says it."""
    if isinstance(policy, RackAwarePlacement):
        return lambda labels: spans(labels, quorums, policy.min_racks)
    if isinstance(policy, ZoneAwarePlacement):
        return lambda labels: (
            spans([label[0] for label in labels], quorums, policy.min_zones) and not lonely_domain(labels, quorums)
        )
    if policy.regions_to_write:
        return lambda labels: survives([label[0] for label in labels], quorums, 2)
    raise AssertionError(policy)


def lonely_domain(labels, quorums):
    for one in write_sets(quorums):
        for zone, count in Counter(labels[i][0] for i in one).items():
            if count > 1 and len({labels[i] for i in one if labels[i][0] == zone}) == 1:
                return True
    return False


PROVABLE = [
    RackAwarePlacement(),
    RackAwarePlacement(min_racks=3),
    RackAwarePlacement(enforce=True),
    RegionAwarePlacement(regions_to_write=["east", "west"]),
    ZoneAwarePlacement(enforce=False),
]


@pytest.mark.parametrize("policy", PROVABLE, ids=lambda policy: policy.rule)
@settings(max_examples=100)
@given(cluster=clusters(), quorums=sizes(least=3), seed=SEEDS)
def test_the_rule_holds_in_every_write_set_whenever_that_is_possible(policy, cluster, quorums, seed):
    cluster = replace(cluster, unreachable=frozenset())
    try:
        placement = choose(policy, cluster, quorums, seed)
    except BadRequest:
        assert not survives("ew" * 5, (10, *quorums[1:]), 2) or quorums[2] < 2
        return
    except NotEnoughBookies:
        placement = None
    rule = rule_of(policy, quorums, cluster)
    free = free_labels(policy, usable(cluster), cluster)
    if possible([None] * quorums[0], free, rule):
        labels = [policy.label(cluster.topology.location(b)) for b in placement.ensemble]
        assert rule(labels)
        strict_as_possible = not isinstance(policy, RegionAwarePlacement)  # may give up racks
        assert not (strict_as_possible and placement.relaxed)
        assert placement.report.adherence is not Adherence.FAIL or UNKNOWN_ZONE in labels
    else:
        assert placement is None or placement.relaxed


@given(policy=st.sampled_from(EVERY), cluster=clusters(), quorums=sizes(), seed=SEEDS, data=st.data())
def test_a_replacement_touches_failed_positions_only(policy, cluster, quorums, seed, data):
    members, failed = data.draw(ensembles_with_failures(cluster, quorums[0]))
    request = replacing(cluster, members, failed, quorums, seed)
    placement = policy.replacement(request)
    changed = [p for p in range(quorums[0]) if placement.ensemble[p] != members[p]]
    assert set(changed) | placement.unfilled.keys() == set(failed)
    assert not set(changed) & placement.unfilled.keys()
    new = {placement.ensemble[p] for p in changed}
    assert len(new) == len(changed)
    assert usable(cluster) - set(members) >= new
    if policy in LENIENT:
        assert len(changed) == min(len(failed), len(usable(cluster) - set(members)))


@pytest.mark.parametrize("policy", PROVABLE, ids=lambda policy: policy.rule)
@settings(max_examples=60)
@given(cluster=clusters(), quorums=sizes(least=2), seed=SEEDS, data=st.data())
def test_one_replacement_obeys_if_any_bookie_makes_it_obey(policy, cluster, quorums, seed, data):
    cluster = replace(cluster, unreachable=frozenset())
    members, failed = data.draw(ensembles_with_failures(cluster, quorums[0], at_most=1))
    placement = policy.replacement(replacing(cluster, members, failed, quorums, seed))
    fixed = [None if p in failed else policy.label(cluster.topology.location(b)) for p, b in enumerate(members)]
    rule = rule_of(policy, quorums, cluster)
    if failed and possible(fixed, free_labels(policy, usable(cluster) - set(members), cluster), rule):
        assert rule([policy.label(cluster.topology.location(b)) for b in placement.ensemble])


@given(policy=st.sampled_from(PROVABLE), cluster=clusters(), quorums=sizes(4), seed=SEEDS, data=st.data())
def test_mending_exchanges_as_few_members_as_it_takes(policy, cluster, quorums, seed, data):
    cluster = replace(cluster, unreachable=frozenset())
    members, failed = data.draw(ensembles_with_failures(cluster, quorums[0]))
    request = replacing(cluster, members, failed, quorums, seed)
    placement = policy.mend(request)

    def adheres(labels):
        names = {f"x{i}": label for i, label in enumerate(labels)}
        topology = replace(cluster.topology, locations={b: at for b, at in names.items() if at[0][:7] != "default"})
        report = policy.check(tuple(names), request.quorums, replace(cluster, topology=topology))
        return report.adherence is not Adherence.FAIL

    free = free_labels(policy, usable(cluster) - set(members), cluster)
    labels = [policy.label(cluster.topology.location(b)) for b in members]
    others = [p for p in range(quorums[0]) if p not in failed]
    fewest = next(
        (
            count
            for count in range(len(others) + 1)
            for moved in combinations(others, count)
            if possible([None if p in (*failed, *moved) else label for p, label in enumerate(labels)], free, adheres)
        ),
        None,
    )
    changed = {p for p in range(quorums[0]) if placement.ensemble[p] != members[p]}
    if fewest is None:
        assert placement == policy.replacement(replacing(cluster, members, failed, quorums, seed)) or changed <= {
            *failed
        }
    else:
        assert placement.report.adherence is not Adherence.FAIL
        assert len(changed) == len(failed) + fewest


@st.composite
def ensembles_with_failures(draw, cluster, size, at_most=None):
    """Members may be of the cluster, or gone from it."""
    everybody = sorted(cluster.writable | cluster.read_only) + [f"gone{i}" for i in range(size)]
    members = tuple(draw(st.permutations(everybody))[:size])
    failed = sorted(draw(st.sets(st.integers(0, size - 1), max_size=at_most)))
    return members, failed


@pytest.mark.parametrize("policy", EVERY, ids=lambda policy: policy.rule)
def test_rules_are_told_in_one_line(policy):
    assert policy.rule.startswith(policy.name.partition(",")[0])
    assert "\n" not in policy.rule
