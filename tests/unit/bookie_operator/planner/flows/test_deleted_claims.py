"""Somebody deletes a claim while its bookie runs: the pod is all that keeps it, and nothing stops that."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from bookie_operator.crds.task_spec import TaskType
from bookie_operator.planner.decision import Wait
from bookie_operator.planner.desired import Evictions
from tests.support.operator_sim import Simulation, resting

BOOKIE = "c-bookie-1"


def delete_claim(sim: Simulation) -> None:
    sim.kubernetes.claims[f"ledger-0-{BOOKIE}"].deleting = True


def upgrade(sim: Simulation) -> None:
    sim.change(version="2.0")


def restart(sim: Simulation) -> None:
    sim.ask(TaskType.RESTART)


def break_down(sim: Simulation) -> None:
    """It is down, with its data, and the new template would bring it up."""
    sim.kubernetes.kill_pod(BOOKIE)
    sim.kubernetes.pods[BOOKIE].starts_at = sim.now + 1e6
    sim.change(version="2.0")


@pytest.mark.parametrize("wish", [upgrade, restart, break_down])
@pytest.mark.parametrize("late", [0, 8])
def test_nothing_stops_the_bookie(wish: Callable[[Simulation], None], late: int) -> None:
    """`late`: passes of the wish before the claim is deleted."""
    sim = resting()
    uid = sim.kubernetes.pods[BOOKIE].uid
    if late:
        wish(sim)
    for _ in range(late):
        decision = sim.run_pass().plan.decision
        sim.advance(min(decision.seconds, 5.0) if isinstance(decision, Wait) else 1.0)
    delete_claim(sim)
    if not late:
        wish(sim)
    sim.run_until_stalled("ClaimBeingDeleted")
    for _ in range(30):
        last = sim.run_pass().plan
        sim.advance(30)
    assert last.evictions == Evictions(0)
    assert sim.kubernetes.pods[BOOKIE].uid == uid
    assert f"ledger-0-{BOOKIE}" in sim.kubernetes.claims


def test_what_is_advised_brings_it_back() -> None:
    sim = resting()
    delete_claim(sim)
    sim.run_until_stalled("ClaimBeingDeleted")
    (told,) = [
        one
        for one in (sim.passes[-1].plan.decision, *sim.passes[-1].plan.notes)
        if isinstance(one, Wait) and one.reason == "ClaimBeingDeleted"
    ]
    bookie_id = sim.desired().bookie_id(BOOKIE)
    assert "BookieTask of type Replace" in told.message
    task = sim.ask(TaskType.REPLACE, BOOKIE)
    sim.run_until_rest()
    assert sim.phase(task) == "Done"
    assert not sim.accidents
    assert bookie_id in sim.bookkeeper.writable
