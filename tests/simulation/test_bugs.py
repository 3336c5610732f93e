"""The checkers bite: defects put into the protocol on purpose are found, each within a bounded number of seeds."""

from __future__ import annotations

import pytest

from tests.simulation.bugs import BUGS, Bug
from tests.support.simulation.runner import run_seed


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_the_bug_is_found(bug: Bug, monkeypatch):
    bug.patch(monkeypatch)
    for seed in range(bug.seeds):
        result = run_seed(seed)
        if result.failed:
            rule = result.violations[0].split(" ")[0]
            assert rule in bug.rules, result.violations[0]
            return
    pytest.fail(f"not found within {bug.seeds} seeds: {bug.name}")


def test_without_a_bug_the_same_seeds_hold():
    assert [seed for seed in range(10) if run_seed(seed).failed] == []
