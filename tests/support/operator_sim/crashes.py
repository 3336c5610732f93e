"""The operator dies in each pass of a flow, before its effect or between effect and status: it has to end alike."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from functools import lru_cache

from tests.support.operator_sim.simulation import Simulation
from tests.support.operator_sim.specs import spec


def at_rest_after(start: Simulation, change: Callable[[Simulation], object], *, most: int = 600) -> Simulation:
    """The end of the flow when nothing goes wrong."""
    sim = copy.deepcopy(start)
    sim.passes.clear()
    change(sim)
    sim.run_until_rest(most=most)
    return sim


def killed_everywhere(
    start: Simulation,
    change: Callable[[Simulation], object],
    end: Callable[[Simulation], object],
    *,
    most: int = 600,
) -> int:
    """`end` of every run is that of the undisturbed one, and no run has accidents; how many runs there were."""
    whole = at_rest_after(start, change, most=most)
    assert not whole.accidents, whole.accidents
    wanted = end(whole)
    for number in range(len(whole.passes)):
        for crash in ("before", "between"):
            sim = copy.deepcopy(start)
            sim.passes.clear()
            change(sim)
            sim.run_until_rest(most=most, crash_at=number, crash=crash)
            assert not sim.accidents, (number, crash, sim.accidents)
            assert end(sim) == wanted, (number, crash, whole.passes[number].plan)
    return 2 * len(whole.passes)


@lru_cache(maxsize=8)
def _resting(changes: str) -> Simulation:
    sim = Simulation(spec(**json.loads(changes)))
    sim.run_until_rest()
    sim.passes.clear()
    return sim


def resting(**changes: object) -> Simulation:
    """A cluster that was created and is at rest; a copy of its own for each caller."""
    return copy.deepcopy(_resting(json.dumps(changes, sort_keys=True)))
