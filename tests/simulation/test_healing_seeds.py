"""Clusters that heal: seeds of the normal run, and many more in the long one. A failure prints how to replay it."""

from __future__ import annotations

import pytest

from tests.simulation.many_seeds import assert_all_hold, assert_many_hold

NORMAL = 96
LONG = 2_056
PARTS = 8


@pytest.mark.timeout(200)
@pytest.mark.parametrize("first", range(0, NORMAL, NORMAL // PARTS))
def test_everything_heals(first):
    happens = ("marked", "mark removed", "exchanged", "cookie deleted", "metadata CLOSED")
    assert_all_hold(range(first, first + NORMAL // PARTS), of="healing", happens=happens)


@pytest.mark.seeds
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(NORMAL, LONG, 980))
def test_everything_heals_for_many_more(first):
    assert_many_hold(range(first, first + 980), of="healing")
