"""A cluster comes to be, and a StatefulSet that vanished is made again.

A cluster that was deleted with its volumes retained is taken over, with all its data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from bookie_operator.crds.cluster_status import BookieClusterStatus, Operation, OperationType
from bookie_operator.planner.actions import ApplyObjects, CreateStatefulSet, DeleteObject, RecordState
from bookie_operator.planner.decision import Act, Wait
from bookie_operator.planner.flows import create
from bookie_operator.planner.plan import plan
from bookie_operator.world.facts import ClusterFacts
from bookie_operator.world.model import ClaimView, PodView, World
from tests.support.operator_sim import Simulation, killed_everywhere, resting, spec


def end(sim: Simulation) -> object:
    return sorted(sim.kubernetes.pods), sim.bookkeeper.writable, sorted(sim.kubernetes.objects), sim.status.instance_id


def claim(bookie: str, volume: str = "ledger", **fields: object) -> ClaimView:
    name = f"{volume}-0-{bookie}"
    ordinal = int(bookie.rpartition("-")[2])
    return replace(ClaimView(name, f"uid-{name}", bookie, ordinal, volume, "1Gi", "1Gi"), **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("zones", [[], [{"name": "a"}, {"name": "b"}]])
def test_it_is_created_whoever_dies(zones: list[dict[str, str]]) -> None:
    assert killed_everywhere(Simulation(spec(placement={"zones": zones})), lambda _: None, end) > 10


def test_metadata_come_before_bookies_and_auto_recovery_after_them() -> None:
    sim = resting()
    sim = Simulation(sim.spec)
    sim.run_until_rest()
    actions = [one.plan.decision.action for one in sim.passes if isinstance(one.plan.decision, Act)]
    kinds = [key for one in actions if isinstance(one, ApplyObjects) for key in one.keys]
    assert kinds.index("Job/c-metadata-init") < kinds.index("Secret/c-identity")
    made = next(number for number, one in enumerate(actions) if isinstance(one, CreateStatefulSet))
    assert ApplyObjects(("Job/c-metadata-init",)) in actions[:made]
    assert ApplyObjects(("Deployment/c-autorecovery",)) in actions[made:]


@pytest.mark.parametrize("instance_id", ["", "instance-0"])
def test_volumes_of_another_cluster_stop_everything(instance_id: str) -> None:
    sim = Simulation(spec())
    world = replace(sim.world(), claims=(claim("c-bookie-0", instance_id=instance_id),))
    decision = plan(world, sim.desired()).decision
    assert isinstance(decision, Wait)
    assert (decision.reason, decision.stalled) == ("AdoptRequired", True)
    assert "ledger-0-c-bookie-0" in decision.message
    assert "spec.bootstrap.mode" in decision.message


def test_a_metadata_job_that_fails_is_told_and_tried_again_after_a_while() -> None:
    sim = Simulation(spec())
    sim.run_pass()
    failed = replace(
        sim.world(),
        metadata_job="Failed",
        metadata_job_message="zk: connection refused",
        metadata_job_finished_at=sim.now,
        object_uids={**sim.world().object_uids, "Job/c-metadata-init": "uid-job"},
    )
    told = plan(failed, sim.desired()).decision
    assert isinstance(told, Wait)
    assert told.stalled
    assert "zk: connection refused" in told.message
    later = plan(replace(failed, now=sim.now + create.JOB_RETRY_SECONDS), sim.desired()).decision
    assert isinstance(later, Act)
    assert later.action == DeleteObject("Job/c-metadata-init", "uid-job")


def test_a_metadata_job_that_cannot_begin_is_told_while_it_is_waited_for() -> None:
    sim = Simulation(spec())
    sim.run_pass()
    stuck = replace(sim.world(), metadata_job="Running", metadata_job_message='secret "tls" not found')
    told = create.metadata(stuck, sim.desired())
    assert isinstance(told, Wait)
    assert 'secret "tls" not found' in told.message


def test_the_instance_id_of_a_bookie_counts_when_the_job_is_gone() -> None:
    sim = resting()
    unknown = sim.view().status.model_copy(update={"instance_id": ""})
    world = replace(sim.world(), cluster=replace(sim.view(), status=unknown), metadata_job="", metadata_instance_id="")
    assert create.metadata(world, sim.desired()) == Act(
        RecordState(instance_id="instance-1"), "the cluster's instance id is instance-1"
    )


def test_a_statefulset_that_vanished_takes_its_bookies_over() -> None:
    sim = resting()
    uids = {name: pod.uid for name, pod in sim.kubernetes.pods.items()}
    del sim.kubernetes.sets["c-bookie"]
    sim.run_until_rest()
    assert {name: pod.uid for name, pod in sim.kubernetes.pods.items()} == uids
    assert any("missing" in one.plan.decision.reason for one in sim.passes if isinstance(one.plan.decision, Act))


@pytest.mark.parametrize(
    ("recorded", "planned", "pods", "claims", "wanted"),
    [
        pytest.param({}, {}, (), (), 0, id="nothing of it lives"),
        pytest.param({}, {}, (0, 11, 2), (), 12, id="ordinals are integers"),
        pytest.param({}, {}, (), (0, 1, 9), 10, id="claims stand for bookies"),
        pytest.param({"c-bookie": 4}, {}, (0, 1, 2), (0, 1, 2), 4, id="one that lost everything is still one"),
        pytest.param({"c-bookie": 4}, {"replicas/c-bookie": "3"}, (0, 1, 2), (0, 1, 2, 3), 3, id="one was taken out"),
        pytest.param({"c-bookie": 3}, {}, (0, 1, 2, 5), (), 6, id="more pods than recorded"),
    ],
)
def test_replicas_of_a_missing_statefulset(
    recorded: dict[str, int], planned: dict[str, str], pods: tuple[int, ...], claims: tuple[int, ...], wanted: int
) -> None:
    sim = Simulation(spec())
    operation = Operation(id="Decommission-1", type=OperationType.DECOMMISSION, step="x", saved=planned)
    status = BookieClusterStatus(recorded_replicas=recorded, operation=operation if planned else None)
    world = replace(
        sim.world(),
        cluster=replace(sim.view(), status=status),
        pods=tuple(PodView(f"c-bookie-{n}", f"u{n}", "c-bookie", n) for n in pods),
        claims=tuple(claim(f"c-bookie-{n}") for n in claims),
    )
    assert create.live_replicas(world, "c-bookie") == wanted


def test_a_new_zone_starts_empty_when_cookies_of_its_bookies_are_left() -> None:
    sim = resting()
    sim.change(placement={"zones": [{"name": "a"}, {"name": "b"}]})
    desired = sim.desired()
    facts = sim.bookkeeper.facts()
    assert isinstance(facts, ClusterFacts)
    left = replace(facts, cookies=facts.cookies | {desired.bookie_id("c-bookie-a-1")})
    clean, dirty = (
        create.stateful_sets(sim.world(), desired),
        create.stateful_sets(replace(sim.world(), facts=left), desired),
    )
    assert isinstance(clean, Act)
    assert isinstance(dirty, Act)
    assert clean.action == CreateStatefulSet("c-bookie-a", 2)
    assert dirty.action == CreateStatefulSet("c-bookie-a", 0)


# --- whose the metadata are -------------------------------------------------------------------------------------------


def second(first: Simulation, **changes: object) -> Simulation:
    """Another resource, with the metadata root of the first one."""
    return Simulation(spec(**changes), uid="instance-2", bookkeeper=first.bookkeeper)


def test_a_root_belongs_to_one_resource() -> None:
    first = resting()
    sim = second(first)
    sim.run_until_stalled("RootTaken")
    assert not sim.status.instance_id
    assert not sim.kubernetes.sets
    decision = sim.passes[-1].plan.decision
    assert isinstance(decision, Wait)
    assert "spec.metadataService.rootPath" in decision.message


def test_another_root_is_looked_at_anew() -> None:
    """What the Job found at the first one says nothing of it."""
    sim = second(resting())
    sim.run_until_stalled("RootTaken")
    job = sim.desired().metadata_job
    world = replace(sim.world(), object_hashes={job: "of-the-spec-before"})
    anew = create.metadata(world, sim.desired())
    assert isinstance(anew, Act)
    assert anew.action == DeleteObject(job, world.object_uids[job])


def test_a_root_that_is_cleared_is_taken() -> None:
    """As `bookie cluster nuke` does, with the Job that found the other cluster."""
    sim = second(resting())
    sim.run_until_stalled("RootTaken")
    sim.bookkeeper.instance_id, sim.bookkeeper.running, sim.bookkeeper.cookies = "", {}, {}
    sim.bookkeeper.ledgers = {}
    sim.job_ends_at = None
    del sim.kubernetes.objects[sim.desired().metadata_job]
    sim.run_until_rest()
    assert sim.status.instance_id == "instance-2"


def test_claims_that_nobody_needs_make_way() -> None:
    sim = Simulation(spec())
    world = replace(sim.world(), claims=(claim("c-bookie-0", instance_id="instance-0"),))
    told = plan(world, sim.desired()).decision
    assert isinstance(told, Wait)
    assert "or delete the claims if their data are not needed" in told.message
    sim.run_until_rest()
    assert len(sim.bookkeeper.writable) == 4


def test_bookies_join_another_cluster_only_where_it_is_named() -> None:
    first = resting()
    first.bookkeeper.cookies.clear()
    sim = second(first, bootstrap={"instanceId": "instance-1"})
    sim.run(lambda sim, _: bool(sim.status.instance_id))
    assert sim.status.instance_id == "instance-1"


def deleted(**changes: object) -> Simulation:
    """The resource is applied again after its deletion, as a new one that adopts."""
    sim = resting(**changes)
    sim.delete()
    sim.run_until_rest()
    sim.passes.clear()
    sim.deleting, sim.finalizer, sim.generation = False, True, 1
    sim.status = BookieClusterStatus()
    sim.kubernetes.sets.clear()
    kept = {key: one for key, one in sim.kubernetes.objects.items() if key == "Secret/c-identity"}
    sim.kubernetes.objects = kept
    sim.job_ends_at = None
    sim.change(bootstrap={"mode": "Adopt"})
    return sim


def adopted(sim: Simulation) -> object:
    return sorted(sim.bookkeeper.running.items()), sorted(sim.kubernetes.pods), sim.status.instance_id


def test_everything_is_there_again_whoever_dies() -> None:
    sim = deleted()
    data, ledgers = dict(sim.bookkeeper.cookies), sorted(sim.bookkeeper.ledgers)
    assert killed_everywhere(sim, lambda _: None, adopted) > 5
    sim.run_until_rest()
    assert sim.bookkeeper.running == data
    assert set(ledgers) <= set(sim.bookkeeper.ledgers)
    assert sim.status.instance_id == "instance-1"
    assert sim.job_ends_at is None
    assert not sim.accidents


@pytest.mark.parametrize(("replicas", "type_"), [(6, "ScaleUp"), (3, "Decommission")])
def test_it_starts_as_it_was_and_then_becomes_what_spec_says(replicas: int, type_: str) -> None:
    sim = deleted()
    sim.change(replicas=replicas)
    sim.run_until_rest()
    assert [one.type.value for one in sim.status.history] == [type_]
    assert len(sim.kubernetes.pods) == replicas
    assert not sim.accidents


def test_a_cluster_of_the_same_name_without_adopt_touches_nothing() -> None:
    sim = deleted()
    sim.change(bootstrap={"mode": "New"})
    objects = dict(sim.kubernetes.objects)
    sim.run_until_stalled("AdoptRequired")
    assert sim.kubernetes.objects == objects
    assert not sim.kubernetes.sets


def changed(sim: Simulation, **fields: object) -> World:
    return replace(sim.world(), **fields)  # type: ignore[arg-type]


def reason(sim: Simulation, world: World) -> str:
    found = plan(world, sim.desired()).decision
    assert isinstance(found, Wait)
    assert found.stalled
    return found.reason


def test_what_stops_an_adoption() -> None:
    sim = deleted()
    world = sim.world()
    identity = dict(world.identity or {})
    assert reason(sim, changed(sim, identity=None)) == "AdoptUnknown"
    foreign = replace(world.claims[0], instance_id="instance-0")
    assert reason(sim, changed(sim, claims=(foreign, *world.claims[1:]))) == "AdoptMismatch"
    assert reason(sim, changed(sim, claims=world.claims[:2])) == "AdoptIncomplete"
    lost = tuple(replace(one, lost=one.ordinal > 0) for one in world.claims)
    assert reason(sim, changed(sim, claims=lost)) == "AdoptIncomplete"
    assert reason(sim, changed(sim, claims=())) == "AdoptIncomplete"
    sim.change(bootstrap={"instanceId": "instance-7"})
    assert reason(sim, changed(sim, identity=identity)) == "AdoptMismatch"


def test_as_many_bookies_as_a_ledger_can_bear_may_be_missing() -> None:
    sim = deleted()
    world = sim.world()
    two = tuple(one for one in world.claims if one.ordinal < 2)
    found = create.adopt(replace(world, claims=two), sim.desired())
    assert isinstance(found, Act)
    assert found.action == RecordState(instance_id="instance-1")


def test_metadata_of_another_cluster_stop_it() -> None:
    sim = deleted()
    sim.bookkeeper.instance_id = "instance-2"
    sim.run_until_stalled("InstanceMismatch")
    stopped = len(sim.passes)
    for _ in range(5):
        assert isinstance(sim.run_pass().plan.decision, Wait)
        sim.advance(30)
    assert len(sim.passes) == stopped + 5
    assert sim.bookkeeper.cookies


def without(sim: Simulation, *bookies: str) -> None:
    for bookie in bookies:
        for claim in sim.kubernetes.claims_of(bookie):
            del sim.kubernetes.claims[claim.name]


def no_identity(sim: Simulation) -> Callable[[], object]:
    sim.kubernetes.objects.clear()
    return lambda: sim.change(bootstrap={"instanceId": "instance-1"})


def wrong_instance(sim: Simulation) -> Callable[[], object]:
    sim.change(bootstrap={"instanceId": "instance-7"})
    return lambda: sim.change(bootstrap={"instanceId": "instance-1"})


def foreign_claim(sim: Simulation) -> Callable[[], object]:
    sim.forgiven = True
    sim.kubernetes.claims_of("c-bookie-3")[0].instance_id = "instance-0"
    return lambda: without(sim, "c-bookie-3")


def missing_claims(sim: Simulation) -> Callable[[], object]:
    claims = dict(sim.kubernetes.claims)
    without(sim, "c-bookie-1", "c-bookie-2", "c-bookie-3")
    return lambda: sim.kubernetes.claims.update(claims)


@pytest.mark.parametrize(
    ("trouble", "reason", "words"),
    [
        (no_identity, "AdoptUnknown", "tell bootstrap.instanceId"),
        (wrong_instance, "AdoptMismatch", "apply the right one"),
        (foreign_claim, "AdoptMismatch", "delete the claims that do not belong to it"),
        (missing_claims, "AdoptIncomplete", "restore the claims of c-bookie-1, c-bookie-2, c-bookie-3"),
    ],
)
def test_what_is_advised_lets_an_adoption_go_on(
    trouble: Callable[[Simulation], Callable[[], object]], reason: str, words: str
) -> None:
    sim = deleted(repair={"autoReplaceAfterSeconds": 20})
    remedy = trouble(sim)
    sim.run_until_stalled(reason)
    assert words in str(sim.passes[-1].plan)
    remedy()
    sim.run_until_rest(most=900)
    assert len(sim.bookkeeper.writable) == 4
    assert not sim.accidents
