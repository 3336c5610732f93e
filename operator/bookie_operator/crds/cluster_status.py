"""`BookieCluster.status`: what is, and the operation that is under way.

Invariants
- `operation` is written before its first side effect, and removed after its last one. Everything that a step needs to
  be repeated by another process stands in it.
- Nothing in it changes with the clock alone: a pass over an unchanged cluster writes nothing.

Threads: values without I/O, for any thread.
"""

from __future__ import annotations

from enum import StrEnum

from pydantic import ConfigDict

from bookie_operator.crds.cluster_spec import Model


class StatusModel(Model):
    """Unknown fields are kept out, not refused: an older operator may read what a newer one wrote."""

    model_config = ConfigDict(extra="ignore")


class Condition(StatusModel):
    """A condition as Kubernetes defines them."""

    type: str
    status: str
    """`True`, `False` or `Unknown`."""
    reason: str
    message: str = ""
    observed_generation: int = 0
    last_transition_time: str = ""


class OperationType(StrEnum):
    SCALE_UP = "ScaleUp"
    DECOMMISSION = "Decommission"
    ROLLOUT = "Rollout"
    EXPAND = "Expand"
    REPLACE = "Replace"
    DELETE = "Delete"


class Operation(StatusModel):
    """The one operation that is under way."""

    id: str
    """Type and a number that grows with each operation of the cluster: `Decommission-7`."""
    type: OperationType
    step: str
    """Name of the step that is tried, or waited for."""
    bookie: str = ""
    """Pod name of the bookie that it is about; empty: of none, or of several in turn."""
    started_at: str = ""
    last_progress_at: str = ""
    """When the step began, or last came nearer to its end; RFC 3339, UTC."""
    saved: dict[str, str] = {}
    """What later steps need: values to restore, UIDs to delete, times to compare with."""
    attempts: int = 0
    """Failures of this step in a row."""
    message: str = ""
    """What it waits for."""
    stalled: bool = False
    """It needs a person."""


class FinishedOperation(StatusModel):
    id: str
    type: OperationType
    bookie: str = ""
    started_at: str = ""
    finished_at: str = ""
    outcome: str = "Done"
    """`Done`, `Cancelled` or `Failed`."""
    message: str = ""


class BookieState(StrEnum):
    PENDING = "Pending"
    WRITABLE = "Writable"
    READ_ONLY = "ReadOnly"
    DRAINING = "Draining"
    STOPPED = "Stopped"
    LOST = "Lost"
    UNKNOWN = "Unknown"


class BookieStatus(StatusModel):
    name: str
    """Of its pod."""
    ordinal: int
    zone: str = ""
    bookie_id: str = ""
    state: BookieState = BookieState.UNKNOWN
    pod_uid: str = ""
    template_hash: str = ""
    disk_used_percent: int | None = None
    """Of the fullest ledger volume, in steps of 5."""
    ledgers_remaining: int | None = None
    """While it is drained."""
    message: str = ""


class VersionStatus(StatusModel):
    current: str = ""
    """What every bookie runs; empty while they differ."""
    target: str = ""


class LedgersStatus(StatusModel):
    under_replicated: int | None = None
    """None: nobody could tell."""
    last_audit: str = ""
    auditor: str = ""
    unrecoverable: int | None = None


class VolumeStatus(StatusModel):
    requested: str = ""
    smallest_actual: str = ""


class StorageStatus(StatusModel):
    journal: VolumeStatus = VolumeStatus()
    ledger: VolumeStatus = VolumeStatus()
    index: VolumeStatus = VolumeStatus()


class BookieClusterStatus(StatusModel):
    observed_generation: int = 0
    conditions: list[Condition] = []
    instance_id: str = ""
    """Of the cluster in the metadata service; written once."""
    replicas: int = 0
    ready_replicas: int = 0
    updated_replicas: int = 0
    writable_replicas: int = 0
    selector: str = ""
    metadata_service_uri: str = ""
    """What clients use."""
    version: VersionStatus = VersionStatus()
    ledgers: LedgersStatus = LedgersStatus()
    storage: StorageStatus = StorageStatus()
    bookies: list[BookieStatus] = []
    operation: Operation | None = None
    operations_begun: int = 0
    history: list[FinishedOperation] = []
    """The last ten."""
    recorded_replicas: dict[str, int] = {}
    """Replicas that the operator gave each StatefulSet; one that was scaled by hand is put back."""
