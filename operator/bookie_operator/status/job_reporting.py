"""The whole status of a BookieJob after a pass, and how it is written: on change only, by server-side apply.

`Ready` is True when the schedule is in place, or when what runs once has ended well; `Reconciling` and `Stalled` are
True when it is under way, and when a person is needed: kstatus asks for no more. `Complete` and `Failed` are those of a
Job, for `kubectl wait`. One condition says in full why something is so: `Stalled` or `Reconciling`, or
`LastRunSucceeded` of a run after which neither is True. `Ready` begins with the same words.

Invariants
- It is written for the resource version that the plan was made for: a run is never counted twice.
- A pass over an unchanged BookieJob makes the status that it read, and writes nothing.

Threads: `status_after` and its parts are pure; `write_job_status` on the event loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from bookie_operator.api.kinds import BOOKIE_JOB
from bookie_operator.api.kubernetes import Kubernetes
from bookie_operator.crds.job_spec import (
    ACTIVE,
    HISTORY,
    ActiveRun,
    BookieJobStatus,
    JobPhase,
    Run,
    RunOutcome,
)
from bookie_operator.planner.jobs import JobPlan, is_over
from bookie_operator.planner.operations import written
from bookie_operator.status.conditions import FALSE, TRUE, UNKNOWN, Finding, dated, summary
from bookie_operator.world.model import JobWorld

_ENDS = {
    RunOutcome.SUCCEEDED: JobPhase.SUCCEEDED,
    RunOutcome.FINDINGS: JobPhase.FINDINGS,
    RunOutcome.FAILED: JobPhase.FAILED,
    RunOutcome.UNKNOWN: JobPhase.FAILED,
}


def status_after(world: JobWorld, plan: JobPlan) -> BookieJobStatus:
    before = world.job.status
    history = [*before.history, *plan.ended][-HISTORY:]
    active = list(_active(world, history))[-ACTIVE:]
    last = history[-1] if history else None
    phase = _phase(world, plan, active, last)
    good = [run.finished_at for run in history if run.outcome in (RunOutcome.SUCCEEDED, RunOutcome.FINDINGS)]
    due = world.last_schedule_at
    found = list(_findings(world, plan, phase, active, last))
    return BookieJobStatus(
        observed_generation=world.job.generation,
        phase=phase,
        conditions=dated(found, before.conditions, world.job.generation, written(world.now)),
        active=active,
        last_schedule_time=written(due) if due is not None else before.last_schedule_time,
        last_successful_time=good[-1] if good else before.last_successful_time,
        last_outcome=last.outcome.value if last is not None else "",
        last_result=dict(plan.result) if plan.result is not None else before.last_result,
        history=history,
    )


def unreadable(status: BookieJobStatus, generation: int, errors: tuple[str, ...], now: float) -> BookieJobStatus:
    """The status of a BookieJob whose spec cannot be read at all: what was known stays."""
    words = "; ".join(errors)
    found = [
        Finding("Ready", FALSE, "InvalidSpec", words),
        Finding("Reconciling", FALSE, "InvalidSpec"),
        Finding("Stalled", TRUE, "InvalidSpec", words),
    ]
    made = dated(found, status.conditions, generation, written(now))
    kept = [each for each in status.conditions if each.type not in {one.type for one in found}]
    return status.model_copy(update={"observed_generation": generation, "conditions": [*made, *kept]})


def _active(world: JobWorld, history: list[Run]) -> Iterator[ActiveRun]:
    over = {run.uid for run in history}
    for run in world.runs:
        if not is_over(run) and run.uid not in over:
            started = written(run.created_at)
            yield ActiveRun(job=run.name, uid=run.uid, started_at=started, message=run.message)


def _phase(world: JobWorld, plan: JobPlan, active: list[ActiveRun], last: Run | None) -> JobPhase:
    spec = world.job.spec
    if not spec.scheduled and last is not None:
        return _ENDS[last.outcome]
    stopped = {run.uid for run in world.runs if run.suspended}
    if any(run.uid not in stopped for run in active):
        return JobPhase.RUNNING
    if spec.suspend:
        return JobPhase.SUSPENDED
    if plan.blocker is not None or not spec.scheduled:
        return JobPhase.PENDING
    return JobPhase.SCHEDULED


# --- conditions -------------------------------------------------------------------------------------------------------


def _findings(
    world: JobWorld, plan: JobPlan, phase: JobPhase, active: list[ActiveRun], last: Run | None
) -> Iterator[Finding]:
    ready = _ready(world, plan, phase, active, last)
    stalled = plan.blocker is not None and plan.blocker.stalled
    failed = phase is JobPhase.FAILED
    yield summary(ready)
    under_way = ready.status != TRUE and not stalled and not failed and phase is not JobPhase.SUSPENDED
    yield Finding("Reconciling", TRUE if under_way else FALSE, ready.reason, ready.message if under_way else "")
    if stalled or failed:
        yield Finding("Stalled", TRUE, ready.reason, ready.message)
    else:
        yield Finding("Stalled", FALSE, "NothingStalls")
    yield _last_run(last, "" if failed or last is None else _last_words(last))
    if not world.job.spec.scheduled:
        complete = phase in (JobPhase.SUCCEEDED, JobPhase.FINDINGS)
        yield Finding("Complete", TRUE if complete else FALSE, phase.value)
        yield Finding("Failed", TRUE if failed else FALSE, phase.value)


def _ready(world: JobWorld, plan: JobPlan, phase: JobPhase, active: list[ActiveRun], last: Run | None) -> Finding:
    if plan.blocker is not None:
        return Finding("Ready", FALSE, plan.blocker.reason, plan.blocker.message)
    told = next((run.message for run in active if run.message), "")
    if world.job.spec.scheduled:
        if phase is JobPhase.SUSPENDED:
            return Finding("Ready", TRUE, "Suspended", "no run begins: spec.suspend is true")
        return Finding("Ready", TRUE, phase.value, told or _last_words(last))
    match phase:
        case JobPhase.SUCCEEDED | JobPhase.FINDINGS:
            return Finding("Ready", TRUE, phase.value, _last_words(last))
        case JobPhase.FAILED:
            return Finding("Ready", FALSE, "RunFailed", _last_words(last))
        case JobPhase.SUSPENDED:
            return Finding("Ready", FALSE, "Suspended", "it begins, or goes on, when spec.suspend is false")
        case JobPhase.RUNNING:
            return Finding("Ready", FALSE, "Running", told or f"Job {active[0].job} runs")
    return Finding("Ready", FALSE, "Pending", "its Job is being made")


def _last_words(last: Run | None) -> str:
    if last is None:
        return ""
    ending = f": {last.message}" if last.message else ""
    match last.outcome:
        case RunOutcome.SUCCEEDED:
            return f"the last run, Job {last.job}, succeeded"
        case RunOutcome.FINDINGS:
            return f"the last run, Job {last.job}, found something: see status.lastResult{ending}"
        case RunOutcome.UNKNOWN:
            return f"the result of the last run, Job {last.job}, is unknown{ending}"
    return f"the last run, Job {last.job}, failed{ending}"


def _last_run(last: Run | None, words: str) -> Finding:
    if last is None:
        return Finding("LastRunSucceeded", UNKNOWN, "NoRunYet")
    good = last.outcome is RunOutcome.SUCCEEDED
    told = UNKNOWN if last.outcome is RunOutcome.UNKNOWN else TRUE if good else FALSE
    return Finding("LastRunSucceeded", told, last.outcome.value, "" if good else words)


# --- writing ----------------------------------------------------------------------------------------------------------


async def write_job_status(
    kubernetes: Kubernetes, metadata: Mapping[str, Any], before: BookieJobStatus, after: BookieJobStatus
) -> bool:
    """Write the status; return whether anything had to be written. `metadata`: of the resource as it was read.

    Raises Conflict: the resource is not what the plan was made for.
    """
    if after == before:
        return False
    named = {key: metadata[key] for key in ("name", "namespace", "resourceVersion")}
    body = after.model_dump(mode="json", by_alias=True, exclude_none=True)
    await kubernetes.apply_status(
        {"apiVersion": BOOKIE_JOB.api_version, "kind": BOOKIE_JOB.kind, "metadata": named, "status": body}
    )
    return True
