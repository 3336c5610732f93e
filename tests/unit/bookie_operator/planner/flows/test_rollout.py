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
    LookAtReturned,
    SetRecoveryDelay,
    TriggerAudit,
)
from bookie_operator.planner.decision import Act, Finish, Record, Wait
from bookie_operator.planner.flows import rollout, rollout_state
from tests.support.operator_sim import Simulation, killed_everywhere, resting
from tests.support.operator_sim.bookkeeper import SimBookKeeper
from tests.support.operator_sim.flows import acted, at_step, steps_taken
from tests.support.operator_sim.kubernetes import BAD_IMAGE


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


def test_copies_of_each_bookie_are_looked_at_before_the_next_one_goes(four: Simulation) -> None:
    upgrade(four)
    four.run_until_rest()
    done = [one for one in acted(four) if isinstance(one, EvictPod | LookAtReturned)]
    bookies = [four.desired().bookie_id(f"c-bookie-{ordinal}") for ordinal in (3, 2, 1, 0)]
    assert [type(one) for one in done] == [EvictPod, LookAtReturned] * 4
    assert [set(one.bookie_ids) for one in done if isinstance(one, LookAtReturned)] == [{each} for each in bookies]
    assert four.bookkeeper.replica_checks == 0, "every bookie was looked at"
    assert four.status.history[0].outcome == "Done"


def unfinished(sim: Simulation) -> None:
    """The auditor does not come to an end."""
    sim.bookkeeper.__class__ = _Endless


class _Endless(SimBookKeeper):
    def tick(self) -> None:
        unchecked = set(self.unchecked)
        super().tick()
        self.unchecked |= unchecked


def test_no_bookie_stops_while_the_copies_of_the_last_one_are_looked_at(four: Simulation) -> None:
    unfinished(four)
    upgrade(four)
    at_step(four, "Copies")
    for _ in range(5):
        four.run_pass()
    assert evicted(four) == ["c-bookie-3"]
    wait = four.passes[-1].plan.decision
    assert isinstance(wait, Wait)
    assert (wait.reason, wait.stalled) == ("CopiesUnchecked", False)
    assert "c-bookie-3" in wait.message, "status says whom it waits for"
    four.bookkeeper.unchecked.clear()
    four.bookkeeper.__class__ = SimBookKeeper
    four.run_until_rest()
    assert len(evicted(four)) == 4


def test_a_look_at_copies_that_does_not_end_is_given_up_for_the_whole_roll(four: Simulation) -> None:
    unfinished(four)
    upgrade(four)
    four.run(lambda sim, _: bool(sim.status.history))
    looks = [one for one in acted(four) if isinstance(one, LookAtReturned)]
    assert (len(evicted(four)), len(looks)) == (4, 1)
    events = [one.plan.decision.event for one in four.passes if isinstance(one.plan.decision, Record)]
    assert [one.reason for one in events if one is not None].count("CopiesUnchecked") == 1
    assert four.bookkeeper.replica_checks == 1, "the check of all replicas finds the same"
    assert four.status.history[0].outcome == "Done"


def unlooked(sim: Simulation, name: str) -> None:
    """It was away, and the auditor does not come to an end with its copies."""
    unfinished(sim)
    sim.bookkeeper.unchecked.add(sim.desired().bookie_id(name))


def test_no_roll_begins_while_copies_of_a_bookie_that_came_back_by_itself_were_not_looked_at(four: Simulation) -> None:
    unlooked(four, "c-bookie-0")
    upgrade(four)
    for _ in range(30):
        four.run_pass()
        four.advance(5)
    wait = four.passes[-1].plan.decision
    assert isinstance(wait, Wait)
    assert (wait.reason, four.status.operation) == ("CopiesUnchecked", None)
    four.annotations[names.SKIP_REPLICATION_CHECK] = "Rollout-1"
    four.run(lambda sim, _: bool(sim.status.history))
    assert len(evicted(four)) == 4, "a person may say that it does not matter"


@pytest.mark.parametrize("step", ["Audit", "Stop"])
def test_a_bookie_that_comes_back_during_a_roll_is_looked_at_before_another_one_goes(
    four: Simulation, step: str
) -> None:
    upgrade(four)
    at_step(four, step)
    unlooked(four, "c-bookie-0")
    for _ in range(60):
        four.run_pass()
        four.advance(1)
    assert not evicted(four)
    four.bookkeeper.__class__ = SimBookKeeper
    four.run_until_rest()
    assert len(evicted(four)) == 4


def test_the_bookie_that_lacks_copies_itself_may_be_restarted(four: Simulation) -> None:
    upgrade(four)
    at_step(four, "Stop")
    unlooked(four, "c-bookie-3")
    four.run(lambda sim, _: bool(evicted(sim)), most=10)


def test_a_roll_that_was_paused_has_the_copies_looked_at_all_the_same(four: Simulation) -> None:
    upgrade(four)
    at_step(four, "Copies")
    four.annotations[names.PAUSED] = "true"
    for _ in range(15):
        four.run_pass()
        four.advance(60)
    del four.annotations[names.PAUSED]
    four.run_until_rest()
    looks = [one for one in acted(four) if isinstance(one, LookAtReturned)]
    assert (len(looks), four.bookkeeper.replica_checks) == (4, 0)


