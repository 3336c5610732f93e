"""The side effects that a decision may ask for, one class each; `executor` carries them out.

Invariants
- Every deletion bears the UID of what is deleted, every scaling the resource version of what was seen, and every
  deletion of a claim or a cookie the proof of the pass that decided it.
- A set is never scaled downward by more than one bookie.

Threads: values without I/O, for any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from bookie_operator.world.facts import Proof


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
    """Make a StatefulSet as desired, with so many replicas; orphaned pods and claims of its name are adopted."""

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
class RestoreTemplate:
    """Give the StatefulSet the template back that it was given, and that was changed since."""

    name: str
    resource_version: str
    template_hash: str


@dataclass(frozen=True)
class RecordInputs:
    """Write down for which inputs the StatefulSet got the template that it has; its pods stay as they are."""

    name: str
    resource_version: str
    template_hash: str
    inputs_hash: str


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
class ModifyClaim:
    """Ask for another VolumeAttributesClass."""

    name: str
    uid: str
    attributes_class: str
    """Empty: none."""


@dataclass(frozen=True)
class AdoptClaim:
    """Give the claim the labels that the claims of its bookie have, as a person asked."""

    name: str
    uid: str


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
    """Evict a pod through the Eviction API, which honours the PodDisruptionBudget."""

    name: str
    uid: str


@dataclass(frozen=True)
class DeletePod:
    """Delete a pod that serves no client; never forced."""

    name: str
    uid: str


@dataclass(frozen=True)
class TellPod:
    """Write an annotation of the pod, for which an init container of it waits."""

    name: str
    uid: str
    annotation: str
    text: str | None
    """None: take it away."""


@dataclass(frozen=True)
class RemoveMember:
    """Take a member that lost its volume out of etcd's list."""

    pod: str
    member: int


@dataclass(frozen=True)
class AddMember:
    """Add a member to etcd's list in place of the one that was taken out."""

    pod: str
    peer_url: str


@dataclass(frozen=True)
class SetReadOnly:
    pod: str
    read_only: bool


@dataclass(frozen=True)
class BeginDrain:
    """Begin, or resume."""

    bookie_id: str
    stopped: bool
    accepted_losses: tuple[int, ...] = ()
    removes_cookie: bool = False
    """Its coordinator deletes the cookie in the end, on its own proof. Otherwise the cookie is kept."""


@dataclass(frozen=True)
class UndoDrain:
    bookie_id: str


@dataclass(frozen=True)
class TriggerAudit:
    pass


@dataclass(frozen=True)
class CheckReplicas:
    """Have the auditor look now whether bookies store what ledgers name them for; nothing waits for it."""


@dataclass(frozen=True)
class LookAtReturned:
    """Have the auditor look whether these bookies, which were away, store what ledgers name them for."""

    bookie_ids: frozenset[str]


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
    """Replicas of StatefulSets, added to `recorded_replicas`."""
    metadata_service_uri: str = ""
    """Empty: as it was."""


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
    | RestoreTemplate
    | RecordInputs
    | OrphanStatefulSet
    | ExpandClaim
    | ModifyClaim
    | AdoptClaim
    | DeleteClaim
    | RetireClaim
    | EvictPod
    | DeletePod
    | TellPod
    | RemoveMember
    | AddMember
    | SetReadOnly
    | BeginDrain
    | UndoDrain
    | TriggerAudit
    | CheckReplicas
    | LookAtReturned
    | SetRecoveryDelay
    | DeleteCookie
    | SetDynamicConfig
    | DestroyMetadata
    | ReleaseFinalizer
    | RecordState
    | UpdateTask
)
