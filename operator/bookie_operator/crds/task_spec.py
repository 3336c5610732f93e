"""`BookieTask`, as typed source: work that is asked for once, so that Git never says "restart now".

Invariant: `spec` never changes once it is created; who wants something else creates another task.

Threads: values without I/O, for any thread.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from bookie_operator.crds.cluster_status import Condition
from bookie_operator.crds.model import Message, Model, Name, StatusModel, Time, Words, by_name


class TaskType(StrEnum):
    RESTART = "Restart"
    REPLACE = "Replace"
    DECOMMISSION = "Decommission"
    AUDIT = "Audit"
    ACCEPT_LOSS = "AcceptLoss"


class BookieTaskSpec(Model):
    """Work that is to be done once."""

    cluster: Name
    """Name of the BookieCluster, in the same namespace."""
    type: TaskType
    """`Restart`: restart bookies through the gates of an update. `Replace`: start a bookie again with empty disks, once
    the ledgers have their copies elsewhere; one that serves does so until then. `Decommission`: take a bookie out.
    `Audit`: look now for ledgers with too few copies. `AcceptLoss`: let `Replace` and `Decommission` go on without what
    is lost of these ledgers."""
    bookies: Annotated[list[Words], Field(max_length=256, json_schema_extra={"x-kubernetes-list-type": "set"})] = []
    """Names of pods, such as `demo-bookie-2`. `Restart`: empty means all of them."""
    ledgers: Annotated[
        list[Annotated[int, Field(ge=0)]], Field(max_length=4096, json_schema_extra={"x-kubernetes-list-type": "set"})
    ] = []
    """Ids of ledgers; only for `AcceptLoss`."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=31536000)] = 86400
    """Seconds after which a finished task is deleted."""


class BookieTaskPhase(StrEnum):
    PENDING = ""
    RUNNING = "Running"
    DONE = "Done"
    FAILED = "Failed"


class BookieTaskStatus(StatusModel):
    """Progress of the work."""

    phase: BookieTaskPhase = BookieTaskPhase.PENDING
    """`Running`, `Done` or `Failed`; absent: it waits for its turn."""
    message: Message = ""
    """The event that it waits for, or the result."""
    started_at: Time = ""
    """Time at which the operator took it up."""
    finished_at: Time = ""
    """Time at which it was over."""
    conditions: Annotated[list[Condition], Field(max_length=16, json_schema_extra=by_name("type"))] = []
    """`Complete` and `Failed`, for `kubectl wait`."""

    @property
    def finished(self) -> bool:
        return self.phase in (BookieTaskPhase.DONE, BookieTaskPhase.FAILED)
