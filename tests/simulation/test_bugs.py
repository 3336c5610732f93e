"""The checkers bite: defects put into the protocol on purpose are found, each within a bounded number of seeds."""

from __future__ import annotations

import pytest

from tests.simulation.__main__ import main
from tests.simulation.bugs import BUGS
from tests.simulation.focus import bookies_are_replaced_in_turn
from tests.simulation.planted import Bug, assert_found
from tests.support.simulation.run import run
from tests.support.simulation.runner import run_seed, run_seeds
from tests.support.simulation.scenario import draw


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_bug_is_found(bug: Bug, monkeypatch):
    assert_found(bug, monkeypatch)


def test_a_failure_tells_what_broke_what_happened_last_and_how_to_see_all_of_it(monkeypatch):
    BUGS[0].patch(monkeypatch)
    failure = next(one.failure for one in run_seeds(range(20)) if one.failure is not None)
    lines = failure.splitlines()
    assert lines[0].startswith("seed ")
    assert lines[1].startswith("VIOLATED S5 durability: ledger ")
    assert "A SECOND RUN DIFFERED" not in failure
    assert sum(" stores entry " in line for line in lines) > 0
    seed = lines[0].split(":")[0].removeprefix("seed ")
    assert lines[-1] == f"replay: python -m tests.simulation --seeds {seed} --trace"


def test_the_command_runs_seeds_and_shows_one(capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["simulation", "--seeds", "0:3", "--counts"])
    assert main() == 0
    assert "3 seeds, 0 failed" in capsys.readouterr().out
    monkeypatch.setattr("sys.argv", ["simulation", "--seeds", "1", "--trace"])
    assert main() == 0
    shown = capsys.readouterr().out
    assert shown.startswith("seed 1: E/Qw/Qa ")
    assert " is OPEN [0: " in shown
    BUGS[0].patch(monkeypatch)
    monkeypatch.setattr("sys.argv", ["simulation", "--seeds", "0:20"])
    assert main() == 1
    assert "replay: python -m tests.simulation --seeds " in capsys.readouterr().out


def test_without_a_bug_the_same_seeds_hold():
    assert [seed for seed in range(10) if run_seed(seed).failed] == []


def test_writers_whose_bookies_are_replaced_in_turn_lose_nothing():
    results = [run(bookies_are_replaced_in_turn(draw(seed))) for seed in range(20)]
    assert [one.violations for one in results if one.failed] == []
    assert sum(one.counts.get("append LedgerClosed", 0) for one in results)


def test_what_bookies_admit_as_a_run_of_adds_is_stored_too():
    """Here 49 adds of one writer come at once, behind a partition."""
    assert not run_seed(1482).failed
