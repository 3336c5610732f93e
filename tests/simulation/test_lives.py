"""Nothing of one life of a ledger id is lost to, or mixed with, another one's, and the judge finds what is planted. A
failure prints how to replay it."""

from __future__ import annotations

import pytest

from tests.simulation.life_bugs import LIFE_BUGS
from tests.simulation.many_seeds import assert_all_hold, assert_many_hold
from tests.simulation.planted import Bug, assert_found

NORMAL = 60
LONG = 3_000
PARTS = 4
STEP = 490
HAPPENS = (
    "acknowledged again",
    "close: MetadataNotFound",
    "close: MetadataReplaced",
    "closed",
    "deleted",
    "entries read",
    "id used again",
    "recovered",
)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("first", range(0, NORMAL, NORMAL // PARTS))
def test_everything_holds(first):
    assert_all_hold(range(first, first + NORMAL // PARTS), of="lives", happens=HAPPENS)


@pytest.mark.seeds
@pytest.mark.timeout(900)
@pytest.mark.parametrize("first", range(NORMAL, LONG, STEP))
def test_everything_holds_for_many_more(first):
    assert_many_hold(range(first, first + STEP), of="lives")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("bug", LIFE_BUGS, ids=lambda bug: bug.name)
def test_the_bug_is_found(bug: Bug, monkeypatch):
    assert_found(bug, monkeypatch)
