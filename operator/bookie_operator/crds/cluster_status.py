"""`BookieCluster.status`: what is, and the operation that is under way.

Invariants
- `operation` is written before its first side effect, and removed after its last one. It holds all that another process
  needs to repeat a step.
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
    """Subject of the condition; `docs/operator.md` lists them."""
    status: Name
    """`True`, `False` or `Unknown`."""
    reason: Words
    """One word in camel case, for programs."""
    message: Message = ""
    """One sentence for people; where something is wrong, with the remedy."""
    observed_generation: Count = 0
    """Generation of the resource that it is about."""
    last_transition_time: Time = ""
    """Time at which `status` changed last."""


class OperationType(StrEnum):
    SCALE_UP = "ScaleUp"
    DECOMMISSION = "Decommission"
    ROLLOUT = "Rollout"
    EXPAND = "Expand"
    REPLACE = "Replace"
    AUDIT = "Audit"
    DELETE = "Delete"
    METADATA = "Metadata"


class Operation(StatusModel):
    """The one operation that is under way."""

    id: Words
    """Type and a number that grows with each operation of the cluster: `Decommission-7`."""
    type: OperationType
    """Kind of work."""
    step: Words
    """Name of the step that is tried, or waited for."""
    bookie: Words = ""
    """Pod name of the bookie that it is about; empty: of none, or of several in turn."""
    started_at: Time = ""
    """Time at which it was recorded."""
    last_progress_at: Time = ""
    """Time at which the step began, or last came nearer to its end; RFC 3339, UTC."""
    saved: Annotated[
        dict[str, Annotated[str, Field(max_length=16384)]], Field(max_length=256, json_schema_extra=WHOLE)
    ] = {}
    """Data for later steps: values to restore, UIDs to delete, times to compare with."""
    attempts: Count = 0
    """Failures of this step in a row."""
    message: Message = ""
    """The event that it waits for."""
    stalled: bool = False
    """It needs a person."""


class FinishedOperation(StatusModel):
    """An operation that is over."""

    id: Words
    """Type and number."""
    type: OperationType
    """Kind of work."""
    bookie: Words = ""
    """Pod name of the bookie that it was about."""
    started_at: Time = ""
    """Time at which it was recorded."""
    finished_at: Time = ""
    """Time at which it was over."""
    outcome: Name = "Done"
    """`Done`, `Cancelled` or `Failed`."""
    message: Message = ""
    """Result in words."""
    task: Words = ""
    """Name of the BookieTask that asked for it."""
    task_uid: Words = ""
    """UID of that BookieTask: another task may have its name later."""


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
    """Name of its pod."""
    ordinal: Count
    """Number at the end of that name."""
    zone: Words = ""
    """Zone, if the cluster has several."""
    bookie_id: Text = ""
    """Id under which clients know it."""
    state: BookieState = BookieState.UNKNOWN
    """Present state."""
    since: Time = ""
    """Time at which `state` changed last."""
    cookie: CookieState | None = None
    """`Match`: it serves, so its directories are those that its cookie in the metadata service names. `Missing`: it has
    none there. `Mismatch`: it refuses its directories. Absent: unknown."""
    pod_uid: Words = ""
    """UID of the pod that runs it."""
    template_hash: Words = ""
    """Hash of the template that this pod was made of."""
    disk_used_percent: Annotated[int, Field(ge=0, le=100)] | None = None
    """Use of the fullest ledger volume, in steps of 5."""
    ledgers_remaining: Count | None = None
    """Ledgers left while it is drained."""
    message: Message = ""
    """Fault, in words."""


class VersionStatus(StatusModel):
    """Versions of Podkeeper."""

    current: Words = ""
    """Version that every bookie runs; empty while they differ."""
    target: Words = ""
    """Version that they are to run."""


class RevisionStatus(StatusModel):
    """Templates of the bookies' pods, each as one hash; of several StatefulSets together, where there are several."""

    current: Words = ""
    """Hash of the template that the pods were made of; empty while those of one StatefulSet differ, or there are
    none."""
    update: Words = ""
    """Hash of the template that they are to be made of."""


class LedgersStatus(StatusModel):
    """Replication of the ledgers."""

    under_replicated: Count | None = None
    """Ledgers with too few copies; absent: unknown."""
    last_audit: Time = ""
    """Time at which the last complete audit began."""
    auditor: Text = ""
    """Id of the auditor."""
    unrecoverable: Count | None = None
    """Ledgers with entries that no bookie has any more; absent: unknown."""


