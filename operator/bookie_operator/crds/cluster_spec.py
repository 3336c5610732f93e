"""`BookieCluster.spec`, as typed source: schema, defaults, documentation and parsing come from here.

Invariants
- Every default is here (pods: `pod_spec`) and nowhere else; the operator never writes `spec`.
- Every string, list and map is bounded: what rules cost in the API server is counted by the largest value.
- Fields are only ever added.

Threads: values without I/O, for any thread.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from bookie_operator.crds.model import (
    Annotations,
    ConfigValue,
    Freeform,
    Labels,
    Model,
    Name,
    Quantity,
    Words,
    by_name,
)
from bookie_operator.crds.pod_spec import LivenessProbe, Pod, Probe, StartupProbe

__all__ = ["Freeform", "Labels", "LivenessProbe", "Model", "Name", "Pod", "Probe", "Quantity", "StartupProbe", "Words"]


class Autorecovery(Model):
    """Auditor and replication workers, in a Deployment of their own."""

    enabled: bool = True
    """If false, lost copies are not restored, and no bookie can be taken out."""
    replicas: Annotated[int, Field(ge=1, le=100)] = 2
    """Pods; one of them is the auditor at a time."""
    resources: Freeform = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}
    """Requests and limits of their container."""
    lost_bookie_recovery_delay_seconds: Annotated[int, Field(ge=0, le=604800)] = 300
    """Seconds that a bookie may be away before its copies are made again elsewhere."""
    max_concurrent_ledgers: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Ledgers that each pod checks and copies at the same time, instead of the key `replicationLedgersAtOnce` of
    `config`; without: 8."""


class Gateway(Model):
    """Gateways in a Deployment of their own, which serve ledgers over gRPC at the Service `CLUSTER-gateway`, port 3182.
    Every bookie has one beside itself too."""

    enabled: bool = False
    """Run gateways in pods of their own: for many entries a second, on other nodes than the bookies'."""
    replicas: Annotated[int, Field(ge=1, le=100)] = 2
    """Pods."""
    resources: Freeform = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "1Gi"}}
    """Requests and limits of their container."""


class PodMonitor(Model):
    """A PodMonitor of the Prometheus operator."""

    enabled: bool = False
    """It is made if the cluster knows PodMonitors."""
    labels: Labels = {}
    """Its labels, as a Prometheus selects them."""
    interval: Annotated[str, Field(max_length=16)] = "30s"
    """Time between two scrapes: a whole number and `ms`, `s`, `m` or `h`."""


class PrometheusRule(Model):
    """A PrometheusRule of the Prometheus operator with alerts about this cluster. The chart `podkeeper-cluster` has the
    same ones: have one of them make it."""

    enabled: bool = False
    """It is made if the cluster knows PrometheusRules. It needs `podMonitor`, or another way for metrics to get the
    labels `namespace` and `pod`."""
    labels: Labels = {}
    """Its labels, as a Prometheus selects them."""
    alert_labels: Labels = {}
    """Additional labels of every alert."""
    disabled: Annotated[list[Name], Field(max_length=64)] = []
    """Names of alerts that are left out."""
    runbook_url: Annotated[str, Field(max_length=1024, pattern=r'^[^"\\\s]*$')] = (
        "https://podkeeper.github.io/podkeeper/latest/runbooks"
    )
    """Address of the pages of docs/runbooks, for the links in alerts: `NAME/` is added, the name of the alert."""


class Monitoring(Model):
    """Objects for Prometheus: the metrics that it reads, and its alerts."""

    pod_monitor: PodMonitor = PodMonitor()
    prometheus_rule: PrometheusRule = PrometheusRule()


class MetadataServiceKind(StrEnum):
    EXTERNAL = "External"
    EMBEDDED = "Embedded"
    ETCD = "Etcd"


