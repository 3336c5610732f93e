"""A bookie that serves gets other volumes: drained while it serves, and given back wherever that can still be done."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie_operator.crds.cluster_status import OperationType
from bookie_operator.crds.task_spec import TaskType
from bookie_operator.planner.actions import BeginDrain, DeleteCookie, DeletePod, EvictPod, SetReadOnly
from bookie_operator.planner.decision import Act, Wait
from bookie_operator.planner.flows import relocate, repair
from bookie_operator.world.facts import DrainPhase
from tests.support.operator_sim import Simulation, killed_everywhere
from tests.support.operator_sim.bookkeeper import SimLedger
from tests.support.operator_sim.flows import acted, at_step, steps_taken
from tests.support.operator_sim.going import settled

MOVED = "c-bookie-1"


def move(sim: Simulation) -> None:
    sim.ask(TaskType.REPLACE, MOVED)


def disks(sim: Simulation) -> set[str]:
    return {one.uid for one in sim.kubernetes.claims_of(MOVED)}


def end(sim: Simulation) -> object:
    keeper = sim.bookkeeper
    return keeper.writable, sorted(keeper.cookies), [one.phase for one in sim.tasks], sim.status.operation


def test_it_is_drained_while_it_serves_and_then_has_new_volumes() -> None:
    sim = settled(replicas=4)
    old = disks(sim)
    fewest = [4]

    def watch(one: Simulation) -> None:
        bookie_id = one.desired().bookie_id(MOVED)
        if bookie_id not in one.bookkeeper.running:
            assert not one.bookkeeper.naming(bookie_id)
        fewest.append(len(one.bookkeeper.running))

    move(sim)
    sim.run(lambda one, _: one.phase("task-1") == "Done", each=watch)
    steps = [step for step in steps_taken(sim) if step]
    assert steps == ["ReadOnly", "DrainServing", "Stop", "Prove", "Claims", "Pod", "Start"]
    assert not old & disks(sim)
    assert min(fewest) == 3
    assert not sim.accidents
    assert [(one.type, one.bookie, one.outcome) for one in sim.status.history] == [
        (OperationType.REPLACE, MOVED, "Done")
    ]
    begun = [one for one in acted(sim) if isinstance(one, BeginDrain)]
    assert [(one.stopped, one.removes_cookie) for one in begun] == [(False, True)]
    assert not any(isinstance(one, DeleteCookie | EvictPod) for one in acted(sim))
    assert len(sim.bookkeeper.writable) == 4


def test_whenever_the_operator_dies_it_ends_alike() -> None:
    sim = settled(replicas=4)
    sim.bookkeeper.writes = False
    assert killed_everywhere(sim, move, end) > 15


@pytest.mark.parametrize("step", ["ReadOnly", "DrainServing"])
def test_a_task_that_is_deleted_gives_it_back(step: str) -> None:
    sim = settled(replicas=4)
    sim.bookkeeper.drain_seconds = 3.0
    old = disks(sim)
    move(sim)
    at_step(sim, step)
    sim.run_pass()
    sim.tasks.clear()
    sim.run_until_rest()
    assert sim.status.history[0].outcome == "Cancelled"
    assert disks(sim) == old
    assert sim.desired().bookie_id(MOVED) in sim.bookkeeper.writable
    assert not any(one.phase is DrainPhase.RUNNING for one in sim.bookkeeper.drains.values())


def test_one_whose_cookie_is_gone_is_not_given_back() -> None:
    """It could not start again, and would take entries until then."""
    sim = settled(replicas=4)
    old = disks(sim)
    move(sim)
    at_step(sim, "DrainServing")
    sim.run(lambda one, _: one.desired().bookie_id(MOVED) not in one.bookkeeper.cookies)
    sim.tasks.clear()
    sim.run_until_rest()
    assert not old & disks(sim)
    assert len(sim.bookkeeper.writable) == 4
    assert not any(isinstance(one, SetReadOnly) and not one.read_only for one in acted(sim))


def test_the_end_of_a_drain_that_is_seen_before_the_end_of_the_cookie_gives_nothing_back() -> None:
    sim = settled(replicas=4)
    move(sim)
    at_step(sim, "DrainServing")
    bookie_id = sim.desired().bookie_id(MOVED)
    sim.run(lambda one, _: bookie_id not in one.bookkeeper.cookies)
    operation = sim.status.operation
    assert operation is not None
    undoing = operation.model_copy(update={"step": "Undo"})
    world = sim.world(repair.needs(undoing, sim.desired()))
    assert world.facts is not None
    stale = replace(world, facts=replace(world.facts, cookies=world.facts.cookies | {bookie_id}))
    decision = repair.proceed(stale, sim.desired(), undoing)
    assert not isinstance(decision, Act), decision


def test_one_that_is_lost_on_the_way_is_replaced_from_the_others() -> None:
    sim = settled(replicas=4)
    sim.bookkeeper.drain_seconds = 3.0
    move(sim)
    at_step(sim, "DrainServing")
    sim.run_pass()
    sim.forgiven = True
    sim.kubernetes.lose_volume(MOVED)
    sim.run(lambda one, _: one.phase("task-1") == "Done")
    assert [one.outcome for one in reversed(sim.status.history)] == ["Cancelled", "Done"]
    assert steps_taken(sim)[-1] == "Start"
    assert len(sim.bookkeeper.writable) == 4


def test_a_ledger_that_comes_to_name_it_is_copied_before_a_claim_goes() -> None:
    """A client that had not heard of the drain made it, and a recovery wrote to it."""
    sim = settled(replicas=4)
    sim.bookkeeper.writes = False
    old = disks(sim)
    move(sim)
    at_step(sim, "Prove")
    keeper, bookie_id = sim.bookkeeper, sim.desired().bookie_id(MOVED)
    others = [one for one in keeper.running if one != bookie_id][:2]
    data = {one.data_id for one in sim.kubernetes.claims_of(MOVED) if one.data_id}
    keeper.ledgers[9999] = SimLedger([bookie_id, *others], {*data, *(keeper.running[one] for one in others)})

    def watch(one: Simulation) -> None:
        if bookie_id in keeper.ledgers[9999].ensemble:
            assert disks(one) == old
            assert not any(each.deleting for each in one.kubernetes.claims_of(MOVED))

    sim.run(lambda one, _: one.phase("task-1") == "Done", each=watch)
    assert not sim.accidents
    assert bookie_id not in keeper.ledgers[9999].ensemble


def test_a_claim_that_was_deleted_under_it_is_no_obstacle() -> None:
    """As long as its pod runs its data are there: they are copied, and only then does the pod stop."""
    sim = settled(replicas=4)
    for claim in sim.kubernetes.claims_of(MOVED):
        claim.deleting = True
    move(sim)
    sim.run(lambda one, _: one.phase("task-1") == "Done")
    assert not sim.accidents
    assert len(sim.bookkeeper.writable) == 4


def test_without_a_spare_it_is_refused_and_the_task_fails_after_a_while() -> None:
    sim = settled(replicas=3)
    task = sim.ask(TaskType.REPLACE, MOVED)
    sim.run_pass()
    world = sim.world(repair.needs_to_begin(sim.world(), sim.desired()))
    decision = repair.replace(world, sim.desired(), MOVED, task)
    assert isinstance(decision, Wait)
    assert (decision.reason, decision.stalled) == (relocate.BLOCKED, True)
    sim.run(lambda one, _: one.phase(task) == "Failed")
    assert sim.status.operation is None
    assert not sim.status.history


def test_an_upgrade_comes_first_where_the_drain_stalls() -> None:
    sim = settled(replicas=4, decommission={"stallSeconds": 60})
    sim.bookkeeper.drain_seconds = 10_000.0
    move(sim)
    at_step(sim, "DrainServing")
    sim.run_pass()
    sim.bookkeeper.drains[sim.desired().bookie_id(MOVED)].phase = DrainPhase.INTERRUPTED
    sim.change(version="1.1")
    sim.bookkeeper.ledgers.clear()
    sim.run(lambda one, _: one.phase("task-1") == "Done")
    assert not sim.accidents


def test_two_are_moved_one_after_the_other() -> None:
    sim = settled(replicas=5)
    sim.ask(TaskType.REPLACE, "c-bookie-0", "c-bookie-2")
    sim.run(lambda one, _: one.phase("task-1") == "Done")
    assert [one.bookie for one in reversed(sim.status.history)] == ["c-bookie-0", "c-bookie-2"]
    assert len(sim.bookkeeper.writable) == 5


def test_a_cookie_that_somebody_stores_again_leads_back_to_the_drain() -> None:
    sim = settled(replicas=4)
    move(sim)
    at_step(sim, "Stop")
    sim.run(lambda one, _: any(isinstance(each, DeletePod) for each in acted(one)))
    data = next(one.data_id for one in sim.kubernetes.claims_of(MOVED) if one.data_id)
    sim.bookkeeper.cookies[sim.desired().bookie_id(MOVED)] = data
    sim.run(lambda one, _: one.phase("task-1") == "Done")
    assert steps_taken(sim).count("ReadOnly") == 2
    assert not sim.accidents


def test_another_storage_class_comes_with_the_new_volumes_of_those_that_are_moved() -> None:
    sim = settled(replicas=4)
    pods = {name: pod.uid for name, pod in sim.kubernetes.pods.items()}
    sim.change(storage={"ledger": {"storageClassName": "fast"}})
    sim.run_until_rest()
    assert {name: pod.uid for name, pod in sim.kubernetes.pods.items()} == pods
    move(sim)
    sim.run(lambda one, _: one.phase("task-1") == "Done")
    sim.change(replicas=5)
    sim.run_until_rest()
    fast = {name for name, one in sim.kubernetes.claims.items() if one.storage_class == "fast"}
    assert fast == {f"ledger-0-{MOVED}", "ledger-0-c-bookie-4"}
    assert not sim.accidents


def test_whenever_the_operator_dies_another_storage_class_restarts_nobody() -> None:
    def change(one: Simulation) -> None:
        one.change(storage={"ledger": {"storageClassName": "fast"}})

    def uids(one: Simulation) -> object:
        return {name: pod.uid for name, pod in one.kubernetes.pods.items()}, one.kubernetes.sets[
            "c-bookie"
        ].volume_classes

    sim = settled(replicas=4)
    sim.bookkeeper.writes = False
    assert killed_everywhere(sim, change, uids) > 4
