"""What cannot go on without a bookie that lost its disks ends, until the bookie is started anew."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from bookie_operator.crds.cluster_status import OperationType
from bookie_operator.crds.task_spec import TaskType
from bookie_operator.planner import giving_way
from bookie_operator.planner.decision import Needs, Rest
from bookie_operator.planner.flows import rollout
from bookie_operator.world.model import PodFault, World
from tests.support.operator_sim import Simulation, killed_everywhere, resting
from tests.support.operator_sim.bookkeeper import SimLedger
from tests.support.operator_sim.flows import at_step
from tests.support.operator_sim.going import fewer, lose, may_lose, settled
from tests.support.operator_sim.kubernetes import BAD_IMAGE
from tests.support.operator_sim.mishaps import power_cut

ROLLOUT, REPLACE, DECOMMISSION = OperationType.ROLLOUT, OperationType.REPLACE, OperationType.DECOMMISSION
SCALE_UP = OperationType.SCALE_UP
STALLS = {"stallSeconds": 60}


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
    """And the task that asks for it is not judged by that."""
    sim = resting(replicas=6, repair={"autoReplaceAfterSeconds": 20}, decommission={"stallSeconds": 60})
    sim.change(replicas=5)
    task = sim.ask(TaskType.DECOMMISSION, "c-bookie-5")
    losing(sim, "Prove", "c-bookie-0")
    sim.run_until_rest()
    assert (DECOMMISSION, "Cancelled") in kinds(sim)
    assert (REPLACE, "Done") in kinds(sim)
    assert sim.phase(task) == "Done"
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


@pytest.mark.parametrize("room", [4, 5])
@pytest.mark.parametrize("gone", ["c-bookie-0", "c-bookie-4"])
def test_volumes_that_do_not_grow_hold_up_nobody(gone: str, room: int) -> None:
    """Neither the replacement of a bookie nor one that leaves, whether it found room or not."""
    sim = resting(repair={"autoReplaceAfterSeconds": 20})
    sim.kubernetes.room = room
    if gone == "c-bookie-4":
        sim.change(replicas=5)
        sim.run(lambda _, decision: getattr(decision, "reason", "") == "Unschedulable" or isinstance(decision, Rest))
    sim.change(storage={"ledger": {"size": "20Gi"}})
    at_step(sim, "Grow")
    slow = sim.kubernetes.claims["ledger-0-c-bookie-1"]
    slow.actual, slow.resized_at = "10Gi", math.inf
    if gone == "c-bookie-4":
        sim.change(replicas=4)
    else:
        sim.kubernetes.lose_volume(gone)
    sim.run(lambda *_: kinds(sim)[-1:] in ([(REPLACE, "Done")], [(DECOMMISSION, "Done")]))
    slow.resized_at = sim.kubernetes.now
    sim.run_until_rest()
    assert kinds(sim)[-1] == (OperationType.EXPAND, "Done")
    assert sorted(sim.kubernetes.pods) == [f"c-bookie-{number}" for number in range(4)]
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


def test_a_replacement_beside_a_full_quota_holds_up_nobody() -> None:
    """The newcomer took the place of the lost bookie, and is not asked for any more."""
    sim = resting(repair={"autoReplaceAfterSeconds": 20}, update={"progressDeadlineSeconds": 120})
    sim.change(replicas=5)
    sim.kubernetes.quota = 4
    losing(sim, "Settle", "c-bookie-1")
    at_step(sim, "Start", most=900)
    sim.kubernetes.quota = 5
    sim.advance(1)
    sim.kubernetes.quota = 4
    sim.kubernetes.stop_pod(sim.kubernetes.pods["c-bookie-1"])
    sim.advance(5)
    assert set(sim.kubernetes.pods) == {f"c-bookie-{number}" for number in (0, 2, 3, 4)}
    sim.change(replicas=4)
    sim.run_until_rest(most=900)
    assert (REPLACE, "Failed") in kinds(sim)
    assert kinds(sim)[-1] == (DECOMMISSION, "Done")
    assert sorted(sim.kubernetes.pods) == [f"c-bookie-{number}" for number in range(4)]
    assert not sim.accidents


def test_a_replacement_gives_way_once_to_a_bookie_that_never_served() -> None:
    """Which may have what another one waits for; and the replacement waits for that one."""
    sim = resting(repair={"autoReplaceAfterSeconds": 20}, decommission={"stallSeconds": 60})
    sim.change(replicas=5)
    sim.kubernetes.quota = 4
    losing(sim, "Settle", "c-bookie-1")
    at_step(sim, "Prove", most=900)
    sim.kubernetes.quota = 5
    sim.advance(1)
    sim.kubernetes.pods["c-bookie-4"].starts_at = float("inf")
    sim.kubernetes.faults["c-bookie-2"] = PodFault.CONFIG
    sim.kubernetes.kill_pod("c-bookie-2")
    sim.change(replicas=4)
    sim.run(lambda one, _: (DECOMMISSION, "Done") in kinds(one), most=300)
    for _ in range(100):
        sim.run_pass()
        sim.advance(5)
    assert kinds(sim)[-2:] == [(REPLACE, "Cancelled"), (DECOMMISSION, "Done")]
    sim.kubernetes.faults.clear()
    sim.run_until_rest(most=300)
    assert kinds(sim)[-1] == (REPLACE, "Done")
    assert len(sim.bookkeeper.writable) == 4
    assert not sim.accidents


@pytest.mark.parametrize("quota", [4, 3])
def test_a_replacement_waits_for_nobody_who_waits_for_room(quota: int) -> None:
    """Which a bookie has that served, is not asked for any more, and may not leave while one is lost."""
    sim = resting(replicas=5, repair={"autoReplaceAfterSeconds": 20}, decommission={"stallSeconds": 60})
    sim.advance(60)
    sim.kubernetes.lose_volume("c-bookie-1")
    at_step(sim, "Prove", most=900)
    sim.kubernetes.quota = quota
    gone = ["c-bookie-2", "c-bookie-1"][: 5 - quota]
    for name in gone:
        sim.kubernetes.stop_pod(sim.kubernetes.pods[name])
    sim.advance(5)
    assert not set(gone) & set(sim.kubernetes.pods)
    sim.change(replicas=4)
    sim.run(lambda one, _: (DECOMMISSION, "Done") in kinds(one), most=900)
    assert [kind for kind, _ in kinds(sim)] == [REPLACE, DECOMMISSION]
    sim.kubernetes.quota = 4
    sim.run_until_rest()
    assert sorted(sim.kubernetes.pods) == [f"c-bookie-{number}" for number in range(4)]
    assert len(sim.bookkeeper.writable) == 4
    assert not sim.accidents


@pytest.mark.parametrize("by_task", [False, True])
def test_a_replacement_without_a_spare_bookie_lets_one_be_made(by_task: bool) -> None:
    repair = {} if by_task else {"repair": {"autoReplaceAfterSeconds": 20}}
    sim = resting(decommission={"stallSeconds": 60}, **repair)
    sim.kubernetes.lose_volume("c-bookie-0")
    task = sim.ask(TaskType.REPLACE, "c-bookie-0") if by_task else ""
    at_step(sim, "Drain")
    full = sim.desired().bookie_id("c-bookie-1")
    sim.bookkeeper.read_only.add(full)
    sim.run_until_stalled("NoSpareBookie")
    assert "Raise spec.replicas" in str(sim.passes[-1].plan)
    sim.change(replicas=5)
    sim.run(lambda one, _: (REPLACE, "Done") in kinds(one), most=900)
    assert [kind for kind, _ in kinds(sim)] == [REPLACE, SCALE_UP, REPLACE]
    sim.bookkeeper.read_only.discard(full)
    sim.run_until_rest()
    assert not task or sim.phase(task) == "Done"
    assert len(sim.bookkeeper.writable) == 5
    assert not sim.accidents


def test_a_replacement_that_waits_for_a_broken_bookie_lets_that_be_mended() -> None:
    sim = resting(replicas=5, repair={"autoReplaceAfterSeconds": 20}, decommission={"stallSeconds": 60})
    sim.change(image=BAD_IMAGE)
    losing(sim, "Await", "c-bookie-0")
    sim.run_until_stalled("BookieUnavailable", most=900)
    sim.change(image="")
    sim.run_until_rest(most=900)
    assert [kind for kind in kinds(sim) if kind[0] is REPLACE] == [(REPLACE, "Cancelled"), (REPLACE, "Done")]
    assert end(sim) == end(resting(replicas=5))
    assert not sim.accidents


@pytest.mark.parametrize("deleted", [False, True])
def test_a_rollout_that_waits_for_a_bookie_without_its_volumes_lets_more_bookies_come(deleted: bool) -> None:
    """What it stores has nowhere to go without them."""
    sim = resting(durability={"ensembleSize": 4})
    sim.bookkeeper.ensemble = 4
    sim.change(version="2.0")
    at_step(sim, "Stop")
    sim.forgiven = True
    if deleted:
        sim.kubernetes.claims["ledger-0-c-bookie-0"].deleting = True
        sim.run_until_stalled("ClaimBeingDeleted")
    else:
        sim.kubernetes.lose_volume("c-bookie-0")
        sim.run_until_stalled("BookieUnavailable")
    sim.change(replicas=5)
    sim.run(lambda one, _: (SCALE_UP, "Done") in kinds(one), most=300)
    assert [kind for kind, _ in kinds(sim)] == [ROLLOUT, SCALE_UP]
    if deleted:
        sim.bookkeeper.begin_drain(sim.desired().bookie_id("c-bookie-0"), False, ())
        while sim.bookkeeper.naming(sim.desired().bookie_id("c-bookie-0")):
            sim.run_pass()
            sim.advance(5)
        sim.kubernetes.stop_pod(sim.kubernetes.pods["c-bookie-0"])
    sim.ask(TaskType.REPLACE, "c-bookie-0")
    sim.run_until_rest()
    assert [kind for kind, _ in kinds(sim)][-2:] == [REPLACE, ROLLOUT]
    assert sim.bookkeeper.recovery_delay == 300
    assert len(sim.bookkeeper.writable) == 5
    assert not sim.accidents


def test_a_bookie_that_makes_room_stays_while_a_template_is_what_leaves_none() -> None:
    """It waits before it is stopped, because ledgers need it; and the template is put right meanwhile."""
    sim = resting()
    sim.change(image="fits-nowhere@1")
    sim.run_until_stalled("UpdateFailed")
    assert sim.kubernetes.pods["c-bookie-1"].fault is PodFault.UNSCHEDULABLE
    ids = [sim.desired().bookie_id(f"c-bookie-{number}") for number in (0, 1, 3)]
    sim.bookkeeper.ledgers[900] = SimLedger(ids, {sim.bookkeeper.cookies[one] for one in ids})
    sim.advance(100)
    sim.change(replicas=3)
    at_step(sim, "Stop")
    sim.run(lambda one, _: one.status.operation is not None and one.status.operation.stalled, most=300)
    sim.change(image="")
    sim.run_until_rest()
    assert len(sim.bookkeeper.writable) == 3
    assert not sim.accidents


def test_a_rollout_that_cannot_be_staged_and_a_replacement_do_not_take_turns() -> None:
    """The controller of a StatefulSet does not answer; one bookie is broken by a template, another one is lost."""
    sim = resting(
        replicas=6, repair={"autoReplaceAfterSeconds": 20}, update={"progressDeadlineSeconds": 60}, decommission=STALLS
    )
    sim.change(image=BAD_IMAGE)
    at_step(sim, "Await")
    sim.advance(10)
    sim.kubernetes.lose_volume("c-bookie-0")
    sim.advance(10)
    sim.change(image="")
    at_step(sim, "Stage")
    sim.kubernetes.stuck_sets.add("c-bookie")
    sim.kubernetes.sets["c-bookie"].touch(sim.now)
    begun = sim.status.operations_begun
    for _ in range(100):
        sim.run_pass()
        sim.advance(5)
    assert sim.status.operations_begun - begun <= 1
    sim.kubernetes.stuck_sets.clear()
    sim.run_until_rest(most=900)
    assert (REPLACE, "Done") in kinds(sim)
    assert len(sim.bookkeeper.writable) == 6
    assert not sim.accidents


@pytest.mark.parametrize("stalled", [False, True])
def test_what_comes_before_is_asked_about_once_it_would_be_given_way_to(stalled: bool) -> None:
    """More bookies, whose names have cookies of earlier ones: their proofs cost something."""
    sim = resting()
    sim.change(version="2.0")
    at_step(sim, "Await")
    sim.change(replicas=6)
    bookie_id = sim.desired().bookie_id("c-bookie-4")
    sim.bookkeeper.cookies[bookie_id] = "old"
    operation = sim.status.operation
    assert operation is not None
    status = sim.status.model_copy(update={"operation": operation.model_copy(update={"stalled": stalled})})
    world = replace(sim.world(), cluster=replace(sim.view(), status=status))
    assert giving_way.needs(world, sim.desired()).proofs == ({bookie_id} if stalled else frozenset())
    rests = replace(world, cluster=replace(sim.view(), status=sim.status.model_copy(update={"operation": None})))
    assert giving_way.needs(rests, sim.desired()) == Needs()


def move(sim: Simulation) -> None:
    sim.ask(TaskType.REPLACE, "c-bookie-1")


@pytest.mark.parametrize("step", ["ReadOnly", "DrainServing", "Stop", "Prove", "Claims", "Pod"])
def test_a_move_that_cannot_be_taken_back_waits_for_no_other_bookie_that_its_template_breaks(step: str) -> None:
    sim = settled(replicas=5, decommission=STALLS)
    move(sim)
    at_step(sim, step)
    sim.kubernetes.sets["c-bookie"].image = f"{BAD_IMAGE}@2"
    sim.kubernetes.stop_pod(sim.kubernetes.pods["c-bookie-2"])
    sim.advance(40)
    assert sim.kubernetes.pods["c-bookie-2"].fault is PodFault.IMAGE
    sim.change(version="1.1")
    sim.run_until_rest()
    assert sim.phase("task-1") == "Done"
    assert len(sim.bookkeeper.writable) == 5
    assert not sim.accidents


@pytest.mark.parametrize(
    ("change", "step"),
    [
        *((fewer, step) for step in ("Audit", "ReadOnly", "Drain", "Prove", "Leave", "ProveGone", "Cookie", "Claims")),
        *((lose, step) for step in ("Check", "Drain", "Prove", "Claims", "Pod", "Cookie", "Start")),
        *((move, step) for step in ("ReadOnly", "DrainServing", "Stop", "Prove", "Claims", "Pod", "Start")),
    ],
)
def test_a_template_that_is_put_right_reaches_bookies_of_whom_none_can_be_asked(
    change: Callable[[Simulation], None], step: str
) -> None:
    """The image is gone from its registry, and every pod is made anew: a drain can neither go on nor be undone."""
    sim = may_lose(replicas=5, repair={"autoReplaceAfterSeconds": 30}, decommission=STALLS)
    change(sim)
    at_step(sim, step)
    sim.kubernetes.sets["c-bookie"].image = sim.autorecovery.newest = BAD_IMAGE
    power_cut(sim, 0)
    for _ in range(20):
        sim.run_pass()
        sim.advance(10)
    assert sim.world().facts is None
    sim.change(version="1.1")
    sim.run_until_rest(most=900)
    assert len(sim.bookkeeper.writable) == (4 if change is fewer else 5)
    assert not sim.accidents


def sidecar_crashes(sim: Simulation, *, bookies_run: bool) -> World:
    """Of each bookie but that which is drained, with a template of yesterday; and nobody can be asked."""
    world = replace(sim.world(), facts=None, facts_error="no answer")
    (one,) = world.stateful_sets
    newest = sim.desired().stateful_sets[0]
    staged = replace(one, template_hash=newest.template_hash, inputs_hash=newest.inputs_hash)
    broken = tuple(
        replace(pod, ready=False, bookie_runs=bookies_run, fault=PodFault.CRASHING, fault_message="container tune: 1")
        for pod in world.pods
    )
    return replace(world, pods=broken, stateful_sets=(staged,))


@pytest.mark.parametrize("bookies_run", [True, False])
def test_bookies_that_may_serve_are_not_stopped_for_a_sidecar_while_nobody_can_tell(bookies_run: bool) -> None:
    sim = settled(replicas=5, decommission=STALLS)
    fewer(sim)
    at_step(sim, "Drain")
    sim.change(version="1.1")
    world = sidecar_crashes(sim, bookies_run=bookies_run)
    found = rollout.mend_beside(world, sim.desired())
    assert (found is None) is bookies_run
    assert (rollout.mend(world, sim.desired()) is None) is bookies_run
    one_serves = (replace(world.pods[0], bookie_runs=True), *world.pods[1:])
    assert rollout.mend_beside(replace(world, pods=one_serves), sim.desired()) is None, "it may be the last that does"