class Etcd(Model):
    """The etcd that the operator runs for the cluster, with `type: Etcd`. `replicas` cannot be changed."""

    replicas: Annotated[int, Field(ge=1, le=5)] = 3
    """Members: 1, 3 or 5. The metadata can be read and written while more than half of them serve; with 1 the loss of
    its volume is the loss of the cluster."""
    image: Words = "gcr.io/etcd-development/etcd:v3.6.5"
    """Image with etcd 3.4 or newer. Another one reaches the members one after the other. etcd goes to the next minor
    version only, and never back."""
    resources: Freeform = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "2Gi"}}
    """Requests and limits of each member's container."""


class MetadataService(Model):
    """The service in which the cluster keeps what its clients and bookies agree on. Once it exists only `uri` can be
    changed, to other servers of the same service, and image and resources of `etcd`."""

    type: MetadataServiceKind = MetadataServiceKind.EXTERNAL
    """`External`: a ZooKeeper, etcd or Oxia of yours. `Etcd`: an etcd that the operator runs. `Embedded`: one pod that
    the operator runs, for development only."""
    uri: Annotated[str, Field(max_length=1024)] = ""
    """Address of an external one, without the root: `zk+hierarchical://zk-0:2181;zk-1:2181`,
    `etcd://etcd-0:2379,etcd-1:2379`; of Oxia with the namespace, `oxia://oxia:6648/default`."""
    root_path: Annotated[str, Field(max_length=255, pattern=r"^/[A-Za-z0-9._/-]*[A-Za-z0-9]$")] = "/ledgers"
    """One root is one cluster."""
    size: Quantity = "2Gi"
    """Volume of an embedded one, or of each member of `etcd`. Two fifths of it, and 8Gi at most, are for etcd's
    database."""
    storage_class_name: Words | None = None
    """Storage class of these volumes; without: the default class."""
    etcd: Etcd = Etcd()


