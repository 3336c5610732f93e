"""Specs for tests."""

from __future__ import annotations

from typing import Any

from bookie_operator.crds.cluster_spec import BookieClusterSpec


def minimal(**changes: Any) -> dict[str, Any]:
    """The smallest spec that is valid, with top-level fields replaced."""
    return {
        "version": "1.2.0",
        "metadataService": {"uri": "zk+hierarchical://zk-0:2181;zk-1:2181"},
        "storage": {"journal": {"size": "10Gi"}, "ledger": {"size": "100Gi"}},
        **changes,
    }


def parsed(**changes: Any) -> BookieClusterSpec:
    return BookieClusterSpec.model_validate(minimal(**changes))


PARTIAL: list[dict[str, Any]] = [
    minimal(),
    minimal(replicas=5, durability={"ackQuorum": 3}),
    minimal(pod={"startupProbe": {"periodSeconds": 5}, "livenessProbe": {}, "resources": {"limits": {"cpu": 2}}}),
    minimal(
        storage={
            "journal": {"size": "1Gi", "volumes": 2},
            "ledger": {"size": "2Gi", "storageClassName": "fast", "labels": {"a": "b"}},
            "index": {"size": "1Gi"},
            "retention": {"whenDeleted": "Delete"},
        }
    ),
    minimal(
        placement={"zones": [{"name": "a", "replicas": 1}, {"name": "b", "replicas": 2}], "minZonesPerWriteQuorum": 2}
    ),
    minimal(metadataService={"type": "Embedded", "storageClassName": "fast"}),
    minimal(
        config={"gcWaitTime": "1000"},
        gateway={"enabled": True, "resources": {"limits": {"cpu": 2}}},
        tls={"enabled": True, "issuerRef": {"name": "ca", "kind": "ClusterIssuer"}},
        networkPolicy={"clients": [{"podSelector": {"matchLabels": {"app": "broker"}}}]},
        monitoring={"podMonitor": {"enabled": True}},
        bootstrap={"mode": "Adopt"},
    ),
    minimal(backup={"schedule": "@daily", "keep": 3}),
]
"""Each leaves out and gives other fields."""
