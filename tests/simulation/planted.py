"""Defects that are planted on purpose, and the search for a run in which the checkers find them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.support.simulation.run import run
from tests.support.simulation.scenario import Scenario, draw

Patch = Callable[[pytest.MonkeyPatch], None]


def as_drawn(scenario: Scenario) -> Scenario:
    return scenario


@dataclass(frozen=True, slots=True)
class Bug:
    """`rules`: those that may find it. `seeds`: so many from `first` on must be enough, with the scenarios that `focus`
    makes of what `draw` draws. `first`: where a search from 0 on would only take time."""

    name: str
    patch: Patch
    rules: tuple[str, ...]
    seeds: int
    focus: Callable[[Scenario], Scenario] = as_drawn
    draw: Callable[[int], Scenario] = draw
    first: int = 0

    def scenario(self, seed: int) -> Scenario:
        return self.focus(self.draw(seed))


def assert_found(bug: Bug, monkeypatch: pytest.MonkeyPatch) -> None:
    bug.patch(monkeypatch)
    for seed in range(bug.first, bug.first + bug.seeds):
        result = run(bug.scenario(seed))
        if result.failed:
            rule = result.violations[0].split(" ")[0]
            assert rule in bug.rules, result.violations[0]
            return
    pytest.fail(f"not found within {bug.seeds} seeds: {bug.name}")