class Backup(Model):
    """Backups of the metadata on a schedule. Each is read back before older ones go. Entries are not in them."""

    schedule: Annotated[str, Field(min_length=1, max_length=128)]
    """Times at which one is made, as in a CronJob: `0 * * * *`, or `@daily`."""
    time_zone: Annotated[str, Field(min_length=1, max_length=64)] = "Etc/UTC"
    """Time zone of the schedule."""
    suspend: bool = False
    """If true, no new backup begins."""
    keep: Annotated[int, Field(ge=1, le=10000)] = 24
    """Number of backups of this cluster that are kept. Older ones go once a new one was read back."""
    claim_name: Annotated[str, Field(max_length=253)] = ""
    """Name of a PersistentVolumeClaim of yours for the files, of which no copy of this cluster has backups too. Empty:
    the operator makes `CLUSTER-backup`, which it never changes and never deletes."""
    size: Quantity = "1Gi"
    """Size of the claim that the operator makes."""
    storage_class_name: Words | None = None
    """Storage class of that claim; without: the default class. One of another kind of disk than the metadata's."""
    resources: Freeform = {"requests": {"cpu": "50m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}
    """Requests and limits of the container."""
    active_deadline_seconds: Annotated[int, Field(ge=60, le=604800)] = 3600
    """A backup that takes longer has failed."""


class Durability(Model):
    """The largest quorums of any client: what may be stopped, and how many bookies it takes, follow from them."""

    ensemble_size: Annotated[int, Field(ge=1, le=100)] = 3
    """Bookies over which the entries of a ledger are spread."""
    write_quorum: Annotated[int, Field(ge=1, le=100)] = 3
    """Copies of each entry."""
    ack_quorum: Annotated[int, Field(ge=1, le=100)] = 2
    """Copies that are synced before an entry is acknowledged."""


class Volume(Model):
    """Volumes of one kind, for each bookie."""

    size: Quantity
    """Size of each volume, as `100Gi`. It may grow, never shrink."""
    storage_class_name: Words | None = None
    """Storage class; if unset, the default class. Another name counts for new volumes: `kubectl bookie move` gives them
    to a bookie."""
    volumes: Annotated[int, Field(ge=1, le=16)] = 1
    """Number of such volumes of each bookie. It cannot be changed."""
    volume_attributes_class_name: Words | None = None
    """VolumeAttributesClass, such as one with more IOPS. Another name is applied to the volumes that there are, without
    a restart. Without, or taken out: volumes keep what they have, and new ones get none."""
    labels: Labels = {}
    """Additional labels of the claims."""
    annotations: Annotations = {}
    """Additional annotations of the claims."""


class WhenDeleted(StrEnum):
    RETAIN = "Retain"
    DELETE = "Delete"


class Retention(Model):
    """Retention of volumes when the cluster or a bookie is removed."""

    when_deleted: WhenDeleted = WhenDeleted.RETAIN
    """Volumes of a deleted cluster. `Delete` takes the annotation `podkeeper.dev/confirm-delete: NAME` too."""
    when_scaled: WhenDeleted = WhenDeleted.DELETE
    """Volumes of a bookie that was taken out, after the proof that no ledger needs it."""


class Storage(Model):
    """The disks of each bookie."""

    journal: Volume
    """Volume that is synced before an entry is acknowledged: fast and small."""
    ledger: Volume
    """Volume where entries stay: large."""
    index: Volume | None = None
    """Volumes of their own for the index; without: on the ledger volumes."""
    retention: Retention = Retention()
    allow_smaller_sizes: bool = False
    """Accept a `size` below that of the volumes, for example of an earlier release of a chart. It has no effect:
    volumes keep their size."""


class Zone(Model):
    """One zone; its bookies are a StatefulSet of their own."""

    name: Name
    """Value of the topology key's label on the nodes of the zone."""
    replicas: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Bookies of this zone. Give it for all zones or for none; without: spread evenly, the first zones get one more."""


class Nodes(StrEnum):
    SEPARATE = "Separate"
    SHARED = "Shared"


class Placement(Model):
    """The nodes and zones of bookies, and of copies."""

    nodes: Nodes = Nodes.SEPARATE
    """`Separate`: not two bookies of the cluster on one node, so each needs a node. `Shared`: apart as far as there are
    nodes, to try it out; the loss of a node is the loss of all bookies on it, and maybe of every copy of an entry."""
    zone_topology_key: Words = "topology.kubernetes.io/zone"
    """Label of nodes that tells the zone."""
    zones: Annotated[list[Zone], Field(max_length=16, json_schema_extra=by_name("name"))] = []
    """Zones of the bookies. If there are two or more, copies are spread over zones, and a StatefulSet is made for each.
    Zones may be added; one that has bookies cannot be removed."""
    min_zones_per_write_quorum: Annotated[int, Field(ge=1, le=16)] = 1
    """Zones that the copies of an entry span at least."""


class Logging(Model):
    """Logging of the cluster's processes."""

    level: Literal["debug", "info", "warning", "error"] | None = None
    """Lowest level that is logged, instead of the key `logLevel` of `config`; if unset, `info`."""
    format: Literal["json", "console"] | None = None
    """`json`: one object per line. `console`: for people. Instead of the key `logFormat` of `config`; without:
    `json`."""


class UpdateStrategy(StrEnum):
    ROLLING = "Rolling"
    MANUAL = "Manual"


class Day(StrEnum):
    MONDAY = "Mon"
    TUESDAY = "Tue"
    WEDNESDAY = "Wed"
    THURSDAY = "Thu"
    FRIDAY = "Fri"
    SATURDAY = "Sat"
    SUNDAY = "Sun"


class Window(Model):
    """A time in which bookies may be restarted."""

    days: Annotated[list[Day], Field(max_length=7)] = []
    """Days on which it begins, such as `Sat`; empty: every day."""
    start: Annotated[str, Field(max_length=5, pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$")]
    """Time at which it begins, in UTC, such as `02:30`."""
    hours: Annotated[int, Field(ge=1, le=24)]
    """Hours for which it is open."""


class Update(Model):
    """The way in which a new version or configuration reaches the bookies."""

    strategy: UpdateStrategy = UpdateStrategy.ROLLING
    """`Manual`: the operator stages it, you delete the pods."""
    max_unavailable: Annotated[int, Field(ge=1, le=10)] = 1
    """Bookies that are restarted at a time."""
    canary: Annotated[int, Field(ge=0, le=10)] = 1
    """Bookies that go first and have to work before any other is touched."""
    soak_seconds: Annotated[int, Field(ge=0, le=86400)] = 60
    """Seconds that each restarted bookie has to work before the next one."""
    require_fully_replicated: bool = True
    """If true, no bookie is stopped while a ledger is under-replicated."""
    progress_deadline_seconds: Annotated[int, Field(ge=10, le=86400)] = 1800
    """Seconds without success after which a restarted bookie counts as failed, and the roll stops."""
    windows: Annotated[list[Window], Field(max_length=16)] = []
    """Times at which a roll may begin, and restart the next bookie; empty: always. Bookies that are down do not wait
    for a window, nor do tasks."""


class DecommissionMode(StrEnum):
    DRAIN = "Drain"
    STOP_FIRST = "StopFirst"


class Decommission(Model):
    """The way in which a bookie is taken out."""

    mode: DecommissionMode = DecommissionMode.DRAIN
    """`Drain`: its copies are made again while it still serves them. `StopFirst`: after it was stopped; for one that is
    lost already."""
    headroom_percent: Annotated[int, Field(ge=0, le=90)] = 20
    """Free space of the other bookies that is not counted on."""
    stall_seconds: Annotated[int, Field(ge=10, le=604800)] = 3600
    """Seconds without progress after which it is reported as stalled."""


class Repair(Model):
    """Replacement of a bookie that lost its disk or its node."""

    auto_replace_after_seconds: Annotated[int, Field(ge=0, le=604800)] = 0
    """Start it again with empty disks after this many seconds, if no ledger has its last copy there; 0: only on
    request."""


class Disruption(Model):
    """The PodDisruptionBudget of the bookies. That of gateways lets one go at a time."""

    enabled: bool = True
    """If false, the drain of a node may evict several bookies at once."""
    max_unavailable: Annotated[int, Field(ge=1, le=10)] = 1
    """Bookies that may be evicted at a time while all is well; nothing may be evicted while a bookie is away or a
    ledger under-replicated."""
    whole_zone: bool = True
    """If `placement.zones` lists several: while nodes of one zone are drained all its bookies may be evicted, if
    without them every ledger keeps its ack quorum and an ensemble is left. False: `maxUnavailable` holds then too."""


class AdminTls(Model):
    """HTTPS of the HTTP port of bookies, auto-recovery and gateways: admin API, probes and metrics."""

    enabled: bool = True
    """If false, the operator shows its token in plain, where others can read it on the way; bookies, commands and jobs
    show it only to their own machine, and are refused. A change restarts the bookies."""
    secret_name: Words | None = None
    """A Secret with `tls.crt`, `tls.key` and `ca.crt`, whose certificate names `*.CLUSTER-bookie.NAMESPACE.svc` and
    `CLUSTER-bookie.NAMESPACE.svc`. By default the operator makes an authority and a certificate for each cluster, and
    renews it."""
    issuer_ref: Freeform | None = None
    """An issuer of cert-manager that makes it instead: `{name, kind, group}`. It must tell its authority (`ca.crt`)."""


class Tls(Model):
    """TLS of bookies and clients."""

    enabled: bool = False
    """It takes a certificate: either `secretName` or `issuerRef`."""
    secret_name: Words | None = None
    """A Secret with `tls.crt`, `tls.key` and `ca.crt`."""
    issuer_ref: Freeform | None = None
    """An issuer of cert-manager: `{name, kind, group}`."""
    admin_api: AdminTls = AdminTls()


class NetworkPolicy(Model):
    """The peers that may reach the cluster's pods, and that these may reach. Pods of other namespaces reach only what
    they are named for here; the operator may use the admin API."""

    enabled: bool = True
    """If false, every pod that has a route may reach them."""
    clients: Annotated[list[Freeform], Field(max_length=32)] = []
    """Peers of a NetworkPolicy that may use the ports of clients, beside the cluster's own pods: 3181, 3182, that of a
    metadata service which the operator runs. Brokers and writers belong here. Empty: every pod of the namespace."""
    metrics_from: Annotated[list[Freeform], Field(max_length=32)] = []
    """Peers that may use port 8000, with metrics, probes and the admin API; empty: every pod of the namespace."""
    egress: Annotated[list[Freeform], Field(max_length=32)] = []
    """Additional targets that the cluster's pods may reach: rules as in a NetworkPolicy's `egress`. DNS, the ports of
    the metadata service, and bookies of the namespace they always may; jobs reach everything. The targets of sidecars
    belong here."""


class Services(Model):
    """The Services of the cluster."""

    annotations: Annotations = {}
    """Additional annotations of each of them, such as those that a DNS controller or a cloud reads."""
    gateway_type: Literal["ClusterIP", "NodePort", "LoadBalancer"] = "ClusterIP"
    """Type of the Service `CLUSTER-gateway`. With another one than `ClusterIP` clients outside of Kubernetes reach it;
    `networkPolicy.clients` has to admit them."""


class BootstrapMode(StrEnum):
    NEW = "New"
    ADOPT = "Adopt"


class InPlaceVolume(Model):
    """Volumes of one kind, of which each bookie has one."""

    claim: Name
    """Name of the claim template: the part before `-POD` in the names of the claims."""
    mount_path: Words
    """Path at which the volume is mounted. The cookies name the directories, so it stays."""
    directories: Annotated[list[Words], Field(max_length=8)] = []
    """Directories on it, as the bookies' configuration has them; without: `mountPath` alone."""


class InPlace(Model):
    """The parts that stay as they are of an earlier StatefulSet, such as a chart's, that is taken over with its
    volumes. It is `NAME-bookie`, and so is its Service."""

    journal: InPlaceVolume
    ledger: InPlaceVolume
    domain: Annotated[str, Field(max_length=253)] = "cluster.local"
    """The last part of the bookies' ids, `POD.SERVICE.NAMESPACE.svc.DOMAIN:3181`; empty: they end with `svc`."""


class Bootstrap(Model):
    """The origin of the cluster. Once the cluster exists it can only be removed, unless bookies were taken over in
    place."""

    mode: BootstrapMode = BootstrapMode.NEW
    """`Adopt`: take over the volumes and the metadata of a cluster of this name that was deleted."""
    instance_id: Annotated[str, Field(max_length=64)] = ""
    """Instance id of the cluster to adopt; if unset, the one in its identity Secret. With `New`: of a cluster in the
    same metadata root that the bookies are to join on purpose."""
    in_place: InPlace | None = None
    """The bookies of an earlier StatefulSet that `kubectl bookie migrate run --in-place` hands over, with `Adopt`; see
    docs/migrate.md."""


class BookieClusterSpec(Model):
    """A BookKeeper cluster."""

    version: Annotated[str, Field(min_length=1, max_length=63)]
    """Version of Podkeeper that the bookies run, and tag of the image."""
    image: Words = ""
    """Image with tag or digest, instead of the one of this version."""
    image_pull_policy: Literal["Always", "IfNotPresent", "Never"] = "IfNotPresent"
    """Policy of the kubelet for pulling the image."""
    image_pull_secrets: Annotated[list[Freeform], Field(max_length=16)] = []
    """Secrets with credentials of the registry: `{name}`."""
    replicas: Annotated[int, Field(ge=1, le=1000)] = 3
    """Bookies. Fewer than before: the surplus is drained, one at a time, and taken out."""
    metadata_service: MetadataService
    backup: Backup | None = None
    """Backups of the metadata on a schedule; without: none are made."""
    durability: Durability = Durability()
    storage: Storage
    placement: Placement = Placement()
    pod: Pod = Pod()
    config: Annotated[dict[str, ConfigValue], Field(max_length=256)] = {}
    """Keys of the bookies' configuration, with values as strings. Keys that the operator sets are refused."""
    logging: Logging = Logging()
    autorecovery: Autorecovery = Autorecovery()
    gateway: Gateway = Gateway()
    update: Update = Update()
    decommission: Decommission = Decommission()
    repair: Repair = Repair()
    disruption: Disruption = Disruption()
    tls: Tls = Tls()
    network_policy: NetworkPolicy = NetworkPolicy()
    services: Services = Services()
    monitoring: Monitoring = Monitoring()
    bootstrap: Bootstrap = Bootstrap()
