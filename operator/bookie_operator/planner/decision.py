"""What a pass decides: at most one side effect, and why.

Invariants
- An operation is recorded in `status` by a decision of its own, before the decision with its first side effect.
- Every deletion bears the UID of what is deleted, every scaling the resource version of what was seen, and every
  deletion of a claim or a cookie the proof of this very pass.
- Nothing here sleeps: who has to wait says for what, and is asked again.

Threads: values without I/O, for any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from bookie_operator.crds.cluster_status import Operation
from bookie_operator.world.model import Proof

# --- actions ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ApplyObjects:
    """Apply these of the desired objects (`Kind/name`) by server-side apply."""

    keys: tuple[str, ...]


@dataclass(frozen=True)
class DeleteObject:
    """An object of the operator's own making that nothing uses any more; never a claim."""

    key: str
    uid: str


@dataclass(frozen=True)
class CreateStatefulSet:
    """As desired, with so many replicas; orphaned pods and claims of its name are adopted."""

    name: str
    replicas: int


@dataclass(frozen=True)
class ScaleStatefulSet:
    """Never downward by more than one."""

    name: str
    resource_version: str
    before: int
    after: int

    def __post_init__(self) -> None:
        if self.after < self.before - 1:
            raise ValueError(f"{self.name} would be scaled from {self.before} to {self.after}: one bookie at a time")


@dataclass(frozen=True)
class ApplyTemplate:
    """Give the StatefulSet its desired template. Pods change when they are deleted, not before."""

    name: str
    resource_version: str


@dataclass(frozen=True)
class OrphanStatefulSet:
    """Delete it and leave its pods running: its claim templates cannot be changed."""

    name: str
    uid: str


@dataclass(frozen=True)
class ExpandClaim:
    name: str
    uid: str
    size: str


@dataclass(frozen=True)
class DeleteClaim:
    name: str
    uid: str
    proof: Proof | None
    """None only where the cluster itself is deleted, with the confirmation that `reason` names."""


@dataclass(frozen=True)
class RetireClaim:
    """Label it as retired, with its proof as annotation."""

    name: str
    uid: str
    proof: Proof


@dataclass(frozen=True)
class EvictPod:
    """Through the Eviction API, which honours the PodDisruptionBudget."""

    name: str
    uid: str


@dataclass(frozen=True)
class DeletePod:
    """Of a pod that serves nobody; never forced."""

    name: str
    uid: str


@dataclass(frozen=True)
class SetReadOnly:
    pod: str
    read_only: bool


@dataclass(frozen=True)
class BeginDrain:
    """Begin, or resume; the cookie is kept."""

    bookie_id: str
    stopped: bool
    accepted_losses: tuple[int, ...] = ()


@dataclass(frozen=True)
class UndoDrain:
    bookie_id: str


@dataclass(frozen=True)
class TriggerAudit:
    pass


@dataclass(frozen=True)
class SetRecoveryDelay:
    seconds: int


@dataclass(frozen=True)
class DeleteCookie:
    bookie_id: str
    proof: Proof | None
    """None only where the cluster itself is deleted with its data."""
    accepted_losses: tuple[int, ...] = ()
    """Ledgers that may go on naming the bookie: people gave up what is lost of them."""


@dataclass(frozen=True)
class SetDynamicConfig:
    """Change keys that need no restart, on one bookie."""

    pod: str
    values: Mapping[str, str]


@dataclass(frozen=True)
class DestroyMetadata:
    """Remove the cluster's metadata, by a Job; best effort."""


@dataclass(frozen=True)
class ReleaseFinalizer:
    pass


@dataclass(frozen=True)
class RecordState:
    """Write to `status` what was found, and do nothing else: `operations.after` tells the status."""

    instance_id: str = ""
    """Empty: as it was. It is written once."""
    replicas: Mapping[str, int] = field(default_factory=dict)
    """Of StatefulSets, added to `recorded_replicas`."""


@dataclass(frozen=True)
class UpdateTask:
    name: str
    uid: str
    phase: str
    """`Running`, `Done`, `Failed`."""
    message: str = ""


Action = (
    ApplyObjects
    | DeleteObject
    | CreateStatefulSet
    | ScaleStatefulSet
    | ApplyTemplate
    | OrphanStatefulSet
    | ExpandClaim
    | DeleteClaim
    | RetireClaim
    | EvictPod
    | DeletePod
    | SetReadOnly
    | BeginDrain
    | UndoDrain
    | TriggerAudit
    | SetRecoveryDelay
    | DeleteCookie
    | SetDynamicConfig
    | DestroyMetadata
    | ReleaseFinalizer
    | RecordState
    | UpdateTask
)

# --- decisions --------------------------------------------------------------------------------------------------------


class EventType(StrEnum):
    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True)
class Event:
    """For `kubectl describe`: a stable reason in camel case, and one line."""

    reason: str
    message: str
    type: EventType = EventType.NORMAL


@dataclass(frozen=True)
class Act:
    """Carry this out now. `operation`: as it is once that is done (written to `status` afterwards)."""

    action: Action
    reason: str
    """One sentence: what is done, and why now."""
    operation: Operation | None = None
    event: Event | None = None


@dataclass(frozen=True)
class Record:
    """Write the operation to `status`, and do nothing else: it begins, or goes on to its next step."""

    operation: Operation
    reason: str
    event: Event | None = None


@dataclass(frozen=True)
class Finish:
    """The operation is over: it goes to the history."""

    operation: Operation
    outcome: str
    message: str
    event: Event | None = None


@dataclass(frozen=True)
class Wait:
    """Nothing to do at the moment but to look again."""

    reason: str
    """In camel case: a condition's reason."""
    message: str
    seconds: float = 5.0
    operation: Operation | None = None
    """With progress or message changed; None: as it was."""
    stalled: bool = False
    """It goes on only when a person does something; `message` says what."""
    event: Event | None = None


@dataclass(frozen=True)
class Rest:
    """Everything is as it should be."""


Decision = Act | Record | Finish | Wait | Rest


@dataclass(frozen=True)
class Plan:
    """The decision of a pass, with what else a pass says."""

    decision: Decision
    notes: tuple[Wait, ...] = ()
    """What would have been done but cannot be (blocked by its gates): the rest of the pass went on."""
    max_unavailable: int = 1
    """Of the PodDisruptionBudget, from now on."""


@dataclass(frozen=True)
class Needs:
    """What the next pass has to know beside what it always reads."""

    proofs: frozenset[str] = frozenset()
    """Bookie ids."""
    drains: frozenset[str] = frozenset()
    safety: frozenset[frozenset[str]] = field(default_factory=frozenset)
    accepted_losses: tuple[int, ...] = ()
    """Ledgers that do not count in these proofs: people gave up what is lost of them."""
