"""Each invariant refuses a plan that violates it, and lets the like of it pass that does not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie_operator.crds import names
from bookie_operator.crds.cluster_status import Operation, OperationType
from bookie_operator.planner import actions as a
from bookie_operator.planner import decision as d
from bookie_operator.planner import invariants, operations
from bookie_operator.planner.plan import _settled
from bookie_operator.world.facts import Proof
from bookie_operator.world.model import World
from tests.support.operator_sim import Simulation, resting

LAST = "c-bookie-3"


def running(sim: Simulation, kind: OperationType = OperationType.DECOMMISSION, **saved: str) -> World:
    """The last bookie is being taken out, and a proof holds."""
    operation = operations.new(sim.world(), kind, "x", bookie=LAST, saved=saved)
    status = sim.status.model_copy(update={"operation": operation, "operations_begun": 1})
    bookie_id = sim.desired().bookie_id(LAST)
    proof = Proof(bookie_id, 0, 0, False, "auditor", sim.now + 5, "instance-1")
    return replace(sim.world(), cluster=replace(sim.view(), status=status), proofs={bookie_id: proof})


def refused(sim: Simulation, world: World, action: a.Action) -> str:
    return " ".join(invariants.check(world, sim.desired(), d.Plan(d.Act(action, "why"))))


def cookie(sim: Simulation, world: World, **changes: object) -> a.DeleteCookie:
    bookie_id = sim.desired().bookie_id(LAST)
    proof = world.proofs[bookie_id]
    assert proof is not None
    return a.DeleteCookie(bookie_id, replace(proof, **changes))  # type: ignore[arg-type]


def test_no_claim_goes_as_an_object() -> None:
    """That of backups is a person's; those of bookies go with a proof, by an action of their own."""
    sim = resting()
    key = "PersistentVolumeClaim/c-backup"
    world = replace(running(sim), object_uids={key: "uid"}, object_hashes={key: "hash"})
    assert "I1" in refused(sim, world, a.DeleteObject(key, "uid"))


def test_a_cookie_goes_with_a_proof_of_this_pass() -> None:
    sim = resting()
    world = running(sim)
    assert not refused(sim, world, cookie(sim, world))


@pytest.mark.parametrize(
    "doubt",
    [
        {"ledgers": 1},
        {"marks": 1},
        {"registered": True},
        {"auditor": None},
        {"last_audit": None},
        {"last_audit": 1.0},
        {"instance_id": "instance-2"},
        {"bookie_id": "another:3181"},
    ],
)
def test_i1_a_doubtful_proof_is_none(doubt: dict[str, object]) -> None:
    sim = resting()
    world = running(sim)
    action = cookie(sim, world, **doubt)
    assert "I1" in refused(sim, world, action)
    bookie_id = sim.desired().bookie_id(LAST)
    assert "I1" in refused(sim, replace(world, proofs={bookie_id: action.proof}), action)


def test_i1_nothing_goes_without_a_proof_but_with_a_cluster_that_is_deleted_with_its_data() -> None:
    sim = resting()
    world = running(sim, OperationType.DELETE)
    claim = world.claims[0]
    action = a.DeleteClaim(claim.name, claim.uid, None)
    assert "I1" in refused(sim, world, action)
    confirmed = replace(world.cluster, deleting=True, annotations={names.CONFIRM_DELETE: "c"})
    assert "I1" in refused(sim, replace(world, cluster=confirmed), action)
    stopped = replace(world, cluster=confirmed, pods=())
    assert not refused(sim, stopped, action)
    assert "I1" in refused(sim, replace(stopped, cluster=replace(confirmed, annotations={})), action)
    unseen = a.DeleteClaim("another", claim.uid, None)
    assert "claim another was not observed" in refused(sim, stopped, unseen)
    foreign = replace(claim, instance_id="instance-0")
    assert "another cluster" in refused(sim, replace(stopped, claims=(foreign, *stopped.claims[1:])), action)


def test_i2_nobody_is_stopped_while_nobody_can_tell() -> None:
    sim = resting()
    world = running(sim)
    pod, one = world.pods[-1], world.stateful_sets[0]
    blind = replace(world, facts=None)
    for action in (a.EvictPod(pod.name, pod.uid), a.ScaleStatefulSet(one.name, one.resource_version, 4, 3)):
        assert not refused(sim, world, action)
        assert "I2" in refused(sim, blind, action)


def test_i3_an_operation_comes_first_and_alone() -> None:
    sim = resting()
    world = sim.world()
    pod = world.pods[0]
    assert "I3" in refused(sim, world, a.EvictPod(pod.name, pod.uid))
    second = Operation(id="Rollout-2", type=OperationType.ROLLOUT, step="x")
    plans = [d.Record(second, ""), d.Act(a.TriggerAudit(), "", second), d.Finish(second, "Done", "")]
    for decision in plans:
        assert "I3" in " ".join(invariants.check(running(sim), sim.desired(), d.Plan(decision)))
    assert "I3" in " ".join(invariants.check(world, sim.desired(), d.Plan(d.Record(second, ""))))
    first = operations.new(world, OperationType.ROLLOUT, "x")
    assert not invariants.check(world, sim.desired(), d.Plan(d.Record(first, "")))


