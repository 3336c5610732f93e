"""The PodDisruptionBudget of the bookies: as `spec` says while all is well, and none while anything is not.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from bookie_operator.builders import naming
from bookie_operator.builders.common import manifest, selector
from bookie_operator.builders.hashing import Manifest
from bookie_operator.world.model import ClusterView


def budgets(cluster: ClusterView) -> dict[int, Manifest]:
    """By number of bookies that may be evicted: 0 and that of `spec`; empty: there is no budget."""
    disruption = cluster.spec.disruption
    return {count: budget(cluster, count) for count in (0, disruption.max_unavailable)} if disruption.enabled else {}


def budget(cluster: ClusterView, max_unavailable: int) -> Manifest:
    """One budget over all zones. A bookie that is not ready counts as evicted: it may be replaying its journal, or all
    of them wait for the metadata service."""
    spec = {
        "maxUnavailable": max_unavailable,
        "selector": {"matchLabels": selector(cluster, naming.BOOKIE)},
        "unhealthyPodEvictionPolicy": "IfHealthyBudget",
    }
    return manifest(
        cluster, "policy/v1", "PodDisruptionBudget", naming.bookies(cluster.name), naming.BOOKIE, {"spec": spec}
    )
