"""Uniform placement."""

from collections import Counter
from random import Random

import pytest

from bookie_client.distribution import Quorums
from bookie_client.placement.policy import Adherence, ClusterView, EnsembleRequest, ReplacementRequest
from bookie_client.placement.random_choice import RandomPlacement
from bookie_protocol.errors import NotEnoughBookies

BOOKIES = [f"b{i}" for i in range(6)]
POLICY = RandomPlacement()


def choose(size, random, **cluster):
    cluster = ClusterView(**{"writable": frozenset(BOOKIES), **cluster})
    return POLICY.new_ensemble(
        EnsembleRequest(quorums=Quorums(size, size, size), cluster=cluster, random=random)
    ).ensemble


def replace(ensemble, failed, random, **cluster):
    cluster = ClusterView(**{"writable": frozenset(BOOKIES), **cluster})
    quorums = Quorums(len(ensemble), len(ensemble), len(ensemble))
    return POLICY.replacement(
        ReplacementRequest(ensemble=ensemble, failed=failed, quorums=quorums, cluster=cluster, random=random)
    )


def test_every_bookie_and_every_position_is_equally_likely():
    random = Random(1)
    chosen = [choose(3, random) for _ in range(1500)]
    assert all(len(set(ensemble)) == 3 for ensemble in chosen)
    for position in range(3):
        counts = Counter(ensemble[position] for ensemble in chosen)
        assert set(counts) == set(BOOKIES)
        assert all(200 < count < 300 for count in counts.values())


def test_quarantined_bookies_are_used_only_when_others_do_not_suffice():
    random = Random(2)
    assert set(choose(3, random, quarantined=frozenset({"b0", "b1", "b2"}))) == {"b3", "b4", "b5"}
    assert set(choose(6, random, quarantined=frozenset({"b0"}))) == set(BOOKIES)


def test_an_excluded_bookie_is_never_used():
    with pytest.raises(NotEnoughBookies):
        choose(6, Random(2), excluded={"b0": "draining"})


def test_too_few_bookies_names_what_there_is():
    with pytest.raises(NotEnoughBookies, match=r"needs 3 .* 2 \(b0, b1\)"):
        choose(3, Random(3), writable=frozenset(["b1", "b0"]))


def test_a_replacement_is_neither_a_member_nor_a_failed_bookie():
    random = Random(4)
    ensemble = ("b0", "b1", "b2", "b3")
    assert {replace(ensemble, {0: "b0"}, random).ensemble[0] for _ in range(100)} == {"b4", "b5"}
    both = {replace(ensemble, {0: "b0", 2: "b2"}, random).ensemble for _ in range(100)}
    assert both == {("b4", "b1", "b5", "b3"), ("b5", "b1", "b4", "b3")}


def test_a_position_without_a_spare_keeps_its_bookie_and_says_so():
    placement = replace(tuple(BOOKIES), {1: "b1"}, Random(5))
    assert placement.ensemble == tuple(BOOKIES)
    assert set(placement.unfilled) == {1}


def test_a_position_that_was_exchanged_already_is_left():
    assert replace(("b0", "b1", "b2"), {2: "b5"}, Random(5)).ensemble == ("b0", "b1", "b2")


def test_any_ensemble_adheres():
    report = POLICY.check(("b0", "b1"), Quorums(2, 2, 2), ClusterView(writable=frozenset()))
    assert report.adherence is Adherence.MEETS_STRICT
