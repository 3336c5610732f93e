"""One pass over one cluster.

Invariants
- Everything is read again; what is done depends on the resource and the world alone. Any process may do the next pass.
- An operation is in `status` before its first side effect: recording one is a pass of its own.
- A spec that cannot be understood, in part or as a whole, is reported, and stops neither what protects data nor a
  deletion.
- The status is written for the resource version that was read: of two operators one fails, and looks again.

Threads: one event loop; passes over one cluster never overlap (`handlers` sees to it), those over several do.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

import structlog

from bookie_operator.api.admin import Admin
from bookie_operator.api.errors import Absent, Conflict, KubernetesError, Undeclared
from bookie_operator.api.kinds import CLUSTER, JOB, SECRET, TASK, KubernetesObject
from bookie_operator.api.kubernetes import Kubernetes
from bookie_operator.api.trust import Trust
from bookie_operator.builders import naming
from bookie_operator.builders.build import Builds, build
from bookie_operator.builders.common import is_own, key_of, manifest, owner_of
from bookie_operator.builders.config import TOKEN_KEY, demands_client_token
from bookie_operator.builders.context import BuildContext
from bookie_operator.builders.desired_objects import DesiredObjects
from bookie_operator.builders.identity import recorded_spec
from bookie_operator.builders.metadata_uri import is_etcd, is_protected, metadata_host, metadata_service_uri
from bookie_operator.builders.secrets import secret_data, secret_texts, token_in
from bookie_operator.crds import names
from bookie_operator.crds.cluster_spec import WhenDeleted
from bookie_operator.crds.cluster_status import BookieClusterStatus
from bookie_operator.crds.validation import known_spec, parse_spec, parse_status, readable_status, validate
from bookie_operator.executor.execution import Execution
from bookie_operator.observe.observing import Observed, observe, with_config_changes, with_needs
from bookie_operator.observe.others import cluster_view
from bookie_operator.observe.sources import Sources
from bookie_operator.planner import holding
from bookie_operator.planner.decision import Act, Event, EventType, Finish, Plan, Record, Wait
from bookie_operator.planner.operations import read_time
from bookie_operator.planner.plan import needs
from bookie_operator.planner.plan import plan as make_plan
from bookie_operator.reconcile.carrying_out import NotLeading, Outcome, follow
from bookie_operator.reconcile.context import OperatorContext
from bookie_operator.status import conditions, reporting
from bookie_operator.world.facts import ClusterFacts
from bookie_operator.world.model import ClusterView

_log = structlog.get_logger(__name__)
_AGAIN_S: Final = 0.5
_UNREADABLE_S: Final = 60.0
_ELSEWHERE_S: Final = 15.0
_LEAST: Final[Mapping[str, Any]] = {
    "version": "unknown",
    "metadataService": {"type": "Embedded"},
    "storage": {"journal": {"size": "1Gi"}, "ledger": {"size": "1Gi"}},
}
"""A spec by which a cluster can be kept from harm, or ended with its volumes kept, when its own is unknown."""
_BYTES: Final = 32


async def run_pass(context: OperatorContext, name: str, namespace: str) -> float | None:
    """Look, decide, do at most one thing, tell. Seconds until the next pass; None: there is no such cluster any more.

    Raises KubernetesError and NotLeading: nothing was done, or what was done is not reported yet; the next pass finds
    out.
    """
    begun = time.monotonic()
    context.peeks.pop((namespace, name), None)  # of the last pass: who answered then is not asked if this one fails
    try:
        seconds = await _pass(context, name, namespace)
    except Conflict as exc:
        _log.info("the resource was changed meanwhile", cluster=name, namespace=namespace, reason=str(exc))
        seconds = _AGAIN_S
    except (KubernetesError, NotLeading) as exc:
        context.metrics.failed(namespace, name, type(exc).__name__)
        raise
    if seconds is None:
        context.metrics.forget(namespace, name)
        context.repairs.forget((namespace, name))
        context.back_off.forget((namespace, name))
        context.builds.forget(namespace, name)
        context.silent.pop((namespace, name), None)
    else:
        context.metrics.passed(namespace, name, time.monotonic() - begun, context.now())
    return seconds


async def _pass(context: OperatorContext, name: str, namespace: str) -> float | None:
    resource = await context.kubernetes.find(CLUSTER, namespace, name)
    if resource is None:
        return None
    if other := await context.other_operator(namespace):
        words = f"the operator in namespace {other} keeps this namespace: this one, which is another, stays out of it"
        await context.events.publish_about(
            resource["metadata"], Event("AnotherOperator", words, EventType.WARNING), "StayOut"
        )
        return _ELSEWHERE_S
    resource = await _with_finalizer(context, resource)
    deleting = "deletionTimestamp" in resource["metadata"]
    told, fault = readable_status(resource.get("status") or {}, deleting=deleting)
    if fault:
        return await _unreadable_status(context, resource, fault)
    asked, ignored = known_spec(resource.get("spec") or {})
    resource = {**resource, "spec": asked, "status": told}
    spec, errors = parse_spec(asked)
    if spec is not None:
        cluster = cluster_view(resource, spec)
        errors, objects = _made(context.builds, cluster, await context.building())
        if objects is not None:
            errors = errors or await context.certificates.keep(context.kubernetes, cluster, context.now())
            return await _reconcile(context, resource, cluster, objects, errors, ignored)
    earlier = await _earlier_spec(context, resource)
    if earlier is None:
        return await _unreadable(context, resource, parse_status(told), errors)
    cluster = cluster_view({**resource, "spec": earlier})
    return await _reconcile(context, resource, cluster, build(cluster, await context.building()), errors, ignored)


def _made(
    builds: Builds, cluster: ClusterView, building: BuildContext
) -> tuple[tuple[str, ...], DesiredObjects | None]:
    """Return what is wrong with the spec, and the objects made of it; None: none can be made.

    Parts of Kubernetes' own are handed through, and their shape is as people wrote it.
    """
    errors: tuple[str, ...] = ()
    try:
        errors = validate(cluster.spec, cluster.status)
        return errors, builds.of(cluster, building)
    except Exception as exc:
        _log.info("no objects can be made of the spec", cluster=cluster.name, reason=f"{type(exc).__name__}: {exc}")
        words = (
            f"spec: no objects can be made of it ({type(exc).__name__}): a part that is handed through to Kubernetes "
            "has another shape than Kubernetes takes; compare spec.pod with `kubectl explain pod.spec`"
        )
        return errors or (words,), None


async def _earlier_spec(context: OperatorContext, resource: KubernetesObject) -> Mapping[str, Any] | None:
    """Return a spec to keep a cluster safe by, and to end it by, while its own cannot be understood.

    It is the one of the identity, else the least that there can be. None: nothing of the cluster was ever made.

    Data go only if the spec that there is, as far as it goes, says so too.
    """
    metadata, status = resource["metadata"], resource["status"]
    if not status.get("instanceId") and not status.get("recordedReplicas") and "deletionTimestamp" not in metadata:
        return None
    found = await context.kubernetes.find(SECRET, metadata["namespace"], naming.identity(metadata["name"]))
    kept = recorded_spec(secret_texts(found)) if found is not None else None
    if kept is None or parse_spec(kept)[0] is None:
        return _LEAST
    storage: Any = resource["spec"].get("storage")
    retention: Any = storage.get("retention") if isinstance(storage, Mapping) else None
    wanted = retention.get("whenDeleted") if isinstance(retention, Mapping) else None
    if wanted == WhenDeleted.DELETE.value:
        return kept
    return {**kept, "storage": {**kept["storage"], "retention": {"whenDeleted": WhenDeleted.RETAIN.value}}}


async def _unreadable_status(context: OperatorContext, resource: KubernetesObject, fault: str) -> float:
    """Do nothing, and report it: what an operation did has to be understood."""
    metadata = resource["metadata"]
    _log.error("the status cannot be read", cluster=metadata["name"], namespace=metadata["namespace"], reason=fault)
    context.metrics.failed(metadata["namespace"], metadata["name"], "UnreadableStatus")
    if not context.leading():
        raise NotLeading
    words = f"{fault}; a newer operator may have written it: use that version, or mend the field"
    if await reporting.tell_unreadable_status(context.kubernetes, resource, words, context.now()):
        await context.events.publish_about(metadata, Event("UnreadableStatus", words, EventType.WARNING))
    return _UNREADABLE_S


def _with_silence(
    silent: dict[tuple[str, str], tuple[str, float]], key: tuple[str, str], facts: ClusterFacts | None, now: float
) -> ClusterFacts | None:
    """Return the facts with the time since when their auditor has not listed the bookies that it looks at."""
    if facts is None:
        return None
    if facts.auditor is None or facts.unchecked is not None:
        silent.pop(key, None)
        return facts
    auditor, since = silent.get(key, ("", now))
    since = since if auditor == facts.auditor else now
    silent[key] = (facts.auditor, since)
    return replace(facts, silent_since=since)


async def _reconcile(
    context: OperatorContext,
    resource: KubernetesObject,
    cluster: ClusterView,
    objects: DesiredObjects,
    errors: tuple[str, ...],
    ignored: tuple[str, ...],
) -> float | None:
    desired = objects.desired()
    desired = replace(desired, missing=(*desired.missing, *ignored))
    sources = await _sources(context, cluster)
    observed = await observe(
        sources,
        cluster,
        desired,
        identity=naming.identity(cluster.name),
        cleanup_job=f"{JOB.kind}/{key_of(objects.destroy_job).partition('/')[2]}",
        now=context.now(),
        spec_errors=errors,
        objects=objects,
    )
    key, now = (cluster.namespace, cluster.name), context.now()
    unstable, refused = context.repairs.unstable(key, now), context.back_off.refused(key, now)
    facts = _with_silence(context.silent, key, observed.world.facts, now)
    world = replace(observed.world, unstable=unstable, refused_actions=refused, facts=facts)
    observed = replace(observed, world=world)
    desired = holding.hold(observed.world, desired)
    observed = await with_needs(sources, observed, needs(observed.world, desired))
    observed = await with_config_changes(context.kubernetes, observed, objects, desired.held)
    plan = make_plan(observed.world, desired)
    _count(context, cluster, plan)
    execution = Execution(
        context.kubernetes,
        sources.admin,
        observed.world,
        observed.endpoints,
        observed.tellers,
        objects,
        desired,
        plan,
        own_etcd=sources.etcd,
        members=observed.members,
    )
    outcome = await follow(context, execution)
    if observed.world.facts is not None and observed.tellers and not outcome.gone:
        context.peeks[key] = partial(sources.admin.tells, observed.tellers[0])
    events = [event for event in (outcome.event, *(note.event for note in plan.notes)) if event is not None]
    if not outcome.gone:
        told, unknown = await _tell(context, resource, observed, execution, outcome)
        if unknown:
            events.append(_older_definition(unknown))
        stalled = _newly_stalled(cluster.status, told)
        if stalled is not None and stalled.reason not in {event.reason for event in events}:
            events.append(stalled)
        await _drop_tasks(context, observed)
    for event in events:
        await context.events.publish(cluster, event)
    return outcome.seconds


def _newly_stalled(before: BookieClusterStatus, after: BookieClusterStatus) -> Event | None:
    """Return an event if a person is needed for a new reason: an operation that may not begin has no event else."""
    earlier, now = (
        next((each for each in status.conditions if each.type == "Stalled" and each.status == conditions.TRUE), None)
        for status in (before, after)
    )
    if now is None or (earlier is not None and earlier.reason == now.reason):
        return None
    return Event(now.reason, now.message, EventType.WARNING)


def _older_definition(unknown: frozenset[str]) -> Event:
    fields = ", ".join(f"status.{each}" for each in sorted(unknown))
    message = (
        f"the definition of BookieCluster is of an earlier release than this operator, and does not keep {fields}:"
        " apply crds/*.yaml of this release"
    )
    return Event("OlderDefinition", message, EventType.WARNING)


async def _sources(context: OperatorContext, cluster: ClusterView) -> Sources:
    wanted = [naming.admin_token(cluster.name)]
    wanted += [naming.client_token(cluster.name)] if demands_client_token(cluster) else []
    wanted += [naming.metadata_token(cluster.name)] if is_protected(cluster) else []
    secrets = {name: await token_secret(context.kubernetes, cluster, name) for name in wanted}
    taken = {
        f"{SECRET.kind}/{name}": owner_of(found)
        for name, found in secrets.items()
        if found is not None and not is_own(found, cluster)
    }
    # The maker of a Secret that is not the cluster's own would choose the token.
    shown = secrets[wanted[0]] if f"{SECRET.kind}/{wanted[0]}" not in taken else None
    trust = Trust(context.kubernetes, cluster.namespace, naming.admin_server_name(cluster.name, cluster.namespace))
    admin = Admin(
        context.session, token_in(shown), trust=trust, timeout_s=context.settings.admin_timeout_s, now=context.now
    )
    groups = (await context.building()).api_groups
    etcd = None
    if is_etcd(cluster):
        found = await context.kubernetes.find(SECRET, cluster.namespace, naming.metadata_client(cluster.name))
        etcd = context.etcd(secret_texts(found), metadata_host(cluster))
    return Sources(
        context.kubernetes,
        admin,
        groups,
        admin_port=context.settings.admin_port,
        surroundings=context.surroundings,
        taken=taken,
        etcd=etcd,
    )


async def _with_finalizer(context: OperatorContext, resource: KubernetesObject) -> KubernetesObject:
    """The resource with the finalizer, so that a deletion waits for the operator. One that has begun without it is
    left alone."""
    metadata = resource["metadata"]
    finalizers = metadata.get("finalizers") or []
    if names.FINALIZER in finalizers or "deletionTimestamp" in metadata:
        return resource
    if not context.leading():
        raise NotLeading
    patch = {"metadata": {"finalizers": [*finalizers, names.FINALIZER], "resourceVersion": metadata["resourceVersion"]}}
    return await context.kubernetes.merge(CLUSTER, metadata["namespace"], metadata["name"], patch)


async def _unreadable(
    context: OperatorContext, resource: KubernetesObject, status: BookieClusterStatus, errors: tuple[str, ...]
) -> float:
    metadata = resource["metadata"]
    told = reporting.unreadable(status, metadata.get("generation", 0), errors, context.now())
    if not context.leading():
        raise NotLeading
    if await reporting.write_status(context.kubernetes, metadata, status, told) is not None:
        event = Event("InvalidSpec", "; ".join(errors), EventType.WARNING)
        await context.events.publish_about(metadata, event)
    return _UNREADABLE_S


async def _tell(
    context: OperatorContext, resource: KubernetesObject, observed: Observed, execution: Execution, outcome: Outcome
) -> tuple[BookieClusterStatus, frozenset[str]]:
    """The status as it is written now, and the fields that the definition lacks."""
    cluster = execution.cluster
    known = outcome.base.metadata_service_uri
    moved = known != cluster.status.metadata_service_uri
    uri = known if known and (moved or observed.world.spec_errors) else metadata_service_uri(cluster)
    told = reporting.status_after(observed.world, execution.desired, outcome.shown, outcome.base, uri)
    if not context.leading():
        raise NotLeading
    # Without it the next pass would take the service for one without a token, and make it so.
    vital = ("metadataProtected",) if told.metadata_protected and is_protected(cluster) else ()
    try:
        unknown = await reporting.write_status(context.kubernetes, resource["metadata"], cluster.status, told, vital)
    except Undeclared as exc:
        await context.events.publish(cluster, _older_definition(exc.fields))
        raise
    context.metrics.told(cluster.namespace, cluster.name, told.conditions)
    context.metrics.backup(cluster.namespace, cluster.name, told.backup)
    operation = told.operation
    since = read_time(operation.last_progress_at) if operation is not None and operation.last_progress_at else 0.0
    context.metrics.operation(cluster.namespace, cluster.name, operation, since, context.now())
    return told, unknown or frozenset()


async def _drop_tasks(context: OperatorContext, observed: Observed) -> None:
    """Tasks that have been over for as long as they were to be kept. While the cluster is paused they stay."""
    for name, uid in () if observed.world.cluster.paused else observed.expired_tasks:
        if not context.leading():
            raise NotLeading
        try:
            await context.kubernetes.delete(TASK, observed.world.cluster.namespace, name, uid=uid)
        except (Absent, Conflict):
            continue


def _count(context: OperatorContext, cluster: ClusterView, plan: Plan) -> None:
    decision: Any = plan.decision
    match decision:
        case Act(action=action):
            reason = type(action).__name__
        case Record(operation=operation) | Finish(operation=operation):
            reason = f"{operation.type.value}{operation.step}"
        case Wait(reason=reason):
            pass
        case _:
            reason = ""
    context.metrics.decided(cluster.namespace, cluster.name, type(decision).__name__, reason)


async def token_secret(kubernetes: Kubernetes, cluster: ClusterView, name: str) -> KubernetesObject | None:
    """Return the Secret with tokens, which people may rotate, and make it if it is not there.

    None: it is not there, and is not made for a cluster that is being deleted or paused.
    """
    found = await kubernetes.find(SECRET, cluster.namespace, name)
    if found is not None or cluster.deleting or cluster.paused:
        return found
    try:
        return await kubernetes.create(_secret(cluster, name))
    except Conflict:  # another operator was faster
        return await kubernetes.get(SECRET, cluster.namespace, name)


def _secret(cluster: ClusterView, name: str) -> KubernetesObject:
    content = {"type": "Opaque", "data": secret_data({TOKEN_KEY: secrets.token_urlsafe(_BYTES)})}
    return manifest(cluster, "v1", "Secret", name, naming.BOOKIE, content)
