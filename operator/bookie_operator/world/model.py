"""One snapshot of everything that a decision about a cluster (`World`) or a job (`JobWorld`) may depend on.

It is what Kubernetes holds, and `facts`, what BookKeeper says.

Invariants
- Values only: nothing in it reads, waits or changes.
- "Not there" is an empty collection or `Absent...`; "could not tell" is None, and never taken for the other.
- Read again in every pass, uncached, as far as `Needs` of the planner asks for it.

Threads: any.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from bookie_operator.crds import names
from bookie_operator.crds.cluster_spec import BookieClusterSpec
from bookie_operator.crds.cluster_status import BookieClusterStatus
from bookie_operator.crds.job_spec import BookieJobSpec, BookieJobStatus
from bookie_operator.crds.task_spec import TaskType
from bookie_operator.world.facts import (
    BookieFacts,
    ClusterFacts,
    DrainFacts,
    EtcdFacts,
    Outlook,
    Proof,
    SafetyFacts,
)


@dataclass(frozen=True)
class ClusterView:
    """The resource itself."""

    name: str
    namespace: str
    uid: str
    generation: int
    spec: BookieClusterSpec
    status: BookieClusterStatus
    annotations: Mapping[str, str] = field(default_factory=dict)
    deleting: bool = False
    has_finalizer: bool = True
    created_at: float = 0.0
    """Seconds since 1970."""

    @property
    def paused(self) -> bool:
        return self.annotations.get(names.PAUSED, "").lower() == "true"


@dataclass(frozen=True)
class StatefulSetView:
    name: str
    zone: str
    """Empty: the cluster has no zones."""
    uid: str
    resource_version: str
    replicas: int
    generation: int
    observed_generation: int
    template_hash: str
    volume_sizes: Mapping[str, str]
    """Size in the claim templates, by kind of volume (`journal`, `ledger`, `index`)."""
    deleting: bool = False
    config_maps: frozenset[str] = frozenset()
    """Names of the ConfigMaps that its template uses."""
    inputs_hash: str = ""
    """Hash of what people asked for when it got this template; empty: not recorded."""
    restart: str = ""
    """Text of the annotation `podkeeper.dev/restart` in its template."""
    volume_attributes: Mapping[str, str] = field(default_factory=dict)
    """VolumeAttributesClass in the claim templates, by kind of volume, of those that have one."""
    volume_classes: Mapping[str, str] = field(default_factory=dict)
    """Storage class in the claim templates, by kind of volume, of those that name one."""

    @property
    def settled(self) -> bool:
        """Return whether its controller has seen what it says."""
        return self.observed_generation >= self.generation and not self.deleting


class PodFault(StrEnum):
    """The reason for which a pod does not become ready, as far as it shows."""

    NONE = ""
    IMAGE = "Image"
    """The image cannot be pulled."""
    CONFIG = "Config"
    """It cannot be started: something that it refers to is missing."""
    CRASHING = "Crashing"
    UNSCHEDULABLE = "Unschedulable"
    VOLUME = "Volume"
    """A volume of it is missing, or bound to a node that is gone."""
    COOKIE = "Cookie"
    """It refuses its directories: they are not those that its cookie names."""


@dataclass(frozen=True)
class PodView:
    name: str
    uid: str
    stateful_set: str
    ordinal: int
    zone: str = ""
    node: str = ""
    ready: bool = False
    running: bool = False
    bookie_runs: bool = False
    """The container of the bookie, or of the member of etcd, runs, whatever others do: it may serve, also where the pod
    is not ready."""
    deleting: bool = False
    template_hash: str = ""
    fault: PodFault = PodFault.NONE
    fault_message: str = ""
    kept_by_cordon: bool = False
    """True if it waits for nodes that are cordoned, and its volumes fit no other."""
    created_at: float = 0.0
    """Seconds since 1970."""
    ready_since: float | None = None
    unready_since: float | None = None
    """None: it is ready, or that time is unknown."""
    owner_uid: str = ""
    """UID of its StatefulSet; empty: it is an orphan."""
    config_maps: frozenset[str] = frozenset()
    """Names of the ConfigMaps that it uses; empty: unknown."""
    awaits_location: bool = False
    """True if it still needs the zone of its node."""
    awaits_start: bool = False
    """True if it is a pod of etcd that found its volume empty: it needs the operator's word to start."""
    told_start: bool = False
    """True if it was given that word."""


