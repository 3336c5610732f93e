"""The CronJob that backs the metadata up and its runs, as the planner sees them.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from bookie_operator.api.kinds import KubernetesObject
from bookie_operator.builders import naming
from bookie_operator.observe.times import condition, created_at, seconds
from bookie_operator.observe.workloads import JobView, component_of, config_maps, job_view
from bookie_operator.planner.operations import is_ahead
from bookie_operator.world.model import BackupRun, BackupView


def runs_of(cron_job: KubernetesObject | None, jobs: Iterable[KubernetesObject]) -> list[KubernetesObject]:
    """Return its Jobs, also those that people made of it."""
    uid = cron_job["metadata"]["uid"] if cron_job is not None else None
    return [
        each for each in jobs if any(one.get("uid") == uid for one in each["metadata"].get("ownerReferences") or ())
    ]


def backup_view(
    cron_job: KubernetesObject | None,
    runs: Iterable[tuple[KubernetesObject, JobView]],
    now: float,
    at_work: tuple[str, ...] = (),
) -> BackupView:
    """`runs`: its Jobs, each with what came of it. `at_work`: as of `BackupView`."""
    if cron_job is None:
        return BackupView(at_work=at_work)
    status = cron_job.get("status") or {}
    pod = cron_job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    ended: dict[str, BackupRun] = {}
    message = ""
    for job, view in runs:
        at = view.finished_at
        if view.state not in ("Complete", "Failed") or at is None:
            message = view.message or message
        elif view.state not in ended or _order(at, now) >= _order(ended[view.state].finished_at, now):
            ended[view.state] = BackupRun(at, view.told, _reason(job, view) if view.state == "Failed" else "")
    succeeded, known = ended.get("Complete"), seconds(status.get("lastSuccessfulTime"))
    if known is not None and not is_ahead(known, now) and (succeeded is None or known > succeeded.finished_at):
        succeeded = BackupRun(known)  # its Job is gone
    since = seconds(status.get("lastScheduleTime"))
    if since is None or is_ahead(since, now):
        since = created_at(cron_job)
    return BackupView(config_maps(pod), since, succeeded, ended.get("Failed"), message, at_work)


def _order(at: float, now: float) -> tuple[bool, float]:
    """A run of which the clock was ahead is known to be no newer than those of now."""
    return not is_ahead(at, now), at


def at_work(jobs: Iterable[KubernetesObject], pods: Iterable[KubernetesObject]) -> tuple[str, ...]:
    """Return the names of Jobs and pods of backups that are not over."""
    found = [each for each in jobs if job_view(each, ()).state == "Running"]
    found += [
        each
        for each in pods
        if component_of(each) == naming.BACKUP
        and (each.get("status") or {}).get("phase") not in ("Succeeded", "Failed")
    ]
    return tuple(sorted(each["metadata"]["name"] for each in found))


def _reason(job: Mapping[str, Any], view: JobView) -> str:
    late = condition(job, "Failed").get("reason") == "DeadlineExceeded"
    return "it took longer than spec.backup.activeDeadlineSeconds" if late else view.message
