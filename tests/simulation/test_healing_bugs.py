"""The checkers of healing bite: defects put into it on purpose are found, each within a bounded number of seeds."""

from __future__ import annotations

import pytest

from tests.simulation.healing_bugs import HEALING_BUGS
from tests.simulation.healing_focus import (
    copies_rot,
    decommissions_are_undone,
    exchanges_are_late,
    healers_die_while_they_fill,
    ids_are_used_again,
    lost_bookies_are_recovered,
    racks_are_minded,
)
from tests.simulation.planted import Bug, assert_found
from tests.support.simulation.run import run

HAPPENS = {
    copies_rot: ("rotten", "exchanged"),
    decommissions_are_undone: ("undone", "decommissioned"),
    healers_die_while_they_fill: ("fault: emptied", "fault: kill healer"),
    exchanges_are_late: ("fault: hold", "exchanged", "decommissioned"),
    ids_are_used_again: ("an id used again", "decommissioned"),
    lost_bookies_are_recovered: ("recovered a lost bookie", "cookie deleted"),
    racks_are_minded: ("marked for its placement", "moved"),
}
"""What the scenarios made for it must show."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("bug", HEALING_BUGS, ids=lambda bug: bug.name)
def test_the_bug_is_found(bug: Bug, monkeypatch):
    assert_found(bug, monkeypatch)


@pytest.mark.timeout(200)
@pytest.mark.parametrize("focus", {bug.focus: None for bug in HEALING_BUGS}, ids=lambda focus: focus.__name__)
def test_without_a_bug_the_same_scenarios_hold(focus):
    bug = next(bug for bug in HEALING_BUGS if bug.focus is focus)
    shown = HAPPENS.get(focus, ())
    results = {seed: run(bug.scenario(seed)) for seed in range(3 if shown else 1)}
    assert {seed: one.violations for seed, one in results.items() if one.failed} == {}
    for what in shown:
        assert sum(one.counts.get(what, 0) for one in results.values()), f"{what}: never"
