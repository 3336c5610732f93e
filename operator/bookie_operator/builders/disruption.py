"""The PodDisruptionBudget of the bookies: as `spec` says while all is well, and none while anything is not; or all
bookies of a zone that is drained, and none of the others.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from typing import Any

from bookie_operator.builders import naming
from bookie_operator.builders.common import manifest, selector
from bookie_operator.builders.hashing import Manifest
from bookie_operator.builders.zones import spreads_over_zones
from bookie_operator.crds import names
from bookie_operator.planner.desired import Evictions
from bookie_operator.world.model import ClusterView


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
