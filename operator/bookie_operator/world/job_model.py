"""One snapshot of everything that a decision about a `BookieJob` may depend on. See `world.model` for what holds.

Threads: any.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from bookie_operator.crds.job_spec import BookieJobSpec
from bookie_operator.crds.job_status import BookieJobStatus
from bookie_operator.world.model import ClusterView


@dataclass(frozen=True)
class JobResource:
    """The BookieJob itself."""

    name: str
    namespace: str
    uid: str
    generation: int
    spec: BookieJobSpec
    status: BookieJobStatus
    deleting: bool = False


class RunState(StrEnum):
    RUNNING = "Running"
    COMPLETE = "Complete"
    FAILED = "Failed"


@dataclass(frozen=True)
class RunView:
    """A Job of Kubernetes that belongs to the BookieJob, directly or over its CronJob, and what its pods tell."""

    name: str
    uid: str
    state: RunState
    created_at: float = 0.0
    """Seconds since 1970."""
    finished_at: float | None = None
    exit_code: int | None = None
    """Of the last pod's container that ended; None: none did, or it cannot be told."""
    told: str = ""
    """Termination message of that container: the result row, else the end of its log."""
    message: str = ""
    """What Kubernetes says: why it does not begin, or why it failed."""
    suspended: bool = False
    deleting: bool = False
    template_hash: str = ""
    """Of the specification that it was made of."""
    inputs: str = ""
    """Of what people had asked for then; empty: nobody wrote it down."""


@dataclass(frozen=True)
class ObjectView:
    """An object that a BookieJob wants to be of its own, as it is."""

    uid: str
    digest: str
    """Hash of the content that it was given; empty: somebody else made it."""
    owner_uid: str
    """Of its controller."""
    suspended: bool = False
    """Of a CronJob."""


@dataclass(frozen=True)
class JobWorld:
    now: float
    """Seconds since 1970."""
    job: JobResource
    cluster: ClusterView | None
    cluster_problem: str = ""
    """Why there is none to work on."""
    runs: tuple[RunView, ...] = ()
    """The oldest first."""
    objects: Mapping[str, ObjectView] = field(default_factory=dict)
    """By `Kind/name`: what there is of that which is desired, and whatever else bears the job's label."""
    last_schedule_at: float | None = None
    """When its CronJob made a Job last."""
    spec_errors: tuple[str, ...] = ()
