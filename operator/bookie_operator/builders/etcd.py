"""The etcd that the operator runs for a cluster: a StatefulSet of members, each with a volume of its own.

A member that finds an empty volume must not start by itself. With the id of an earlier member and none of what that one
acknowledged, it would vote, and entries that a majority has could be lost. So an init container looks for etcd's log.
Without one it ends once with `EMPTY`, which tells the operator that the volume is empty, and then waits for the
annotation `podkeeper.dev/etcd-start` of its pod. The annotation goes with the pod and is taken away once the member
runs, so it allows one start, on one volume.

    new        the first members, of a cluster whose metadata were never made
    existing   a member that was added to etcd's list for one that lost its volume (`planner.flows.members`)

A member with its log starts without the operator, and etcd takes no notice of the annotation then.

Members and clients show certificates of the cluster's own authority (`reconcile.admin_certificate`). etcd takes a peer
only by the name that members alone have in theirs. Probes and metrics have a port of their own, without TLS.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from bookie_operator.builders import location, naming
from bookie_operator.builders.claims import claim
from bookie_operator.builders.common import (
    READ_ONLY_CONTAINER,
    Manifest,
    account_name,
    apart,
    common_pod_spec,
    content_hash,
    from_field,
    labels,
    manifest,
    over_zones,
    pod_metadata,
    selector,
)
from bookie_operator.builders.container import http_probe, image, metadata_mount, tls_files
from bookie_operator.builders.context import BuildContext
from bookie_operator.builders.metadata_uri import member_hosts, metadata_host
from bookie_operator.builders.statefulset import template_hash
from bookie_operator.crds import names
from bookie_operator.crds.pod_spec import LivenessProbe, Probe, StartupProbe
from bookie_operator.crds.quantity import known_bytes
from bookie_operator.planner.desired import DesiredMembers
from bookie_operator.world.model import ClusterView

NAME: Final = "etcd"
"""Name of a member's container."""
LOOK: Final = "volume"
"""Name of its init container."""
EMPTY: Final = 3
"""Exit code by which that tells that the volume is empty."""
DATA: Final = "data"
_DIRECTORY: Final = "/data/etcd"
_METRICS: Final = "metrics"
_RETENTION: Final = "1h"
"""Time for which etcd keeps earlier states of keys: watches that were away for longer read again."""
_MOST_BYTES: Final = 8 * 2**30
"""Largest database that etcd's project advises."""
_GRACE_SECONDS: Final = 30
_LOOK_AT_VOLUME: Final = f"""\
for log in {_DIRECTORY}/member/wal/*.wal; do
  if [ -e "$log" ]; then exit 0; fi
done
if [ ! -e /tmp/looked ]; then
  touch /tmp/looked
  echo 'the volume has no data of etcd'
  exit {EMPTY}
fi
echo 'waits until the operator says whether this is a new etcd or a member that was added'
until grep -q '^{names.ETCD_START}=' {location.ANNOTATIONS}; do sleep 1; done
"""


