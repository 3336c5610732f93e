"""Volumes that grow: whatever state pods are in, whoever dies, and what is told when they cannot."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from bookie_operator.planner import operations
from bookie_operator.planner.actions import (
    CreateStatefulSet,
    EvictPod,
    ExpandClaim,
    OrphanStatefulSet,
    SetRecoveryDelay,
)
from bookie_operator.planner.decision import Act, Decision, Event, Finish, Record, Wait
from bookie_operator.planner.flows import expand
from bookie_operator.planner.flows.expand import ATTEMPTS
from bookie_operator.world.facts import SafetyFacts
from bookie_operator.world.model import ClaimView, ResizeState, World
from tests.support.operator_sim import Simulation, killed_everywhere, resting
from tests.support.operator_sim.flows import acted, at_step, steps_taken
from tests.support.operator_sim.kubernetes import BAD_IMAGE


def grow(sim: Simulation) -> None:
    sim.change(storage={"ledger": {"size": "20Gi"}})


def end(sim: Simulation) -> tuple[object, ...]:
    """UIDs of StatefulSets are not the same in every run."""
    claims = sorted((one.name, one.actual, one.uid) for one in sim.kubernetes.claims.values())
    sets = sorted((one.name, one.replicas, tuple(one.volume_sizes.items())) for one in sim.kubernetes.sets.values())
    pods = sorted((one.name, one.uid) for one in sim.kubernetes.pods.values())
    return claims, sets, pods, sim.status.operation


def test_a_size_as_before_they_grew_does_nothing(four: Simulation) -> None:
    """So that an earlier release of a chart can be applied again."""
    grow(four)
    four.run_until_rest()
    claims, _, pods, _ = end(four)
    four.change(storage={"ledger": {"size": "10Gi"}})
    four.run_until_rest()
    assert (end(four)[0], end(four)[2]) == (claims, pods)
    assert four.status.operations_begun == 1


# --- the order --------------------------------------------------------------------------------------------------------


def test_claims_grow_and_the_set_is_made_anew_without_a_restart(four: Simulation) -> None:
    pods = {name: one.uid for name, one in four.kubernetes.pods.items()}
    uid = four.kubernetes.sets["c-bookie"].uid
    grow(four)
    four.run_until_rest()
    assert steps_taken(four) == ["Request", "Grow", "Orphan", "Recreate", "Adopt", "Orphan"]
    assert {one.actual for one in four.kubernetes.claims.values() if one.volume == "ledger"} == {"20Gi"}
    assert {one.actual for one in four.kubernetes.claims.values() if one.volume == "journal"} == {"1Gi"}
    made = four.kubernetes.sets["c-bookie"]
    assert made.uid != uid
    assert (made.replicas, made.volume_sizes) == (4, {"journal": "1Gi", "ledger": "20Gi"})
    assert {name: one.uid for name, one in four.kubernetes.pods.items()} == pods
    assert {one.owner_uid for one in four.kubernetes.pods.values()} == {made.uid}
    assert [one.outcome for one in four.status.history] == ["Done"]


def test_whenever_the_operator_dies_it_ends_alike(four: Simulation) -> None:
    four.bookkeeper.writes = False

    assert killed_everywhere(four, grow, end) > 10


def test_each_zone_has_a_set_of_its_own() -> None:
    sim = resting(replicas=6, placement={"zones": [{"name": "a"}, {"name": "b"}]})
    grow(sim)
    sim.run_until_rest()
    assert sum(isinstance(one, OrphanStatefulSet) for one in acted(sim)) == 2
    assert [one.replicas for one in sim.kubernetes.sets.values()] == [3, 3]


def test_pods_that_are_down_do_not_hold_it_up(four: Simulation) -> None:
    """Their disks may be full: that is why they grow."""
    four.kubernetes.cordoned.update(f"node-{one}" for one in range(4))
    for name in list(four.kubernetes.pods):
        four.kubernetes.kill_pod(name)
    four.advance(5)
    assert not four.bookkeeper.running
    grow(four)
    four.run(lambda sim, _: {one.actual for one in sim.kubernetes.claims.values()} == {"1Gi", "20Gi"}, most=60)
    four.kubernetes.cordoned.clear()
    four.run_until_rest()
    assert not any(isinstance(one, EvictPod) for one in acted(four))


def test_the_same_size_in_other_words_is_no_change(four: Simulation) -> None:
    four.change(storage={"ledger": {"size": "10240Mi"}})
    four.run_until_rest()
    assert not acted(four)


def test_a_rollout_that_waits_keeps_its_template_out_of_the_new_set(four: Simulation) -> None:
    """Claims grow at once; the StatefulSet is made anew when it has the template anyway."""
    four.change(version="1.1", storage={"ledger": {"size": "20Gi"}})
    four.run_until_rest()
    kinds = [type(one) for one in acted(four)]
    assert kinds.index(ExpandClaim) < kinds.index(EvictPod)
    last_eviction = len(kinds) - 1 - kinds[::-1].index(EvictPod)
    assert kinds.index(OrphanStatefulSet) > last_eviction
    assert [one.outcome for one in four.status.history] == ["Done", "Done", "Done"]


def test_replicas_that_are_not_there_yet_are_not_forgotten(four: Simulation) -> None:
    grow(four)
    at_step(four, "Orphan")
    del four.kubernetes.pods["c-bookie-3"]
    four.run_until_rest()
    made = [one for one in acted(four) if isinstance(one, CreateStatefulSet)]
    assert [one.replicas for one in made] == [4]


# --- what cannot grow -------------------------------------------------------------------------------------------------


def changed(world: World, change: Callable[[ClaimView], dict[str, Any]]) -> World:
    return replace(world, claims=tuple(replace(one, **change(one)) for one in world.claims))


def decide(sim: Simulation, world: World) -> Decision | None:
    operation = world.cluster.status.operation
    if operation is None:
        return expand.begin(world, sim.desired())
    return expand.proceed(world, sim.desired(), operation)


def test_a_class_that_cannot_grow_is_told_and_nothing_is_touched(four: Simulation) -> None:
    grow(four)
    world = changed(four.world(), lambda one: {"storage_class": "slow"})
    decision = decide(four, replace(world, expandable={"slow": False}))
    assert isinstance(decision, Wait)
    assert (decision.reason, decision.stalled) == ("StorageClassNotExpandable", True)
    assert decision.message == (
        "spec.storage.ledger.size is 20Gi, and 4 claims such as ledger-0-c-bookie-0 have 10Gi of storage class slow,"
        " whose volumes cannot grow: set allowVolumeExpansion: true on StorageClass slow if its driver can, or put the"
        " size back"
    )


def test_other_kinds_of_volumes_go_on(four: Simulation) -> None:
    four.change(storage={"ledger": {"size": "20Gi"}, "journal": {"size": "2Gi"}})
    world = changed(four.world(), lambda one: {"storage_class": "slow" if one.volume == "ledger" else "fast"})
    world = replace(world, expandable={"slow": False, "fast": True})
    decision = decide(four, world)
    assert isinstance(decision, Record)
    assert decision.reason == "volumes grow: journal to 2Gi"
    status = operations.after(four.status, decision, four.now)
    decision = decide(four, replace(world, cluster=replace(world.cluster, status=status)))
    assert isinstance(decision, Act)
    assert isinstance(decision.action, ExpandClaim)
    assert decision.action.name == "journal-0-c-bookie-0"


@pytest.mark.parametrize("expandable", [None, {}, {"fast": True}])
def test_classes_that_nobody_may_look_at_are_tried(four: Simulation, expandable: dict[str, bool] | None) -> None:
    grow(four)
    world = changed(four.world(), lambda one: {"storage_class": "fast"})
    assert isinstance(decide(four, replace(world, expandable=expandable)), Record)


def test_a_claim_that_cannot_be_asked_does_not_keep_others_from_it(four: Simulation) -> None:
    grow(four)
    at_step(four, "Request")
    assert four.status.operation is not None
    tried = []
    for attempts in range(4 * ATTEMPTS):
        operation = four.status.operation.model_copy(update={"attempts": attempts, "message": "quota: exceeded"})
        decision = expand.proceed(four.world(), four.desired(), operation)
        assert isinstance(decision, Act)
        assert isinstance(decision.action, ExpandClaim)
        tried.append(decision.action.name)
    assert tried == [f"ledger-0-c-bookie-{one % 4}" for one in range(4 * ATTEMPTS)]
    operation = four.status.operation.model_copy(update={"attempts": 4 * ATTEMPTS, "message": "quota: exceeded"})
    decision = expand.proceed(four.world(), four.desired(), operation)
    assert isinstance(decision, Finish)
    assert decision.outcome == "Failed"
    assert "ledger-0-c-bookie-0" in decision.message
    assert "quota: exceeded" in decision.message
    four.status = operations.after(four.status, decision, four.now)
    resting_now = expand.begin(four.world(), four.desired())
    assert isinstance(resting_now, Wait)
    assert (resting_now.reason, resting_now.stalled) == ("ExpandFailed", True)
    four.advance(301)
    assert isinstance(expand.begin(four.world(), four.desired()), Record)


def growing(sim: Simulation, change: Callable[[ClaimView], dict[str, Any]]) -> World:
    grow(sim)
    at_step(sim, "Grow")
    return changed(sim.world(), change)


def test_one_that_fails_is_named_and_the_others_go_on(four: Simulation) -> None:
    def fail_one(claim: ClaimView) -> dict[str, Any]:
        if claim.name == "ledger-0-c-bookie-2":
            return {"actual": "10Gi", "resize": ResizeState.FAILED, "message": "quota exceeded"}
        slow = claim.name == "ledger-0-c-bookie-1"
        return (
            {"actual": "10Gi", "resize": ResizeState.RESIZING}
            if slow
            else {"actual": claim.requested, "resize": ResizeState.NONE}
        )

    decision = decide(four, growing(four, fail_one))
    assert isinstance(decision, Wait)
    assert (decision.reason, decision.stalled) == ("ExpandFailed", True)
    assert "ledger-0-c-bookie-2 (quota exceeded)" in decision.message
    assert "c-bookie-1 have grown" in decision.message


def test_when_only_failed_ones_are_left_it_ends_and_they_are_told_from_then_on(four: Simulation) -> None:
    def fail_one(claim: ClaimView) -> dict[str, Any]:
        if claim.name == "ledger-0-c-bookie-2":
            return {"actual": "10Gi", "resize": ResizeState.FAILED, "message": "quota exceeded"}
        return {"actual": claim.requested, "resize": ResizeState.NONE}

    world = growing(four, fail_one)
    decision = decide(four, world)
    assert isinstance(decision, Finish)
    assert decision.outcome == "Failed"
    status = operations.after(four.status, decision, four.now)
    later = replace(world, now=four.now + 1000, cluster=replace(world.cluster, status=status))
    told = decide(four, later)
    assert isinstance(told, Wait)
    assert (told.reason, told.stalled) == ("ExpandFailed", True)
    assert told.message.startswith("volumes of these claims could not be grown: ledger-0-c-bookie-2 (quota exceeded)")


def pending(world: World, since: float) -> World:
    def change(claim: ClaimView) -> dict[str, Any]:
        if claim.name != "ledger-0-c-bookie-2":
            return {"actual": claim.requested, "resize": ResizeState.NONE}
        return {"actual": "10Gi", "resize": ResizeState.FILE_SYSTEM_PENDING, "resize_since": since}

    return changed(world, change)


def test_a_file_system_that_waits_for_a_start_gets_one_through_the_gates(four: Simulation) -> None:
    grow(four)
    at_step(four, "Grow")
    early = decide(four, pending(four.world(), four.now - 599))
    assert isinstance(early, Wait)
    four.advance(700)
    late = pending(four.world(), four.now - 601)
    chosen = decide(four, late)
    assert isinstance(chosen, Record)
    four.status = operations.after(four.status, chosen, four.now)
    assert four.status.operation is not None
    ids = frozenset({four.desired().bookie_id("c-bookie-2")})
    assert expand.needs(four.status.operation, four.desired()).safety == {ids}
    late = pending(four.world(), four.now - 601)
    unknown = decide(four, late)
    assert isinstance(unknown, Wait)
    assert unknown.reason == "SafetyUnknown"
    unsafe = decide(four, replace(late, safety={ids: SafetyFacts(ids, 1, 0, 0)}))
    assert isinstance(unsafe, Wait)
    assert unsafe.reason == "BelowAckQuorum"
    late = replace(late, safety={ids: SafetyFacts(ids, 0, 0, 0)})
    longer = decide(four, late)
    assert isinstance(longer, Act)
    assert isinstance(longer.action, SetRecoveryDelay), "or what it holds is copied while it restarts"
    assert longer.action.seconds >= 600
    assert late.facts is not None
    safe = decide(four, replace(late, facts=replace(late.facts, lost_bookie_recovery_delay=longer.action.seconds)))
    assert isinstance(safe, Act)
    assert safe.action == EvictPod("c-bookie-2", four.kubernetes.pods["c-bookie-2"].uid)


def test_a_file_system_that_waits_for_a_start_waits_for_a_window_and_nothing_else_does(four: Simulation) -> None:
    grow(four)
    at_step(four, "Grow")
    four.advance(700)
    begins = datetime.fromtimestamp(four.now + 7200, UTC)
    four.change(update={"windows": [{"start": f"{begins:%H}:{begins:%M}", "hours": 1}]})
    late = pending(four.world(), four.now - 601)
    ends = decide(four, late)
    assert isinstance(ends, Record)
    assert ends.operation.step == "Orphan", "the operation does not wait, for others would wait for it"
    four.run_until_rest()
    at_rest = pending(four.world(), four.now - 601)
    wait = expand.begin(at_rest, four.desired())
    assert isinstance(wait, Wait)
    assert (wait.reason, wait.stalled) == ("MaintenanceWindow", False)
    assert "c-bookie-2 has to be restarted" in wait.message
    begun = expand.begin(replace(at_rest, now=four.now + 7200), four.desired())
    assert isinstance(begun, Record)
    assert begun.operation.step == "Grow"


def test_a_bookie_that_is_down_or_was_started_since_is_not_restarted(four: Simulation) -> None:
    grow(four)
    at_step(four, "Grow")
    four.advance(700)
    late = pending(four.world(), four.now - 601)
    for change in ({"ready": False}, {"deleting": True}, {"created_at": four.now - 10}):
        pods = tuple(replace(one, **change) if one.ordinal == 2 else one for one in late.pods)
        decision = decide(four, replace(late, pods=pods))
        assert isinstance(decision, Wait), change
        assert decision.message == "waits until ledger-0-c-bookie-2 have grown"


def test_it_waits_until_the_new_set_has_taken_over_all_pods(four: Simulation) -> None:
    four.kubernetes.stuck_sets.add("c-bookie")
    grow(four)
    at_step(four, "Adopt")
    world = four.world()
    waiting = decide(four, world)
    assert isinstance(waiting, Wait)
    assert waiting.message == "waits until c-bookie has taken over c-bookie-0, c-bookie-1, c-bookie-2, c-bookie-3"
    (made,) = world.stateful_sets
    owned = replace(world, pods=tuple(replace(one, owner_uid=made.uid) for one in world.pods))
    waiting = decide(four, owned)
    assert isinstance(waiting, Wait)
    assert waiting.message == "waits for the controller of StatefulSet c-bookie"
    adopted = decide(four, replace(owned, stateful_sets=(replace(made, observed_generation=made.generation),)))
    assert isinstance(adopted, Record)
    assert (adopted.operation.step, adopted.event) == (
        "Orphan",
        Event("StatefulSetRecreated", "c-bookie has its new claim templates; no pod was restarted"),
    )


def test_a_set_that_somebody_else_made_anew_is_taken_as_it_is(four: Simulation) -> None:
    grow(four)
    at_step(four, "Adopt")
    del four.kubernetes.sets["c-bookie"]
    four.run_until_rest()
    assert four.status.history[0].outcome == "Done"
    assert four.kubernetes.sets["c-bookie"].replicas == 4


def test_an_old_set_that_goes_is_waited_for_and_one_that_was_not_deleted_is_deleted_again(four: Simulation) -> None:
    grow(four)
    at_step(four, "Orphan")
    (old,) = four.world().stateful_sets
    at_step(four, "Recreate")
    assert four.status.operation is not None
    world = four.world()
    going = decide(four, replace(world, stateful_sets=(replace(old, deleting=True),)))
    assert isinstance(going, Wait)
    assert going.message == "waits until the old c-bookie is gone"
    again = decide(four, replace(world, stateful_sets=(old,)))
    assert isinstance(again, Record)
    assert again.operation.step == "Orphan"
    another = decide(four, replace(world, stateful_sets=(replace(old, uid="another", deleting=True),)))
    assert isinstance(another, Record)
    assert another.operation.step == "Adopt"


def test_pods_of_other_sets_are_not_counted(four: Simulation) -> None:
    grow(four)
    at_step(four, "Orphan")
    world = four.world()
    assert four.status.operation is not None
    pod = world.pods[0]
    others = (
        replace(pod, name="c-bookie-b-8", stateful_set="c-bookie-b", ordinal=8),
        replace(pod, name="c-bookie-9", ordinal=9, deleting=True),
    )
    found = decide(four, replace(world, pods=(*world.pods, *others)))
    assert isinstance(found, Record)
    assert found.operation.saved["setReplicas"] == "4"
    more = decide(four, replace(world, pods=(*world.pods, replace(pod, name="c-bookie-4", ordinal=4))))
    assert isinstance(more, Record)
    assert more.operation.saved["setReplicas"] == "5"


def test_only_what_is_restarted_takes_an_answer_about_safety(four: Simulation) -> None:
    grow(four)
    at_step(four, "Grow")
    operation = four.status.operation
    assert operation is not None
    assert expand.needs(operation, four.desired()).safety == frozenset()
    restarting = operation.model_copy(update={"saved": {**operation.saved, expand.RESTARTING: "c-bookie-1"}})
    assert expand.needs(restarting, four.desired()).safety == {frozenset({four.desired().bookie_id("c-bookie-1")})}
    later = restarting.model_copy(update={"step": "Orphan"})
    assert expand.needs(later, four.desired()).safety == frozenset()


def stalled_rollout(sim: Simulation) -> None:
    sim.change(image=BAD_IMAGE)
    sim.run_until_stalled("CanaryFailed")


def drain(sim: Simulation) -> None:
    sim.change(replicas=3)
    at_step(sim, "Drain")


@pytest.mark.parametrize("waiting", [stalled_rollout, drain])
def test_volumes_grow_while_another_operation_waits(four: Simulation, waiting: Callable[[Simulation], None]) -> None:
    """Disks that fill during a bad upgrade would wait for its end otherwise."""
    waiting(four)
    running = four.status.operation
    grow(four)
    four.run(lambda _, decision: isinstance(decision, Act) and isinstance(decision.action, ExpandClaim), most=30)
    assert running is not None
    assert four.status.operation is not None
    assert four.status.operation.id == running.id
    if waiting is drain:
        four.run_until_rest()
        assert len(four.kubernetes.pods) == 3
    assert not four.accidents
