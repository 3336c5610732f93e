"""A new template: the order of the bookies, the gates between them, and the death of the operator anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from bookie_operator.crds import names
from bookie_operator.crds.cluster_status import OperationType, VersionStatus
from bookie_operator.crds.task_spec import TaskType
from bookie_operator.planner.actions import (
    ApplyObjects,
    ApplyTemplate,
    DeletePod,
    EvictPod,
    SetRecoveryDelay,
    TriggerAudit,
)
from bookie_operator.planner.decision import Act, Record, Wait
from bookie_operator.planner.flows import rollout, rollout_state
from tests.support.operator_sim import Simulation, killed_everywhere, resting
from tests.support.operator_sim.flows import acted, at_step, steps_taken
from tests.support.operator_sim.kubernetes import BAD_IMAGE


@pytest.fixture
def four() -> Simulation:
    sim = resting()
    sim.advance(60)
    return sim


def upgrade(sim: Simulation) -> None:
    sim.change(version="1.1")


def evicted(sim: Simulation) -> list[str]:
    return [one.name for one in acted(sim) if isinstance(one, EvictPod)]


def hashes(sim: Simulation) -> set[str]:
    return {one.template_hash for one in sim.kubernetes.pods.values()}


def end(sim: Simulation) -> object:
    up_to_date = hashes(sim) == {sim.desired().stateful_sets[0].template_hash}
    return up_to_date, sim.bookkeeper.writable, sim.bookkeeper.recovery_delay, sim.status.operation


# --- the order --------------------------------------------------------------------------------------------------------


def test_the_highest_goes_first_and_auto_recovery_last(four: Simulation) -> None:
    upgrade(four)
    four.run_until_rest()
    assert evicted(four) == [f"c-bookie-{one}" for one in (3, 2, 1, 0)]
    assert steps_taken(four)[:4] == ["RaiseDelay", "Stage", "Choose", "Audit"]
    assert steps_taken(four)[-3:] == ["Choose", "Autorecovery", "RestoreDelay"]
    applied = [one.keys for one in acted(four) if isinstance(one, ApplyObjects)]
    assert applied[-1] == ("Deployment/c-autorecovery",)
    assert end(four) == (True, sorted(four.bookkeeper.writable), 300, None)
    assert not four.accidents


@pytest.mark.parametrize(
    ("keys", "version", "why"),
    [
        ((), "1.0", "the configuration or the template of the pods changed"),
        (("gcWaitTime",), "1.0", "the configuration changed: gcWaitTime"),
        (tuple("abcdefg"), "1.0", "the configuration changed: a, b, c, d, e and 2 more"),
        (("k" * 200,), "1.0", f"the configuration changed: {'k' * 64}"),
        (("a", "b"), "1.1", "version 1.0 becomes 1.1; the configuration changed: a, b"),
        ((), "1.1", "version 1.0 becomes 1.1"),
    ],
)
def test_why_it_begins(four: Simulation, keys: tuple[str, ...], version: str, why: str) -> None:
    four.change(version=version, config={"journalMaxSizeMB": "7"})
    status = four.status.model_copy(update={"version": VersionStatus(current="1.0", target=version)})
    world = replace(four.world(), cluster=replace(four.view(), status=status), config_changes=keys)
    decision = rollout.begin(world, four.desired())
    assert isinstance(decision, Record)
    assert decision.event is not None
    assert (decision.reason, decision.event.message, decision.operation.message) == (why, why, why)


def test_no_bookie_stops_before_an_audit_that_is_newer_than_the_last_restart(four: Simulation) -> None:
    upgrade(four)
    four.run_until_rest()
    kinds = [type(one) for one in acted(four) if isinstance(one, EvictPod | TriggerAudit)]
    assert kinds == [TriggerAudit, EvictPod] * 4
    stops = [
        one.world
        for one in four.passes
        if isinstance(one.plan.decision, Act) and isinstance(one.plan.decision.action, EvictPod)
    ]
    for world in stops:
        assert world.facts is not None
        youngest = max(pod.ready_since or 0.0 for pod in world.pods)
        assert world.facts.last_audit is not None
        assert world.facts.last_audit > youngest
        assert world.facts.under_replicated == 0
        assert len(world.facts.writable) == 4


@pytest.mark.parametrize("before", [None, 3600.0])
def test_an_audit_of_a_clock_that_is_ahead_is_not_newer_for_that(four: Simulation, before: float | None) -> None:
    """Seconds from now on until the time that the last audit has."""
    upgrade(four)
    at_step(four, "Audit")
    four.bookkeeper.last_audit = last = None if before is None else four.now + before
    four.bookkeeper.trigger_audit = lambda: None  # type: ignore[method-assign]  # the next one takes a while
    four.bookkeeper._audit = lambda: None  # type: ignore[method-assign]
    for _ in range(5):
        four.run_pass()
    assert steps_taken(four)[-1] == "Audit"
    four.bookkeeper.last_audit = (last or four.now) + 1
    four.run(lambda one, _: bool(evicted(one)), most=5)


def test_zones_go_one_after_the_other() -> None:
    sim = resting(replicas=7, placement={"zones": [{"name": "a"}, {"name": "b"}, {"name": "c"}]})
    sim.advance(60)
    upgrade(sim)
    sim.run_until_rest()
    assert [one.removeprefix("c-bookie-") for one in evicted(sim)] == ["a-2", "a-1", "a-0", "b-1", "b-0", "c-1", "c-0"]


def test_ordinals_are_numbers() -> None:
    sim = resting(replicas=12)
    sim.advance(60)
    upgrade(sim)
    at_step(sim, "Await")
    assert evicted(sim) == ["c-bookie-11"]


@pytest.mark.parametrize("why", ["withdrawn", "surplus", "set"])
def test_pods_of_bookies_that_nobody_wants_are_not_replaced(why: str) -> None:
    """One that never came up and that `spec` took back, one whose StatefulSet is smaller by now, all of a zone that
    `spec` has no more."""
    sim = resting()
    if why == "withdrawn":
        sim.kubernetes.sets["c-bookie"].image = BAD_IMAGE
        sim.change(replicas=5)
        sim.run(lambda one, _: "c-bookie-4" in one.kubernetes.pods)
        sim.change(replicas=4)
    upgrade(sim)
    world, desired = sim.world(), sim.desired()
    if why == "surplus":
        world = replace(world, stateful_sets=tuple(replace(one, replicas=3) for one in world.stateful_sets))
    if why == "set":
        desired = replace(desired, stateful_sets=())
    left = {"withdrawn": 4, "surplus": 3, "set": 0}[why]
    assert len(world.pods) > left
    asked = {pod.name: pod.uid for pod in world.pods}
    for restart in (None, asked):
        found = rollout_state.outdated(world, desired, restart)
        assert [pod.ordinal for pod in found] == list(reversed(range(left)))


def test_several_of_a_zone_go_at_once_after_the_canary() -> None:
    sim = resting(
        replicas=7,
        update={"maxUnavailable": 2, "canary": 1, "soakSeconds": 5, "progressDeadlineSeconds": 300},
        disruption={"maxUnavailable": 2},
        durability={"ackQuorum": 3, "writeQuorum": 3},
    )
    sim.advance(60)
    upgrade(sim)
    sim.run_until_rest()
    chosen = [
        operation.saved["stopping"]
        for one in sim.passes
        if (operation := one.world.cluster.status.operation) is not None and operation.step == "Stop"
    ]
    together = list(dict.fromkeys(one.count("=") for one in chosen))
    assert together[0] == 1
    assert 2 in together
    assert len(evicted(sim)) == 7
    assert not sim.accidents


def test_two_that_hold_all_copies_but_one_do_not_go_at_once() -> None:
    sim = resting(
        replicas=5, update={"maxUnavailable": 2, "canary": 0, "soakSeconds": 5}, disruption={"maxUnavailable": 2}
    )
    sim.advance(90)
    upgrade(sim)
    sim.run_until_rest()
    reasons = [str(getattr(one.plan.decision, "reason", "")) for one in sim.passes]
    assert any(one.startswith("not all of c-bookie-4, c-bookie-3 at once") for one in reasons)
    assert len(evicted(sim)) == 5
    down = max(sum(not pod.ready for pod in one.world.pods) for one in sim.passes)
    assert down == 1


def test_whenever_the_operator_dies_it_ends_alike(four: Simulation) -> None:
    four.bookkeeper.writes = False
    assert killed_everywhere(four, upgrade, end) > 40


# --- the recovery delay -----------------------------------------------------------------------------------------------


def test_the_recovery_delay_is_raised_meanwhile_and_restored(four: Simulation) -> None:
    upgrade(four)
    at_step(four, "Stage")
    assert four.bookkeeper.recovery_delay == 600
    assert four.status.operation is not None
    assert four.status.operation.saved["recoveryDelay"] == "300"
    four.run_until_rest()
    assert [one.seconds for one in acted(four) if isinstance(one, SetRecoveryDelay)] == [600, 300]


def test_somebody_who_changes_the_delay_meanwhile_does_not_keep_it_from_being_restored(four: Simulation) -> None:
    upgrade(four)
    at_step(four, "Await")
    four.bookkeeper.recovery_delay = 5
    four.run_until_rest()
    assert four.bookkeeper.recovery_delay == 300


# --- gates ------------------------------------------------------------------------------------------------------------


def mark(sim: Simulation) -> None:
    sim.bookkeeper.marks.add(0)


def unreachable(sim: Simulation) -> None:
    sim.bookkeeper.up = False


def too_few(sim: Simulation) -> None:
    sim.bookkeeper.read_only.update(sim.bookkeeper.writable[:2])


def restart_one(sim: Simulation) -> None:
    sim.kubernetes.kill_pod("c-bookie-1")


SKIP = f"; to go on all the same annotate the BookieCluster with {names.SKIP_REPLICATION_CHECK}=Rollout-1"


@pytest.mark.parametrize(
    ("reason", "words", "change"),
    [
        ("MetadataUnreachable", "can tell the state of the cluster: nobody answers", unreachable),
        ("BelowEnsemble", "2 bookies are writable, and an ensemble takes 3", too_few),
        ("BookieUnavailable", f"every other bookie serves: c-bookie-1 is not ready{SKIP}", restart_one),
        ("WaitingForReplication", SKIP, mark),
    ],
)
def test_it_does_not_begin_and_the_template_is_held_back(
    four: Simulation, reason: str, words: str, change: Callable[[Simulation], None]
) -> None:
    upgrade(four)
    change(four)
    decision = rollout.begin(four.world(), four.desired())
    assert isinstance(decision, Wait)
    assert decision.reason == reason
    assert words in decision.message
    old = {one.template_hash for one in four.kubernetes.sets.values()}
    assert old != {four.desired().stateful_sets[0].template_hash}


def test_a_pod_that_is_lost_before_comes_back_as_it_was(four: Simulation) -> None:
    before = hashes(four)
    upgrade(four)
    mark(four)
    four.kubernetes.stop_pod(four.kubernetes.pods["c-bookie-1"])
    four.bookkeeper.auditor_up = False
    for _ in range(12):
        four.run_pass()
        mark(four)
        four.advance(1)
    assert hashes(four) == before


def test_a_refused_eviction_is_a_wait(four: Simulation) -> None:
    upgrade(four)
    at_step(four, "Stop")
    four.kubernetes.objects["PodDisruptionBudget/c-bookie"] = ("budget-0", "uid-budget")
    refused = four.run_pass()
    four.run_until_rest()
    assert refused.error == "" or "disruption budget" in refused.error
    assert len(evicted(four)) == 4
    assert not any(isinstance(one, DeletePod) for one in acted(four))


def test_the_next_bookie_waits_for_copies(four: Simulation) -> None:
    upgrade(four)
    at_step(four, "Audit")
    four.run(lambda _, one: isinstance(one, Wait) and one.reason == "WaitingForReplication", most=40, each=mark)
    decision = four.passes[-1].plan.decision
    assert isinstance(decision, Wait)
    assert "podkeeper.dev/skip-replication-check=Rollout-1" in decision.message


@pytest.mark.parametrize(("value", "goes"), [("Rollout-1", True), ("Rollout-2", False), ("true", False)])
def test_the_word_of_a_person_counts_for_one_operation(four: Simulation, value: str, goes: bool) -> None:
    upgrade(four)
    mark(four)
    four.annotations[names.SKIP_REPLICATION_CHECK] = value
    decision = rollout.begin(four.world(), four.desired())
    assert isinstance(decision, Wait) is not goes


def test_the_word_of_a_person_goes_through_the_whole_rollout_and_the_budget(four: Simulation) -> None:
    upgrade(four)
    four.annotations[names.SKIP_REPLICATION_CHECK] = "Rollout-1"
    four.run(lambda sim, _: bool(sim.status.history), each=mark)
    assert len(evicted(four)) == 4
    assert "Audit" not in steps_taken(four)
    assert four.status.history[0].outcome == "Done"


def test_a_full_disk_somewhere_else_takes_the_word_of_a_person(four: Simulation) -> None:
    upgrade(four)
    at_step(four, "Stop")
    four.bookkeeper.read_only.add(four.desired().bookie_id("c-bookie-0"))
    refused = four.run_pass().plan.decision
    assert isinstance(refused, Wait)
    assert refused.message == (
        f"waits until every other bookie serves: c-bookie-0 is read-only (0% of a disk is used){SKIP}"
    )
    four.annotations[names.SKIP_REPLICATION_CHECK] = "Rollout-1"
    four.run_pass()
    assert evicted(four) == ["c-bookie-3"]


def test_without_required_replication_no_audit_is_waited_for(four: Simulation) -> None:
    four.change(version="1.1", update={"requireFullyReplicated": False})
    four.run_until_rest()
    assert "Audit" not in steps_taken(four)
    assert len(evicted(four)) == 4


# --- by hand, and by task ---------------------------------------------------------------------------------------------


def test_by_hand_the_template_is_staged_and_people_delete_the_pods(four: Simulation) -> None:
    four.change(version="1.1", update={"strategy": "Manual"})
    four.run(lambda _, one: isinstance(one, Wait) and one.reason == "ManualUpdate", most=60)
    wait = four.passes[-1].plan.decision
    assert isinstance(wait, Wait)
    assert wait.message.startswith("update.strategy is Manual: delete c-bookie-3, c-bookie-2, c-bookie-1, c-bookie-0")
    assert four.status.operation is None
    assert not evicted(four)
    assert sum(isinstance(one, ApplyTemplate) for one in acted(four)) == 1
    for name in sorted(four.kubernetes.pods):
        four.kubernetes.stop_pod(four.kubernetes.pods[name])
        four.advance(10)
    four.run_until_rest()
    assert end(four) == (True, sorted(four.bookkeeper.writable), 300, None)


def test_strategy_becomes_manual_on_the_way(four: Simulation) -> None:
    upgrade(four)
    at_step(four, "Await")
    four.change(update={"strategy": "Manual"})
    four.run(lambda sim, _: sim.status.operation is None)
    assert four.bookkeeper.recovery_delay == 300
    assert four.status.history[0].outcome == "Cancelled"
    assert four.status.history[0].message == (
        "c-bookie-2, c-bookie-1, c-bookie-0 were not restarted: update.strategy is Manual now"
    )


def test_a_task_restarts_the_bookies_that_it_names_once(four: Simulation) -> None:
    uids = {name: pod.uid for name, pod in four.kubernetes.pods.items()}
    task = four.ask(TaskType.RESTART, "c-bookie-1", "c-bookie-2")
    four.run(lambda sim, _: sim.phase(task) == "Done")
    assert evicted(four) == ["c-bookie-2", "c-bookie-1"]
    changed = [name for name, pod in sorted(four.kubernetes.pods.items()) if pod.uid != uids[name]]
    assert changed == ["c-bookie-1", "c-bookie-2"]
    assert four.status.history[0].type is OperationType.ROLLOUT
    assert not four.accidents


def test_a_restart_survives_the_operator(four: Simulation) -> None:
    four.bookkeeper.writes = False

    def ask(sim: Simulation) -> None:
        sim.ask(TaskType.RESTART, "c-bookie-1")

    assert killed_everywhere(four, ask, lambda sim: (end(sim), sim.tasks[0].phase)) > 15
