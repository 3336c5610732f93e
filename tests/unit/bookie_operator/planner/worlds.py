"""The least world that a plan can be made of."""

from __future__ import annotations

from bookie_operator.crds.cluster_spec import BookieClusterSpec
from bookie_operator.crds.cluster_status import BookieClusterStatus
from bookie_operator.world.model import ClusterView, World

SPEC = BookieClusterSpec.model_validate(
    {
        "version": "1",
        "metadataService": {"uri": "zk://zk:2181"},
        "storage": {"journal": {"size": "1Gi"}, "ledger": {"size": "1Gi"}},
    }
)


def world(now: float, status: BookieClusterStatus | None = None) -> World:
    return World(now, ClusterView("c", "ns", "uid", 1, SPEC, status or BookieClusterStatus()))
