"""`BookieJob.status`: what runs, what came of the last runs.

Invariants
- A run is counted once: its Job's UID stands in `history` from then on, for longer than Kubernetes keeps the Job.
- Nothing in it changes with the clock alone.

Threads: values without I/O, for any thread.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import Field

from bookie_operator.crds.cluster_status import Condition, Count
from bookie_operator.crds.model import Message, StatusModel, Text, Time, Words, by_name

HISTORY: Final = 32
"""More than the Jobs that Kubernetes keeps of one BookieJob: 10 that succeeded, 10 that failed, and those that run."""
ACTIVE: Final = 32

Result = Annotated[
    dict[str, Any],
    Field(
        max_length=64,
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True, "x-kubernetes-map-type": "atomic"},
    ),
]


class JobPhase(StrEnum):
    PENDING = "Pending"
    SCHEDULED = "Scheduled"
    SUSPENDED = "Suspended"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FINDINGS = "Findings"
    FAILED = "Failed"


class RunOutcome(StrEnum):
    SUCCEEDED = "Succeeded"
    FINDINGS = "Findings"
    FAILED = "Failed"
    UNKNOWN = "Unknown"


class ActiveRun(StatusModel):
    """A run that goes on."""

    job: Words
    """Name of the Job of Kubernetes, in whose pod's log the progress is."""
    uid: Words
    """Of that Job."""
    started_at: Time = ""
    """When it was made."""
    message: Message = ""
    """Why it does not get on, as far as that shows."""


class Run(StatusModel):
    """A run that is over."""

    job: Words
    """Name of the Job of Kubernetes."""
    uid: Words
    """Of that Job."""
    started_at: Time = ""
    """When it was made."""
    finished_at: Time = ""
    """When it was over."""
    outcome: RunOutcome
    """`Succeeded`; `Findings`: it worked, and found something that wants attention; `Failed`; `Unknown`:
    its Job was gone before anybody had seen how it ended."""
    message: Text = ""
    """Why it failed."""


class BookieJobStatus(StatusModel):
    """What runs, and what came of the last runs."""

    observed_generation: Count = 0
    """Generation of `spec` that was considered in full."""
    phase: JobPhase = JobPhase.PENDING
    """Of one that runs once: `Pending`, `Suspended`, `Running`, then `Succeeded`, `Findings` or `Failed`. Of one with a
    schedule: `Scheduled` between runs."""
    conditions: Annotated[list[Condition], Field(max_length=16, json_schema_extra=by_name("type"))] = []
    """`Ready`, `Reconciling`, `Stalled`, `LastRunSucceeded`; of one that runs once also `Complete` and `Failed`, for
    `kubectl wait`."""
    active: Annotated[list[ActiveRun], Field(max_length=ACTIVE)] = []
    """Runs that go on."""
    last_schedule_time: Time | None = None
    """When a run was due last."""
    last_successful_time: Time | None = None
    """When a run ended last that did not fail."""
    last_outcome: Words = ""
    """Of the last run that is over."""
    last_result: Result = {}
    """The result row of the last run that gave one: counters of what was done."""
    history: Annotated[list[Run], Field(max_length=HISTORY)] = []
    """The last runs, the newest last."""
