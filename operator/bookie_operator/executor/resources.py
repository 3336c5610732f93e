"""The custom resources themselves: the cluster's finalizer, and tasks.

Threads: one event loop.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

from bookie_operator.api.errors import Forbidden
from bookie_operator.api.kinds import CLUSTER, TASK
from bookie_operator.builders.common import owner_reference
from bookie_operator.crds import names
from bookie_operator.executor.execution import Execution, Outdated
from bookie_operator.planner.actions import RecordState, ReleaseFinalizer, UpdateTask
from bookie_operator.planner.operations import written

_ENDED: Final = {"Done": "Complete", "Failed": "Failed"}


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
            await execution.kubernetes.merge_exactly(TASK, execution.namespace, action.name, action.uid, patch)
    status = _task_status(live, action, written(execution.world.now))
    if status == live.get("status"):
        return
    await execution.kubernetes.apply_status(
        {
            "apiVersion": TASK.api_version,
            "kind": TASK.kind,
            "metadata": {"name": action.name, "namespace": execution.namespace},
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
