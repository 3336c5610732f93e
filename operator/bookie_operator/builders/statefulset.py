"""The StatefulSets of the bookies: one, or one for each zone; and their PodDisruptionBudget, which allows what `spec`
says while all is well, and nothing while anything is not; or all bookies of a zone that is drained, and none of the
others.

Invariants
- Pods change when they are deleted, not before (`OnDelete`), and all start at once (`Parallel`): the order of a roll is
  the planner's.
- No claim is deleted by Kubernetes, whatever becomes of the StatefulSet.
- The template's hash stands on the StatefulSet and on its pods; that of what people asked for on the StatefulSet
  alone, because it restarts nobody.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from typing import Any

from bookie_operator.builders import naming
from bookie_operator.builders.claims import claim_templates, volume_attributes, volume_sizes
from bookie_operator.builders.common import manifest, selector
from bookie_operator.builders.context import BuildContext
from bookie_operator.builders.desired_objects import BookieSet
from bookie_operator.builders.hashing import Manifest
from bookie_operator.builders.inputs import inputs_hash, record
from bookie_operator.builders.pod import pod_template, template_hash
from bookie_operator.builders.zones import ZoneShare, shares, spreads_over_zones
from bookie_operator.crds import names
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
    sizes, attributes = volume_sizes(storage), volume_attributes(storage, context)
    return BookieSet(made, share.label, share.replicas, hashed, sizes, inputs, attributes)


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
