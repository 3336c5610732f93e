"""What cannot be taken back: claims and cookies. Every proof is judged once more, right before it is used.

Threads: one event loop.
"""

from __future__ import annotations

import json
from dataclasses import asdict

from bookie_operator.api.admin import AdminAbsent, Endpoint
from bookie_operator.api.kinds import CLAIM
from bookie_operator.crds import names
from bookie_operator.crds.cluster_spec import WhenDeleted
from bookie_operator.executor.execution import Execution, Outdated, Prohibited
from bookie_operator.planner.actions import DeleteClaim, DeleteCookie, ExpandClaim, ModifyClaim, RetireClaim
from bookie_operator.planner.draining import SINCE
from bookie_operator.planner.operations import read_time
from bookie_operator.world.facts import Proof


async def expand_claim(execution: Execution, action: ExpandClaim) -> None:
    patch = {"spec": {"resources": {"requests": {"storage": action.size}}}}
    await execution.kubernetes.merge_exactly(CLAIM, execution.namespace, action.name, action.uid, patch)


async def modify_claim(execution: Execution, action: ModifyClaim) -> None:
    patch = {"spec": {"volumeAttributesClassName": action.attributes_class or None}}
    await execution.kubernetes.merge_exactly(CLAIM, execution.namespace, action.name, action.uid, patch)


async def delete_claim(execution: Execution, action: DeleteClaim) -> None:
    _check(execution, action.proof, _bookie_of_claim(execution, action.name, action.uid), f"claim {action.name}")
    await execution.kubernetes.delete(CLAIM, execution.namespace, action.name, uid=action.uid)


async def retire_claim(execution: Execution, action: RetireClaim) -> None:
    _check(execution, action.proof, _bookie_of_claim(execution, action.name, action.uid), f"claim {action.name}")
    proof = json.dumps(asdict(action.proof), sort_keys=True)
    patch = {"metadata": {"labels": {names.RETIRED: "true"}, "annotations": {names.RETIRED: proof}}}
    await execution.kubernetes.merge_exactly(CLAIM, execution.namespace, action.name, action.uid, patch)


async def delete_cookie(execution: Execution, action: DeleteCookie) -> None:
    """The pod that is asked proves it for itself too."""
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
