"""Who may reach the pods of a cluster. What they may reach is left open: the metadata service stands anywhere.

The HTTP port has probes (the kubelet is always let through), metrics and the admin API, which a token protects.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from bookie_operator.builders import naming
from bookie_operator.builders.common import MANAGER, manifest, selector
from bookie_operator.builders.context import BuildContext
from bookie_operator.builders.hashing import Manifest
from bookie_operator.crds import names
from bookie_operator.crds.cluster_spec import MetadataServiceKind
from bookie_operator.world.model import ClusterView

NAMESPACE_NAME: Final = "kubernetes.io/metadata.name"
EVERY_POD: Final[dict[str, Any]] = {"podSelector": {}}


def network_policies(cluster: ClusterView, context: BuildContext) -> list[Manifest]:
    """None if `spec.networkPolicy` says so."""
    if not cluster.spec.network_policy.enabled:
        return []
    data = _rule(_clients(cluster), naming.BOOKIE_PORT, naming.GRPC_PORT)
    admin = _rule(_admins(cluster, context), naming.HTTP_PORT)
    policies = [_policy(cluster, naming.bookies(cluster.name), naming.BOOKIE, [data, admin])]
    if cluster.spec.autorecovery.enabled:
        policies.append(_policy(cluster, naming.autorecovery(cluster.name), naming.AUTORECOVERY, [admin]))
    if cluster.spec.gateway.enabled:
        grpc = _rule(_clients(cluster), naming.GRPC_PORT)
        policies.append(_policy(cluster, naming.gateway(cluster.name), naming.GATEWAY, [grpc, admin]))
    if cluster.spec.metadata_service.type is MetadataServiceKind.EMBEDDED:
        metadata = _rule(_clients(cluster), naming.METADATA_PORT)
        policies.append(_policy(cluster, naming.metadata(cluster.name), naming.METADATA, [metadata]))
    return policies


def _clients(cluster: ClusterView) -> list[dict[str, Any]]:
    """Peers that may use the data ports; the cluster's own pods always may."""
    given = cluster.spec.network_policy.clients
    return [*given, _own(cluster)] if given else [EVERY_POD]


def _admins(cluster: ClusterView, context: BuildContext) -> list[dict[str, Any]]:
    """Peers that may use the HTTP port; empty: any. The operator and the cluster's own pods always may."""
    given = cluster.spec.network_policy.metrics_from
    return [*given, _own(cluster), _operator(context)] if given else []


def _own(cluster: ClusterView) -> dict[str, Any]:
    whole = selector(cluster, "")
    del whole[names.COMPONENT]
    return {"podSelector": {"matchLabels": whole}}


def _operator(context: BuildContext) -> dict[str, Any]:
    if context.operator_namespace:
        return {"namespaceSelector": {"matchLabels": {NAMESPACE_NAME: context.operator_namespace}}}
    return {"namespaceSelector": {}, "podSelector": {"matchLabels": {names.NAME: MANAGER}}}


def _rule(peers: Sequence[dict[str, Any]], *ports: int) -> dict[str, Any]:
    rule: dict[str, Any] = {"ports": [{"protocol": "TCP", "port": port} for port in ports]}
    return {**rule, "from": list(peers)} if peers else rule


def _policy(cluster: ClusterView, name: str, component: str, rules: list[dict[str, Any]]) -> Manifest:
    spec = {
        "podSelector": {"matchLabels": selector(cluster, component)},
        "policyTypes": ["Ingress"],
        "ingress": rules,
    }
    return manifest(cluster, "networking.k8s.io/v1", "NetworkPolicy", name, component, {"spec": spec})
