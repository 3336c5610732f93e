"""A cluster is deleted: with its volumes retained, or with its data; nobody and nothing holds it up for ever."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest

from bookie_operator.crds import names
from bookie_operator.crds.cluster_spec import MetadataServiceKind
from bookie_operator.crds.cluster_status import BookieClusterStatus
from bookie_operator.planner.actions import DeleteClaim, DeleteObject, ScaleStatefulSet
from bookie_operator.planner.decision import Act, Record, Rest, Wait
from bookie_operator.planner.flows import delete as flow
from bookie_operator.planner.flows.delete import DESTROY_METADATA, METADATA_SECONDS
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


def actions(sim: Simulation) -> list[object]:
    return [one.plan.decision.action for one in sim.passes if isinstance(one.plan.decision, Act)]


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
    sim.status = sim.status.model_copy(update={"instance_id": "of-an-earlier-release"})


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


@pytest.mark.parametrize(
    ("trouble", "words", "remedy"),
    [
        (others_join, "take these bookies out first", they_leave),
        (nobody_tells, "bring one of its bookies up", somebody_tells),
    ],
)
def test_data_go_when_nobody_else_may_need_them(
    trouble: Callable[[Simulation], None], words: str, remedy: Callable[[Simulation], None]
) -> None:
    sim = resting()
    sim.bookkeeper.instance_id = sim.bookkeeper.instance_id or "instance-1"
    trouble(sim)
    delete_with_data(sim)
    sim.run_until_stalled("DeletionBlocked")
    assert words in str(sim.passes[-1].plan)
    sim.status = sim.status.model_copy(update={"instance_id": sim.bookkeeper.instance_id})
    remedy(sim)
    sim.run_until_rest()
    assert not sim.kubernetes.claims


def test_a_root_of_its_own_needs_nobody_who_tells() -> None:
    sim = resting()
    sim.bookkeeper.up = False
    delete_with_data(sim)
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


def test_a_metadata_service_that_is_gone_holds_nobody_up() -> None:
    sim = resting()
    delete_with_data(sim)
    sim.run(lambda s, _: s.status.operation is not None and s.status.operation.step == DESTROY_METADATA)
    sim.bookkeeper.up = False
    begun = sim.now
    sim.run(lambda s, decision: isinstance(decision, Rest), each=lambda s: setattr(s, "cleanup_ends_at", s.now + 1e6))
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


@pytest.mark.parametrize("job", ["", "Running", "Complete", "Failed"])
def test_metadata_that_are_embedded_go_with_their_volume(job: str) -> None:
    sim = resting()
    delete_with_data(sim)
    at_step(sim, DESTROY_METADATA)
    operation = sim.status.operation
    assert operation is not None
    world = replace(sim.world(), cleanup_job=job)
    found = flow.proceed(world, sim.desired(), operation)
    done = {"": Act, "Running": Wait}.get(job, Record)
    assert isinstance(found, done)
    assert (getattr(found, "event", None) is not None) is (job == "Failed")
    embedded = sim.spec.metadata_service.model_copy(update={"type": MetadataServiceKind.EMBEDDED})
    spec = sim.spec.model_copy(update={"metadata_service": embedded})
    found = flow.proceed(replace(world, cluster=replace(world.cluster, spec=spec)), sim.desired(), operation)
    assert isinstance(found, Record)
    assert (found.operation.step, found.reason) == (
        flow.DELETE_IDENTITY,
        "the embedded metadata service goes with the cluster",
    )
