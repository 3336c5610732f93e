"""From an action to the function that carries it out.

Invariants
- One call is one action; nothing is repeated here, and nothing is waited for.
- A precondition that does not hold (a resource version, a UID, something that is gone) is `Outdated`, never an error.

Threads: one event loop.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from bookie_operator.api.errors import Absent, Conflict
from bookie_operator.executor import removals, requests, resources, workloads
from bookie_operator.executor.execution import Execution, Outdated
from bookie_operator.planner import actions

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
    actions.DestroyMetadata: workloads.destroy_metadata,
    actions.ExpandClaim: removals.expand_claim,
    actions.ModifyClaim: removals.modify_claim,
    actions.DeleteClaim: removals.delete_claim,
    actions.RetireClaim: removals.retire_claim,
    actions.DeleteCookie: removals.delete_cookie,
    actions.SetReadOnly: requests.set_read_only,
    actions.SetDynamicConfig: requests.set_dynamic_config,
    actions.BeginDrain: requests.begin_drain,
    actions.UndoDrain: requests.undo_drain,
    actions.TriggerAudit: requests.trigger_audit,
    actions.SetRecoveryDelay: requests.set_recovery_delay,
    actions.ReleaseFinalizer: resources.release_finalizer,
    actions.RecordState: resources.record_state,
    actions.UpdateTask: resources.update_task,
}


async def carry_out(execution: Execution, action: actions.Action) -> None:
    """Do it.

    Raises Outdated and RefusedNow (look again), `executor.execution.Prohibited` (it must not be done), KubernetesError
    and AdminError (it could not be done, or nobody knows).
    """
    try:
        await _FUNCTIONS[type(action)](execution, action)
    except (Absent, Conflict) as exc:
        raise Outdated(str(exc)) from exc
