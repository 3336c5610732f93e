"""Objects, StatefulSets and pods. Each function may be repeated; see `executor.carrying_out` for how they may end.

Invariant: an object that is not the cluster's own is never applied to, even if it was made since the pass looked.

Threads: one event loop.
"""

from __future__ import annotations

from typing import Final

from bookie_operator.api.errors import Conflict, TooManyRequests
from bookie_operator.api.kinds import (
    CLAIM,
    CLUSTER,
    CONFIG_MAP,
    DEPLOYMENT,
    POD,
    STATEFUL_SET,
    KubernetesObject,
    key_of,
    resource_of,
    resource_of_kind,
)
from bookie_operator.api.kubernetes import Kubernetes
from bookie_operator.builders import beside, common, metadata, naming
from bookie_operator.builders.inputs import record
from bookie_operator.crds import names
from bookie_operator.crds.validation import is_older, is_version
from bookie_operator.executor.execution import Execution, Outdated, Prohibited, RefusedNow
from bookie_operator.planner.actions import (
    AddMember,
    ApplyObjects,
    ApplyTemplate,
    CreateStatefulSet,
    DeleteObject,
    DeletePod,
    DestroyMetadata,
    EvictPod,
    OrphanStatefulSet,
    RecordInputs,
    RemoveMember,
    RestoreTemplate,
    ScaleStatefulSet,
    TellPod,
)
from bookie_operator.world.model import ClusterView

_NEVER_DELETED: Final = frozenset({CLAIM.kind, POD.kind, CLUSTER.kind})


async def apply_own(kubernetes: Kubernetes, cluster: ClusterView, manifest: KubernetesObject) -> None:
    """Apply it, if what has its name is the cluster's own, or nothing has it yet.

    Raises Conflict: it has, or has got meanwhile, another owner.
    """
    metadata = manifest["metadata"]
    live = await kubernetes.find(resource_of(manifest), metadata["namespace"], metadata["name"])
    if live is not None and not common.is_own(live, cluster):
        raise Conflict(f"{key_of(manifest)} is not of {cluster.name}: {common.owner_of(live)}")
    await kubernetes.apply(manifest, force=live is not None)


async def apply_objects(execution: Execution, action: ApplyObjects) -> None:
    for key in action.keys:
        manifest = manifest_of(execution, key)
        beside_them = (execution.desired.autorecovery, execution.desired.gateway)
        keeps = any(each.key == key and each.keeps_template for each in beside_them)
        if keeps or (key in execution.desired.deployments and execution.desired.held):
            manifest = await _as_bookies_are(execution, manifest, keeps)
        await apply_own(execution.kubernetes, execution.cluster, manifest)


async def _as_bookies_are(execution: Execution, newest: KubernetesObject, keeps: bool) -> KubernetesObject:
    live = await execution.kubernetes.find(DEPLOYMENT, execution.namespace, newest["metadata"]["name"])
    files = naming.config(execution.cluster.name, "")
    held = [one for one in execution.world.stateful_sets if one.name in execution.desired.held]
    file = min((name for one in held for name in one.config_maps if name.startswith(files)), default="")
    return beside.as_bookies_are(newest, live, file, keeps=keeps)


def manifest_of(execution: Execution, key: str) -> KubernetesObject:
    """The desired object; the budget as the plan wants it.

    Raises Outdated: it is not desired (any more).
    """
    if key == execution.desired.budget:
        budgets = execution.objects.budgets
        return budgets.get(execution.plan.evictions) or budgets[min(budgets)]
    found = execution.objects.objects.get(key)
    if found is None:
        raise Outdated(f"{key} is not desired")
    return found


async def delete_object(execution: Execution, action: DeleteObject) -> None:
    kind, _, name = action.key.partition("/")
    if kind in _NEVER_DELETED:
        raise Prohibited(f"{action.key} is not a support object")
    await execution.kubernetes.delete(resource_of_kind(kind), execution.namespace, name, uid=action.uid)


async def create_stateful_set(execution: Execution, action: CreateStatefulSet) -> None:
    if await execution.kubernetes.find(STATEFUL_SET, execution.namespace, action.name) is not None:
        raise Outdated(f"StatefulSet {action.name} is there")
    manifest = execution.objects.stateful_set(action.name, action.replicas)
    await apply_own(execution.kubernetes, execution.cluster, manifest)


