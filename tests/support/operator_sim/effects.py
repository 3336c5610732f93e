"""What each action does to the simulation, and whether truth allowed it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from bookie_operator.crds import names
from bookie_operator.planner import actions as a
from bookie_operator.planner import decision as d
from bookie_operator.planner.desired import Desired
from tests.support.operator_sim.bookkeeper import Refused
from tests.support.operator_sim.kubernetes import STOP_SECONDS, Conflict, SimSet
from tests.support.operator_sim.specs import NAME, digest

if TYPE_CHECKING:
    from tests.support.operator_sim.simulation import Simulation

CLEANUP_JOB = f"Job/{NAME}-metadata-destroy"


def carry_out(sim: Simulation, desired: Desired, plan: d.Plan, action: a.Action) -> None:
    """Raises `Conflict` or `Refused` as the services would; the operator looks again then."""
    needs_metadata = (
        a.BeginDrain, a.UndoDrain, a.TriggerAudit, a.CheckReplicas, a.LookAtReturned, a.SetRecoveryDelay,
        a.DeleteCookie, a.SetReadOnly, a.SetDynamicConfig,
    )  # fmt: skip
    if isinstance(action, needs_metadata) and sim.bookkeeper.facts() is None:
        raise Refused("the metadata service does not answer")
    _EFFECTS[type(action)](sim, desired, plan, action)


def _apply(sim: Simulation, desired: Desired, plan: d.Plan, action: a.ApplyObjects) -> None:
    hashes = {**desired.support, **desired.monitoring, desired.metadata_job: desired.metadata_job_hash}
    if desired.budget:
        hashes[desired.budget] = desired.budget_hashes[plan.evictions]
    hashes |= desired.deployments
    for part, wanted in ((sim.autorecovery, desired.autorecovery), (sim.gateway, desired.gateway)):
        if wanted.key not in action.keys:
            continue
        if wanted.keeps_template:
            part.since = part.since or sim.now
            number = wanted.inputs.rpartition("/")[2]
            hashes[wanted.key] = digest("kept", sim.kubernetes.objects[wanted.key][0], number)
            part.inputs = f"{part.inputs.rpartition('/')[0]}/{number}"
        else:
            part.inputs = wanted.inputs
            part.give(sim.spec.image, sim.now)
    for key in action.keys:
        uid = sim.kubernetes.objects[key][1] if key in sim.kubernetes.objects else sim.kubernetes.uid()
        sim.kubernetes.objects[key] = (hashes[key], uid)
        if key == desired.metadata_job:
            sim.job_ends_at = sim.now + 3


def _delete_object(sim: Simulation, desired: Desired, plan: d.Plan, action: a.DeleteObject) -> None:
    if sim.kubernetes.objects.get(action.key, ("", ""))[1] != action.uid:
        raise Conflict(action.key)
    del sim.kubernetes.objects[action.key]
    for name, part in (("autorecovery", sim.autorecovery), ("gateway", sim.gateway)):
        if action.key == f"Deployment/{NAME}-{name}":
            part.since = None
            part.gone_at = sim.now + STOP_SECONDS
    if action.key == desired.metadata_job:
        sim.job_ends_at = None
    if action.key == CLEANUP_JOB:
        sim.cleanup_ends_at = None
    if action.key.startswith("ConfigMap/"):
        name = action.key.partition("/")[2]
        if any(name in pod.config_maps for pod in sim.kubernetes.pods.values()):
            sim.accidents.append(f"{action.key} was deleted while a pod uses it")


def _create_set(sim: Simulation, desired: Desired, plan: d.Plan, action: a.CreateStatefulSet) -> None:
    if action.name in sim.kubernetes.sets:
        raise Conflict(action.name)
    (wanted,) = [one for one in desired.stateful_sets if one.name == action.name]
    sim.kubernetes.sets[action.name] = SimSet(
        action.name,
        wanted.zone,
        sim.kubernetes.uid(),
        action.replicas,
        wanted.template_hash,
        sim.spec.image,
        config_maps_of(desired),
        dict(wanted.volume_sizes),
        wanted.inputs_hash,
        sim.annotations.get(names.RESTART, ""),
        volume_attributes=dict(wanted.volume_attributes or {}),
        volume_classes=dict(wanted.volume_classes),
        changed_at=sim.now,
    )


def config_maps_of(desired: Desired) -> frozenset[str]:
    return frozenset(key.partition("/")[2] for key in desired.support if key.startswith("ConfigMap/"))


def _scale(sim: Simulation, desired: Desired, plan: d.Plan, action: a.ScaleStatefulSet) -> None:
    found = sim.kubernetes.the_set(action.name, action.resource_version)
    if found.replicas != action.before:
        raise Conflict(action.name)
    for ordinal in range(action.after, action.before):
        if sim.deleting:
            sim.judge_deletion(f"bookie {action.name}-{ordinal} was stopped")
        else:
            sim.judge(f"{action.name}-{ordinal}", "was scaled away")
    found.replicas = action.after
    found.touch(sim.now)


def _template(sim: Simulation, desired: Desired, plan: d.Plan, action: a.ApplyTemplate) -> None:
    found = sim.kubernetes.the_set(action.name, action.resource_version)
    (wanted,) = [one for one in desired.stateful_sets if one.name == action.name]
    found.template_hash, found.image = wanted.template_hash, sim.spec.image
    found.config_maps = config_maps_of(desired)
    found.inputs_hash, found.restart = wanted.inputs_hash, sim.annotations.get(names.RESTART, "")
    found.touch(sim.now)


def _restore(sim: Simulation, desired: Desired, plan: d.Plan, action: a.RestoreTemplate) -> None:
    found = sim.kubernetes.the_set(action.name, action.resource_version)
    if found.template_hash != action.template_hash:
        sim.accidents.append(f"{action.name} was given back a template that it did not have")
    found.touch(sim.now)


def _inputs(sim: Simulation, desired: Desired, plan: d.Plan, action: a.RecordInputs) -> None:
    found = sim.kubernetes.the_set(action.name, action.resource_version)
    if found.template_hash != action.template_hash:
        sim.accidents.append(f"the inputs of {action.name} were recorded for a template that it does not have")
    found.inputs_hash = action.inputs_hash
    found.resource_version += 1


def _orphan(sim: Simulation, desired: Desired, plan: d.Plan, action: a.OrphanStatefulSet) -> None:
    found = sim.kubernetes.sets.get(action.name)
    if found is None or found.uid != action.uid:
        raise Conflict(action.name)
    del sim.kubernetes.sets[action.name]
    for pod in sim.kubernetes.pods.values():
        if pod.stateful_set == action.name:
            pod.owner_uid = ""


def _expand(sim: Simulation, desired: Desired, plan: d.Plan, action: a.ExpandClaim) -> None:
    claim = sim.kubernetes.the_claim(action.name, action.uid)
    if claim.foreign:
        sim.accidents.append(f"claim {claim.name} of another owner was changed")
    claim.requested = action.size


def _modify(sim: Simulation, desired: Desired, plan: d.Plan, action: a.ModifyClaim) -> None:
    claim = sim.kubernetes.the_claim(action.name, action.uid)
    if not action.attributes_class and claim.current_attributes:
        raise Refused(f"{action.name}: update to nil is forbidden")
    claim.attributes = action.attributes_class


def _adopt_claim(sim: Simulation, desired: Desired, plan: d.Plan, action: a.AdoptClaim) -> None:
    claim = sim.kubernetes.the_claim(action.name, action.uid)
    if not claim.adoption:
        sim.accidents.append(f"claim {claim.name} was taken over, and nobody asked for it")
    claim.foreign = claim.adoption = False


def _delete_claim(sim: Simulation, desired: Desired, plan: d.Plan, action: a.DeleteClaim) -> None:
    claim = sim.kubernetes.the_claim(action.name, action.uid)
    if claim.foreign:
        sim.accidents.append(f"claim {claim.name} of another owner was deleted")
    if sim.deleting:
        sim.judge_deletion(f"claim {claim.name} was deleted")
    else:
        sim.judge(claim.bookie, f"lost claim {claim.name}")
        sim.judge_replacement(claim.bookie)
    claim.deleting = True


def _retire(sim: Simulation, desired: Desired, plan: d.Plan, action: a.RetireClaim) -> None:
    sim.kubernetes.the_claim(action.name, action.uid).retired_proof = f"{action.proof.ledgers} ledgers"


def _evict(sim: Simulation, desired: Desired, plan: d.Plan, action: a.EvictPod) -> None:
    pod = sim.kubernetes.the_pod(action.name, action.uid)
    if not sim.evictable(pod):
        raise Refused("the disruption budget does not allow it")
    sim.kubernetes.stop_pod(pod)


def _delete_pod(sim: Simulation, desired: Desired, plan: d.Plan, action: a.DeletePod) -> None:
    pod = sim.kubernetes.the_pod(action.name, action.uid)
    if sim.deleting:
        sim.judge_deletion(f"bookie {pod.name} was stopped")
    sim.kubernetes.stop_pod(pod)


def _read_only(sim: Simulation, desired: Desired, plan: d.Plan, action: a.SetReadOnly) -> None:
    bookie_id = desired.bookie_id(action.pod)
    if bookie_id not in sim.bookkeeper.running:
        raise Refused(f"{action.pod} does not answer")
    if action.read_only:
        sim.bookkeeper.read_only.add(bookie_id)
    else:
        sim.bookkeeper.read_only.discard(bookie_id)


def _begin_drain(sim: Simulation, desired: Desired, plan: d.Plan, action: a.BeginDrain) -> None:
    sim.bookkeeper.begin_drain(action.bookie_id, action.stopped, action.accepted_losses, action.removes_cookie)


def _undo_drain(sim: Simulation, desired: Desired, plan: d.Plan, action: a.UndoDrain) -> None:
    sim.bookkeeper.undo_drain(action.bookie_id)


def _audit(sim: Simulation, desired: Desired, plan: d.Plan, action: a.TriggerAudit) -> None:
    sim.bookkeeper.trigger_audit()


def _check_replicas(sim: Simulation, desired: Desired, plan: d.Plan, action: a.CheckReplicas) -> None:
    sim.bookkeeper.replica_checks += 1


def _look_at_returned(sim: Simulation, desired: Desired, plan: d.Plan, action: a.LookAtReturned) -> None:
    sim.bookkeeper.unchecked |= action.bookie_ids


def _delay(sim: Simulation, desired: Desired, plan: d.Plan, action: a.SetRecoveryDelay) -> None:
    sim.bookkeeper.recovery_delay = action.seconds


def _delete_cookie(sim: Simulation, desired: Desired, plan: d.Plan, action: a.DeleteCookie) -> None:
    if sim.bookkeeper.proof(action.bookie_id) is None:
        raise Refused("the metadata service does not answer")
    named = set(sim.bookkeeper.naming(action.bookie_id)) - set(action.accepted_losses)
    if named or action.bookie_id in sim.bookkeeper.running:
        sim.accidents.append(f"the cookie of {action.bookie_id} went while {sorted(named)} named it")
    sim.bookkeeper.cookies.pop(action.bookie_id, None)


def _configure(sim: Simulation, desired: Desired, plan: d.Plan, action: a.SetDynamicConfig) -> None:
    sim.kubernetes.pods[action.pod].config.update(action.values)


def _destroy(sim: Simulation, desired: Desired, plan: d.Plan, action: a.DestroyMetadata) -> None:
    sim.cleanup_ends_at, sim.cleanup = sim.now + 3, ""
    sim.kubernetes.objects[CLEANUP_JOB] = ("", sim.kubernetes.uid())


def _release(sim: Simulation, desired: Desired, plan: d.Plan, action: a.ReleaseFinalizer) -> None:
    sim.finalizer = False


def _task(sim: Simulation, desired: Desired, plan: d.Plan, action: a.UpdateTask) -> None:
    sim.update_task(action)


def _nothing(sim: Simulation, desired: Desired, plan: d.Plan, action: a.RecordState) -> None:
    return


_EFFECTS: dict[type, Callable[[Any, Desired, d.Plan, Any], None]] = {
    a.ApplyObjects: _apply,
    a.DeleteObject: _delete_object,
    a.CreateStatefulSet: _create_set,
    a.ScaleStatefulSet: _scale,
    a.ApplyTemplate: _template,
    a.RestoreTemplate: _restore,
    a.RecordInputs: _inputs,
    a.OrphanStatefulSet: _orphan,
    a.ExpandClaim: _expand,
    a.ModifyClaim: _modify,
    a.AdoptClaim: _adopt_claim,
    a.DeleteClaim: _delete_claim,
    a.RetireClaim: _retire,
    a.EvictPod: _evict,
    a.DeletePod: _delete_pod,
    a.SetReadOnly: _read_only,
    a.BeginDrain: _begin_drain,
    a.UndoDrain: _undo_drain,
    a.TriggerAudit: _audit,
    a.CheckReplicas: _check_replicas,
    a.LookAtReturned: _look_at_returned,
    a.SetRecoveryDelay: _delay,
    a.DeleteCookie: _delete_cookie,
    a.SetDynamicConfig: _configure,
    a.DestroyMetadata: _destroy,
    a.ReleaseFinalizer: _release,
    a.UpdateTask: _task,
    a.RecordState: _nothing,
}
