"""`BookieCluster.status`: what is, and the operation that is under way.

Invariants
- `operation` is written before its first side effect, and removed after its last one. Everything that a step needs to
  be repeated by another process stands in it.
- Nothing in it changes with the clock alone: a pass over an unchanged cluster writes nothing.

Threads: values without I/O, for any thread.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import Field

from bookie_operator.crds.model import WHOLE, Message, Name, Quantity, StatusModel, Text, Time, Words, by_name

Count = Annotated[int, Field(ge=0)]


class Condition(StatusModel):
    """A condition as Kubernetes defines them."""

    type: Words
    """What it is about; `docs/operator.md` lists them."""
    status: Name
    """`True`, `False` or `Unknown`."""
    reason: Words
    """One word in camel case, for programs."""
    message: Message = ""
    """One sentence for people; where something is wrong, with the remedy."""
    observed_generation: Count = 0
    """Generation of the resource that it is about."""
    last_transition_time: Time = ""
    """When `status` changed last."""


class OperationType(StrEnum):
    SCALE_UP = "ScaleUp"
    DECOMMISSION = "Decommission"
    ROLLOUT = "Rollout"
    EXPAND = "Expand"
    REPLACE = "Replace"
    AUDIT = "Audit"
    DELETE = "Delete"


class Operation(StatusModel):
    """The one operation that is under way."""

    id: Words
    """Type and a number that grows with each operation of the cluster: `Decommission-7`."""
    type: OperationType
    """What kind of work it is."""
    step: Words
    """Name of the step that is tried, or waited for."""
    bookie: Words = ""
    """Pod name of the bookie that it is about; empty: of none, or of several in turn."""
    started_at: Time = ""
    """When it was recorded."""
    last_progress_at: Time = ""
    """When the step began, or last came nearer to its end; RFC 3339, UTC."""
    saved: Annotated[
        dict[str, Annotated[str, Field(max_length=16384)]], Field(max_length=256, json_schema_extra=WHOLE)
    ] = {}
    """What later steps need: values to restore, UIDs to delete, times to compare with."""
    attempts: Count = 0
    """Failures of this step in a row."""
    message: Message = ""
    """What it waits for."""
    stalled: bool = False
    """It needs a person."""


class FinishedOperation(StatusModel):
    """An operation that is over."""

    id: Words
    """Type and number."""
    type: OperationType
    """What kind of work it was."""
    bookie: Words = ""
    """Pod name of the bookie that it was about."""
    started_at: Time = ""
    """When it was recorded."""
    finished_at: Time = ""
    """When it was over."""
    outcome: Name = "Done"
    """`Done`, `Cancelled` or `Failed`."""
    message: Message = ""
    """How it ended."""
    task: Words = ""
    """Name of the BookieTask that asked for it."""


class BookieState(StrEnum):
    PENDING = "Pending"
    WRITABLE = "Writable"
    READ_ONLY = "ReadOnly"
    DRAINING = "Draining"
    STOPPED = "Stopped"
    LOST = "Lost"
    UNKNOWN = "Unknown"


class CookieState(StrEnum):
    MATCH = "Match"
    MISSING = "Missing"
    MISMATCH = "Mismatch"


class BookieStatus(StatusModel):
    """One bookie."""

    name: Words
    """Of its pod."""
    ordinal: Count
    """Number at the end of that name."""
    zone: Words = ""
    """Where the cluster has several."""
    bookie_id: Text = ""
    """Under which clients know it."""
    state: BookieState = BookieState.UNKNOWN
    """What it does at the moment."""
    since: Time = ""
    """When `state` changed last."""
    cookie: CookieState | None = None
    """`Match`: it serves, so its directories are those that its cookie in the metadata service names. `Missing`: it has
    none there. `Mismatch`: it refuses its directories. Absent: nobody could tell."""
    pod_uid: Words = ""
    """Of the pod that runs it."""
    template_hash: Words = ""
    """Of the template that this pod was made of."""
    disk_used_percent: Annotated[int, Field(ge=0, le=100)] | None = None
    """Of the fullest ledger volume, in steps of 5."""
    ledgers_remaining: Count | None = None
    """While it is drained."""
    message: Message = ""
    """What is wrong with it."""


class VersionStatus(StatusModel):
    """Versions of Podkeeper."""

    current: Words = ""
    """What every bookie runs; empty while they differ."""
    target: Words = ""
    """What they are to run."""


class RevisionStatus(StatusModel):
    """Templates of the bookies' pods, each as one hash; of several StatefulSets together, where there are several."""

    current: Words = ""
    """What the pods were made of; empty while those of one StatefulSet differ, or there are none."""
    update: Words = ""
    """What they are to be made of."""


class LedgersStatus(StatusModel):
    """How well ledgers are replicated."""

    under_replicated: Count | None = None
    """Ledgers with too few copies; absent: nobody could tell."""
    last_audit: Time = ""
    """When the last complete audit began."""
    auditor: Text = ""
    """Who audits."""
    unrecoverable: Count | None = None
    """Ledgers with entries that no bookie has any more; absent: nobody could tell."""


class VolumeStatus(StatusModel):
    """Volumes of one kind."""

    requested: Quantity = ""
    """Size that they are to have."""
    smallest_actual: Quantity = ""
    """Size of the smallest of them."""


class StorageStatus(StatusModel):
    """How far volumes have grown."""

    journal: VolumeStatus = VolumeStatus()
    """The journal's."""
    ledger: VolumeStatus = VolumeStatus()
    """Those of the entries."""
    index: VolumeStatus = VolumeStatus()
    """Those of the index, where it has its own."""


class BookieClusterStatus(StatusModel):
    """What is, and the operation that is under way."""

    observed_generation: Count = 0
    """Generation of `spec` that was considered in full."""
    conditions: Annotated[list[Condition], Field(max_length=32, json_schema_extra=by_name("type"))] = []
    """`Ready`, `Available`, `Stalled` and so on."""
    instance_id: Words = ""
    """Of the cluster in the metadata service; written once."""
    replicas: Count = 0
    """Bookies that there are."""
    ready_replicas: Count = 0
    """Bookies that serve."""
    updated_replicas: Count = 0
    """Bookies that run what `spec` says."""
    writable_replicas: Count = 0
    """Bookies that take new entries."""
    selector: Text = ""
    """Of the bookies' pods; for autoscalers."""
    metadata_service_uri: Annotated[str, Field(max_length=2048)] = ""
    """What clients use."""
    metadata_protected: bool = False
    """Whether an embedded metadata service demands the token in Secret `CLUSTER-metadata-token`, over TLS: that of a
    cluster that was made by an operator which makes one."""
    version: VersionStatus = VersionStatus()
    revision: RevisionStatus = RevisionStatus()
    ledgers: LedgersStatus = LedgersStatus()
    storage: StorageStatus = StorageStatus()
    bookies: Annotated[list[BookieStatus], Field(max_length=2000)] = []
    """Every bookie."""
    operation: Operation | None = None
    operations_begun: Count = 0
    """How many there have been."""
    history: Annotated[list[FinishedOperation], Field(max_length=10)] = []
    """The last ten."""
    recorded_replicas: Annotated[dict[str, Count], Field(max_length=64, json_schema_extra=WHOLE)] = {}
    """Replicas that the operator gave each StatefulSet; one that was scaled by hand is put back."""
