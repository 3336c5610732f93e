"""The execution of a plan, and its outcome.

Invariants
- At most one action is carried out, after the invariants were checked, and only while this process may act: what is
  still under way when it may not any more is given up, before another operator can have begun.
- An action that failed is not tried again before its back-off is over, whatever wakes the pass; what is shown meanwhile
  does not change.

Threads: one event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, replace

import structlog

from bookie_operator.api.admin import AdminError, AdminRefused
from bookie_operator.api.errors import Forbidden, Invalid, KubernetesError
from bookie_operator.api.etcd import EtcdError
from bookie_operator.api.kinds import STATEFUL_SET
from bookie_operator.crds.cluster_status import BookieClusterStatus
from bookie_operator.executor.carrying_out import carry_out
from bookie_operator.executor.execution import Execution, Outdated, Prohibited, RefusedNow
from bookie_operator.planner import operations
from bookie_operator.planner.actions import ApplyObjects, ReleaseFinalizer, RestoreTemplate
from bookie_operator.planner.decision import Act, Event, EventType, Finish, Plan, Record, Rest, Wait
from bookie_operator.planner.invariants import check
from bookie_operator.reconcile.back_off import Failure
from bookie_operator.reconcile.context import OperatorContext

_log = structlog.get_logger(__name__)
_SOON_S = 0.2
_OUTDATED_S = 1.0
_LOOK_S = 0.25
"""Seconds between two looks at whether this process may still act; much less than a Lease lasts beyond that."""


class NotLeading(Exception):
    """This process may not act (any more)."""


@dataclass(frozen=True)
class Outcome:
    base: BookieClusterStatus
    """The status as far as operations and replicas go."""
    shown: Plan
    """The plan as the conditions tell it."""
    seconds: float
    """Seconds until the next pass."""
    event: Event | None = None
    gone: bool = False
    """The resource is, or will be in a moment: there is no status to write."""


async def follow(context: OperatorContext, execution: Execution) -> Outcome:
    """Carry out what the plan decides.

    Raises NotLeading.
    """
    plan, world = execution.plan, execution.world
    violations = check(world, execution.desired, plan)
    if violations:
        return _violated(context, execution, "; ".join(violations))
    decision, status = plan.decision, world.cluster.status
    match decision:
        case Act():
            return await _act(context, execution, decision)
        case Record() | Finish():
            event = decision.event or _told(decision)
            return Outcome(operations.after(status, decision, world.now), plan, _SOON_S, event)
        case Wait():
            return Outcome(operations.after(status, decision, world.now), plan, decision.seconds, decision.event)
        case Rest():
            context.back_off.forget((world.cluster.namespace, world.cluster.name))
            gone = world.cluster.deleting and not world.cluster.has_finalizer
            return Outcome(status, plan, context.settings.rest_s, gone=gone)


async def _act(context: OperatorContext, execution: Execution, decision: Act) -> Outcome:
    cluster, plan = execution.cluster, execution.plan
    key = (cluster.namespace, cluster.name)
    pending = context.back_off.waiting(key, decision.action, context.now())
    if pending is not None:
        return _failed(context, execution, decision, pending, counted=False)
    if not context.leading():
        raise NotLeading
    log = _log.bind(namespace=cluster.namespace, cluster=cluster.name, action=type(decision.action).__name__)
    try:
        await while_leading(context.leading, carry_out(execution, decision.action))
    except Outdated as exc:
        log.info("looked again: the world has changed", reason=str(exc))
        return Outcome(cluster.status, plan, _OUTDATED_S)
    except Prohibited as exc:
        return _violated(context, execution, str(exc))
    except (RefusedNow, KubernetesError, AdminError, EtcdError) as exc:
        log.warning("action failed", error=str(exc))
        context.metrics.failed(*key, type(exc).__name__)
        person = isinstance(exc, Invalid | Forbidden | AdminRefused)
        failure = context.back_off.failed(key, decision.action, str(exc), context.now(), needs_person=person)
        return _failed(context, execution, decision, failure, counted=True)
    log.info("acted", reason=decision.reason)
    context.back_off.done(key, decision.action)
    context.repairs.applied(key, _contents(execution, decision.action), context.now())
    base = operations.after(cluster.status, decision, execution.world.now)
    if base.operation is not None and base.operation.attempts:
        base = base.model_copy(update={"operation": base.operation.model_copy(update={"attempts": 0})})
    event = decision.event or Event(type(decision.action).__name__, decision.reason)
    gone = isinstance(decision.action, ReleaseFinalizer)
    return Outcome(base, plan, _SOON_S, event, gone=gone)


async def while_leading(leading: Callable[[], bool], work: Coroutine[object, object, None]) -> None:
    """Work that may take a while, such as to reach a pod. Raises NotLeading: what was not sent by then never is."""
    task = asyncio.create_task(work)
    try:
        while not (await asyncio.wait([task], timeout=_LOOK_S))[0]:
            if not leading():
                raise NotLeading
        task.result()
    finally:
        if not task.done():
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def _contents(execution: Execution, action: object) -> dict[str, str]:
    """Hashes of what an action has applied, by `Kind/name`."""
    desired = execution.desired
    match action:
        case ApplyObjects(keys=keys):
            budget = {desired.budget: desired.budget_hashes.get(execution.plan.evictions, "")}
            wanted = {**desired.support, **desired.monitoring, **desired.deployments, **budget}
            return {key: wanted[key] for key in keys if key in wanted}
        case RestoreTemplate(name=name, template_hash=digest):
            return {f"{STATEFUL_SET.kind}/{name}": digest}
        case _:
            return {}


def _failed(
    context: OperatorContext, execution: Execution, decision: Act, failure: Failure, *, counted: bool
) -> Outcome:
    """Return the outcome of a failure. The message stays the same until the next try fails with other words."""
    status, plan = execution.cluster.status, execution.plan
    message = f"{decision.reason}: {failure.message}"
    seconds = max(_SOON_S, failure.not_before - context.now())
    operation = status.operation
    if operation is not None and counted:
        changed = {"attempts": operation.attempts + 1, "message": message}
        status = status.model_copy(update={"operation": operation.model_copy(update=changed)})
    wait = Wait("ActionFailed", message, seconds, stalled=failure.needs_person)
    event = Event("ActionFailed", message, EventType.WARNING) if counted else None
    # What was refused for good is gone past at once: see `World.refused_actions`.
    following = _SOON_S if counted and failure.needs_person else seconds
    return Outcome(status, replace(plan, decision=wait), following, event)


def _violated(context: OperatorContext, execution: Execution, words: str) -> Outcome:
    cluster = execution.cluster
    decision = repr(execution.plan.decision)[:2000]
    _log.error("a plan breaks an invariant", cluster=cluster.name, violations=words, decision=decision)
    context.metrics.failed(cluster.namespace, cluster.name, "InvariantViolated")
    wait = Wait(
        "InvariantViolated", f"refused: {words}; this is a bug of the operator, please report it", 30.0, stalled=True
    )
    event = Event("InvariantViolated", words, EventType.WARNING)
    return Outcome(cluster.status, replace(execution.plan, decision=wait), wait.seconds, event)


def _told(decision: Record | Finish) -> Event:
    operation = decision.operation
    if isinstance(decision, Record):
        return Event(f"{operation.type.value}{operation.step}", f"{operation.id}: {decision.reason}")
    kind = EventType.NORMAL if decision.outcome == "Done" else EventType.WARNING
    return Event(f"{operation.type.value}{decision.outcome}", f"{operation.id}: {decision.message}", kind)
