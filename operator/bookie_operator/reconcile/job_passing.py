"""One pass over one BookieJob.

It works beside the passes over clusters: a job is a client of its cluster, and no operation on it.

Invariants
- Everything is read again; any process may do the next pass.
- What came of a run is written before anything of it is removed: a removal is planned by the status that was read.

Threads: one event loop; passes over one BookieJob never overlap.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Final

import structlog

from bookie_operator.api.errors import Absent, Conflict, Forbidden, Invalid, KubernetesError
from bookie_operator.api.kinds import BOOKIE_JOB, KubernetesObject, resource_of_kind
from bookie_operator.api.kubernetes import Kubernetes
from bookie_operator.builders.jobs.build import JobObjects, build_job
from bookie_operator.crds.job_rules import parse_job_spec, parse_job_status, validate_job
from bookie_operator.crds.job_spec import BookieJobSpec, BookieJobStatus
from bookie_operator.observe.jobs import job_resource, observe_job
from bookie_operator.planner.decision import Event, EventType
from bookie_operator.planner.jobs import Blocker, JobPlan, plan_job
from bookie_operator.reconcile.carrying_out import NotLeading
from bookie_operator.reconcile.context import OperatorContext
from bookie_operator.status.job_reporting import status_after, unreadable, write_job_status
from bookie_operator.world.model import JobWorld

_log = structlog.get_logger(__name__)
_AGAIN_S: Final = 0.5
_UNREADABLE_S: Final = 60.0
_ELSEWHERE_S: Final = 15.0
_REFUSED_S: Final = 30.0


async def run_job_pass(context: OperatorContext, name: str, namespace: str) -> float | None:
    """Look, decide, do it, tell. Seconds until the next pass; None: there is no such BookieJob any more.

    Raises KubernetesError and NotLeading; the next pass finds out how far this one came.
    """
    try:
        seconds = await _pass(context, name, namespace)
    except Conflict as exc:
        _log.info("the resource was changed meanwhile", job=name, namespace=namespace, reason=str(exc))
        seconds = _AGAIN_S
    except (KubernetesError, NotLeading) as exc:
        context.metrics.jobs.failed(namespace, name, type(exc).__name__)
        raise
    if seconds is None:
        context.metrics.jobs.forget(namespace, name)
    return seconds


async def _pass(context: OperatorContext, name: str, namespace: str) -> float | None:
    resource = await context.kubernetes.find(BOOKIE_JOB, namespace, name)
    if resource is None:
        return None
    if await context.other_operator(namespace):
        return _ELSEWHERE_S
    try:
        status = parse_job_status(resource.get("status") or {})
    except ValueError as exc:
        _log.error("the status cannot be read", job=name, namespace=namespace, reason=str(exc))
        context.metrics.jobs.failed(namespace, name, "UnreadableStatus")
        return _UNREADABLE_S
    spec, errors = parse_job_spec(resource.get("spec") or {})
    if spec is None:
        return await _unreadable(context, resource, status, errors)
    return await _reconcile(context, resource, spec, status)


async def _reconcile(
    context: OperatorContext, resource: KubernetesObject, spec: BookieJobSpec, status: BookieJobStatus
) -> float:
    job = job_resource(resource, spec, status)
    world = await observe_job(context.kubernetes, job, now=context.now(), spec_errors=validate_job(spec))
    objects = await _objects(context, world)
    plan = plan_job(world, objects.desired() if objects is not None else None)
    if job.deleting:
        return plan.seconds
    refused = await _carry_out(context, world, plan, objects)
    if refused is not None:
        plan = JobPlan(
            blocker=refused,
            ended=plan.ended,
            result=plan.result,
            events=(*plan.events, Event(refused.reason, refused.message, EventType.WARNING)),
            seconds=_REFUSED_S,
        )
    told = status_after(world, plan)
    if not context.leading():
        raise NotLeading
    await write_job_status(context.kubernetes, resource["metadata"], status, told)
    context.metrics.jobs.told(job.namespace, job.name, spec.kind.value, told, plan.ended)
    for event in plan.events:
        await context.events.publish_about(resource["metadata"], event, about=BOOKIE_JOB)
    return plan.seconds


async def _objects(context: OperatorContext, world: JobWorld) -> JobObjects | None:
    """None: they cannot be made, for reasons that the plan tells."""
    if world.cluster is None or world.spec_errors:
        return None
    return build_job(world.cluster, world.job, await context.building())


async def _carry_out(
    context: OperatorContext, world: JobWorld, plan: JobPlan, objects: JobObjects | None
) -> Blocker | None:
    """Carry the plan out; return what the API server rejects, as something that a person has to mend."""

    def may_act() -> None:
        if not context.leading():
            raise NotLeading

    try:
        await carry_out_job(context.kubernetes, world.job.namespace, plan, objects, may_act)
    except (Invalid, Forbidden) as exc:
        context.metrics.jobs.failed(world.job.namespace, world.job.name, type(exc).__name__)
        return Blocker("Refused", f"Kubernetes refuses what the job needs: {exc}", stalled=True)
    return None


async def _unreadable(
    context: OperatorContext, resource: KubernetesObject, status: BookieJobStatus, errors: tuple[str, ...]
) -> float:
    metadata = resource["metadata"]
    told = unreadable(status, metadata.get("generation", 0), errors, context.now())
    if not context.leading():
        raise NotLeading
    if await write_job_status(context.kubernetes, metadata, status, told):
        event = Event("InvalidSpec", "; ".join(errors), EventType.WARNING)
        await context.events.publish_about(metadata, event, about=BOOKIE_JOB)
    return _UNREADABLE_S


async def carry_out_job(
    kubernetes: Kubernetes, namespace: str, plan: JobPlan, objects: JobObjects | None, may_act: Callable[[], None]
) -> None:
    """Carries out what was planned about a BookieJob.

    Invariants
    - Objects are applied before the run that needs them is made.
    - Whatever is deleted or stopped is named by its UID; what is gone already, or is another one, is left alone.

    `may_act` is called before each side effect, and raises if this process may not act any more.

    Raises KubernetesError.

    Threads: one event loop.
    """
    if objects is not None:
        for key in plan.apply:
            may_act()
            await kubernetes.apply(objects.manifest(key))
    if plan.suspension is not None:
        kind, _, name = plan.suspension.key.partition("/")
        may_act()
        with contextlib.suppress(Absent, Conflict):
            await kubernetes.merge_exactly(
                resource_of_kind(kind),
                namespace,
                name,
                plan.suspension.uid,
                {"spec": {"suspend": plan.suspension.suspended}},
            )
    for removal in plan.removals:
        kind, _, name = removal.key.partition("/")
        may_act()
        with contextlib.suppress(Absent, Conflict):
            await kubernetes.delete(resource_of_kind(kind), namespace, name, uid=removal.uid)