async def scale_stateful_set(execution: Execution, action: ScaleStatefulSet) -> None:
    await execution.kubernetes.scale(execution.namespace, action.name, action.after, action.resource_version)


async def apply_template(execution: Execution, action: ApplyTemplate) -> None:
    """Replicas and claim templates stay as they are: the ones are scaled, the others cannot be changed."""
    live = await execution.kubernetes.get(STATEFUL_SET, execution.namespace, action.name)
    if live["metadata"]["resourceVersion"] != action.resource_version:
        raise Outdated(f"StatefulSet {action.name} was changed meanwhile")
    manifest = execution.objects.stateful_set(action.name, live["spec"]["replicas"], live)
    metadata = {**manifest["metadata"], "resourceVersion": action.resource_version}
    await execution.kubernetes.apply({**manifest, "metadata": metadata})


async def restore_template(execution: Execution, action: RestoreTemplate) -> None:
    made = execution.objects.stateful_set(action.name, 0)["metadata"]["annotations"][names.TEMPLATE_HASH]
    if made != action.template_hash:
        raise Prohibited(f"StatefulSet {action.name} never had the template {made}: that is a rollout's")
    await apply_template(execution, ApplyTemplate(action.name, action.resource_version))


async def record_inputs(execution: Execution, action: RecordInputs) -> None:
    """Note the inputs, and change nothing else: its template may be another release's."""
    annotations = {names.TEMPLATE_INPUTS: record(action.template_hash, action.inputs_hash)}
    patch = {"metadata": {"annotations": annotations, "resourceVersion": action.resource_version}}
    await execution.kubernetes.merge(STATEFUL_SET, execution.namespace, action.name, patch)


async def orphan_stateful_set(execution: Execution, action: OrphanStatefulSet) -> None:
    await execution.kubernetes.delete(
        STATEFUL_SET, execution.namespace, action.name, uid=action.uid, propagation="Orphan"
    )


async def evict_pod(execution: Execution, action: EvictPod) -> None:
    try:
        await execution.kubernetes.evict(execution.namespace, action.name, action.uid)
    except TooManyRequests as exc:
        raise RefusedNow(f"eviction of {action.name}: {exc.message}") from exc


async def delete_pod(execution: Execution, action: DeletePod) -> None:
    """Delete the pod with the grace of its spec: it is never forced."""
    await execution.kubernetes.delete(POD, execution.namespace, action.name, uid=action.uid)


async def tell_pod(execution: Execution, action: TellPod) -> None:
    patch = {"metadata": {"annotations": {action.annotation: action.text}}}
    await execution.kubernetes.merge_exactly(POD, execution.namespace, action.name, action.uid, patch)


async def remove_member(execution: Execution, action: RemoveMember) -> None:
    await execution.etcd().remove_member(execution.members, action.member)


async def add_member(execution: Execution, action: AddMember) -> None:
    await execution.etcd().add_member(execution.members, action.peer_url)


async def destroy_metadata(execution: Execution, action: DestroyMetadata) -> None:
    """Remove the metadata by the image that the bookies have.

    The operator's own is used if that of the bookies is of an older release, which may not know the options that keep
    it from removing another cluster's metadata.
    """
    job, objects = execution.objects.destroy_job, execution.objects
    found = [
        live
        for one in execution.world.stateful_sets
        if (live := await execution.kubernetes.find(STATEFUL_SET, execution.namespace, one.name)) is not None
    ]
    if found:
        job = metadata.as_bookies_are(job, found[0]["spec"]["template"]["spec"])
    else:
        for manifest in objects.support:
            if manifest["kind"] == CONFIG_MAP.kind:
                await apply_own(execution.kubernetes, execution.cluster, manifest)
    (container,) = job["spec"]["template"]["spec"]["containers"]
    tag = container["image"].rpartition(":")[2]
    version = tag if is_version(tag) else execution.cluster.spec.version
    if objects.own_image and is_older(version, objects.release):
        job = metadata.run_by(job, objects.own_image)
    await apply_own(execution.kubernetes, execution.cluster, job)
