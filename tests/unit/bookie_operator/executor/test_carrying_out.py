"""Actions that may not be taken back, and preconditions that do not hold."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, get_args

import pytest

from bookie_operator.api.admin import Admin, AdminRefused, AdminUnknown
from bookie_operator.api.kinds import CLAIM, CLUSTER, POD, STATEFUL_SET, TASK
from bookie_operator.builders.build import build
from bookie_operator.crds import names
from bookie_operator.crds.cluster_status import Operation, OperationType
from bookie_operator.executor.carrying_out import _FUNCTIONS, carry_out
from bookie_operator.executor.execution import Execution, Outdated, Prohibited, RefusedNow
from bookie_operator.observe.observing import observe
from bookie_operator.observe.others import cluster_view
from bookie_operator.observe.sources import Sources
from bookie_operator.planner import actions
from bookie_operator.planner.decision import Plan, Rest
from bookie_operator.planner.draining import SINCE
from bookie_operator.planner.operations import written
from bookie_operator.world.facts import Proof
from tests.support.fake_kubernetes.cluster import NAMESPACE, FakeCluster, settled_cluster


@asynccontextmanager
async def ready_execution() -> AsyncIterator[tuple[FakeCluster, Execution]]:
    """Of three bookies at rest, of which the last is stopped and needed by nobody."""
    async with settled_cluster(replicas=3) as fake:
        fake.bookkeeper.stop(fake.bookie_id("demo-bookie-2"))
        fake.bookkeeper.audit()
        yield fake, await execution_of(fake)


async def execution_of(fake: FakeCluster) -> Execution:
    context = fake.operators[0]
    cluster = cluster_view(fake.resource)
    objects = build(cluster, await context.building())
    admin = Admin(context.session, trust=fake.trust(), now=context.now)
    sources = Sources(context.kubernetes, admin, admin_port=context.settings.admin_port)
    desired = objects.desired()
    observed = await observe(sources, cluster, desired, identity="demo-identity", now=fake.time)
    bookie = fake.bookie_id("demo-bookie-2")
    proof = Proof(bookie, 0, 0, False, "auditor", fake.time, cluster.uid)
    world = replace(observed.world, proofs={bookie: proof})
    return Execution(
        context.kubernetes, admin, world, observed.endpoints, observed.tellers, objects, desired, Plan(Rest())
    )


def claim_of(execution: Execution, pod: str = "demo-bookie-2") -> Any:
    return next(claim for claim in execution.world.claims if claim.bookie == pod)


def proof_of(execution: Execution) -> Proof:
    (proof,) = execution.world.proofs.values()
    assert proof is not None
    return proof


def test_every_action_has_a_function() -> None:
    assert set(_FUNCTIONS) == set(get_args(actions.Action))


async def test_inputs_are_written_down_for_the_stateful_set_that_was_seen_and_nothing_else_of_it_changes() -> None:
    async with ready_execution() as (fake, execution):
        (seen,) = execution.world.stateful_sets
        before = fake.store.get(STATEFUL_SET, NAMESPACE, seen.name)
        await carry_out(execution, actions.RecordInputs(seen.name, seen.resource_version, seen.template_hash, "new"))
        after = fake.store.get(STATEFUL_SET, NAMESPACE, seen.name)
        assert after["metadata"]["annotations"][names.TEMPLATE_INPUTS] == f"{seen.template_hash}/new"
        assert after["spec"] == before["spec"]
        assert after["metadata"]["generation"] == before["metadata"]["generation"]
        with pytest.raises(Outdated):
            await carry_out(execution, actions.RecordInputs(seen.name, seen.resource_version, "t", "newer"))
        assert fake.store.get(STATEFUL_SET, NAMESPACE, seen.name) == after


async def test_with_a_proof_claim_and_cookie_go() -> None:
    async with ready_execution() as (fake, execution):
        claim, proof = claim_of(execution), proof_of(execution)
        await carry_out(execution, actions.RetireClaim(claim.name, claim.uid, proof))
        retired = fake.store.get(CLAIM, NAMESPACE, claim.name)["metadata"]
        assert retired["labels"][names.RETIRED] == "true"
        assert fake.status["instanceId"] in retired["annotations"][names.RETIRED]
        await carry_out(execution, actions.DeleteClaim(claim.name, claim.uid, proof))
        assert "deletionTimestamp" in fake.store.get(CLAIM, NAMESPACE, claim.name)["metadata"]
        await carry_out(execution, actions.DeleteCookie(proof.bookie_id, proof))
        await carry_out(execution, actions.DeleteCookie(proof.bookie_id, proof))
        assert fake.bookkeeper.deleted_cookies == [proof.bookie_id]


@pytest.mark.parametrize(
    "change",
    [
        {"ledgers": 1},
        {"marks": 1},
        {"registered": True},
        {"auditor": None},
        {"last_audit": None},
        {"instance_id": "another"},
        {"instance_id": ""},
        {"bookie_id": "other:3181"},
    ],
)
async def test_a_proof_that_does_not_hold_deletes_nothing(change: dict[str, Any]) -> None:
    async with ready_execution() as (fake, execution):
        proof = replace(proof_of(execution), **change)
        world = replace(execution.world, proofs={proof.bookie_id: proof})
        broken = replace(execution, world=world)
        claim = claim_of(execution)
        for action in (
            actions.DeleteClaim(claim.name, claim.uid, proof),
            actions.RetireClaim(claim.name, claim.uid, proof),
            actions.DeleteCookie(proof_of(execution).bookie_id, proof),
        ):
            with pytest.raises(Prohibited):
                await carry_out(broken, action)
        assert "deletionTimestamp" not in fake.store.get(CLAIM, NAMESPACE, claim.name)["metadata"]
        assert fake.bookkeeper.deleted_cookies == []


async def test_a_proof_of_another_pass_or_older_than_the_drain_deletes_nothing() -> None:
    async with ready_execution() as (fake, execution):
        claim, proof = claim_of(execution), proof_of(execution)
        action = actions.DeleteClaim(claim.name, claim.uid, proof)
        with pytest.raises(Prohibited, match="pass"):
            await carry_out(replace(execution, world=replace(execution.world, proofs={})), action)
        operation = Operation(
            id="Decommission-1", type=OperationType.DECOMMISSION, step="Claims", saved={SINCE: written(fake.time + 1)}
        )
        status = execution.cluster.status.model_copy(update={"operation": operation})
        later = replace(execution.world, cluster=replace(execution.cluster, status=status))
        with pytest.raises(Prohibited, match="hold"):
            await carry_out(replace(execution, world=later), action)


async def test_without_a_proof_data_go_only_with_a_confirmed_cluster() -> None:
    async with ready_execution() as (fake, execution):
        claim = claim_of(execution)
        action = actions.DeleteClaim(claim.name, claim.uid, None)
        deleting = replace(execution.cluster, deleting=True, annotations={names.CONFIRM_DELETE: "demo"})
        for cluster in (execution.cluster, deleting):  # the second one retains by its spec
            with pytest.raises(Prohibited, match="no proof"):
                await carry_out(replace(execution, world=replace(execution.world, cluster=cluster)), action)
        assert "deletionTimestamp" not in fake.store.get(CLAIM, NAMESPACE, claim.name)["metadata"]


async def test_claims_and_pods_are_no_support_objects() -> None:
    async with ready_execution() as (_, execution):
        for key in ("PersistentVolumeClaim/x", "Pod/x", "BookieCluster/demo"):
            with pytest.raises(Prohibited):
                await carry_out(execution, actions.DeleteObject(key, "u"))


async def test_what_has_changed_meanwhile_is_outdated() -> None:
    async with ready_execution() as (fake, execution):
        live = fake.store.get(STATEFUL_SET, NAMESPACE, "demo-bookie")["metadata"]["resourceVersion"]
        claim = claim_of(execution)
        for action in (
            actions.ScaleStatefulSet("demo-bookie", "1", 3, 4),
            actions.ApplyTemplate("demo-bookie", "1"),
            actions.CreateStatefulSet("demo-bookie", 3),
            actions.OrphanStatefulSet("demo-bookie", "another"),
            actions.DeletePod("demo-bookie-0", "another"),
            actions.EvictPod("gone", "u"),
            actions.ExpandClaim(claim.name, "another", "1Ti"),
            actions.ModifyClaim(claim.name, "another", "gold"),
            actions.DeleteClaim("gone", "u", proof_of(execution)),
            actions.SetReadOnly("gone", True),
            actions.ApplyObjects(("Service/unknown",)),
            actions.UpdateTask("gone", "u", "Done"),
            actions.ReleaseFinalizer(),
            actions.BeginDrain(fake.bookie_id("demo-bookie-0"), stopped=True),
        ):
            with pytest.raises(Outdated):
                await carry_out(execution, action)
        assert fake.store.get(STATEFUL_SET, NAMESPACE, "demo-bookie")["metadata"]["resourceVersion"] == live
        assert names.FINALIZER in fake.store.get(CLUSTER, NAMESPACE, "demo")["metadata"]["finalizers"]


async def test_what_became_of_a_task_is_not_written_to_another_one_of_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ready_execution() as (fake, execution):
        owner = {"kind": "BookieCluster", "name": "demo", "uid": execution.cluster.uid}
        body = {"metadata": {"name": "roll", "ownerReferences": [owner]}, "spec": {"type": "Restart"}}
        first, look = fake.store.create(TASK, NAMESPACE, body)["metadata"]["uid"], execution.kubernetes.get

        async def replaced_then(*which: Any) -> Any:
            found = await look(*which)
            fake.store.delete(TASK, NAMESPACE, "roll", first)
            fake.store.create(TASK, NAMESPACE, body)
            return found

        monkeypatch.setattr(execution.kubernetes, "get", replaced_then)
        with pytest.raises(Outdated):
            await carry_out(execution, actions.UpdateTask("roll", first, "Done"))
        assert "status" not in fake.store.get(TASK, NAMESPACE, "roll")


async def test_a_claim_asks_for_another_class_and_for_none() -> None:
    async with ready_execution() as (fake, execution):
        claim = claim_of(execution)
        for name in ("gold", "silver", ""):
            await carry_out(execution, actions.ModifyClaim(claim.name, claim.uid, name))
            live = fake.store.get(CLAIM, NAMESPACE, claim.name)["spec"]
            assert live.get("volumeAttributesClassName", "") == name
            assert live["resources"]["requests"]["storage"] == claim.requested
        assert "volumeAttributesClassName" not in live


async def test_an_eviction_that_the_budget_forbids_is_tried_again() -> None:
    async with ready_execution() as (fake, execution):
        uid = fake.uids()["demo-bookie-0"]
        fake.controllers.stuck["demo-bookie-1"] = {"waiting": {"reason": "CrashLoopBackOff"}}
        fake.store.delete(POD, NAMESPACE, "demo-bookie-1")
        with pytest.raises(RefusedNow):
            await carry_out(execution, actions.EvictPod("demo-bookie-0", uid))
        assert fake.uids()["demo-bookie-0"] == uid


async def test_a_template_is_given_without_touching_replicas_and_claims() -> None:
    async with ready_execution() as (fake, _):
        before = fake.store.get(STATEFUL_SET, NAMESPACE, "demo-bookie")
        fake.apply(replicas=5, version="0.1.1", storage={"journal": {"size": "10Gi"}, "ledger": {"size": "1Ti"}})
        newer = await execution_of(fake)
        await carry_out(newer, actions.ApplyTemplate("demo-bookie", before["metadata"]["resourceVersion"]))
        after = fake.store.get(STATEFUL_SET, NAMESPACE, "demo-bookie")
        assert after["spec"]["replicas"] == 3
        assert after["spec"]["volumeClaimTemplates"] == before["spec"]["volumeClaimTemplates"]
        assert after["spec"]["template"]["spec"]["containers"][0]["image"] == "podkeeper:0.1.1"


async def test_a_drain_is_the_work_of_who_stays() -> None:
    async with ready_execution() as (fake, execution):
        asked: list[str] = []
        begin = execution.admin.begin_drain

        async def spy(at: Any, bookie_id: str, losses: Any = (), *, delete_cookie: bool = False) -> None:
            asked.append(at.pod)
            await begin(at, bookie_id, losses, delete_cookie=delete_cookie)

        execution.admin.begin_drain = spy  # type: ignore[method-assign]
        fake.bookkeeper.start(fake.bookie_id("demo-bookie-2"))
        await carry_out(execution, actions.BeginDrain(fake.bookie_id("demo-bookie-2"), stopped=False))
        assert "autorecovery" in asked[0]
        fake.bookkeeper.ledgers[1] = {fake.bookie_id(f"demo-bookie-{each}") for each in range(3)}
        with pytest.raises(AdminRefused):
            await carry_out(execution, actions.BeginDrain(fake.bookie_id("demo-bookie-0"), stopped=False))
        await carry_out(execution, actions.UndoDrain(fake.bookie_id("demo-bookie-2")))
        await carry_out(execution, actions.UndoDrain(fake.bookie_id("demo-bookie-2")))
        assert fake.bookie_id("demo-bookie-2") in fake.bookkeeper.writable
        await carry_out(execution, actions.LookAtReturned(frozenset({fake.bookie_id("demo-bookie-1")})))
        assert fake.bookkeeper.returned == [fake.bookie_id("demo-bookie-1")]


@pytest.mark.parametrize(
    ("answer", "tells", "raised"),
    [
        (AdminUnknown("no such path"), False, None),
        (AdminUnknown("no such path"), True, AdminUnknown),
        (AdminRefused("changed by others 10 times"), False, AdminRefused),
        (AdminRefused("5001 bookies wait"), True, AdminRefused),
    ],
)
async def test_a_look_that_was_refused_is_not_taken_for_one(
    answer: AdminRefused, tells: bool, raised: type[Exception] | None
) -> None:
    async with ready_execution() as (fake, execution):

        async def refuse(at: Any, bookies: Any) -> None:
            raise answer

        execution.admin.look_at_returned = refuse  # type: ignore[method-assign]
        facts = execution.world.facts
        assert facts is not None
        known = replace(facts, unchecked=frozenset() if tells else None)
        execution = replace(execution, world=replace(execution.world, facts=known))
        look = actions.LookAtReturned(frozenset({fake.bookie_id("demo-bookie-1")}))
        with pytest.raises(raised) if raised is not None else contextlib.nullcontext():
            await carry_out(execution, look)
