"""`BookieJob`, as typed source: work on many ledgers that runs on Spark, once or on a schedule.

The status says what runs, and how the last runs ended.

Invariants
- Every default is here and nowhere else; the operator never writes `spec`.
- Every string, list and map is bounded.
- What a job does to ledgers is the job's (`pyspark_bookie.jobs`); this module says how it is run.
- A run is counted once: its Job's UID is in `history` from then on, for longer than Kubernetes keeps the Job.
- Nothing in the status changes with the clock alone.

Threads: values without I/O, for any thread.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Final

from pydantic import Field

from bookie_operator.crds.cluster_status import Condition, Count
from bookie_operator.crds.model import (
    ConfigValue,
    Freeform,
    Labels,
    Message,
    Model,
    Name,
    Quantity,
    StatusModel,
    Text,
    Time,
    Words,
    by_name,
)

HISTORY: Final = 32
"""Number of runs that the status keeps: more than Kubernetes keeps Jobs of one BookieJob, which is 10 that succeeded,
10 that failed, and those that run."""
ACTIVE: Final = 32
Result = Annotated[
    dict[str, Any],
    Field(
        max_length=64,
        json_schema_extra={"x-kubernetes-preserve-unknown-fields": True, "x-kubernetes-map-type": "atomic"},
    ),
]


class JobKind(StrEnum):
    """Names of the jobs, as `bookie job` knows them."""

    OFFLOAD = "offload"
    RESTORE = "restore"
    EXPORT = "export"
    IMPORT = "import"
    COPY = "copy"
    AUDIT = "audit"
    SCRUB = "scrub"
    REPLICATION_CHECK = "replication-check"
    RECOVER = "recover"
    SPACE = "space"
    COMPACT_REPORT = "compact-report"
    ORPHANS = "orphans"


class ClusterReference(Model):
    """The BookieCluster that the job works on, in the same namespace. It cannot be changed."""

    name: Name
    """Name of the BookieCluster."""


class ConcurrencyPolicy(StrEnum):
    FORBID = "Forbid"
    ALLOW = "Allow"
    REPLACE = "Replace"


class Executors(Model):
    """Pods beside the driver's that do the work."""

    instances: Annotated[int, Field(ge=0, le=1000)] = 0
    """Number of executors. 0: the driver's pod does all of it (`local[*]`), which gives the same result."""
    cores: Annotated[int, Field(ge=1, le=128)] = 1
    """Tasks that each runs at a time, and processors that it asks for."""
    memory: Quantity = "2Gi"
    """Memory of each pod: half of it for Java, half for Python and what is under way."""
    service_account_name: Words = ""
    """Account of the driver, which makes the executors' pods; without: `CLUSTER-spark`, which the chart
    `podkeeper-cluster` makes. Not used without executors."""


class SecretKey(Model):
    """A key of a Secret in the same namespace."""

    name: Words
    """Name of the Secret."""
    key: Annotated[str, Field(min_length=1, max_length=253, pattern=r"^[-._a-zA-Z0-9]+$")] = "password"
    """The key whose value it is."""