def etcd(cluster: ClusterView, context: BuildContext) -> list[Manifest]:
    """Service, StatefulSet and budget; empty: the operator runs no etcd for the cluster."""
    if not member_hosts(cluster):
        return []
    name, chosen = naming.metadata(cluster.name), selector(cluster, naming.METADATA)
    ports = [{"name": each, "port": port, "targetPort": each, "protocol": "TCP"} for each, port in _ports().items()]
    # Members that start have to find each other, and clients those that are not ready for a moment.
    service = {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": chosen, "ports": ports}
    stateful_set = {
        "replicas": cluster.spec.metadata_service.etcd.replicas,
        "serviceName": name,
        "selector": {"matchLabels": chosen},
        "podManagementPolicy": "Parallel",
        # Kubernetes would restart the next member while another one is away.
        "updateStrategy": {"type": "OnDelete"},
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
        "revisionHistoryLimit": 3,
        "template": _template(cluster, context),
        "volumeClaimTemplates": [_claim(cluster)],
    }
    made = [
        manifest(cluster, "v1", "Service", name, naming.METADATA, {"spec": service}),
        manifest(cluster, "apps/v1", "StatefulSet", name, naming.METADATA, {"spec": stateful_set}),
    ]
    return [*made, *_budget(cluster)]


def members(cluster: ClusterView, context: BuildContext) -> DesiredMembers | None:
    """The members, for the planner; None: the operator runs no etcd for the cluster."""
    hosts = member_hosts(cluster)
    if not hosts:
        return None
    return DesiredMembers(
        stateful_set=naming.metadata(cluster.name),
        template_hash=template_hash(_template(cluster, context)),
        peer_urls={pod: peer_url(host) for pod, host in hosts.items()},
        quota=quota(cluster),
    )


def _ports() -> dict[str, int]:
    return {"client": naming.ETCD_PORT, "peer": naming.ETCD_PEER_PORT}


def _budget(cluster: ClusterView) -> Iterator[Manifest]:
    """One member at a time, and none while another one is away: a member that starts may not have caught up."""
    if cluster.spec.disruption.enabled:
        spec = {
            "maxUnavailable": 1,
            "selector": {"matchLabels": selector(cluster, naming.METADATA)},
            "unhealthyPodEvictionPolicy": "IfHealthyBudget",
        }
        name = naming.metadata(cluster.name)
        yield manifest(cluster, "policy/v1", "PodDisruptionBudget", name, naming.METADATA, {"spec": spec})


def _claim(cluster: ClusterView) -> dict[str, Any]:
    service = cluster.spec.metadata_service
    with_labels = {**labels(cluster, naming.METADATA), names.VOLUME: "metadata"}
    return claim(DATA, service.size, service.storage_class_name, with_labels)


def _template(cluster: ClusterView, context: BuildContext) -> dict[str, Any]:
    metadata = pod_metadata(cluster, naming.METADATA)
    annotations = {**metadata.get("annotations", {}), "kubectl.kubernetes.io/default-container": NAME}
    bare = {"metadata": {**metadata, "annotations": annotations}, "spec": _pod(cluster, context)}
    stamped = {**annotations, names.TEMPLATE_HASH: content_hash(bare)}
    return {**bare, "metadata": {**metadata, "annotations": stamped}}


def _pod(cluster: ClusterView, context: BuildContext) -> dict[str, Any]:
    certificate = naming.metadata_certificate(cluster.name)
    made = {
        **common_pod_spec(cluster, account_name(cluster)),
        "terminationGracePeriodSeconds": _GRACE_SECONDS,
        "affinity": {"podAntiAffinity": apart(cluster, naming.METADATA)},
        "topologySpreadConstraints": [over_zones(cluster, naming.METADATA)],
        "initContainers": [_look(cluster, context)],
        "containers": [_member(cluster)],
        "volumes": [tls_files(certificate), location.volume(), {"name": _LOOKED, "emptyDir": {"sizeLimit": "1Mi"}}],
    }
    if cluster.spec.pod.node_selector:
        made["nodeSelector"] = dict(cluster.spec.pod.node_selector)
    return made


_LOOKED: Final = "looked"


def _look(cluster: ClusterView, context: BuildContext) -> dict[str, Any]:
    """Return the init container. It has the image of the bookies, because that of etcd has no shell."""
    return {
        "name": LOOK,
        "image": image(cluster, context),
        "imagePullPolicy": cluster.spec.image_pull_policy,
        "command": ["/bin/sh", "-ec", _LOOK_AT_VOLUME],
        "resources": dict(cluster.spec.metadata_service.etcd.resources),
        "securityContext": dict(READ_ONLY_CONTAINER),
        "volumeMounts": [
            {"name": DATA, "mountPath": "/data", "readOnly": True},
            {"name": _LOOKED, "mountPath": "/tmp"},
            location.mount(),
        ],
    }


def _member(cluster: ClusterView) -> dict[str, Any]:
    return {
        "name": NAME,
        "image": cluster.spec.metadata_service.etcd.image,
        "imagePullPolicy": cluster.spec.image_pull_policy,
        "command": ["etcd", *_options(cluster)],
        "env": [
            from_field("POD_NAME", "metadata.name"),
            from_field("ETCD_INITIAL_CLUSTER_STATE", f"metadata.annotations['{names.ETCD_START}']"),
        ],
        "ports": [
            *({"name": each, "containerPort": port} for each, port in _ports().items()),
            {"name": _METRICS, "containerPort": naming.ETCD_METRICS_PORT},
        ],
        # Health depends on the other members too: it makes a member not ready, and never ends it.
        "startupProbe": http_probe("/metrics", StartupProbe(), _METRICS),
        "livenessProbe": http_probe("/metrics", LivenessProbe(), _METRICS),
        "readinessProbe": http_probe("/health", Probe(period_seconds=5), _METRICS),
        "resources": dict(cluster.spec.metadata_service.etcd.resources),
        "securityContext": dict(READ_ONLY_CONTAINER),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": DATA, "mountPath": "/data"}, metadata_mount()],
    }


def _options(cluster: ClusterView) -> list[str]:
    hosts = member_hosts(cluster)
    own = f"$(POD_NAME).{metadata_host(cluster)}"
    options = {
        "name": "$(POD_NAME)",
        "data-dir": _DIRECTORY,
        "listen-client-urls": f"https://0.0.0.0:{naming.ETCD_PORT}",
        "advertise-client-urls": f"https://{own}:{naming.ETCD_PORT}",
        "listen-peer-urls": f"https://0.0.0.0:{naming.ETCD_PEER_PORT}",
        "initial-advertise-peer-urls": peer_url(own),
        "initial-cluster": ",".join(f"{pod}={peer_url(host)}" for pod, host in hosts.items()),
        "initial-cluster-token": f"{cluster.namespace}.{cluster.name}",
        "listen-metrics-urls": f"http://0.0.0.0:{naming.ETCD_METRICS_PORT}",
        "auto-compaction-mode": "periodic",
        "auto-compaction-retention": _RETENTION,
        "quota-backend-bytes": str(quota(cluster)),
        "peer-cert-allowed-hostname": metadata_host(cluster),
    }
    directory = metadata_mount()["mountPath"]
    for prefix in ("", "peer-"):
        options[f"{prefix}cert-file"] = f"{directory}/tls.crt"
        options[f"{prefix}key-file"] = f"{directory}/tls.key"
        options[f"{prefix}trusted-ca-file"] = f"{directory}/ca.crt"
        options[f"{prefix}client-cert-auth"] = "true"
    return [f"--{option}={text}" for option, text in options.items()]


def peer_url(host: str) -> str:
    """Return the address at which the other members reach a member, by which etcd's list knows it."""
    return f"https://{host}:{naming.ETCD_PEER_PORT}"


def quota(cluster: ClusterView) -> int:
    """Return the bytes that etcd's database may have. Beside it the volume has etcd's log, and while a member catches
    up a second database."""
    size = known_bytes(cluster.spec.metadata_service.size) or 0
    return min(_MOST_BYTES, size * 2 // 5)
