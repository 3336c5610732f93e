"""Snapshots of BookieJobs for tests of their planner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from bookie_operator.builders.context import BuildContext
from bookie_operator.builders.jobs.build import JobObjects, build_job
from bookie_operator.crds.job_spec import BookieJobStatus
from bookie_operator.planner.jobs import DesiredJob, JobPlan, plan_job
from bookie_operator.status.job_reporting import status_after
from bookie_operator.world.model import ClusterView, JobResource, JobWorld, ObjectView, RunState, RunView
from tests.support.operator_clusters import cluster
from tests.support.operator_jobs import ONCE, job

NOW: Final = 1_800_000_000.0
ROW: Final = '{"job": "audit", "status": "ok", "exit_code": 0, "ledgers": 12, "error": null}'
FINDINGS: Final = '{"job": "audit", "status": "findings", "exit_code": 2, "missing": 3}'


def objects_of(resource: JobResource, of: ClusterView | None = None) -> JobObjects:
    return build_job(of or cluster(), resource, BuildContext())


def desired_of(resource: JobResource) -> DesiredJob:
    return objects_of(resource).desired()


def applied(resource: JobResource, **changes: Any) -> dict[str, ObjectView]:
    """Everything that is desired, as it is; `changes` of each view."""
    made = desired_of(resource)
    views = {**made.support, made.runner: made.runner_hash}
    return {
        key: replace(ObjectView(f"uid-of-{key}", digest, resource.uid, resource.spec.suspend), **changes)
        for key, digest in views.items()
    }


def run(name: str = "weekly-job", state: RunState = RunState.RUNNING, **changes: Any) -> RunView:
    """One that runs; of one that is over the end is a minute ago."""
    made = RunView(name, f"uid-of-{name}", state, created_at=NOW - 600)
    if state is not RunState.RUNNING:
        ended = (
            {"exit_code": 0, "told": ROW}
            if state is RunState.COMPLETE
            else {"exit_code": 1, "told": "Traceback\nIt broke"}
        )
        made = replace(made, finished_at=NOW - 60, **ended)
    return replace(made, **changes)


def world(
    spec: Mapping[str, Any] = ONCE,
    *,
    status: BookieJobStatus | None = None,
    runs: Sequence[RunView] = (),
    objects: Mapping[str, ObjectView] | None = None,
    of: ClusterView | None = None,
    without_cluster: str = "",
    **changes: Any,
) -> JobWorld:
    """With a cluster; `objects` None: nothing is there yet."""
    found = None if without_cluster else (of or cluster())
    return JobWorld(NOW, job(spec, status=status), found, without_cluster, tuple(runs), objects or {}, **changes)


def planned(given: JobWorld) -> JobPlan:
    """With what would be built of it."""
    built = (
        objects_of(given.job, given.cluster).desired() if given.cluster is not None and not given.spec_errors else None
    )
    return plan_job(given, built)


def after(given: JobWorld) -> BookieJobStatus:
    return status_after(given, planned(given))


def told(status: BookieJobStatus, kind: str) -> tuple[str, str]:
    """Status and reason of a condition."""
    return next((each.status, each.reason) for each in status.conditions if each.type == kind)