class BookieJobSpec(Model):
    """The job, its times and its resources."""

    cluster_ref: ClusterReference
    kind: JobKind
    """The job. It cannot be changed. `bookie job KIND --help` lists its arguments."""
    args: Annotated[list[Text], Field(max_length=64)] = []
    """Arguments of the job, as on the command line: `["--older-than", "3d", "--dry-run"]`. The operator sets those for
    the cluster, the result and Spark's master."""
    schedule: Annotated[str, Field(max_length=128)] = ""
    """Times at which it runs, as in a CronJob: `0 3 * * 0`, or `@daily`. Empty: once, at once."""
    time_zone: Annotated[str, Field(min_length=1, max_length=64)] = "Etc/UTC"
    """Time zone of the schedule."""
    suspend: bool = False
    """If true, no new run begins; one that runs with a schedule goes on, one without is stopped until this is false
    again."""
    concurrency_policy: ConcurrencyPolicy = ConcurrencyPolicy.FORBID
    """Choice for a run that is due while the last one goes on. `Forbid`: it is left out. `Replace`: the last one is
    stopped. `Allow`: both run."""
    starting_deadline_seconds: Annotated[int, Field(ge=10, le=604800)] | None = None
    """A run that could not begin for so long is left out."""
    executors: Executors = Executors()
    resources: Freeform = {}
    """Requests and limits of the driver's container. Half of the memory is Java's."""
    spark_conf: Annotated[dict[str, ConfigValue], Field(max_length=128)] = {}
    """Additional configuration of Spark, such as `spark.sql.shuffle.partitions`. It is not a place for secrets."""
    image: Words = ""
    """Image with Spark, with tag or digest; without: the cluster's image, with `-spark` after its tag."""
    backoff_limit: Annotated[int, Field(ge=0, le=100)] = 3
    """Number of times that a run that failed is tried again, with growing pauses. Jobs go on where they ended. Findings
    are not a failure, and the loss of a node does not count."""
    active_deadline_seconds: Annotated[int, Field(ge=1, le=31536000)] | None = None
    """A run that takes longer has failed."""
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=31536000)] = 86400
    """Seconds after which a finished run's Job, pod and log are deleted. The BookieJob stays, with the result."""
    successful_jobs_history_limit: Annotated[int, Field(ge=1, le=10)] = 3
    """Finished runs of a schedule whose pods and logs are kept."""
    failed_jobs_history_limit: Annotated[int, Field(ge=1, le=10)] = 3
    """The same, of those that failed or found something."""
    password_secret: SecretKey | None = None
    """Secret with the password of the ledgers; if unset, the password that each ledger recorded."""
    env: Annotated[list[Freeform], Field(max_length=64)] = []
    """Additional environment variables of driver and executors, such as credentials of an object store
    (`valueFrom`)."""
    volumes: Annotated[list[Freeform], Field(max_length=32)] = []
    """Additional volumes of driver and executors, as in a PodSpec."""
    volume_mounts: Annotated[list[Freeform], Field(max_length=32)] = []
    """Mounts of these volumes."""
    node_selector: Labels = {}
    """Labels of the nodes that it may run on."""
    tolerations: Annotated[list[Freeform], Field(max_length=32)] = []
    """Tolerations, as in a PodSpec."""
    affinity: Freeform = {}
    """Affinity, as in a PodSpec."""
    priority_class_name: Words = ""
    """Priority class, as in a PodSpec; a low one lets bookies and their clients go first."""

    @property
    def scheduled(self) -> bool:
        return bool(self.schedule)


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
    """UID of that Job."""
    started_at: Time = ""
    """Time at which it was made."""
    message: Message = ""
    """Reason for which it does not get on, as far as that shows."""


class Run(StatusModel):
    """A run that is over."""

    job: Words
    """Name of the Job of Kubernetes."""
    uid: Words
    """UID of that Job."""
    started_at: Time = ""
    """Time at which it was made."""
    finished_at: Time = ""
    """Time at which it was over."""
    outcome: RunOutcome
    """`Succeeded`; `Findings`: it worked, and found something that wants attention; `Failed`; `Unknown`: its Job was
    gone before the operator had seen how it ended."""
    message: Text = ""
    """Reason of the failure."""


class BookieJobStatus(StatusModel):
    """The present runs, and the results of the last ones."""

    observed_generation: Count = 0
    """Generation of `spec` that was considered in full."""
    phase: JobPhase = JobPhase.PENDING
    """Phase. Of a job that runs once: `Pending`, `Suspended`, `Running`, then `Succeeded`, `Findings` or `Failed`. Of
    one with a schedule: `Scheduled` between runs."""
    conditions: Annotated[list[Condition], Field(max_length=16, json_schema_extra=by_name("type"))] = []
    """`Ready`, `Reconciling`, `Stalled`, `LastRunSucceeded`; of one that runs once also `Complete` and `Failed`, for
    `kubectl wait`."""
    active: Annotated[list[ActiveRun], Field(max_length=ACTIVE)] = []
    """Runs that go on."""
    last_schedule_time: Time | None = None
    """Time at which a run was due last."""
    last_successful_time: Time | None = None
    """Time at which the last run ended that did not fail."""
    last_outcome: Words = ""
    """Outcome of the last run that is over."""
    last_result: Result = {}
    """The result row of the last run that gave one: counters of what was done."""
    history: Annotated[list[Run], Field(max_length=HISTORY)] = []
    """The last runs, the newest last."""
