"""Where the running operation of a simulation is, and what was done for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from bookie_operator.planner.actions import Action
from bookie_operator.planner.decision import Act, Decision, Rest
from tests.support.operator_sim.crashes import copied
from tests.support.operator_sim.simulation import Simulation


def acted(sim: Simulation) -> list[Action]:
    """Everything that was carried out, in order."""
    return [one.plan.decision.action for one in sim.passes if isinstance(one.plan.decision, Act) and not one.error]


def steps_taken(sim: Simulation) -> list[str]:
    """Steps of all operations, in order; one that was waited in counts once."""
    steps: list[str] = []
    for one in sim.passes:
        operation = one.world.cluster.status.operation
        if operation is not None and steps[-1:] != [operation.step]:
            steps.append(operation.step)
    return steps


def at_step(sim: Simulation, step: str, *, most: int = 300) -> None:
    """Passes until the operation stands at this step; nothing of it is done."""
    if sim.status.operation is None or sim.status.operation.step != step:
        sim.run(lambda one, _: one.status.operation is not None and one.status.operation.step == step, most=most)


def every_step(start: Simulation, change: Callable[[Simulation], object]) -> Iterator[tuple[str, Simulation]]:
    """Of the operations that a change leads to, each once: and a simulation that stands there, as with `at_step`."""
    sim = copied(start)
    change(sim)
    seen = {""}

    def step_of(one: Simulation) -> str:
        return one.status.operation.step if one.status.operation is not None else ""

    def at_another(one: Simulation, decision: Decision) -> bool:
        return step_of(one) not in seen or isinstance(decision, Rest)

    sim.run(at_another)
    while (step := step_of(sim)) not in seen:
        yield step, copied(sim)
        seen.add(step)
        sim.run(at_another)
    assert len(seen) > 5, f"no more steps than {seen}"
