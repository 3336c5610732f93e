"""A cluster is deleted: with its volumes retained, or with its data; nobody and nothing holds it up for ever."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest

from bookie_operator.crds import names
from bookie_operator.crds.cluster_spec import Retention
from bookie_operator.crds.cluster_status import BookieClusterStatus, LedgersStatus
from bookie_operator.planner.actions import DeleteClaim, DeleteObject, ReleaseFinalizer, ScaleStatefulSet
from bookie_operator.planner.decision import Act, Record, Wait
from bookie_operator.planner.flows.delete import (
    DELETE_CLAIMS,
    DELETE_IDENTITY,
    DESTROY_METADATA,
    METADATA_SECONDS,
    RELEASE,
    STOP_AUTORECOVERY,
    STOP_BOOKIES,
    begin,
    proceed,
)
from bookie_operator.world.model import ClaimView, PodFault
from tests.support.operator_sim import NAME, Simulation, killed_everywhere, resting
from tests.support.operator_sim.flows import at_step


def end(sim: Simulation) -> object:
    return sim.finalizer, sorted(sim.kubernetes.pods), sorted(sim.kubernetes.claims), sorted(sim.kubernetes.objects)


def delete(sim: Simulation) -> None:
    sim.delete()


def delete_with_data(sim: Simulation) -> None:
    sim.change(storage={"retention": {"whenDeleted": "Delete"}})
    sim.annotations[names.CONFIRM_DELETE] = NAME
    sim.delete()


def decided(sim: Simulation) -> list[Act]:
    return [one.plan.decision for one in sim.passes if isinstance(one.plan.decision, Act)]


def actions(sim: Simulation) -> list[object]:
    return [one.action for one in decided(sim)]


def test_retained_volumes_stay_whoever_dies() -> None:
    sim = resting()
    claims = sorted(sim.kubernetes.claims)
    killed_everywhere(sim, delete, end)
    delete(sim)
    sim.run_until_rest()
    assert not sim.finalizer
    assert not sim.kubernetes.pods
    assert sorted(sim.kubernetes.claims) == claims
    assert "Secret/c-identity" in sim.kubernetes.objects
    assert sim.bookkeeper.cookies


def test_data_go_whoever_dies() -> None:
    sim = resting()
    killed_everywhere(sim, delete_with_data, end)
    delete_with_data(sim)
    sim.run_until_rest()
    assert not sim.finalizer
    assert not sim.kubernetes.claims
    assert "Secret/c-identity" not in sim.kubernetes.objects
    assert not sim.bookkeeper.cookies


def test_auto_recovery_stops_first_and_bookies_one_replica_at_a_time() -> None:
    sim = resting()
    delete(sim)
    sim.run_until_rest()
    done = actions(sim)
    stopped = next(n for n, one in enumerate(done) if isinstance(one, DeleteObject))
    scalings = [(n, one) for n, one in enumerate(done) if isinstance(one, ScaleStatefulSet)]
    assert [(one.before, one.after) for _, one in scalings] == [(4, 3), (3, 2), (2, 1), (1, 0)]
    assert all(n > stopped for n, _ in scalings)


@pytest.mark.parametrize("said", [None, "", "another"])
def test_nothing_stops_before_the_loss_of_data_is_confirmed(said: str | None) -> None:
    sim = resting()
    delete_with_data(sim)
    sim.annotations.pop(names.CONFIRM_DELETE)
    if said is not None:
        sim.annotations[names.CONFIRM_DELETE] = said
    sim.run_until_stalled("DeletionBlocked")
    for _ in range(5):
        decision = sim.run_pass().plan.decision
        sim.advance(30)
    assert isinstance(decision, Wait)
    assert "podkeeper.dev/confirm-delete" in decision.message
    assert len(sim.bookkeeper.writable) == 4
    sim.annotations[names.CONFIRM_DELETE] = NAME
    sim.run_until_rest()
    assert not sim.kubernetes.claims


def others_join(sim: Simulation) -> None:
    sim.bookkeeper.cookies["other-bookie-0.other-bookie.ns.svc:3181"] = "their-disk"


def nobody_tells(sim: Simulation) -> None:
    sim.bookkeeper.up = False


@pytest.mark.parametrize("trouble", [others_join, nobody_tells])
def test_nothing_goes_while_ledgers_of_others_may_have_copies_here(trouble: Callable[[Simulation], None]) -> None:
    sim = resting()
    trouble(sim)
    delete_with_data(sim)
    sim.run_until_stalled("DeletionBlocked")
    for _ in range(5):
        decision = sim.run_pass().plan.decision
        sim.advance(30)
    assert len(sim.kubernetes.claims) == 8
    assert all(one.replicas == 4 for one in sim.kubernetes.sets.values())
    assert isinstance(decision, Wait)
    assert "whenDeleted to Retain" in decision.message
    sim.change(storage={"retention": {"whenDeleted": "Retain"}})
    sim.run_until_rest()
    assert not sim.finalizer
    assert len(sim.kubernetes.claims) == 8


def they_leave(sim: Simulation) -> None:
    sim.bookkeeper.cookies.pop("other-bookie-0.other-bookie.ns.svc:3181")


def somebody_tells(sim: Simulation) -> None:
    sim.bookkeeper.up = True


@pytest.mark.parametrize(("trouble", "remedy"), [(others_join, they_leave), (nobody_tells, somebody_tells)])
def test_data_go_when_nobody_else_may_need_them(
    trouble: Callable[[Simulation], None], remedy: Callable[[Simulation], None]
) -> None:
    sim = resting()
    trouble(sim)
    delete_with_data(sim)
    sim.run_until_stalled("DeletionBlocked")
    remedy(sim)
    sim.run_until_rest()
    assert not sim.kubernetes.claims


def no_pod_serves(sim: Simulation) -> None:
    """No pod is left that could tell; the metadata service is there."""
    for one in sim.kubernetes.sets.values():
        one.replicas = 0
        one.touch(sim.now)
    sim.advance(10)
    assert not sim.kubernetes.pods


@pytest.mark.parametrize("joined", [False, True])
def test_volumes_of_a_cluster_without_pods_go_only_if_the_job_finds_no_other_cluster(joined: bool) -> None:
    sim = resting()
    no_pod_serves(sim)
    if joined:
        others_join(sim)
    delete_with_data(sim)
    if not joined:
        sim.run_until_rest()
        assert not sim.kubernetes.claims
        return
    sim.run_until_stalled("DeletionBlocked")
    assert len(sim.kubernetes.claims) == 8
    they_leave(sim)
    sim.run_until_rest()  # the Job is tried again
    assert not sim.kubernetes.claims


@pytest.mark.parametrize("found", ["", "instance-2"])
def test_where_another_cluster_or_none_is_volumes_stay(found: str) -> None:
    """A service that came back empty is to be restored from a backup, which has the cookies of all."""
    serving, stopped = resting(), resting()
    no_pod_serves(stopped)
    for sim in (serving, stopped):
        sim.bookkeeper.instance_id, sim.job_ends_at = found, None
        sim.bookkeeper.cookies.clear()
        delete_with_data(sim)
        sim.run_until_stalled("DeletionBlocked")
        assert len(sim.kubernetes.claims) == 8
        assert len(sim.kubernetes.pods) == (4 if sim is serving else 0)
        sim.change(storage={"retention": {"whenDeleted": "Retain"}})
        sim.run_until_rest()
        assert len(sim.kubernetes.claims) == 8


def test_bookies_that_are_not_ready_because_the_service_is_silent_are_not_stopped() -> None:
    """A deletion that was held up by others does not begin because these cannot be seen any more."""
    sim = resting()
    others_join(sim)
    delete_with_data(sim)
    sim.run_until_stalled("DeletionBlocked")
    world, desired = sim.world(), sim.desired()
    unready = tuple(replace(pod, ready=False, ready_since=None) for pod in world.pods)
    crashing = tuple(replace(pod, bookie_runs=False, fault=PodFault.CRASHING) for pod in unready)
    for pods in (unready, crashing, unready[:1]):
        found = begin(replace(world, facts=None, pods=pods), desired)
        assert isinstance(found, Wait)
        assert found.reason == "DeletionBlocked"
    young = world.cluster.status.model_copy(update={"ledgers": LedgersStatus()})
    never = replace(world, facts=None, pods=crashing, cluster=replace(world.cluster, status=young))
    assert isinstance(begin(never, desired), Record), "no bookie ever served: only the Job can be asked"
    for fault in (PodFault.IMAGE, PodFault.UNSCHEDULABLE, PodFault.VOLUME):
        stuck = tuple(replace(pod, fault=fault) for pod in crashing)
        assert isinstance(begin(replace(world, facts=None, pods=stuck), desired), Record), "none of them will ever tell"


def test_claims_go_on_going_when_the_job_that_removed_the_metadata_is_gone() -> None:
    """A second Job would find no cluster, and fail."""
    sim = resting()
    delete_with_data(sim)
    at_step(sim, DELETE_CLAIMS)
    sim.bookkeeper.cookies.clear()
    sim.bookkeeper.instance_id = ""
    sim.cleanup, sim.job_ends_at = "", None
    sim.run_until_rest()
    assert (sim.kubernetes.claims, sim.finalizer) == ({}, False)


@pytest.mark.parametrize("step", [STOP_AUTORECOVERY, STOP_BOOKIES, DESTROY_METADATA])
def test_a_cluster_that_joins_while_this_one_stops_keeps_its_volumes(step: str) -> None:
    sim = resting()
    delete_with_data(sim)
    at_step(sim, step)
    others_join(sim)
    sim.run_until_stalled("DeletionBlocked")
    assert len(sim.kubernetes.claims) == 8
    sim.change(storage={"retention": {"whenDeleted": "Retain"}})
    sim.run_until_rest()
    assert not sim.finalizer
    assert len(sim.kubernetes.claims) == 8


@pytest.mark.parametrize("step", [STOP_AUTORECOVERY, STOP_BOOKIES, DESTROY_METADATA])
def test_bookies_of_another_owner_keep_their_metadata_at_every_step_before_the_removal(step: str) -> None:
    """Its StatefulSet was made when the cluster's own was gone, and no volume is the cluster's any more."""
    sim = resting()
    delete_with_data(sim)
    at_step(sim, step)
    taken = {"StatefulSet/c-bookie": "Helm manages it"}
    world = replace(sim.world(), claims=(), pods=(), stateful_sets=(), facts=None, taken=taken)
    for job in ("", "Failed"):
        waiting = replace(world, cleanup_job=job)
        decision = begin(waiting, sim.desired())
        assert isinstance(decision, Wait)
        assert decision.reason == "DeletionBlocked"
        assert not isinstance(begin(replace(waiting, outlived=frozenset(taken)), sim.desired()), Wait)
    kept = sim.spec.storage.model_copy(update={"retention": Retention()})
    spec = sim.spec.model_copy(update={"storage": kept})
    retained = replace(world, cluster=replace(world.cluster, spec=spec))
    assert not isinstance(begin(retained, sim.desired()), Wait)


def test_bookies_stop_only_when_the_controller_has_seen_the_last_change() -> None:
    """It could still make a pod, and with it claims that nothing would delete."""
    sim = resting()
    sim.kubernetes.stuck_sets.update(sim.kubernetes.sets)
    for one in sim.kubernetes.sets.values():
        one.replicas = 0
        one.touch(sim.now)
    sim.kubernetes.pods.clear()
    delete_with_data(sim)
    at_step(sim, STOP_BOOKIES)
    for _ in range(5):
        assert isinstance(sim.run_pass().plan.decision, Wait)
        sim.advance(10)
    sim.kubernetes.stuck_sets.clear()
    sim.run_until_rest()
    assert not sim.kubernetes.claims


def test_a_paused_cluster_is_not_deleted() -> None:
    sim = resting()
    sim.annotations[names.PAUSED] = "true"
    delete(sim)
    sim.run_until_stalled("DeletionBlocked")
    assert len(sim.bookkeeper.writable) == 4
    del sim.annotations[names.PAUSED]
    sim.run_until_rest()
    assert not sim.finalizer


def test_whoever_changes_his_mind_keeps_the_volumes_that_are_left() -> None:
    sim = resting()
    delete_with_data(sim)
    sim.run(lambda s, d: isinstance(d, Act) and isinstance(d.action, DeleteClaim))
    del sim.annotations[names.CONFIRM_DELETE]
    sim.run_until_rest()
    assert len(sim.kubernetes.claims) == 7
    assert "Secret/c-identity" in sim.kubernetes.objects


def test_claims_of_another_cluster_and_later_ones_stay() -> None:
    sim = resting()
    sim.kubernetes.claims["ledger-0-c-bookie-0"].instance_id = "instance-0"
    delete_with_data(sim)
    sim.run(lambda s, _: s.status.operation is not None)
    later = copy.copy(sim.kubernetes.claims["journal-0-c-bookie-0"])
    later.name, later.uid = "journal-0-c-bookie-9", "later"
    sim.kubernetes.claims[later.name] = later
    sim.run_until_rest()
    assert sorted(sim.kubernetes.claims) == ["journal-0-c-bookie-9", "ledger-0-c-bookie-0"]
    (event,) = [one.event for one in decided(sim) if isinstance(one.action, ReleaseFinalizer)]
    assert event is not None
    assert event.reason == "ClaimsLeft"
    assert "journal-0-c-bookie-9" in event.message
    assert "ledger-0-c-bookie-0" not in event.message


@pytest.mark.parametrize("volumes", [True, False])
def test_a_metadata_service_that_is_gone_holds_up_nothing_but_volumes(volumes: bool) -> None:
    sim = resting()
    delete_with_data(sim)
    at_step(sim, DESTROY_METADATA)
    sim.bookkeeper.up = False
    if volumes:
        sim.run_until_stalled("DeletionBlocked")
        assert len(sim.kubernetes.claims) == 8
        sim.bookkeeper.up = True
        sim.run_until_rest()
        assert not sim.kubernetes.claims
        return
    sim.kubernetes.claims.clear()
    begun = sim.now
    sim.run_until_rest()
    assert not sim.finalizer
    assert sim.now - begun < METADATA_SECONDS + 60
    events = [getattr(one.plan.decision, "event", None) for one in sim.passes]
    assert "MetadataNotRemoved" in [one.reason for one in events if one is not None]


@pytest.mark.parametrize("passes", range(2, 40, 3))
def test_a_running_operation_ends_before(passes: int) -> None:
    sim = resting()
    sim.change(replicas=3, version="2.0")
    for _ in range(passes):
        decision = sim.run_pass().plan.decision
        sim.advance(min(decision.seconds, 5) if isinstance(decision, Wait) else 1)
    delete(sim)
    sim.run_until_rest()
    assert not sim.finalizer
    assert not sim.kubernetes.pods
    assert len(sim.kubernetes.claims) >= 6


def test_a_bookie_that_was_being_drained_may_write_again_after_adoption() -> None:
    sim = resting()
    sim.change(replicas=3)
    sim.run(lambda s, _: bool(s.bookkeeper.drains))
    delete(sim)
    sim.run_until_rest()
    assert not sim.bookkeeper.drains


def test_a_pod_that_does_not_stop_is_told_with_the_remedy() -> None:
    sim = resting()
    sim.kubernetes.lose_node("node-2")
    delete(sim)
    sim.run_until_stalled("Stopping")
    decision = sim.passes[-1].plan.decision
    assert isinstance(decision, Wait)
    assert "node.kubernetes.io/out-of-service" in decision.message
    assert sim.finalizer
    sim.kubernetes.out_of_service.add("node-2")
    sim.run_until_rest()
    assert not sim.finalizer


@pytest.mark.parametrize("how", [delete, delete_with_data])
@pytest.mark.parametrize("claim_goes", [False, True])
def test_pods_whose_stateful_set_is_away_stop_too(how: Callable[[Simulation], None], claim_goes: bool) -> None:
    sim = resting()
    sim.change(storage={"ledger": {"size": "20Gi"}})
    at_step(sim, "Recreate")
    assert (len(sim.kubernetes.sets), len(sim.kubernetes.pods)) == (0, 4)
    for claim in sim.kubernetes.claims_of("c-bookie-1"):
        claim.deleting = claim_goes
    how(sim)
    began = sim.now
    sim.run_until_rest()
    assert not sim.finalizer
    assert not sim.kubernetes.pods
    assert sim.now - began < 300


def test_without_its_finalizer_there_is_nothing_to_do() -> None:
    sim = resting()
    delete(sim)
    sim.finalizer = False
    assert sim.run_until_rest() == 1


def test_a_resource_that_never_came_to_be_deletes_nothing_of_the_cluster_before_it() -> None:
    sim = resting()
    delete(sim)
    sim.run_until_rest()
    before, cookies = end(sim), dict(sim.bookkeeper.cookies)
    sim.deleting, sim.finalizer, sim.status = False, True, BookieClusterStatus()
    sim.kubernetes.sets.clear()
    sim.run_until_stalled("AdoptRequired")
    delete_with_data(sim)
    sim.run_until_rest()
    assert end(sim) == before
    assert sim.bookkeeper.cookies == cookies
    assert sim.cleanup_ends_at is None


def test_claims_wait_for_the_job_also_where_an_earlier_operator_had_begun_with_them() -> None:
    """That one deleted claims first, on facts from before anything stopped, and metadata afterwards."""
    sim = resting()
    delete_with_data(sim)
    at_step(sim, DESTROY_METADATA)
    others_join(sim)
    assert sim.status.operation is not None
    operation = sim.status.operation.model_copy(update={"step": DELETE_CLAIMS})
    sim.status = sim.status.model_copy(update={"operation": operation})
    sim.run_until_stalled("DeletionBlocked")
    assert len(sim.kubernetes.claims) == 8
    they_leave(sim)
    sim.run_until_rest()
    assert not sim.kubernetes.claims
    assert not sim.finalizer


@pytest.mark.parametrize(("uid", "goes"), [("recorded", True), ("of an earlier cluster", False)])
def test_the_volume_of_the_embedded_metadata_service_goes_if_it_was_recorded(uid: str, goes: bool) -> None:
    sim = resting()
    delete_with_data(sim)
    sim.run(lambda s, _: s.status.operation is not None)
    operation = sim.status.operation
    assert operation is not None
    saved = {**operation.saved, "claims/0": "recorded"}
    operation = operation.model_copy(update={"step": DELETE_IDENTITY, "saved": saved})
    volume = ClaimView("data-c-metadata-0", uid, "c-metadata-0", 0, "metadata", "2Gi", "2Gi")
    decision = proceed(replace(sim.world(), claims=(volume,)), sim.desired(), operation)
    assert (isinstance(decision, Act) and isinstance(decision.action, DeleteClaim)) is goes
    del sim.annotations[names.CONFIRM_DELETE]
    kept = proceed(replace(sim.world(), claims=(volume,)), sim.desired(), operation)
    assert isinstance(kept, Record)
    assert kept.operation.step == RELEASE
