"""Auto-recovery: a Deployment of auditors and replication workers, apart from the bookies.

Invariants
- It reads the same file as the bookies, and is rolled after them: the planner applies it last.
- Two of its pods avoid the same node where they can; the loss of one node stops no repair.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from typing import Any, Final

from bookie_operator.builders import commands, naming
from bookie_operator.builders.common import common_pod_spec, environment, labels, manifest, selector
from bookie_operator.builders.container import container, http_port, http_probe, shared_extras, volumes
from bookie_operator.builders.context import BuildContext
from bookie_operator.builders.hashing import Manifest
from bookie_operator.builders.service_account import account_name
from bookie_operator.crds.pod_spec import LivenessProbe, Probe
from bookie_operator.world.model import ClusterView

_STARTUP: Final = Probe(period_seconds=5, failure_threshold=60)


def autorecovery(cluster: ClusterView, context: BuildContext, config_name: str) -> Manifest | None:
    """None: `spec` wants none."""
    spec = cluster.spec
    if not spec.autorecovery.enabled:
        return None
    content = {
        "replicas": spec.autorecovery.replicas,
        "selector": {"matchLabels": selector(cluster, naming.AUTORECOVERY)},
        "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1, "maxSurge": 1}},
        "revisionHistoryLimit": 3,
        "template": {
            "metadata": {"labels": labels(cluster, naming.AUTORECOVERY)},
            "spec": _pod_spec(cluster, context, config_name),
        },
    }
    name = naming.autorecovery(cluster.name)
    return manifest(cluster, "apps/v1", "Deployment", name, naming.AUTORECOVERY, {"spec": content})


def _pod_spec(cluster: ClusterView, context: BuildContext, config_name: str) -> dict[str, Any]:
    more_volumes, more_mounts = shared_extras(cluster)
    env = [environment("BK_advertisedAddress", "$(POD_NAME)")]  # its name among the auditors
    if (ledgers := cluster.spec.autorecovery.max_concurrent_ledgers) is not None:
        env.append(environment("BK_replicationLedgersAtOnce", str(ledgers)))
    made = container(cluster, context, commands.AUTORECOVERY, env, cluster.spec.autorecovery.resources)
    http = http_port(cluster)
    made["ports"] = [http]
    made["startupProbe"] = http_probe(commands.ALIVE, _STARTUP, http["name"])
    made["livenessProbe"] = http_probe(commands.ALIVE, LivenessProbe(), http["name"])
    made["readinessProbe"] = http_probe(commands.READY, Probe(), http["name"])
    made["volumeMounts"] += more_mounts
    found = {
        **common_pod_spec(cluster, account_name(cluster)),
        "terminationGracePeriodSeconds": 60,
        "affinity": {"podAntiAffinity": _apart(cluster)},
        "containers": [made],
        "volumes": [*volumes(cluster, config_name), *more_volumes],
    }
    if cluster.spec.pod.node_selector:
        found["nodeSelector"] = dict(cluster.spec.pod.node_selector)
    return found


def _apart(cluster: ClusterView) -> dict[str, Any]:
    term = {
        "topologyKey": "kubernetes.io/hostname",
        "labelSelector": {"matchLabels": selector(cluster, naming.AUTORECOVERY)},
    }
    return {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}
