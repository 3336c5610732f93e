"""What cannot go on without a bookie that lost its disks ends, until the bookie is started anew."""

from __future__ import annotations

import pytest

from bookie_operator.crds.cluster_status import OperationType
from bookie_operator.crds.task_spec import TaskType
from bookie_operator.planner.decision import Rest
from tests.support.operator_sim import Simulation, killed_everywhere, resting
from tests.support.operator_sim.flows import at_step

ROLLOUT, REPLACE, DECOMMISSION = OperationType.ROLLOUT, OperationType.REPLACE, OperationType.DECOMMISSION


def kinds(sim: Simulation) -> list[tuple[OperationType, str]]:
    return [(one.type, one.outcome) for one in reversed(sim.status.history)]


def end(sim: Simulation) -> object:
    hashes = {one.template_hash for one in sim.kubernetes.pods.values()}
    return sorted(sim.kubernetes.pods), hashes, sim.bookkeeper.recovery_delay, len(sim.bookkeeper.writable)


def losing(sim: Simulation, step: str, bookie: str) -> None:
    at_step(sim, step)
    sim.kubernetes.lose_volume(bookie)


@pytest.mark.parametrize("step", ["Choose", "Audit", "Stop", "Await"])
def test_a_rollout_gives_way_and_goes_on_afterwards(step: str) -> None:
    sim = resting(repair={"autoReplaceAfterSeconds": 20})
    sim.change(version="2.0")
    losing(sim, step, "c-bookie-0")
    killed_everywhere(sim, lambda _: None, end)
    sim.run_until_rest()
    assert kinds(sim) == [(ROLLOUT, "Cancelled"), (REPLACE, "Done"), (ROLLOUT, "Done")]
    assert sim.bookkeeper.recovery_delay == 300
    assert not sim.accidents


def test_a_rollout_waits_for_a_person_where_nobody_replaces_by_himself() -> None:
    sim = resting()
    sim.change(version="2.0")
    losing(sim, "Stop", "c-bookie-0")
    sim.run_until_stalled("BookieUnavailable")
    task = sim.ask(TaskType.REPLACE, "c-bookie-0")
    sim.run_until_rest()
    assert sim.phase(task) == "Done"
    assert kinds(sim) == [(ROLLOUT, "Cancelled"), (REPLACE, "Done"), (ROLLOUT, "Done")]


def test_a_restart_that_gave_way_is_not_a_failure_of_its_task() -> None:
    sim = resting(repair={"autoReplaceAfterSeconds": 20})
    task = sim.ask(TaskType.RESTART)
    losing(sim, "Stop", "c-bookie-0")
    sim.run_until_rest()
    assert sim.phase(task) == "Done"


def test_a_decommission_gives_its_bookie_back_if_it_cannot_go_on() -> None:
    sim = resting(replicas=6, repair={"autoReplaceAfterSeconds": 20}, decommission={"stallSeconds": 60})
    sim.change(replicas=5)
    losing(sim, "Prove", "c-bookie-0")
    sim.run_until_rest()
    assert (REPLACE, "Done") in kinds(sim)
    assert kinds(sim)[-1] == (DECOMMISSION, "Done")
    assert len(sim.bookkeeper.writable) == 5
    assert not sim.accidents


def test_a_bookie_that_loses_its_new_disks_is_replaced_once_more() -> None:
    sim = resting(repair={"autoReplaceAfterSeconds": 20})
    sim.kubernetes.lose_volume("c-bookie-0")
    losing(sim, "Start", "c-bookie-0")
    sim.run(lambda _, decision: isinstance(decision, Rest))
    assert kinds(sim)[-1] == (REPLACE, "Done")
    assert len(sim.bookkeeper.writable) == 4
    assert not sim.accidents


def test_an_operation_that_waits_for_something_else_goes_on() -> None:
    sim = resting(repair={"autoReplaceAfterSeconds": 20})
    sim.change(version="2.0")
    at_step(sim, "Await")
    sim.bookkeeper.up = False
    for _ in range(10):
        sim.run_pass()
        sim.advance(5)
    sim.bookkeeper.up = True
    sim.run_until_rest()
    assert kinds(sim) == [(ROLLOUT, "Done")]
