"""The pod of a bookie.

Invariants
- Nothing of the operator's version is in it, and no hash but its own: the same `spec` makes the same pod.
- Not two bookies of a cluster run on one node, whatever `spec.pod.affinity` adds, unless `spec.placement.nodes` lets
  them.
- Liveness and start-up ask whether the process is sound: neither a long replay, nor a full disk, nor an absent metadata
  service makes them fail. Readiness asks whether it serves, writable or read-only.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from bookie_operator.builders import commands, in_place, naming
from bookie_operator.builders.claims import volume_kinds
from bookie_operator.builders.common import (
    CONTAINER_SECURITY,
    common_pod_spec,
    environment,
    labels,
    selector,
)
from bookie_operator.builders.container import NAME, container, http_port, http_probe, volumes
from bookie_operator.builders.context import BuildContext
from bookie_operator.builders.hashing import content_hash
from bookie_operator.builders.service_account import account_name
from bookie_operator.builders.zones import ZoneShare
from bookie_operator.crds import names
from bookie_operator.crds.cluster_spec import BookieClusterSpec, Nodes
from bookie_operator.world.model import ClusterView

HOSTNAME: Final = "kubernetes.io/hostname"


def pod_labels(cluster: ClusterView, share: ZoneShare) -> dict[str, str]:
    zone = {names.ZONE: share.label} if share.label else {}
    return {**cluster.spec.pod.labels, **labels(cluster, naming.BOOKIE), **zone}


def pod_template(cluster: ClusterView, context: BuildContext, share: ZoneShare, config_name: str) -> dict[str, Any]:
    """The template with its hash, which stands in the annotation `podkeeper.dev/template-hash`."""
    annotations = {**cluster.spec.pod.annotations, "kubectl.kubernetes.io/default-container": NAME}
    if restart := cluster.annotations.get(names.RESTART):
        annotations[names.RESTART] = restart
    annotations.pop(names.TEMPLATE_HASH, None)
    bare = {
        "metadata": {"labels": pod_labels(cluster, share), "annotations": annotations},
        "spec": _pod_spec(cluster, context, share, config_name),
    }
    stamped = {**annotations, names.TEMPLATE_HASH: content_hash(bare)}
    return {**bare, "metadata": {"labels": pod_labels(cluster, share), "annotations": stamped}}


def template_hash(template: Mapping[str, Any]) -> str:
    return str(template["metadata"]["annotations"][names.TEMPLATE_HASH])


def _pod_spec(cluster: ClusterView, context: BuildContext, share: ZoneShare, config_name: str) -> dict[str, Any]:
    spec = cluster.spec
    zone = {spec.placement.zone_topology_key: share.zone} if share.zone else {}
    made = {
        **common_pod_spec(cluster, account_name(cluster)),
        "terminationGracePeriodSeconds": spec.pod.termination_grace_period_seconds,
        "affinity": _affinity(cluster),
        "containers": [_bookie(cluster, context, share), *map(_users_container, spec.pod.sidecars)],
        "volumes": [*volumes(cluster, config_name), *spec.pod.extra_volumes],
    }
    if spec.pod.node_selector or zone:
        made["nodeSelector"] = {**spec.pod.node_selector, **zone}
    if spread := _spread(cluster, share):
        made["topologySpreadConstraints"] = spread
    if spec.pod.init_containers:
        made["initContainers"] = [_users_container(each) for each in spec.pod.init_containers]
    return made


def _bookie(cluster: ClusterView, context: BuildContext, share: ZoneShare) -> dict[str, Any]:
    pod = cluster.spec.pod
    host = f"$(POD_NAME){in_place.host_suffix(cluster)}"
    env = [environment("BK_advertisedAddress", host)]
    if share.zone:
        env.append(environment("BK_networkLocation", f"/{share.zone}"))
    made = container(cluster, context, commands.SERVE, env, pod.resources)
    http = http_port(cluster)
    made["ports"] = [
        {"name": "bookie", "containerPort": naming.BOOKIE_PORT},
        {"name": "grpc", "containerPort": naming.GRPC_PORT},
        http,
    ]
    made["startupProbe"] = http_probe(commands.ALIVE, pod.startup_probe, http["name"])
    made["livenessProbe"] = http_probe(commands.ALIVE, pod.liveness_probe, http["name"])
    made["readinessProbe"] = http_probe(commands.READY, pod.readiness_probe, http["name"])
    made["lifecycle"] = {"preStop": {"exec": {"command": commands.stop(pod.termination_grace_period_seconds)}}}
    made["volumeMounts"] += [*_data_mounts(cluster.spec), *pod.extra_volume_mounts]
    return made


def _data_mounts(spec: BookieClusterSpec) -> list[dict[str, Any]]:
    return [
        {
            "name": in_place.claim_template(spec, kind, index),
            "mountPath": in_place.mount_path(spec, kind, index),
        }
        for kind, volume in volume_kinds(spec.storage).items()
        for index in range(volume.volumes)
    ]


def _affinity(cluster: ClusterView) -> dict[str, Any]:
    """What the user asks for, and that no two bookies share a node, or not where there are more."""
    given = cluster.spec.pod.affinity
    apart = given.get("podAntiAffinity") or {}
    term: dict[str, Any] = {
        "topologyKey": HOSTNAME,
        "labelSelector": {"matchLabels": selector(cluster, naming.BOOKIE)},
    }
    rule = "requiredDuringSchedulingIgnoredDuringExecution"
    if cluster.spec.placement.nodes is Nodes.SHARED:
        rule = "preferredDuringSchedulingIgnoredDuringExecution"
        term = {"weight": 100, "podAffinityTerm": term}
    return {**given, "podAntiAffinity": {**apart, rule: [term, *(apart.get(rule) or [])]}}


def _spread(cluster: ClusterView, share: ZoneShare) -> list[dict[str, Any]]:
    """What the user asks for; and, without zones in `spec`, over those that there are, as far as that goes."""
    ours = {"labelSelector": {"matchLabels": selector(cluster, naming.BOOKIE)}}
    given = [{**ours, **each} for each in cluster.spec.pod.topology_spread_constraints]
    key = cluster.spec.placement.zone_topology_key
    if share.zone or any(each.get("topologyKey") == key for each in given):
        return given
    return [{"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "ScheduleAnyway", **ours}, *given]


def _users_container(given: Mapping[str, Any]) -> dict[str, Any]:
    """As it is given; without a security context it gets one that restricted namespaces admit."""
    return {"securityContext": dict(CONTAINER_SECURITY), **given}
