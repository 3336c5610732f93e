"""What the operator would observe of the simulation."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

from bookie_operator.planner.decision import Needs
from bookie_operator.planner.desired import Desired
from bookie_operator.world.facts import BookieFacts
from bookie_operator.world.model import (
    AttributesView,
    ClaimView,
    DeploymentView,
    NodeView,
    PodFault,
    PodView,
    StatefulSetView,
    World,
)

if TYPE_CHECKING:
    from tests.support.operator_sim.kubernetes import SimClaim, SimDeployment, SimPod, SimSet
    from tests.support.operator_sim.simulation import Simulation

DISK: int = 10_000_000
"""Bytes of a ledger volume of 10Gi."""
REFUSED: str = "pods is forbidden: exceeded quota: bookies, requested: pods=1"


def world_of(sim: Simulation, desired: Desired) -> World:
    """Without answers to what a pass has to ask for."""
    kube, keeper = sim.kubernetes, sim.bookkeeper
    identity = "Secret/c-identity" in kube.objects
    job = "" if sim.job_ends_at is None else "Running" if sim.now < sim.job_ends_at else "Complete"
    if job == "Complete" and not keeper.instance_id:
        job = "Running"
    cleanup = "" if sim.cleanup_ends_at is None else sim.cleanup or "Running"
    facts = keeper.facts()
    named = Counter(chain.from_iterable(one.ensemble for one in keeper.ledgers.values()))
    return World(
        now=sim.now,
        cluster=sim.view(),
        stateful_sets=tuple(_set(one) for _, one in sorted(kube.sets.items())),
        pods=tuple(_pod(sim, one) for _, one in sorted(kube.pods.items())),
        claims=tuple(_claim(one) for _, one in sorted(kube.claims.items())),
        object_hashes={key: digest for key, (digest, _) in kube.objects.items()},
        object_uids={key: uid for key, (_, uid) in kube.objects.items()},
        refused={f"StatefulSet/{one.name}": REFUSED for one in kube.sets.values() if kube.is_refused(one)},
        metadata_job=job,
        metadata_instance_id=keeper.instance_id if job == "Complete" else "",
        cleanup_job=cleanup,
        cleanup_job_finished_at=sim.cleanup_ends_at if cleanup in ("Complete", "Failed") else None,
        identity={"instanceId": sim.kept_instance_id, "replicas": str(sim.kept_replicas)} if identity else None,
        expandable={one.storage_class: kube.expandable for one in kube.claims.values()},
        nodes={pod.node: _node(sim, pod.node) for pod in kube.pods.values()},
        facts=facts,
        facts_error="" if facts is not None else "nobody answers",
        bookies={name: _facts(sim, desired.bookie_id(name), pod, named) for name, pod in kube.pods.items()},
        tasks=tuple(one for one in sim.tasks if one.phase in ("", "Running")),
        spec_errors=sim.spec_errors,
        autorecovery=_deployment(sim, sim.autorecovery, sim.spec.autorecovery.replicas),
        gateway=_deployment(sim, sim.gateway, sim.spec.gateway.replicas),
    )


def answered(sim: Simulation, world: World, needs: Needs) -> World:
    """The same moment's, with answers to what a pass needs."""
    keeper = sim.bookkeeper
    return replace(
        world,
        proofs={one: keeper.proof(one, needs.accepted_losses) for one in needs.proofs},
        drains={one: keeper.drain_facts(one) for one in needs.drains},
        outlooks={one: keeper.outlook(one) for one in needs.outlooks},
        safety={one: keeper.safety(one) for one in needs.safety},
    )


def _deployment(sim: Simulation, one: SimDeployment, replicas: int) -> DeploymentView:
    if one.since is None:
        return DeploymentView(pods=replicas if sim.now < one.gone_at else 0)
    return DeploymentView(one.inputs, replicas if one.up(sim.now) else 0, replicas, replicas)


def _node(sim: Simulation, name: str) -> NodeView:
    kube = sim.kubernetes
    return NodeView(name, name not in kube.lost_nodes, name in kube.out_of_service, name in kube.cordoned)


def _set(one: SimSet) -> StatefulSetView:
    return StatefulSetView(
        name=one.name,
        zone=one.zone,
        uid=one.uid,
        resource_version=str(one.resource_version),
        replicas=one.replicas,
        generation=one.generation,
        observed_generation=one.observed_generation,
        template_hash=one.template_hash,
        volume_sizes=dict(one.volume_sizes),
        config_maps=one.config_maps,
        inputs_hash=one.inputs_hash,
        restart=one.restart,
        volume_attributes=dict(one.volume_attributes),
        volume_classes=dict(one.volume_classes),
    )


def _pod(sim: Simulation, pod: SimPod) -> PodView:
    is_ready = pod.ready_since is not None and not sim.kubernetes.unready
    return PodView(
        name=pod.name,
        uid=pod.uid,
        stateful_set=pod.stateful_set,
        ordinal=pod.ordinal,
        zone=sim.zone_of(pod.stateful_set),
        node="" if pod.fault is PodFault.UNSCHEDULABLE and pod.gone_at is None else pod.node,
        ready=pod.running and is_ready and pod.gone_at is None,
        running=pod.running,
        bookie_runs=pod.running,
        deleting=pod.gone_at is not None,
        template_hash=pod.template_hash,
        fault=pod.fault,
        fault_message=pod.fault.value,
        kept_by_cordon=pod.fault is PodFault.UNSCHEDULABLE and pod.node in sim.kubernetes.cordoned,
        created_at=pod.created_at,
        ready_since=pod.ready_since if is_ready else None,
        owner_uid=pod.owner_uid,
        config_maps=pod.config_maps,
    )


def _claim(one: SimClaim) -> ClaimView:
    return ClaimView(
        name=one.name,
        uid=one.uid,
        bookie=one.bookie,
        ordinal=int(one.bookie.rpartition("-")[2]),
        volume=one.volume,
        requested=one.requested,
        actual=one.actual,
        lost=one.lost,
        bound=not one.lost,
        deleting=one.deleting,
        deleting_since=0.0 if one.deleting else None,
        finalizers=(one.kept_by,) if one.kept_by else (),
        instance_id="" if one.foreign else one.instance_id,
        foreign=one.foreign,
        adoption=one.adoption,
        retired=bool(one.retired_proof),
        retired_proof=one.retired_proof,
        storage_class=one.storage_class,
        resize=one.resize,
        resize_since=one.resized_at,
        attributes=AttributesView(one.attributes, one.current_attributes, one.modify),
    )


def _facts(sim: Simulation, bookie_id: str, pod: SimPod, named: Counter[str]) -> BookieFacts | None:
    """`named`: by how many ledgers each bookie is."""
    if sim.bookkeeper.silent or bookie_id not in sim.bookkeeper.running or pod.name in sim.kubernetes.silent:
        return None
    used = 1000 * named[bookie_id]
    sizes = [one.actual for one in sim.kubernetes.claims_of(pod.name) if one.volume == "ledger"]
    disk = DISK * int(sizes[0].removesuffix("Gi")) // 10 if sizes else DISK
    read_only = bookie_id in sim.bookkeeper.read_only
    if not sim.kubernetes.shared_disks:
        return BookieFacts(read_only, used, disk, 100 * used / disk, pod.config)
    all_used = 1000 * named.total()
    return BookieFacts(read_only, all_used, disk, 100 * all_used / disk, pod.config, used, frozenset({"node/1"}))
