"""The plan for a BookieJob, made from what there is of it.

It is beside, and never inside, the one operation at a time of its cluster. A job is a client of its cluster and holds
up none of its operations.

Kubernetes makes the runs of a schedule; the operator makes the CronJob, records what came of each run by the UID of its
Job, and removes a Job only after that is in the status. A job says in two ways what came of its run: the exit code of
its container (0; 2: it did its work and found something; else it failed), and the result row, one line of JSON, the
last line of its termination message.

Invariants
- What runs once is made once: not while the Job that was recorded is gone, and never again after it ended.
- No run begins for a cluster that is not there, goes, or is paused. One that runs is left alone.
- An object that is not the BookieJob's own is neither changed nor removed.
- A Job is removed only after its outcome is in the status that was read.

Golden files of four BookieJobs: `python -m tests.support.operator_jobs`. The kinds of jobs are those of
`pyspark_bookie.jobs`; a test compares them.

Threads: values and pure functions, any thread.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bookie_operator.crds.job_spec import HISTORY, ActiveRun, ConcurrencyPolicy, Run, RunOutcome
from bookie_operator.planner.decision import Event, EventType
from bookie_operator.planner.operations import written
from bookie_operator.world.model import JobWorld, ObjectView, RunState, RunView

FINDINGS_EXIT: Final = 2
_MOST_KEYS: Final = 64
_MESSAGE: Final = 1000
_SILENT: Final = "its pod was deleted, and with it what it told"
REST_S: Final = 30.0
_BLOCKED_S: Final = 5.0
_SOON_S: Final = 1.0
_SURPLUS: Final = frozenset({"Service", "NetworkPolicy"})
"""Kinds that a change of `spec` may make superfluous."""
_EVENTS: Final = {
    RunOutcome.SUCCEEDED: ("RunSucceeded", EventType.NORMAL),
    RunOutcome.FINDINGS: ("RunFoundSomething", EventType.WARNING),
    RunOutcome.FAILED: ("RunFailed", EventType.WARNING),
    RunOutcome.UNKNOWN: ("RunLost", EventType.WARNING),
}


def is_over(run: RunView) -> bool:
    return run.state is not RunState.RUNNING


def result_row(told: str) -> Mapping[str, Any] | None:
    """None: the message does not end in one. Keys without a value are left out."""
    line = told.strip().rpartition("\n")[2].strip()
    if not line.startswith("{"):
        return None
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return {key: row[key] for key in list(row)[:_MOST_KEYS] if row[key] is not None}


def ended(run: RunView) -> Run:
    """Return how a run that is over appears in the history."""
    outcome, message = _outcome(run)
    return Run(
        job=run.name,
        uid=run.uid,
        started_at=written(run.created_at),
        finished_at=written(run.finished_at) if run.finished_at is not None else "",
        outcome=outcome,
        message=message[:_MESSAGE],
    )


def lost(run: ActiveRun, now: float, message: str) -> Run:
    """Return a run whose Job is not there any more, and whose end was not seen."""
    return Run(
        job=run.job,
        uid=run.uid,
        started_at=run.started_at,
        finished_at=written(now),
        outcome=RunOutcome.UNKNOWN,
        message=message,
    )


def _outcome(run: RunView) -> tuple[RunOutcome, str]:
    row = result_row(run.told)
    if run.state is RunState.COMPLETE:
        return RunOutcome.SUCCEEDED, ""
    if run.exit_code == FINDINGS_EXIT and row is not None:
        return RunOutcome.FINDINGS, str(row.get("error") or "")
    if row is not None and row.get("error"):
        return RunOutcome.FAILED, str(row["error"])
    last_words = "" if row is not None else run.told.strip().rpartition("\n")[2].strip()
    code = f"exit code {run.exit_code}" if run.exit_code is not None else ""
    return RunOutcome.FAILED, "; ".join(part for part in (run.message, last_words or code) if part) or _SILENT


@dataclass(frozen=True)
class DesiredJob:
    """Names and hashes of the objects that the builders make."""

    support: Mapping[str, str]
    """`Kind/name` to hash, in the order in which they are applied."""
    runner: str
    """`CronJob/name`, or `Job/name` of one that runs once."""
    runner_hash: str
    template_hash: str
    """Hash of the specification of the runs."""
    inputs: str = ""
    """Inputs from people, as far as the one run is made of them; empty: there is a schedule."""


@dataclass(frozen=True)
class Suspension:
    """The runner is to be stopped, or to go on."""

    key: str
    uid: str
    suspended: bool


@dataclass(frozen=True)
class Removal:
    """The removal of an object that is not needed any more."""

    key: str
    uid: str


@dataclass(frozen=True)
class Blocker:
    """The reason why no run can begin."""

    reason: str
    """One word in camel case."""
    message: str
    stalled: bool = False
    """It needs a person."""


@dataclass(frozen=True)
class JobPlan:
    """The plan of a pass. All of it is safe to be done again: names are fixed, deletions and changes name the UID."""

    apply: tuple[str, ...] = ()
    """Keys of desired objects, in this order."""
    suspension: Suspension | None = None
    removals: tuple[Removal, ...] = ()
    blocker: Blocker | None = None
    ended: tuple[Run, ...] = ()
    """Runs that are over, and are not in `status.history` yet; the oldest first."""
    result: Mapping[str, object] | None = None
    """The result row of the newest of them that gave one."""
    events: tuple[Event, ...] = ()
    seconds: float = 30.0
    """Seconds until the next pass, if nothing is heard before."""


def plan_job(world: JobWorld, desired: DesiredJob | None) -> JobPlan:
    """`desired` None: nothing can be built, for the reason that the blocker tells."""
    if world.job.deleting:
        return JobPlan(seconds=REST_S)
    over = tuple(_ended(world))
    blocker = _blocker(world, desired)
    wanted = desired if blocker is None else None
    apply = tuple(_to_apply(world, wanted, over)) if wanted is not None else ()
    removals = (*_finished_long_ago(world), *(_surplus(world, wanted) if wanted is not None else ()))
    suspension = _suspension(world, blocker, apply)
    return JobPlan(
        apply=apply,
        suspension=suspension,
        removals=removals,
        blocker=blocker,
        ended=over,
        result=_last_row(world, over),
        events=tuple(_events(world, over, blocker)),
        seconds=_SOON_S if apply or suspension is not None else _seconds(world, blocker),
    )


# --- runs -------------------------------------------------------------------------------------------------------------


def _ended(world: JobWorld) -> Iterator[Run]:
    """Runs that are over and not recorded, the oldest first."""
    recorded = {run.uid for run in world.job.status.history}
    there = {run.uid for run in world.runs}
    for active in world.job.status.active:
        if active.uid not in there and active.uid not in recorded:
            replaced = world.job.spec.concurrency_policy is ConcurrencyPolicy.REPLACE and world.job.spec.scheduled
            by_the_next = ", maybe by the next run," if replaced else ""
            yield lost(active, world.now, f"its Job was deleted{by_the_next} before anybody had seen how it ended")
    fresh = [run for run in world.runs if is_over(run) and run.uid not in recorded and not _forgotten(world, run)]
    yield from (ended(run) for run in sorted(fresh, key=lambda run: run.finished_at or world.now))


def _forgotten(world: JobWorld, run: RunView) -> bool:
    """It ended before everything that a full history still holds: it stood there once."""
    history = world.job.status.history
    oldest = history[0].finished_at if len(history) >= HISTORY else ""
    return run.finished_at is not None and written(run.finished_at) < oldest


def _last_row(world: JobWorld, over: tuple[Run, ...]) -> Mapping[str, object] | None:
    told = {run.uid: run.told for run in world.runs}
    rows = (result_row(told.get(run.uid, "")) for run in reversed(over))
    return next((row for row in rows if row is not None), None)


def _finished_long_ago(world: JobWorld) -> Iterator[Removal]:
    recorded = {run.uid for run in world.job.status.history}
    for run in world.runs:
        due = run.uid in recorded or _forgotten(world, run)
        if due and not run.deleting and _expires_at(world, run) <= world.now:
            yield Removal(f"Job/{run.name}", run.uid)


def _expires_at(world: JobWorld, run: RunView) -> float:
    return (run.finished_at or world.now) + world.job.spec.ttl_seconds_after_finished


# --- objects ----------------------------------------------------------------------------------------------------------


def _to_apply(world: JobWorld, desired: DesiredJob, over: tuple[Run, ...]) -> Iterator[str]:
    spec, status = world.job.spec, world.job.status
    if not spec.scheduled and (world.runs or over or status.history or spec.suspend):
        return  # what runs once has been made, or is not to be made yet
    for key, digest in desired.support.items():
        if _digest(world, key) != digest:
            yield key
    if spec.scheduled:
        live = world.objects.get(desired.runner)
        if live is None or live.digest != desired.runner_hash or live.suspended != spec.suspend:
            yield desired.runner
    else:
        yield desired.runner


def _digest(world: JobWorld, key: str) -> str:
    live = world.objects.get(key)
    return live.digest if live is not None else ""


def _surplus(world: JobWorld, desired: DesiredJob) -> Iterator[Removal]:
    for key, live in world.objects.items():
        kind = key.partition("/")[0]
        if kind in _SURPLUS and key not in desired.support and _is_ours(world, live):
            yield Removal(key, live.uid)


def _is_ours(world: JobWorld, live: ObjectView) -> bool:
    return live.owner_uid == world.job.uid


def _suspension(world: JobWorld, blocker: Blocker | None, apply: tuple[str, ...]) -> Suspension | None:
    """A schedule is stopped while there is a blocker; a Job that runs once only by `spec`."""
    spec = world.job.spec
    if spec.scheduled:
        for key, live in world.objects.items():
            if key.startswith("CronJob/") and key not in apply and _is_ours(world, live):
                wanted = spec.suspend or blocker is not None
                return Suspension(key, live.uid, wanted) if live.suspended != wanted else None
        return None
    for run in world.runs:
        if not is_over(run) and not run.deleting and run.suspended != spec.suspend:
            return Suspension(f"Job/{run.name}", run.uid, spec.suspend)
    return None


# --- obstacles -------------------------------------------------------------------------------------------


def _blocker(world: JobWorld, desired: DesiredJob | None) -> Blocker | None:
    if world.spec_errors:
        return Blocker("InvalidSpec", "; ".join(world.spec_errors), stalled=True)
    status = world.job.status
    if not world.job.spec.scheduled and (status.history or status.active or world.runs):
        return _changed(world, desired)  # it needs nothing any more
    if found := _no_cluster(world):
        return found
    wanted = {*desired.support, desired.runner} if desired is not None else set()
    for key in sorted(wanted & world.objects.keys()):
        live = world.objects[key]
        if not _is_ours(world, live):
            return _taken(key, live)
    return None


def _changed(world: JobWorld, desired: DesiredJob | None) -> Blocker | None:
    """Report a change of `spec` after the run was made: a job that runs once is made of `spec` as it was, so the change
    does nothing."""
    wanted = desired.inputs if desired is not None else ""
    for run in world.runs:
        if wanted and run.inputs and run.inputs != wanted:
            return Blocker(
                "SpecChanged",
                f"spec was changed after Job {run.name} was made of it, and a job that runs once does not follow:"
                " put it back, or make another BookieJob",
                stalled=True,
            )
    return None


def _no_cluster(world: JobWorld) -> Blocker | None:
    name, cluster = world.job.spec.cluster_ref.name, world.cluster
    if cluster is None:
        return Blocker("ClusterNotFound", world.cluster_problem)
    if cluster.deleting:
        return Blocker("ClusterDeleting", f"BookieCluster {name} is being deleted: no run begins", stalled=True)
    if cluster.paused:
        return Blocker("ClusterPaused", f"BookieCluster {name} is paused: no run begins before it is resumed")
    if not cluster.status.instance_id:
        return Blocker("ClusterNotReady", f"BookieCluster {name} has no metadata yet: runs begin when it has")
    return None


def _taken(key: str, live: ObjectView) -> Blocker:
    kind, _, name = key.partition("/")
    if live.digest:
        return Blocker("NameTaken", f"{kind} {name} is that of an earlier BookieJob, and has to go first")
    return Blocker(
        "NameTaken", f"{kind} {name} has another owner: delete it, or give the BookieJob another name", stalled=True
    )


# --- what is reported, and when to look again
# -----------------------------------------------------------------------------


def _events(world: JobWorld, over: tuple[Run, ...], blocker: Blocker | None) -> Iterator[Event]:
    status = world.job.status
    known = {run.uid for run in status.active} | {run.uid for run in status.history}
    for run in world.runs:
        if run.uid not in known and not _forgotten(world, run):
            yield Event("RunStarted", f"Job {run.name} was made")
    for each in over:
        reason, kind = _EVENTS[each.outcome]
        words = f"Job {each.job}: {each.message}" if each.message else f"Job {each.job} ended"
        yield Event(reason, words, kind)
    told = {(each.reason, each.message) for each in status.conditions}
    if blocker is not None and (blocker.reason, blocker.message) not in told:
        yield Event(blocker.reason, blocker.message, EventType.WARNING)


def _seconds(world: JobWorld, blocker: Blocker | None) -> float:
    times = [_expires_at(world, run) - world.now for run in world.runs if is_over(run)]
    times = [max(seconds, 0.2) for seconds in times]
    return min([_BLOCKED_S if blocker is not None else REST_S, *times])