class ResizeState(StrEnum):
    NONE = ""
    RESIZING = "Resizing"
    FILE_SYSTEM_PENDING = "FileSystemResizePending"
    FAILED = "Failed"


class ModifyState(StrEnum):
    """The state of the VolumeAttributesClass that a claim asks for, while its volume does not have it."""

    NONE = ""
    """The change has not begun."""
    PENDING = "Pending"
    """A part is missing, usually the class itself."""
    IN_PROGRESS = "InProgress"
    FAILED = "Failed"
    """The driver refuses, or fails and tries again."""


@dataclass(frozen=True)
class AttributesView:
    """VolumeAttributesClass of a claim."""

    requested: str = ""
    """Empty: the claim asks for none."""
    current: str = ""
    """Class that its volume has; empty: none."""
    state: ModifyState = ModifyState.NONE
    message: str = ""


@dataclass(frozen=True)
class ClaimView:
    name: str
    uid: str
    bookie: str
    """Name of the pod that it belongs to."""
    ordinal: int
    volume: str
    """`journal`, `ledger` or `index`."""
    requested: str
    actual: str
    """Capacity; empty while it is not bound."""
    bound: bool = True
    lost: bool = False
    """Its volume is gone."""
    deleting: bool = False
    instance_id: str = ""
    foreign: bool = False
    """True if it has the name of a bookie's claim but not the labels of this cluster's claims."""
    adoption: bool = False
    """True if a person asked the operator to label it as this cluster's."""
    mounted: bool = True
    """False if no StatefulSet that should exist mounts a claim of this name, whatever its number of replicas."""
    retired: bool = False
    retired_proof: str = ""
    storage_class: str = ""
    resize: ResizeState = ResizeState.NONE
    resize_since: float | None = None
    message: str = ""
    deleting_since: float | None = None
    """Seconds since 1970; None: it is not being deleted, or since when is unknown."""
    finalizers: tuple[str, ...] = ()
    """Names that keep it from going once it was deleted, beside the pods that use it."""
    zone: str = ""
    attributes: AttributesView = AttributesView()


@dataclass(frozen=True)
class NodeView:
    name: str
    ready: bool
    out_of_service: bool = False
    """It has the taint `node.kubernetes.io/out-of-service`: a person vouches that nothing runs on it any more."""
    unschedulable: bool = False
    """It is cordoned, as `kubectl drain` does first: it takes no new pod."""
    zone: str = ""
    """Value of its label `spec.placement.zoneTopologyKey`; empty: it has none."""


@dataclass(frozen=True)
class TaskView:
    """A `BookieTask` of this cluster that is not finished; the oldest first."""

    name: str
    uid: str
    type: TaskType
    bookies: tuple[str, ...]
    """Pod names; empty: all."""
    phase: str
    """Empty, `Running`."""
    created_at: float
    ledgers: tuple[int, ...] = ()
    """Ledgers of an AcceptLoss task."""
    started_at: float = 0.0
    """The time at which an operator took it up, by its own clock, as in the history; `created_at` is by the API
    server's."""


@dataclass(frozen=True)
class DeploymentView:
    """Auto-recovery's, or that of gateways; without a Deployment only `pods` may be above 0."""

    inputs: str = ""
    """Inputs from people when it was applied last; empty: not recorded."""
    ready: int = 0
    replicas: int = 0
    pods: int = 0
    """Its pods that there are, also those that are being stopped."""
    config_maps: frozenset[str] = frozenset()
    """Names of those that its template and these pods use: an older ReplicaSet makes its pods again with theirs."""


