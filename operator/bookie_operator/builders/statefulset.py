"""The StatefulSets of the bookies, their pods, and their PodDisruptionBudget.

There is one set, or one for each zone. The budget allows what `spec` says while all is well, and nothing while anything
is not; or all bookies of a zone that is drained, and none of the others.

Invariants
- Pods change when they are deleted, not before (`OnDelete`), and all start at once (`Parallel`): the order of a roll is
  the planner's.
- No claim is deleted by Kubernetes, whatever becomes of the StatefulSet.
- The template's hash is on the StatefulSet and on its pods; that of what people asked for is on the StatefulSet alone,
  because it restarts no bookie.
- Nothing of the operator's version is in a pod, and no hash but its own: the same `spec` makes the same pod.
- Not two bookies of a cluster run on one node, whatever `spec.pod.affinity` adds, unless `spec.placement.nodes` lets
  them.
- Without `spec.placement.zones` a bookie learns the zone of its node from an annotation of its pod, which the operator
  writes once the pod has a node (`builders.location`).
- Liveness and start-up ask whether the process is sound: neither a long replay, nor a full disk, nor an absent metadata
  service makes them fail. Readiness asks whether it serves, writable or read-only.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bookie_operator.builders import commands, in_place, location, naming
from bookie_operator.builders.claims import (
    claim_templates,
    volume_attributes,
    volume_classes,
    volume_kinds,
    volume_sizes,
)
from bookie_operator.builders.common import (
    CONTAINER_SECURITY,
    Manifest,
    account_name,
    apart,
    common_pod_spec,
    content_hash,
    environment,
    from_field,
    labels,
    manifest,
    over_zones,
    selector,
)
from bookie_operator.builders.container import NAME, container, http_port, http_probe, volumes
from bookie_operator.builders.context import BuildContext
from bookie_operator.builders.desired_objects import BookieSet
from bookie_operator.builders.inputs import inputs_hash, record
from bookie_operator.builders.zones import ZoneShare, shares, spreads_over_zones
from bookie_operator.crds import names
from bookie_operator.crds.cluster_spec import BookieClusterSpec
from bookie_operator.planner.desired import Evictions
from bookie_operator.world.model import ClusterView

_HISTORY = 3
"""Revisions that are kept: the roll goes by hashes, not by them."""


def bookie_sets(cluster: ClusterView, context: BuildContext, config_name: str) -> tuple[BookieSet, ...]:
    return tuple(_bookie_set(cluster, context, share, config_name) for share in shares(cluster))


def _bookie_set(cluster: ClusterView, context: BuildContext, share: ZoneShare, config_name: str) -> BookieSet:
    template = pod_template(cluster, context, share, config_name)
    hashed, inputs = template_hash(template), inputs_hash(cluster)
    zone = {names.ZONE: share.label} if share.label else {}
    # A release of Helm that the bookies were taken over from still lists the name, and would delete it one day.
    kept = {names.KEPT_BY_HELM: "keep"} if cluster.spec.bootstrap.in_place is not None else {}
    spec = {
        "replicas": share.replicas,
        "serviceName": naming.bookies(cluster.name),
        "selector": {"matchLabels": {**selector(cluster, naming.BOOKIE), **zone}},
        "podManagementPolicy": "Parallel",
        "updateStrategy": {"type": "OnDelete"},
        "persistentVolumeClaimRetentionPolicy": {"whenDeleted": "Retain", "whenScaled": "Retain"},
        "revisionHistoryLimit": _HISTORY,
        "template": template,
        "volumeClaimTemplates": claim_templates(cluster, context, share),
    }
    made = manifest(
        cluster,
        "apps/v1",
        "StatefulSet",
        naming.stateful_set(cluster.name, share.label, cluster.status.recorded_replicas),
        naming.BOOKIE,
        {"spec": spec},
        more_labels=zone,
        annotations={**kept, names.TEMPLATE_HASH: hashed, names.TEMPLATE_INPUTS: record(hashed, inputs)},
    )
    storage = cluster.spec.storage
    sizes, attributes, classes = volume_sizes(storage), volume_attributes(storage, context), volume_classes(storage)
    return BookieSet(made, share.label, share.replicas, hashed, sizes, inputs, attributes, classes)


def budgets(cluster: ClusterView) -> dict[Evictions, Manifest]:
    """The budgets by what they allow: nothing, as many as `spec` says, and each zone as a whole; empty: there is no
    budget."""
    disruption = cluster.spec.disruption
    if not disruption.enabled:
        return {}
    zones = cluster.spec.placement.zones if disruption.whole_zone and spreads_over_zones(cluster.spec) else ()
    allowed = (Evictions(0), Evictions(disruption.max_unavailable), *(Evictions(0, zone.name) for zone in zones))
    return {evictions: budget(cluster, evictions) for evictions in allowed}


def budget(cluster: ClusterView, evictions: Evictions) -> Manifest:
    """One budget over all zones, or over all but one: it takes a single update to let that one go and to keep the
    others, and the API server refuses to evict a pod that two budgets select. A bookie that is not ready counts as
    evicted: it may be replaying its journal, or all of them wait for the metadata service."""
    chosen: dict[str, Any] = {"matchLabels": selector(cluster, naming.BOOKIE)}
    if evictions.zone:
        chosen["matchExpressions"] = [{"key": names.ZONE, "operator": "NotIn", "values": [evictions.zone]}]
    spec = {
        "maxUnavailable": evictions.count,
        "selector": chosen,
        "unhealthyPodEvictionPolicy": "IfHealthyBudget",
    }
    return manifest(
        cluster, "policy/v1", "PodDisruptionBudget", naming.bookies(cluster.name), naming.BOOKIE, {"spec": spec}
    )


def pod_labels(cluster: ClusterView, share: ZoneShare) -> dict[str, str]:
    zone = {names.ZONE: share.label} if share.label else {}
    return {**cluster.spec.pod.labels, **labels(cluster, naming.BOOKIE), **zone}


def pod_template(cluster: ClusterView, context: BuildContext, share: ZoneShare, config_name: str) -> dict[str, Any]:
    """Return the template with its hash, which is in the annotation `podkeeper.dev/template-hash`."""
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
    first = [_users_container(each) for each in spec.pod.init_containers]
    if location.is_learnt(cluster, context, share):
        first.insert(0, location.init_container(cluster, context))
        made["volumes"].append(location.volume())
    if first:
        made["initContainers"] = first
    return made


def _bookie(cluster: ClusterView, context: BuildContext, share: ZoneShare) -> dict[str, Any]:
    pod = cluster.spec.pod
    host = f"$(POD_NAME){in_place.host_suffix(cluster)}"
    env = [environment("BK_advertisedAddress", host)]
    if share.zone:
        env.append(environment(location.VARIABLE, f"/{share.zone}"))
    elif location.is_learnt(cluster, context, share):
        env.append(from_field(location.VARIABLE, f"metadata.annotations['{names.NETWORK_LOCATION}']"))
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
    """Return what the user asks for, and that no two bookies share a node, or not where there are more."""
    given = cluster.spec.pod.affinity
    others = given.get("podAntiAffinity") or {}
    own = {rule: [*terms, *(others.get(rule) or [])] for rule, terms in apart(cluster, naming.BOOKIE).items()}
    return {**given, "podAntiAffinity": {**others, **own}}


def _spread(cluster: ClusterView, share: ZoneShare) -> list[dict[str, Any]]:
    """Return the spread that the user asks for; without zones in `spec` also one over the zones that there are, as far
    as that goes."""
    ours = {"labelSelector": {"matchLabels": selector(cluster, naming.BOOKIE)}}
    given = [{**ours, **each} for each in cluster.spec.pod.topology_spread_constraints]
    key = cluster.spec.placement.zone_topology_key
    if share.zone or any(each.get("topologyKey") == key for each in given):
        return given
    return [over_zones(cluster, naming.BOOKIE), *given]


def _users_container(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the container as it is given; without a security context it gets one that restricted namespaces admit."""
    return {"securityContext": dict(CONTAINER_SECURITY), **given}
