"""What tells the Prometheus operator to read the metrics of bookies and auto-recovery, and what to warn of.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from bookie_operator.builders import naming
from bookie_operator.builders.common import APP, manifest
from bookie_operator.builders.context import BuildContext
from bookie_operator.builders.hashing import Manifest
from bookie_operator.crds import names
from bookie_operator.crds.alerts import alert_names, named_alerts
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


def prometheus_rule(cluster: ClusterView, context: BuildContext) -> Manifest | None:
    """None: nobody asks for it, or this Kubernetes has no PrometheusRules."""
    wanted = cluster.spec.monitoring.prometheus_rule
    if not wanted.enabled or not context.has_prometheus_rules:
        return None
    alerts = named_alerts(
        {
            "__NAMESPACE__": cluster.namespace,
            "__CLUSTER__": cluster.name,
            "__ENSEMBLE_SIZE__": str(cluster.spec.durability.ensemble_size),
            "__RUNBOOKS__": wanted.runbook_url.removesuffix("/"),
        }
    )
    rules = [
        {**each, "labels": {**each["labels"], **wanted.alert_labels}}
        for each in alerts
        if each["alert"] not in wanted.disabled
    ]
    return manifest(
        cluster,
        "monitoring.coreos.com/v1",
        "PrometheusRule",
        naming.bookies(cluster.name),  # the chart's is named after the cluster
        naming.BOOKIE,
        {"spec": {"groups": [{"name": f"podkeeper.{cluster.namespace}.{cluster.name}", "rules": rules}]}},
        more_labels=wanted.labels,
    )


def unknown_alerts(cluster: ClusterView) -> list[str]:
    """Names that `spec` disables and that there are not (any more)."""
    return sorted(set(cluster.spec.monitoring.prometheus_rule.disabled) - alert_names())
