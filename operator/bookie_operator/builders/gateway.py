"""Gateways in a Deployment of their own (see `beside`), and what finds and keeps them: a Service and a budget.

Invariants
- Without `spec.gateway.enabled` nothing of it is there, and nothing else differs.
- They have no admin API: their HTTP port serves probes and metrics.
- While they are rolled as many serve as before: clients are not told to wait.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from typing import Final

from bookie_operator.builders import commands, naming
from bookie_operator.builders.beside import Beside, deployment
from bookie_operator.builders.common import manifest, selector
from bookie_operator.builders.context import BuildContext
from bookie_operator.builders.hashing import Manifest
from bookie_operator.builders.inputs import gateway_inputs
from bookie_operator.world.model import ClusterView

_GRACE_SECONDS: Final = 30
"""The process takes up to 20 s to close the ledgers that are written through it."""


def gateway(cluster: ClusterView, context: BuildContext, config_name: str) -> Manifest | None:
    """None: `spec` wants none."""
    wanted = cluster.spec.gateway
    if not wanted.enabled:
        return None
    of = Beside(
        naming.gateway(cluster.name),
        naming.GATEWAY,
        commands.GATEWAY,
        wanted.replicas,
        wanted.resources,
        gateway_inputs(cluster),
        grace_seconds=_GRACE_SECONDS,
        may_miss=0,
        ports=[{"name": "grpc", "containerPort": naming.GRPC_PORT}],
    )
    return deployment(cluster, context, config_name, of)


def gateway_budget(cluster: ClusterView) -> Manifest | None:
    """One at a time is evicted, whatever the state of the data: they keep none. One that does not serve may always go.
    None: `spec` wants none."""
    if not (cluster.spec.gateway.enabled and cluster.spec.disruption.enabled):
        return None
    spec = {
        "maxUnavailable": 1,
        "selector": {"matchLabels": selector(cluster, naming.GATEWAY)},
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    name = naming.gateway(cluster.name)
    return manifest(cluster, "policy/v1", "PodDisruptionBudget", name, naming.GATEWAY, {"spec": spec})
