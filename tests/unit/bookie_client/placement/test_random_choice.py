"""Uniform placement."""

from collections import Counter
from random import Random

import pytest

from bookie_client.placement.random_choice import RandomPlacement
from bookie_protocol.errors import NotEnoughBookies

BOOKIES = [f"b{i}" for i in range(6)]


def test_every_bookie_and_every_position_is_equally_likely():
    random = Random(1)
    chosen = [RandomPlacement().new_ensemble(3, BOOKIES, random) for _ in range(6000)]
    assert all(len(set(ensemble)) == 3 for ensemble in chosen)
    for position in range(3):
        counts = Counter(ensemble[position] for ensemble in chosen)
        assert set(counts) == set(BOOKIES)
        assert all(850 < count < 1150 for count in counts.values())


def test_excluded_bookies_are_used_only_when_others_do_not_suffice():
    random = Random(2)
    assert set(RandomPlacement().new_ensemble(3, BOOKIES, random, {"b0", "b1", "b2"})) == {"b3", "b4", "b5"}
    assert set(RandomPlacement().new_ensemble(6, BOOKIES, random, {"b0"})) == set(BOOKIES)


def test_too_few_bookies_names_what_there_is():
    with pytest.raises(NotEnoughBookies, match=r"needs 3 writable bookies and there are 2 \(b0, b1\)"):
        RandomPlacement().new_ensemble(3, ["b1", "b0"], Random(3))


def test_a_replacement_is_never_an_excluded_bookie():
    random = Random(4)
    assert {RandomPlacement().replacement(BOOKIES, random, BOOKIES[:4]) for _ in range(100)} == {"b4", "b5"}
    assert RandomPlacement().replacement(BOOKIES, random, BOOKIES) is None


def test_one_seed_gives_one_choice_in_whatever_order_bookies_are_listed():
    one = RandomPlacement().new_ensemble(3, BOOKIES, Random(5))
    assert RandomPlacement().new_ensemble(3, list(reversed(BOOKIES)), Random(5)) == one
