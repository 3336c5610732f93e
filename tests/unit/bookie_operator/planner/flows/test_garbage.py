"""Things that nothing uses any more."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from bookie_operator.planner.actions import DeleteClaim, DeleteObject, OrphanStatefulSet
from bookie_operator.planner.decision import Act
from bookie_operator.planner.flows import garbage
from bookie_operator.world.facts import Proof
from bookie_operator.world.model import DeploymentView, World
from tests.support.operator_sim import Simulation, resting
from tests.support.operator_sim.crashes import copied

OLD = "ConfigMap/c-config-old"


def with_object(sim: Simulation, key: str, digest: str = "made by the operator") -> World:
    world = sim.world()
    return replace(
        world, object_hashes={**world.object_hashes, key: digest}, object_uids={**world.object_uids, key: "uid-x"}
    )


@pytest.mark.parametrize("key", [OLD, "NetworkPolicy/c-old", "PodDisruptionBudget/c-old", "Deployment/c-old"])
def test_what_is_not_desired_goes_by_uid(key: str) -> None:
    sim = resting()
    found = garbage.begin(with_object(sim, key), sim.desired())
    assert isinstance(found, Act)
    assert found.action == DeleteObject(key, "uid-x")


@pytest.mark.parametrize(
    "key", ["Secret/c-identity", "Secret/c-old", "Service/c-old", "PersistentVolumeClaim/c-old", "Job/c-old"]
)
def test_what_may_be_somebodys_data_or_address_stays(key: str) -> None:
    sim = resting()
    assert garbage.begin(with_object(sim, key), sim.desired()) is None


def test_a_certificate_goes_with_the_last_template_that_may_mount_it() -> None:
    sim = resting()
    world = with_object(sim, "Certificate/c-old")
    found = garbage.begin(world, sim.desired())
    assert isinstance(found, Act)
    assert found.action == DeleteObject("Certificate/c-old", "uid-x")
    assert garbage.begin(world, replace(sim.desired(), held=frozenset({"c-bookie"}))) is None
    older = replace(world.stateful_sets[0], template_hash="older")
    assert garbage.begin(replace(world, stateful_sets=(older,)), sim.desired()) is None
    pods = (replace(world.pods[0], template_hash="older"), *world.pods[1:])
    assert garbage.begin(replace(world, pods=pods), sim.desired()) is None
    other = with_object(sim, "NetworkPolicy/c-old")
    both = replace(
        world,
        object_hashes={**world.object_hashes, **other.object_hashes},
        object_uids={**world.object_uids, **other.object_uids},
    )
    found = garbage.begin(replace(both, pods=pods), sim.desired())
    assert isinstance(found, Act)
    assert found.action == DeleteObject("NetworkPolicy/c-old", "uid-x"), "what stays holds up nothing"


@pytest.mark.parametrize("key", ["Service/c-gateway", "Job/c-metadata-check"])
def test_what_is_made_for_a_time_goes_by_its_name(key: str) -> None:
    sim = resting()
    world = with_object(sim, key)
    found = garbage.begin(world, sim.desired())
    assert isinstance(found, Act)
    assert found.action == DeleteObject(key, "uid-x")
    assert garbage.begin(world, replace(sim.desired(), check_job=key)) is None
    assert garbage.begin(replace(world, object_uids={}), sim.desired()) is None


def test_what_the_operator_did_not_make_stays() -> None:
    sim = resting()
    assert garbage.begin(with_object(sim, OLD, ""), sim.desired()) is None


def test_a_configuration_in_use_stays() -> None:
    sim = resting()
    world = with_object(sim, OLD)
    first = world.pods[0]
    used = replace(first, config_maps=first.config_maps | {"c-config-old"})
    assert garbage.begin(replace(world, pods=(used, *world.pods[1:])), sim.desired()) is None
    unknown = replace(first, config_maps=frozenset())
    assert garbage.begin(replace(world, pods=(unknown, *world.pods[1:])), sim.desired()) is None
    template = replace(world.stateful_sets[0], config_maps=frozenset({"c-config-old"}))
    assert garbage.begin(replace(world, stateful_sets=(template,)), sim.desired()) is None


@pytest.mark.parametrize("beside", ["autorecovery", "gateway"])
def test_a_configuration_that_older_pods_beside_the_bookies_use_stays(beside: str) -> None:
    sim = resting()
    used = DeploymentView(config_maps=frozenset({"c-config-old"}))
    assert garbage.begin(replace(with_object(sim, OLD), **{beside: used}), sim.desired()) is None


def test_a_zone_without_bookies_goes_and_one_with_bookies_stays() -> None:
    sim = resting()
    world = sim.world()
    empty = replace(world.stateful_sets[0], name="c-bookie-b", zone="b", replicas=0, uid="uid-b")
    found = garbage.begin(replace(world, stateful_sets=(*world.stateful_sets, empty)), sim.desired())
    assert isinstance(found, Act)
    assert found.action == OrphanStatefulSet("c-bookie-b", "uid-b")
    full = replace(empty, replicas=1)
    assert garbage.begin(replace(world, stateful_sets=(*world.stateful_sets, full)), sim.desired()) is None


@pytest.mark.parametrize(
    "changes", [{"replicas": 1}, {"name": "c-bookie"}, {"generation": 9, "observed_generation": 8}, {"pods": 1}]
)
def test_a_zone_that_is_not_over_stays(changes: dict[str, object]) -> None:
    sim = resting()
    world = sim.world()
    pods = (replace(world.pods[0], stateful_set="c-bookie-b"),) if changes.pop("pods", 0) else ()
    empty = replace(world.stateful_sets[0], name="c-bookie-b", zone="b", replicas=0, uid="uid-b")
    other = replace(empty, **changes)  # type: ignore[arg-type]
    world = replace(world, pods=pods, stateful_sets=(other,))
    assert not isinstance(getattr(garbage.begin(world, sim.desired()), "action", None), OrphanStatefulSet)


def test_disabled_parts_go_and_come_back() -> None:
    sim = resting()
    sim.change(disruption={"enabled": False}, networkPolicy={"enabled": False})
    sim.run_until_rest()
    kinds = {key.partition("/")[0] for key in sim.kubernetes.objects}
    assert not kinds & {"PodDisruptionBudget", "NetworkPolicy"}
    sim.change(disruption={"enabled": True}, networkPolicy={"enabled": True})
    sim.run_until_rest()
    assert {"PodDisruptionBudget", "NetworkPolicy"} <= {key.partition("/")[0] for key in sim.kubernetes.objects}


# --- retired claims ---------------------------------------------------------------------------------------------------


def retired() -> Simulation:
    return copied(_retired())


@cache
def _retired() -> Simulation:
    sim = resting(storage={"retention": {"whenScaled": "Retain"}})
    sim.change(replicas=3)
    sim.run_until_rest()
    return sim


def test_retired_volumes_are_kept_and_go_when_spec_keeps_none() -> None:
    sim = retired()
    assert len(sim.kubernetes.claims_of("c-bookie-3")) == 2
    sim.change(storage={"retention": {"whenScaled": "Delete"}})
    sim.run_until_rest()
    assert not sim.kubernetes.claims_of("c-bookie-3")
    assert not sim.accidents


@pytest.mark.parametrize("doubt", [None, {"ledgers": 1}, {"marks": 1}, {"registered": True}, {"instance_id": "other"}])
def test_without_a_proof_that_holds_a_retired_volume_stays(doubt: dict[str, object] | None) -> None:
    sim = retired()
    sim.change(storage={"retention": {"whenScaled": "Delete"}})
    bookie_id = sim.desired().bookie_id("c-bookie-3")
    holds = Proof(bookie_id, 0, 0, False, "auditor", 5.0, "instance-1")
    world = replace(sim.world(), proofs={bookie_id: holds})
    found = garbage.begin(world, sim.desired())
    assert isinstance(found, Act)
    assert isinstance(found.action, DeleteClaim)
    doubted = None if doubt is None else replace(holds, **doubt)  # type: ignore[arg-type]
    assert garbage.begin(replace(world, proofs={bookie_id: doubted}), sim.desired()) is None
    assert garbage.needs(world, sim.desired()).proofs == {bookie_id}


def test_retired_volumes_of_bookies_that_are_asked_for_or_there_or_of_others_stay() -> None:
    sim = retired()
    sim.change(storage={"retention": {"whenScaled": "Delete"}})
    world, desired = sim.world(), sim.desired()
    bookie = "c-bookie-3"
    found = garbage.needs(world, desired).proofs
    assert found == {desired.bookie_id(bookie)}
    pod = replace(world.pods[0], name=bookie, ordinal=3)
    four = replace(desired.stateful_sets[0], replicas=4)
    claims = world.claims
    kept = [
        (world, replace(desired, stateful_sets=(four,))),
        (replace(world, pods=(*world.pods, pod)), desired),
        (replace(world, stateful_sets=(replace(world.stateful_sets[0], replicas=4),)), desired),
        (replace(world, claims=tuple(replace(one, instance_id="another") for one in claims)), desired),
        (replace(world, claims=tuple(replace(one, retired_proof="") for one in claims)), desired),
        (replace(world, claims=tuple(replace(one, deleting=True) for one in claims)), desired),
        (
            replace(
                world,
                cluster=replace(world.cluster, status=world.cluster.status.model_copy(update={"instance_id": ""})),
            ),
            desired,
        ),
    ]
    for one, wanted in kept:
        assert garbage.needs(one, wanted).proofs == frozenset()