def test_i4_what_is_not_as_it_was_seen_is_left_alone() -> None:
    sim = resting()
    world = running(sim)
    one, pod, claim = world.stateful_sets[0], world.pods[-1], world.claims[0]
    wrong: list[a.Action] = [
        a.ScaleStatefulSet(one.name, "another", 4, 3),
        a.ScaleStatefulSet(one.name, one.resource_version, 5, 4),
        a.EvictPod(pod.name, "another"),
        a.EvictPod(pod.name, ""),
        a.ExpandClaim(claim.name, "another", "2Gi"),
        a.OrphanStatefulSet(one.name, "another"),
        a.DeleteObject("Deployment/c-autorecovery", "another"),
        a.DeleteObject("Deployment/unknown", ""),
    ]
    for action in wrong:
        assert "I4" in refused(sim, world, action), action


def test_i5_and_i7_the_drained_bookie_alone_is_scaled_away() -> None:
    with pytest.raises(ValueError, match="time"):
        a.ScaleStatefulSet("c-bookie", "1", 4, 2)
    sim = resting()
    world = running(sim)
    one = world.stateful_sets[0]
    action = a.ScaleStatefulSet(one.name, one.resource_version, 4, 3)
    assert not refused(sim, world, action)
    operation = world.cluster.status.operation
    assert operation is not None
    status = world.cluster.status.model_copy(
        update={"operation": operation.model_copy(update={"bookie": "c-bookie-2"})}
    )
    assert "I7" in refused(sim, replace(world, cluster=replace(world.cluster, status=status)), action)


def test_i8_a_bookie_that_serves_is_not_deleted() -> None:
    sim = resting()
    world = running(sim)
    pod = world.pods[0]
    assert "I8" in refused(sim, world, a.DeletePod(pod.name, pod.uid))
    down = replace(world, pods=(replace(pod, ready=False), *world.pods[1:]))
    assert not refused(sim, down, a.DeletePod(pod.name, pod.uid))


def test_i10_a_busy_statefulset_is_left_alone() -> None:
    sim = resting()
    world = running(sim)
    one = replace(world.stateful_sets[0], generation=9, observed_generation=8)
    busy = replace(world, stateful_sets=(one,))
    for action in (
        a.ScaleStatefulSet(one.name, one.resource_version, 4, 5),
        a.ApplyTemplate(one.name, one.resource_version),
        a.OrphanStatefulSet(one.name, one.uid),
    ):
        assert "I10" in refused(sim, busy, action)
        waits = _settled(busy, decided := d.Act(action, "why"))
        assert isinstance(waits, d.Wait)
        assert waits.reason == "StatefulSetBusy", "it is not tried"
        assert _settled(world, decided) is decided


def test_i11_what_was_scaled_away_comes_back_first() -> None:
    sim = resting()
    world = running(sim)
    one = replace(world.stateful_sets[0], replicas=3)
    scaled = replace(world, stateful_sets=(one,))
    pod = world.pods[0]
    assert "I11" in refused(sim, scaled, a.EvictPod(pod.name, pod.uid))
    assert not refused(sim, scaled, a.ScaleStatefulSet(one.name, one.resource_version, 3, 4))
    planned = running(sim, **operations.planned_replicas("c-bookie", 3))
    assert not refused(sim, replace(planned, stateful_sets=(one,)), a.EvictPod(pod.name, pod.uid))


def test_a_paused_cluster_and_a_foreign_one_are_not_changed() -> None:
    sim = resting()
    world = sim.world()
    paused = replace(world, cluster=replace(world.cluster, annotations={names.PAUSED: "true"}))
    assert "paused" in refused(sim, paused, a.ApplyObjects(("Service/c",)))
    assert world.facts is not None
    foreign = replace(world, facts=replace(world.facts, instance_id="instance-2"))
    assert "instance id" in refused(sim, foreign, a.ApplyObjects(("Service/c",)))
    assert not invariants.check(foreign, sim.desired(), d.Plan(d.Wait("X", "y")))


def test_i14_a_copy_of_the_metadata_is_not_taken_for_the_service() -> None:
    sim = resting()
    world, action = (
        replace(sim.world(), check_instance_id="instance-1 0 0"),
        a.RecordState(metadata_service_uri="zk://b/l"),
    )
    at = replace(world.cluster, status=world.cluster.status.model_copy(update={"metadata_service_uri": "zk://a/l"}))
    world = replace(world, cluster=at)
    vouched = replace(at, annotations={names.ACCEPT_METADATA: "zk://b/l"})
    assert "I14" in refused(sim, world, action)
    assert "I14" in refused(sim, replace(world, cluster=vouched), action), "who can be asked is believed"
    assert "I14" in refused(sim, replace(world, facts=None), action)
    assert not refused(sim, replace(world, facts=None, cluster=vouched), action)
    assert not refused(sim, replace(world, check_instance_id="instance-1 0 1"), action)
    assert not refused(sim, replace(world, cluster=sim.world().cluster), action), "it has no place yet"
