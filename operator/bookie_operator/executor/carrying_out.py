"""A function for each action, and the table of all of them.

Those of objects that the cluster consists of are in `workloads`.

Invariants
- One call is one action; nothing is repeated here, and nothing is waited for.
- A precondition that does not hold (a resource version, a UID, something that is gone) is `Outdated`, never an error.

Threads: one event loop.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any, Final

from bookie_operator.api.admin import AdminAbsent, AdminUnknown, Endpoint
from bookie_operator.api.errors import Absent, Conflict, Forbidden
from bookie_operator.api.kinds import CLAIM, CLUSTER, TASK
from bookie_operator.builders.common import owner_reference
from bookie_operator.crds import names
from bookie_operator.crds.cluster_spec import WhenDeleted
from bookie_operator.executor import workloads
from bookie_operator.executor.execution import Execution, Outdated, Prohibited
from bookie_operator.planner import actions
from bookie_operator.planner.actions import (
    AdoptClaim,
    BeginDrain,
    CheckReplicas,
    DeleteClaim,
    DeleteCookie,
    ExpandClaim,
    LookAtReturned,
    ModifyClaim,
    RecordState,
    ReleaseFinalizer,
    RetireClaim,
    SetDynamicConfig,
    SetReadOnly,
    SetRecoveryDelay,
    TriggerAudit,
    UndoDrain,
    UpdateTask,
)
from bookie_operator.planner.draining import SINCE
from bookie_operator.planner.operations import read_time, written
from bookie_operator.world.facts import Proof

_ENDED: Final = {"Done": "Complete", "Failed": "Failed"}


# --- claims and cookies, which cannot be taken back: every proof is judged once more right before it is used ---


async def expand_claim(execution: Execution, action: ExpandClaim) -> None:
    patch = {"spec": {"resources": {"requests": {"storage": action.size}}}}
    await execution.kubernetes.merge_exactly(CLAIM, execution.namespace, action.name, action.uid, patch)


async def modify_claim(execution: Execution, action: ModifyClaim) -> None:
    patch = {"spec": {"volumeAttributesClassName": action.attributes_class or None}}
    await execution.kubernetes.merge_exactly(CLAIM, execution.namespace, action.name, action.uid, patch)


async def adopt_claim(execution: Execution, action: AdoptClaim) -> None:
    """Take over a claim: give it the labels that the StatefulSet gives to claims that it makes."""
    for each in execution.objects.sets:
        for template in each.manifest["spec"]["volumeClaimTemplates"]:
            prefix = f"{template['metadata']['name']}-{each.manifest['metadata']['name']}-"
            if action.name.startswith(prefix) and action.name.removeprefix(prefix).isdigit():
                patch = {"metadata": {"labels": template["metadata"]["labels"], "annotations": {names.ADOPT: None}}}
                await execution.kubernetes.merge_exactly(CLAIM, execution.namespace, action.name, action.uid, patch)
                return
    raise Outdated(f"claim {action.name} is of no StatefulSet")


async def delete_claim(execution: Execution, action: DeleteClaim) -> None:
    _check(execution, action.proof, _bookie_of_claim(execution, action.name, action.uid), f"claim {action.name}")
    await execution.kubernetes.delete(CLAIM, execution.namespace, action.name, uid=action.uid)


async def retire_claim(execution: Execution, action: RetireClaim) -> None:
    _check(execution, action.proof, _bookie_of_claim(execution, action.name, action.uid), f"claim {action.name}")
    proof = json.dumps(asdict(action.proof), sort_keys=True)
    patch = {"metadata": {"labels": {names.RETIRED: "true"}, "annotations": {names.RETIRED: proof}}}
    await execution.kubernetes.merge_exactly(CLAIM, execution.namespace, action.name, action.uid, patch)


async def delete_cookie(execution: Execution, action: DeleteCookie) -> None:
    """Delete a cookie; the pod that is asked proves for itself too that it may."""
    _check(execution, action.proof, action.bookie_id, f"cookie of {action.bookie_id}")

    async def ask(at: Endpoint) -> None:
        try:
            await execution.admin.delete_cookie(at, action.bookie_id, action.accepted_losses)
        except AdminAbsent:
            return

    await execution.ask_speakers(ask)


def _bookie_of_claim(execution: Execution, name: str, uid: str) -> str:
    claim = next((each for each in execution.world.claims if each.name == name and each.uid == uid), None)
    if claim is None:
        raise Outdated(f"claim {name} with UID {uid} is not there")
    return execution.desired.bookie_id(claim.bookie)


def _check(execution: Execution, proof: Proof | None, bookie_id: str, what: str) -> None:
    """Raises Prohibited unless nothing needs the bookie, by a proof of this pass, or the cluster goes with its data."""
    cluster = execution.cluster
    if proof is None:
        confirmed = cluster.annotations.get(names.CONFIRM_DELETE) == cluster.name
        wanted = cluster.spec.storage.retention.when_deleted is WhenDeleted.DELETE
        if not (cluster.deleting and confirmed and wanted):
            raise Prohibited(f"{what}: no proof, and the cluster is not being deleted with its data")
        return
    operation = cluster.status.operation
    since = read_time(operation.saved[SINCE]) if operation is not None and SINCE in operation.saved else 0.0
    if proof.bookie_id != bookie_id or execution.world.proofs.get(bookie_id) != proof:
        raise Prohibited(f"{what}: the proof is not of this pass, or of another bookie")
    if not proof.holds(instance_id=cluster.status.instance_id, drained_since=since):
        raise Prohibited(f"{what}: the proof does not hold: {proof}")


# --- what the cluster's pods are asked over their admin API ---


async def set_read_only(execution: Execution, action: SetReadOnly) -> None:
    await execution.admin.set_read_only(execution.endpoint(action.pod), action.read_only)


async def set_dynamic_config(execution: Execution, action: SetDynamicConfig) -> None:
    await execution.admin.set_config(execution.endpoint(action.pod), action.values)


async def begin_drain(execution: Execution, action: BeginDrain) -> None:
    """Begin the drain by a process that stays: an auto-recovery pod, else another bookie. One that is to be stopped
    has to be."""
    facts = execution.world.facts
    if action.stopped and (facts is None or action.bookie_id in facts.registered):
        raise Outdated(f"{action.bookie_id} is not known to be stopped")
    bookies = {pod.name for pod in execution.world.pods}
    leaving = {pod for pod in bookies if execution.desired.bookie_id(pod) == action.bookie_id}
    speakers = [at for at in execution.tellers if at.pod not in leaving]
    speakers.sort(key=lambda at: at.pod in bookies)

    async def ask(at: Endpoint) -> None:
        await execution.admin.begin_drain(
            at, action.bookie_id, action.accepted_losses, delete_cookie=action.removes_cookie
        )

    await execution.ask_speakers(ask, speakers)


async def undo_drain(execution: Execution, action: UndoDrain) -> None:
    async def ask(at: Endpoint) -> None:
        try:
            await execution.admin.undo_drain(at, action.bookie_id)
        except AdminAbsent:
            return

    await execution.ask_speakers(ask)


async def trigger_audit(execution: Execution, action: TriggerAudit) -> None:
    await execution.ask_speakers(execution.admin.trigger_audit)


async def check_replicas(execution: Execution, action: CheckReplicas) -> None:
    with contextlib.suppress(AdminUnknown):  # by pods of an older release; the daily check finds the same
        await execution.ask_speakers(execution.admin.check_replicas)


async def look_at_returned(execution: Execution, action: LookAtReturned) -> None:
    async def ask(at: Endpoint) -> None:
        await execution.admin.look_at_returned(at, sorted(action.bookie_ids))

    try:
        await execution.ask_speakers(ask)
    except AdminUnknown:
        facts = execution.world.facts
        if facts is not None and facts.unchecked is not None:  # some pod is of this release: it is asked the next time
            raise


async def set_recovery_delay(execution: Execution, action: SetRecoveryDelay) -> None:
    async def ask(at: Endpoint) -> None:
        await execution.admin.set_recovery_delay(at, action.seconds)

    await execution.ask_speakers(ask)


# --- the custom resources: the finalizer of the cluster, and tasks ---


async def release_finalizer(execution: Execution, action: ReleaseFinalizer) -> None:
    cluster = execution.cluster
    live = await execution.kubernetes.get(CLUSTER, cluster.namespace, cluster.name)
    if live["metadata"]["uid"] != cluster.uid or "deletionTimestamp" not in live["metadata"]:
        raise Outdated(f"{cluster.name} is not being deleted")
    kept = [each for each in live["metadata"].get("finalizers") or () if each != names.FINALIZER]
    patch = {"metadata": {"finalizers": kept, "resourceVersion": live["metadata"]["resourceVersion"]}}
    await execution.kubernetes.merge(CLUSTER, cluster.namespace, cluster.name, patch)


async def record_state(execution: Execution, action: RecordState) -> None:
    """The status is written by who carries out the plan."""


async def update_task(execution: Execution, action: UpdateTask) -> None:
    live = await execution.kubernetes.get(TASK, execution.namespace, action.name)
    if live["metadata"]["uid"] != action.uid:
        raise Outdated(f"BookieTask {action.name} is another one")
    owners = live["metadata"].get("ownerReferences") or []
    earlier = action.uid in {each.uid for each in execution.world.outlived_tasks}
    if not earlier and execution.cluster.uid not in {each["uid"] for each in owners}:
        owner = {**owner_reference(execution.cluster), "controller": False, "blockOwnerDeletion": False}
        patch = {"metadata": {"ownerReferences": [*owners, owner]}}
        # Where a Role of an earlier release does not allow it the age of the task has to tell whose it is.
        with contextlib.suppress(Forbidden):
            live = await execution.kubernetes.merge_exactly(TASK, execution.namespace, action.name, action.uid, patch)
    status = _task_status(live, action, written(execution.world.now))
    if status == live.get("status"):
        return
    await execution.kubernetes.apply_status(
        {
            "apiVersion": TASK.api_version,
            "kind": TASK.kind,
            "metadata": {key: live["metadata"][key] for key in ("name", "namespace", "resourceVersion")},
            "status": status,
        }
    )


def _task_status(live: dict[str, Any], action: UpdateTask, now: str) -> dict[str, Any]:
    before = live.get("status") or {}
    status = {"phase": action.phase, "message": action.message, "startedAt": before.get("startedAt") or now}
    if action.phase in _ENDED:
        status["finishedAt"] = before.get("finishedAt") or now
        status["conditions"] = before.get("conditions") or [
            {
                "type": _ENDED[action.phase],
                "status": "True",
                "reason": action.phase,
                "message": action.message,
                "observedGeneration": live["metadata"].get("generation", 0),
                "lastTransitionTime": now,
            }
        ]
    return status


_FUNCTIONS: Final[dict[type[Any], Callable[[Execution, Any], Awaitable[None]]]] = {
    actions.ApplyObjects: workloads.apply_objects,
    actions.DeleteObject: workloads.delete_object,
    actions.CreateStatefulSet: workloads.create_stateful_set,
    actions.ScaleStatefulSet: workloads.scale_stateful_set,
    actions.ApplyTemplate: workloads.apply_template,
    actions.RestoreTemplate: workloads.restore_template,
    actions.RecordInputs: workloads.record_inputs,
    actions.OrphanStatefulSet: workloads.orphan_stateful_set,
    actions.EvictPod: workloads.evict_pod,
    actions.DeletePod: workloads.delete_pod,
    actions.TellPod: workloads.tell_pod,
    actions.RemoveMember: workloads.remove_member,
    actions.AddMember: workloads.add_member,
    actions.DestroyMetadata: workloads.destroy_metadata,
    actions.ExpandClaim: expand_claim,
    actions.ModifyClaim: modify_claim,
    actions.AdoptClaim: adopt_claim,
    actions.DeleteClaim: delete_claim,
    actions.RetireClaim: retire_claim,
    actions.DeleteCookie: delete_cookie,
    actions.SetReadOnly: set_read_only,
    actions.SetDynamicConfig: set_dynamic_config,
    actions.BeginDrain: begin_drain,
    actions.UndoDrain: undo_drain,
    actions.TriggerAudit: trigger_audit,
    actions.CheckReplicas: check_replicas,
    actions.LookAtReturned: look_at_returned,
    actions.SetRecoveryDelay: set_recovery_delay,
    actions.ReleaseFinalizer: release_finalizer,
    actions.RecordState: record_state,
    actions.UpdateTask: update_task,
}


async def carry_out(execution: Execution, action: actions.Action) -> None:
    """Do it.

    Raises Outdated and RefusedNow (look again), `executor.execution.Prohibited` (it must not be done), KubernetesError
    and AdminError (it could not be done, or that is unknown).
    """
    try:
        await _FUNCTIONS[type(action)](execution, action)
    except (Absent, Conflict) as exc:
        raise Outdated(str(exc)) from exc
