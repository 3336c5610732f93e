"""The PodMonitor and the alerts for the Prometheus operator.

The PodMonitor makes it read the metrics of bookies, auto-recovery and gateways.

The alerts are those of the chart `podkeeper-cluster`. `alerts.json` is generated of the chart's files
(`python charts/generate.py`), because a chart can hold files of its own only and so can a package; a test compares the
two. Placeholders such as `__CLUSTER__` stand for names, as in the chart's template.

Threads: pure functions, any thread.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from importlib import resources
from typing import Any

from bookie_operator.builders import naming
from bookie_operator.builders.common import APP, Manifest, manifest
from bookie_operator.builders.container import HTTP, HTTPS, admin_tls_secret
from bookie_operator.builders.context import BuildContext
from bookie_operator.crds import names
from bookie_operator.world.model import ClusterView


def pod_monitor(cluster: ClusterView, context: BuildContext) -> Manifest | None:
    """Return the PodMonitor; None: `spec` does not ask for it, or this Kubernetes has no PodMonitors."""
    wanted = cluster.spec.monitoring.pod_monitor
    if not wanted.enabled or not context.has_pod_monitors:
        return None
    components = [naming.BOOKIE, naming.AUTORECOVERY, *([naming.GATEWAY] if cluster.spec.gateway.enabled else [])]
    spec = {
        "selector": {
            "matchLabels": {names.NAME: APP, names.INSTANCE: cluster.name},
            "matchExpressions": [{"key": names.COMPONENT, "operator": "In", "values": components}],
        },
        "podTargetLabels": [names.INSTANCE, names.COMPONENT, names.ZONE],
        "podMetricsEndpoints": _endpoints(cluster, wanted.interval),
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


def _endpoints(cluster: ClusterView, interval: str) -> list[dict[str, Any]]:
    """The endpoints by the name of the pod's port: bookies that have not been restarted since HTTPS was switched on
    are read too."""
    plain = {"port": HTTP, "path": "/metrics", "interval": interval}
    if not cluster.spec.tls.admin_api.enabled:
        return [plain]
    trusted = {"secret": {"name": admin_tls_secret(cluster), "key": "ca.crt"}}
    tls = {"ca": trusted, "serverName": naming.admin_server_name(cluster.name, cluster.namespace)}
    return [{**plain, "port": HTTPS, "scheme": "https", "tlsConfig": tls}, plain]


def prometheus_rule(cluster: ClusterView, context: BuildContext) -> Manifest | None:
    """Return the rule; None: `spec` does not ask for it, or this Kubernetes has no PrometheusRules."""
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


@cache
def alert_names() -> frozenset[str]:
    return frozenset(each["alert"] for each in json.loads(_text()))


def named_alerts(placeholders: Mapping[str, str]) -> list[dict[str, Any]]:
    """Rules of Prometheus, sorted by their names. `placeholders`: the names that take their places, without characters
    that JSON escapes."""
    text = _text()
    for placeholder, name in placeholders.items():
        text = text.replace(placeholder, name)
    return list(json.loads(text))


@cache
def _text() -> str:
    return resources.files("bookie_operator.crds").joinpath("alerts.json").read_text(encoding="utf-8")
