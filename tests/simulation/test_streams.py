"""Streams hold what their lists say, and the judge finds what is planted. A failure prints how to replay it."""

from __future__ import annotations

import pytest

from tests.simulation.many_seeds import assert_all_hold, assert_many_hold
from tests.simulation.planted import Bug, assert_found
from tests.simulation.stream_bugs import STREAM_BUGS
from tests.support.simulation.run import run

NORMAL = 40
LONG = 2_000
PARTS = 4
HAPPENS = (
    "acknowledged",
    "published",
    "cursor moved",
    "entries read",
    "name used again",
    "offload: deleted",
    "restored into a stream",
    "a number used again",
)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("first", range(0, NORMAL, NORMAL // PARTS))
def test_everything_holds(first):
    assert_all_hold(range(first, first + NORMAL // PARTS), of="streams", happens=HAPPENS)


@pytest.mark.seeds
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(NORMAL, LONG, 490))
def test_everything_holds_for_many_more(first):
    assert_many_hold(range(first, first + 490), of="streams")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("bug", STREAM_BUGS, ids=lambda bug: bug.name)
def test_the_bug_is_found(bug: Bug, monkeypatch):
    assert_found(bug, monkeypatch)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("focus", {bug.focus: None for bug in STREAM_BUGS}, ids=lambda focus: focus.__name__)
def test_without_a_bug_the_same_scenarios_hold(focus):
    bug = next(bug for bug in STREAM_BUGS if bug.focus is focus)
    assert run(bug.scenario(0)).violations == ()
