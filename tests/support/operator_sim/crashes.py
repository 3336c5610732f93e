"""The operator dies in each pass of a flow, before its effect or between effect and status: it has to end alike."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from bookie_operator.planner.decision import Rest
from tests.support.operator_sim.simulation import Simulation
from tests.support.operator_sim.specs import spec


def at_rest_after(start: Simulation, change: Callable[[Simulation], object], *, most: int = 600) -> Simulation:
    """The end of the flow when nothing goes wrong."""
    return _undisturbed(start, change, lambda _: None, most)


def killed_everywhere(
    start: Simulation,
    change: Callable[[Simulation], object],
    end: Callable[[Simulation], object],
    *,
    most: int = 600,
) -> int:
    """`end` of every run is that of the undisturbed one, and no run has accidents; in how many passes it died.

    What comes before a death is what came then in the undisturbed run, so it is not run again: each run goes on from
    what was kept there. A death before the effect is a pass that comes later, so that one in four of these is enough.
    """
    kept: list[bytes] = []
    whole = _undisturbed(start, change, lambda sim: kept.append(_frozen(sim)), most)
    assert not whole.accidents, whole.accidents
    wanted = end(whole)
    for number, before in enumerate(kept):
        for crash in ("before", "between") if number % 4 == 0 else ("between",):
            sim = _thawed(before)
            sim.run_until_rest(most=most, crash_at=0, crash=crash)
            assert not sim.accidents, (number, crash, sim.accidents)
            assert end(sim) == wanted, (number, crash, whole.passes[number].plan)
    return len(kept)


def _undisturbed(
    start: Simulation, change: Callable[[Simulation], object], each: Callable[[Simulation], None], most: int
) -> Simulation:
    sim = copied(start)
    change(sim)
    sim.run(lambda _, decision: isinstance(decision, Rest), most=most, each=each)
    return sim


def copied(sim: Simulation) -> Simulation:
    """Without the passes that were."""
    return _thawed(_frozen(sim))


def _thawed(sim: bytes) -> Simulation:
    found: Simulation = pickle.loads(sim)
    return found


def _frozen(sim: Simulation) -> bytes:
    """Without the passes that were: they would be most of it."""
    return pickle.dumps(replace(sim, passes=[]))


@lru_cache(maxsize=64)
def _resting(changes: str) -> bytes:
    sim = Simulation(spec(**json.loads(changes)))
    sim.run_until_rest()
    return _frozen(sim)


def resting(**changes: object) -> Simulation:
    """A cluster that was created and is at rest; a copy of its own for each caller."""
    return _thawed(_resting(json.dumps(changes, sort_keys=True)))
