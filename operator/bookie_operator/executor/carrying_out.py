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
from bookie_operator.planner import decision

_FUNCTIONS: Final[dict[type[Any], Callable[[Execution, Any], Awaitable[None]]]] = {
    decision.ApplyObjects: workloads.apply_objects,
    decision.DeleteObject: workloads.delete_object,
    decision.CreateStatefulSet: workloads.create_stateful_set,
    decision.ScaleStatefulSet: workloads.scale_stateful_set,
    decision.ApplyTemplate: workloads.apply_template,
    decision.OrphanStatefulSet: workloads.orphan_stateful_set,
    decision.EvictPod: workloads.evict_pod,
    decision.DeletePod: workloads.delete_pod,
    decision.DestroyMetadata: workloads.destroy_metadata,
    decision.ExpandClaim: removals.expand_claim,
    decision.DeleteClaim: removals.delete_claim,
    decision.RetireClaim: removals.retire_claim,
    decision.DeleteCookie: removals.delete_cookie,
    decision.SetReadOnly: requests.set_read_only,
    decision.SetDynamicConfig: requests.set_dynamic_config,
    decision.BeginDrain: requests.begin_drain,
    decision.UndoDrain: requests.undo_drain,
    decision.TriggerAudit: requests.trigger_audit,
    decision.SetRecoveryDelay: requests.set_recovery_delay,
    decision.ReleaseFinalizer: resources.release_finalizer,
    decision.RecordState: resources.record_state,
    decision.UpdateTask: resources.update_task,
}


async def carry_out(execution: Execution, action: decision.Action) -> None:
    """Do it.

    Raises Outdated and RefusedNow (look again), `executor.execution.Prohibited` (it must not be done), KubernetesError
    and AdminError (it could not be done, or nobody knows).
    """
    try:
        await _FUNCTIONS[type(action)](execution, action)
    except (Absent, Conflict) as exc:
        raise Outdated(str(exc)) from exc
