"""What tells the Prometheus operator to read the metrics of bookies and auto-recovery.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from bookie_operator.builders import naming
from bookie_operator.builders.common import APP, manifest
from bookie_operator.builders.context import BuildContext
from bookie_operator.builders.hashing import Manifest
from bookie_operator.crds import names
from bookie_operator.world.model import ClusterView


def pod_monitor(cluster: ClusterView, context: BuildContext) -> Manifest | None:
    """None: nobody asks for it, or this Kubernetes has no PodMonitors."""
    wanted = cluster.spec.monitoring.pod_monitor
    if not wanted.enabled or not context.has_pod_monitors:
        return None
    components = [naming.BOOKIE, naming.AUTORECOVERY]
    spec = {
        "selector": {
            "matchLabels": {names.NAME: APP, names.INSTANCE: cluster.name},
            "matchExpressions": [{"key": names.COMPONENT, "operator": "In", "values": components}],
        },
        "podTargetLabels": [names.INSTANCE, names.COMPONENT, names.ZONE],
        "podMetricsEndpoints": [{"port": "http", "path": "/metrics", "interval": wanted.interval}],
    }
    return manifest(
        cluster,
        "monitoring.coreos.com/v1",
        "PodMonitor",
        cluster.name,
        naming.BOOKIE,
        {"spec": spec},
        more_labels=wanted.labels,
    )
