"""A BookieJob, its cluster, its Jobs and their pods as the planner sees them.

Threads: reading on the event loop; views are pure functions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Final

from bookie_operator.api.errors import Forbidden
from bookie_operator.api.kinds import (
    CLUSTER,
    CONFIG_MAP,
    CRON_JOB,
    JOB,
    NETWORK_POLICY,
    POD,
    POD_EVENT,
    SERVICE,
    KubernetesObject,
    Resource,
    key_of,
)
from bookie_operator.api.kubernetes import Kubernetes
from bookie_operator.builders.jobs.common import DRIVER, KIND, object_name
from bookie_operator.builders.jobs.pod import CONTAINER
from bookie_operator.crds import names
from bookie_operator.crds.job_spec import BookieJobSpec, BookieJobStatus
from bookie_operator.crds.validation import known_spec, parse_spec, parse_status
from bookie_operator.observe.faults import fault_of, starts_slowly
from bookie_operator.observe.others import cluster_view
from bookie_operator.observe.times import condition, created_at, seconds
from bookie_operator.observe.workloads import component_of
from bookie_operator.world.model import ClusterView, JobResource, JobWorld, ObjectView, PodFault, RunState, RunView

_PATIENCE_S: Final = 10.0
_EXPLAINED: Final = 3
_OBJECTS: Final = (CONFIG_MAP, SERVICE, NETWORK_POLICY)


async def observe_job(
    kubernetes: Kubernetes, job: JobResource, *, now: float, spec_errors: tuple[str, ...] = ()
) -> JobWorld:
    """Raises the errors of `api.errors`."""
    labels = {names.JOB: job.name}
    runner = CRON_JOB if job.spec.scheduled else JOB
    (cluster, problem), jobs, pods, found = await asyncio.gather(
        _cluster(kubernetes, job),
        kubernetes.list(JOB, job.namespace, labels),
        kubernetes.list(POD, job.namespace, labels),
        asyncio.gather(
            *(_find(kubernetes, resource, job) for resource in (*_OBJECTS, runner)),
        ),
    )
    objects = {key_of(each): object_view(each) for each in found if each is not None}
    crons = (each for each in found if each is not None and each["kind"] == CRON_JOB.kind)
    cron = next((each for each in crons if _controller(each).get("uid") == job.uid), None)
    owners = {job.uid} | ({cron["metadata"]["uid"]} if cron is not None else set())
    own = [each for each in jobs if _controller(each).get("uid") in owners]
    due = ((cron or {}).get("status") or {}).get("lastScheduleTime")
    events = {each["metadata"]["uid"]: await _events(kubernetes, each) for each in _silent(own, pods, now)}
    return JobWorld(
        now=now,
        job=job,
        cluster=cluster,
        cluster_problem=problem,
        runs=tuple(sorted((run_view(each, pods, events) for each in own), key=lambda run: (run.created_at, run.name))),
        objects=objects,
        last_schedule_at=seconds(due),
        spec_errors=spec_errors,
    )


async def _find(kubernetes: Kubernetes, resource: Resource, job: JobResource) -> KubernetesObject | None:
    found = await kubernetes.find(resource, job.namespace, object_name(job.name))
    return None if found is None else {**found, "kind": resource.kind}


def _silent(jobs: list[KubernetesObject], pods: list[KubernetesObject], now: float) -> list[Mapping[str, Any]]:
    """Jobs without a pod, and pods that do not begin, for a while: only their events tell why."""
    found: list[Mapping[str, Any]] = []
    for job in jobs:
        drivers = _owned(pods, job["metadata"]["uid"])
        if _state(job)[0] is not RunState.RUNNING or job["spec"].get("suspend"):
            continue
        if not drivers and now - created_at(job) > _PATIENCE_S:
            found.append(job)
        found += [pod for pod in drivers[-1:] if starts_slowly(pod, now)]
    return found[:_EXPLAINED]


async def _events(kubernetes: Kubernetes, obj: Mapping[str, Any]) -> list[KubernetesObject]:
    metadata = obj["metadata"]
    try:
        return await kubernetes.list(POD_EVENT, metadata["namespace"], fields=f"involvedObject.uid={metadata['uid']}")
    except Forbidden:
        return []


async def _cluster(kubernetes: Kubernetes, job: JobResource) -> tuple[ClusterView | None, str]:
    name = job.spec.cluster_ref.name
    found = await kubernetes.find(CLUSTER, job.namespace, name)
    if found is None:
        return None, f"there is no BookieCluster {name} in this namespace: make it, or another BookieJob"
    _, errors = parse_spec(known_spec(found.get("spec") or {})[0])
    try:
        parse_status(found.get("status") or {})
    except ValueError as exc:
        errors = (*errors, str(exc))
    if errors:
        return None, f"BookieCluster {name} cannot be read: {errors[0]}"
    return cluster_view(found), ""


def job_resource(obj: Mapping[str, Any], spec: BookieJobSpec, status: BookieJobStatus) -> JobResource:
    metadata = obj["metadata"]
    return JobResource(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata["uid"],
        generation=metadata.get("generation", 0),
        spec=spec,
        status=status,
        deleting="deletionTimestamp" in metadata,
    )


def object_view(obj: Mapping[str, Any]) -> ObjectView:
    owner, metadata = _controller(obj), obj["metadata"]
    return ObjectView(
        uid=metadata["uid"],
        digest=str((metadata.get("annotations") or {}).get(names.OBJECT_HASH, "")),
        owner_uid=owner.get("uid", "") if owner.get("kind") == KIND else "",
        suspended=(obj.get("spec") or {}).get("suspend") is True,
    )


def run_view(
    job: Mapping[str, Any],
    pods: Iterable[Mapping[str, Any]],
    events: Mapping[str, list[KubernetesObject]] | None = None,
) -> RunView:
    """`pods`: of the BookieJob, among which its own and its executors are. `events`: by UID of the Job or pod that they
    are about, where they were read."""
    metadata, status = job["metadata"], job.get("status") or {}
    pods = list(pods)
    drivers = sorted(_owned(pods, metadata["uid"]), key=created_at)
    state, words, finished = _state(job)
    exit_code, told = _last_end(drivers)
    if state is RunState.RUNNING:
        executors = [pod for driver in drivers for pod in _owned(pods, driver["metadata"]["uid"])]
        words = _trouble(drivers, executors, events or {}) or _retries(status.get("failed", 0), told)
        words = words or ("" if drivers else _no_pod((events or {}).get(metadata["uid"], [])))
    return RunView(
        name=metadata["name"],
        uid=metadata["uid"],
        state=state,
        created_at=created_at(job),
        finished_at=finished,
        exit_code=exit_code,
        told=told,
        message=words,
        suspended=job["spec"].get("suspend") is True,
        deleting="deletionTimestamp" in metadata,
        template_hash=(metadata.get("annotations") or {}).get(names.TEMPLATE_HASH, ""),
        inputs=(metadata.get("annotations") or {}).get(names.TEMPLATE_INPUTS, ""),
    )


def _state(job: Mapping[str, Any]) -> tuple[RunState, str, float | None]:
    for kind, state in (("Complete", RunState.COMPLETE), ("Failed", RunState.FAILED)):
        found = condition(job, kind)
        if found.get("status") == "True":
            ended = (job.get("status") or {}).get("completionTime") or found.get("lastTransitionTime")
            reason = str(found.get("reason", "")) if state is RunState.FAILED else ""
            return state, _WORDS.get(reason, reason), seconds(ended)
    return RunState.RUNNING, "", None


_WORDS: Final = {
    "BackoffLimitExceeded": "",
    "PodFailurePolicy": "",
    "DeadlineExceeded": "it took longer than spec.activeDeadlineSeconds",
}
"""Words for the names that Kubernetes gives to an end; empty: the job itself has better ones."""


def _last_end(drivers: list[Mapping[str, Any]]) -> tuple[int | None, str]:
    """Exit code and termination message of the newest driver that ended."""
    for pod in reversed(drivers):
        for status in (pod.get("status") or {}).get("containerStatuses") or ():
            ended = (status.get("state") or {}).get("terminated")
            if status.get("name") == CONTAINER and ended:
                return ended.get("exitCode"), str(ended.get("message") or "")
    return None, ""


def _no_pod(events: list[KubernetesObject]) -> str:
    """Return why the Job has no pod, by the last warning about it: an account that is missing, a quota, a policy."""
    warnings = [str(each.get("message") or "") for each in events if each.get("type") == "Warning"]
    return f"no pod can be made: {warnings[-1][:500]}" if warnings else ""


def _trouble(
    drivers: list[Mapping[str, Any]],
    executors: list[Mapping[str, Any]],
    events: Mapping[str, list[KubernetesObject]],
) -> str:
    """Return why the newest driver, or an executor, does not begin."""
    for pod in (*drivers[-1:], *executors):
        fault, message = fault_of(pod, events.get(pod["metadata"]["uid"], ()))
        if fault not in (PodFault.NONE, PodFault.CRASHING, PodFault.COOKIE):
            role = "driver" if component_of(pod) == DRIVER else "executor"
            return f"{role} {pod['metadata']['name']}: {message}"
    return ""


def _retries(failed: int, told: str) -> str:
    if not failed:
        return ""
    last = told.strip().rpartition("\n")[2][:300]
    return f"tried again after {failed} failed attempts" + (f"; the last one: {last}" if last else "")


def _owned(pods: Iterable[Mapping[str, Any]], uid: str) -> list[Mapping[str, Any]]:
    return [pod for pod in pods if any(each.get("uid") == uid for each in pod["metadata"].get("ownerReferences") or ())]


def _controller(obj: Mapping[str, Any]) -> Mapping[str, Any]:
    for owner in obj["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            return dict(owner)
    return {}