@dataclass(frozen=True)
class BackupRun:
    """A run of the CronJob that is over."""

    finished_at: float
    """Seconds since 1970."""
    told: str = ""
    """Termination message of one that succeeded: the number of ledgers, a blank, and the path of the file."""
    message: str = ""
    """Reason of the failure of one that failed."""


@dataclass(frozen=True)
class BackupView:
    """The CronJob that backs the metadata up, and its runs, as far as Kubernetes keeps them; by default there is
    none."""

    config_maps: frozenset[str] = frozenset()
    """Names of those that its template uses."""
    since: float | None = None
    """Time after which the next run is the first: that at which the last one was due, else that of the CronJob's
    creation. None: there is no CronJob."""
    succeeded: BackupRun | None = None
    """Last one that succeeded."""
    failed: BackupRun | None = None
    """Last one that failed."""
    message: str = ""
    """Reason for which a run that has begun does not go on."""
    at_work: tuple[str, ...] = ()
    """Names of Jobs and pods of backups that are not over, also of a CronJob that is gone."""


@dataclass(frozen=True)
class RefusedAction:
    """An action that the API server or a bookie refused lately, for good until a person does something."""

    action: object
    """Action as the planner made it."""
    message: str
    not_before: float
    """Time at which it is tried again; seconds since 1970."""