class VolumeStatus(StatusModel):
    """Volumes of one kind."""

    requested: Quantity = ""
    """Size that they are to have."""
    smallest_actual: Quantity = ""
    """Size of the smallest of them."""


class StorageStatus(StatusModel):
    """Growth of the volumes."""

    journal: VolumeStatus = VolumeStatus()
    """The journal's."""
    ledger: VolumeStatus = VolumeStatus()
    """Growth of the volumes of the entries."""
    index: VolumeStatus = VolumeStatus()
    """Growth of the volumes of the index, if it has its own."""
    shared_by: Annotated[list[Words], Field(max_length=2000)] = []
    """Pods of the bookies that have a file system in common with another one: they fill up together, and one disk loses
    the copies of both."""


class MemberState(StrEnum):
    SERVING = "Serving"
    AWAY = "Away"
    LOST = "Lost"
    UNKNOWN = "Unknown"


class MemberStatus(StatusModel):
    """One member of the etcd that the operator runs."""

    name: Words
    """Name of its pod."""
    state: MemberState = MemberState.UNKNOWN
    """`Serving`: it belongs to a majority. `Away`: it does not answer, or knows no leader. `Lost`: its volume is empty.
    `Unknown`: no majority tells."""
    leader: bool = False
    """True if it leads the others."""
    version: Words = ""
    """Version of etcd that it runs, when it was last asked."""
    space_used_percent: Annotated[int, Field(ge=0, le=100)] | None = None
    """Use of the space that its database may have, in steps of 5."""
    claim_uid: Words = ""
    """UID of the claim that its data are on."""
    message: Message = ""
    """Fault, in words."""


class BackupStatus(StatusModel):
    """Backups of the metadata on a schedule."""

    last_successful_time: Time = ""
    """Time at which the last backup that succeeded ended; it was read back."""
    last_file: Text = ""
    """Its path on the volume; empty: unknown."""
    last_ledgers: Count | None = None
    """Ledgers in it."""
    last_failure_time: Time = ""
    """Time at which the last backup that failed ended, after all its tries."""
    last_failure_message: Message = ""
    """Reason of that failure."""
    next_schedule_time: Time = ""
    """Time at which the next one is due; absent while suspended. One that is past is overdue."""
    message: Message = ""
    """Reason for which a backup that has begun does not go on."""


class BookieClusterStatus(StatusModel):
    """The observed state, and the operation that is under way."""

    observed_generation: Count = 0
    """Generation of `spec` that was considered in full."""
    conditions: Annotated[list[Condition], Field(max_length=32, json_schema_extra=by_name("type"))] = []
    """`Ready`, `Available`, `Stalled` and so on."""
    instance_id: Words = ""
    """Instance id of the cluster in the metadata service; written once."""
    replicas: Count = 0
    """Bookies that there are."""
    ready_replicas: Count = 0
    """Bookies that serve."""
    updated_replicas: Count = 0
    """Bookies that run what `spec` says."""
    writable_replicas: Count = 0
    """Bookies that take new entries."""
    selector: Text = ""
    """Label selector of the bookies' pods; for autoscalers."""
    metadata_service_uri: Annotated[str, Field(max_length=2048)] = ""
    """Metadata service address for clients."""
    metadata_protected: bool = False
    """True if an embedded metadata service demands the token in Secret `CLUSTER-metadata-token`, over TLS: that of a
    cluster that was made by an operator which makes one."""
    metadata_members: Annotated[list[MemberStatus], Field(max_length=5)] = []
    """Members of the etcd that the operator runs."""
    backup: BackupStatus | None = None
    """Backups of the metadata; absent: `spec` asks for none."""
    version: VersionStatus = VersionStatus()
    revision: RevisionStatus = RevisionStatus()
    ledgers: LedgersStatus = LedgersStatus()
    storage: StorageStatus = StorageStatus()
    bookies: Annotated[list[BookieStatus], Field(max_length=2000)] = []
    """Every bookie."""
    operation: Operation | None = None
    operations_begun: Count = 0
    """Number of operations so far."""
    history: Annotated[list[FinishedOperation], Field(max_length=10)] = []
    """The last ten."""
    recorded_replicas: Annotated[dict[str, Count], Field(max_length=64, json_schema_extra=WHOLE)] = {}
    """Replicas that the operator gave each StatefulSet; one that was scaled by hand is put back."""
