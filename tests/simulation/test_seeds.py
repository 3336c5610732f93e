"""Seeds of the normal run, and many more in the long one. A failure prints the command that replays it."""

from __future__ import annotations

import pytest

from tests.simulation.many_seeds import assert_all_hold, assert_many_hold

NORMAL = 300
LONG = 10_000
PARTS = 12


@pytest.mark.parametrize("first", range(0, NORMAL, NORMAL // PARTS))
def test_everything_holds(first):
    assert_all_hold(range(first, first + NORMAL // PARTS))


@pytest.mark.seeds
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(NORMAL, LONG, 970))
def test_everything_holds_for_many_more(first):
    assert_many_hold(range(first, first + 970))