@pytest.mark.parametrize("facts", [None, {"auditor": None}, {"autorecovery_enabled": False}])
def test_a_look_is_not_given_up_while_nobody_could_look(four: Simulation, facts: dict[str, object] | None) -> None:
    upgrade(four)
    at_step(four, "Copies")
    four.run_pass()
    world, operation = four.world(), four.status.operation
    assert world.facts is not None
    assert operation is not None
    assert rollout_state.COPIES_ASKED in operation.saved
    known = None if facts is None else replace(world.facts, **facts)  # type: ignore[arg-type]
    late = replace(world, now=world.now + 100_000, facts=known)
    decision = rollout.proceed(late, four.desired(), operation.model_copy(update={"attempts": 3}))
    assert isinstance(decision, Wait)
    assert decision.stalled
    assert names.SKIP_REPLICATION_CHECK in decision.message, "a person may say that it does not matter"
    assert decision.operation is not None
    assert rollout_state.COPIES_ASKED not in decision.operation.saved, "it is asked again, and has its time from then"
    assert decision.operation.attempts == 0


def test_a_look_is_asked_for_again_when_the_metadata_service_is_back(four: Simulation) -> None:
    upgrade(four)
    at_step(four, "Copies")
    four.run_pass()
    four.bookkeeper.up = False
    for _ in range(15):
        four.run_pass()
        four.advance(60)
    four.bookkeeper.up = True
    four.run_until_rest()
    looks = [one for one in acted(four) if isinstance(one, LookAtReturned)]
    assert (len(looks), four.bookkeeper.replica_checks) == (5, 0)


def test_a_bookie_that_comes_back_with_a_template_of_yesterday_is_looked_at(four: Simulation) -> None:
    upgrade(four)
    at_step(four, "Await")
    unfinished(four)
    gone, _, uid = four.status.operation.saved[rollout_state.STOPPING].partition("=")  # type: ignore[union-attr]
    four.run(lambda sim, _: gone in sim.kubernetes.pods and sim.kubernetes.pods[gone].uid != uid)
    four.change(version="1.2")
    for _ in range(60):
        four.run_pass()
        four.advance(1)
    done = [one for one in acted(four) if isinstance(one, EvictPod | LookAtReturned)]
    assert [type(one) for one in done] == [EvictPod, LookAtReturned]
    assert four.bookkeeper.unchecked == {four.desired().bookie_id(gone)}


def test_a_roll_that_gives_way_has_those_looked_at_that_it_stopped(four: Simulation) -> None:
    upgrade(four)
    at_step(four, "Await")
    stopped = evicted(four)
    four.kubernetes.lose_volume("c-bookie-1")
    four.ask(TaskType.REPLACE, "c-bookie-1")
    four.run(lambda sim, _: bool(sim.status.history), most=200)
    assert four.status.history[0].outcome == "Cancelled"
    (look,) = [one for one in acted(four) if isinstance(one, LookAtReturned)]
    assert look.bookie_ids == set(map(four.desired().bookie_id, stopped))
    four.run_until_rest()
    assert not four.accidents


def test_a_look_that_was_asked_for_blindly_is_asked_for_again_when_an_auditor_lists_who_waits(four: Simulation) -> None:
    """A pod of an earlier release drops the request, and a new auditor of this one lists nobody."""
    upgrade(four)
    at_step(four, "Copies")
    four.bookkeeper.looks_at_returned = False
    four.run(lambda sim, _: any(isinstance(one, LookAtReturned) for one in acted(sim)))
    four.bookkeeper.unchecked.clear()
    four.bookkeeper.looks_at_returned = True
    four.run(lambda sim, _: sim.status.operation is not None and sim.status.operation.step != "Copies")
    looks = [one for one in acted(four) if isinstance(one, LookAtReturned)]
    assert [one.bookie_ids for one in looks] == [{four.desired().bookie_id("c-bookie-3")}] * 2


def test_an_auditor_of_an_older_release_holds_a_roll_up_for_a_minute(four: Simulation) -> None:
    four.bookkeeper.looks_at_returned = False
    began = four.now
    upgrade(four)
    four.run_until_rest()
    assert len(evicted(four)) == 4
    assert four.now - began < four.spec.update.progress_deadline_seconds
    assert four.bookkeeper.replica_checks == 1


def test_a_roll_that_may_stop_bookies_without_copies_looks_at_none(four: Simulation) -> None:
    four.change(version="1.1", update={"requireFullyReplicated": False})
    four.run_until_rest()
    assert "Copies" not in steps_taken(four)
    assert four.bookkeeper.replica_checks == 1


def test_a_check_that_nobody_takes_does_not_hold_up_the_end(four: Simulation) -> None:
    upgrade(four)
    four.run(lambda sim, _: sim.status.operation is not None and sim.status.operation.step == "RestoreDelay")
    operation = four.status.operation
    assert operation is not None
    late = replace(four.world(), now=four.now + 100_000)
    facts = late.facts
    assert facts is not None
    delay = int(operation.saved[rollout_state.DELAY])
    late = replace(late, facts=replace(facts, lost_bookie_recovery_delay=delay))
    tried = operation.model_copy(update={"attempts": 3})
    assert isinstance(rollout.proceed(late, four.desired(), tried), Finish)


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
