"""What is asked of the cluster's pods over their admin API.

Threads: one event loop.
"""

from __future__ import annotations

from bookie_operator.api.admin import AdminAbsent, Endpoint
from bookie_operator.executor.execution import Execution, Outdated
from bookie_operator.planner.actions import (
    BeginDrain,
    SetDynamicConfig,
    SetReadOnly,
    SetRecoveryDelay,
    TriggerAudit,
    UndoDrain,
)


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
        await execution.admin.begin_drain(at, action.bookie_id, action.accepted_losses)

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


async def set_recovery_delay(execution: Execution, action: SetRecoveryDelay) -> None:
    async def ask(at: Endpoint) -> None:
        await execution.admin.set_recovery_delay(at, action.seconds)

    await execution.ask_speakers(ask)