@dataclass(frozen=True)
class World:
    """All facts, as one pass found them."""

    @cached_property
    def pods_by_name(self) -> Mapping[str, PodView]:
        return {pod.name: pod for pod in reversed(self.pods)}

    @cached_property
    def claims_by_bookie(self) -> Mapping[str, tuple[ClaimView, ...]]:
        """The claims in the order in which they were found."""
        found: dict[str, list[ClaimView]] = {}
        for claim in self.claims:
            found.setdefault(claim.bookie, []).append(claim)
        return {bookie: tuple(claims) for bookie, claims in found.items()}

    now: float
    """Seconds since 1970."""
    cluster: ClusterView
    stateful_sets: tuple[StatefulSetView, ...] = ()
    pods: tuple[PodView, ...] = ()
    claims: tuple[ClaimView, ...] = ()
    object_hashes: Mapping[str, str] = field(default_factory=dict)
    """`Kind/name` of the cluster's own objects, to their `OBJECT_HASH` (empty: none)."""
    object_uids: Mapping[str, str] = field(default_factory=dict)
    taken: Mapping[str, str] = field(default_factory=dict)
    """`Kind/name` of objects that the cluster needs and that have another owner, with the owner in words."""
    outlived: frozenset[str] = frozenset()
    """Names of those of them that an earlier cluster of this name owned: Kubernetes takes them away."""
    drift: Mapping[str, str] = field(default_factory=dict)
    """`Kind/name` of the cluster's own objects that are not as they were applied, with what was changed, in words.
    Their hash is empty, but for StatefulSets of bookies."""
    unstable: Mapping[str, str] = field(default_factory=dict)
    """`Kind/name` of objects that were applied again and again, and are not to be applied again yet, with the hash of
    what was applied."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """`Kind/name` of what makes pods and is not let, by a quota or a policy, with Kubernetes' words."""
    refused_actions: tuple[RefusedAction, ...] = ()
    """Refused actions that are not to be tried yet."""
    metadata_job: str = ""
    """State of the Job that initialises the metadata: empty (there is none), `Running`, `Complete`, `Failed`."""
    metadata_job_message: str = ""
    metadata_job_finished_at: float | None = None
    """Time at which it ended, completed or failed; seconds since 1970."""
    metadata_instance_id: str = ""
    """Instance id that the Job found or made; empty: not known (yet)."""
    check_job: str = ""
    """State of the Job that looks for the metadata where they are to be from now on, as `metadata_job`; so the next
    two."""
    check_job_message: str = ""
    check_job_finished_at: float | None = None
    check_instance_id: str = ""
    """Instance id that it found, and how many writable and read-only bookies are registered there, with blanks between;
    empty: none, or not known (yet)."""
    cleanup_job: str = ""
    """State of the Job that removes the metadata, as `metadata_job`; so the next two."""
    cleanup_job_message: str = ""
    cleanup_job_finished_at: float | None = None
    identity: Mapping[str, str] | None = None
    """Content of the identity Secret: `instanceId`, `replicas`...; None: there is none."""
    expandable: Mapping[str, bool] | None = None
    """Storage class to whether its volumes grow; None: the operator may not read them."""
    nodes: Mapping[str, NodeView] | None = None
    """None: the operator may not read them."""
    facts: ClusterFacts | None = None
    """Facts about the cluster; None: no pod that knows them was reached."""
    facts_error: str = ""
    bookies: Mapping[str, BookieFacts | None] = field(default_factory=dict)
    """Facts by pod name; None: it did not answer."""
    proofs: Mapping[str, Proof | None] = field(default_factory=dict)
    """Proofs by bookie id, as the planner needs them; None: unknown."""
    drains: Mapping[str, DrainFacts | None] = field(default_factory=dict)
    """Drains by bookie id."""
    outlooks: Mapping[str, Outlook | None] = field(default_factory=dict)
    """Outlooks by bookie id."""
    safety: Mapping[frozenset[str], SafetyFacts | None] = field(default_factory=dict)
    """Risks by bookie ids."""
    tasks: tuple[TaskView, ...] = ()
    outlived_tasks: tuple[TaskView, ...] = ()
    """Tasks of an earlier cluster of this name: they count for nothing."""
    spec_errors: tuple[str, ...] = ()
    """Faults found by the validation in the loop: field, what is wrong, remedy."""
    config_changes: tuple[str, ...] = ()
    """Keys of the bookies' configuration file that `spec` gives another value than a StatefulSet's template has; empty
    also where they were not compared, which is while an operation runs."""
    autorecovery: DeploymentView = DeploymentView()
    gateway: DeploymentView = DeploymentView()
    backup: BackupView | None = BackupView()
    """None: the operator may not read it."""
    members: tuple[PodView, ...] = ()
    """Pods of the etcd that the operator runs."""
    etcd: EtcdFacts | None = None
    """Facts that its members report; None: unknown."""


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
    """Exit code of the last pod's container that ended; None: none did, or it is unknown."""
    told: str = ""
    """Termination message of that container: the result row, else the end of its log."""
    message: str = ""
    """Message of Kubernetes: why it does not begin, or why it failed."""
    suspended: bool = False
    deleting: bool = False
    template_hash: str = ""
    """Hash of the specification that it was made of."""
    inputs: str = ""
    """Inputs from people at that time; empty: not recorded."""


@dataclass(frozen=True)
class ObjectView:
    """An object that a BookieJob wants to be of its own, as it is."""

    uid: str
    digest: str
    """Hash of the content that it was given; empty: another writer made it."""
    owner_uid: str
    """UID of its controller."""
    suspended: bool = False
    """True for a CronJob that is suspended."""


@dataclass(frozen=True)
class JobWorld:
    now: float
    """Seconds since 1970."""
    job: JobResource
    cluster: ClusterView | None
    cluster_problem: str = ""
    """Reason why there is no cluster to work on."""
    runs: tuple[RunView, ...] = ()
    """The oldest first."""
    objects: Mapping[str, ObjectView] = field(default_factory=dict)
    """Objects by `Kind/name`: those that are desired and there, and all others with the job's label."""
    last_schedule_at: float | None = None
    """Time at which its CronJob made a Job last."""
    spec_errors: tuple[str, ...] = ()
