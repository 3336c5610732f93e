"""The part of `BookieCluster.spec` that is about metrics and alerts.

Threads: values without I/O, for any thread.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from bookie_operator.crds.model import Labels, Model, Name


class PodMonitor(Model):
    """A PodMonitor of the Prometheus operator."""

    enabled: bool = False
    """It is made if the cluster knows PodMonitors."""
    labels: Labels = {}
    """Its labels, as a Prometheus selects them."""
    interval: Annotated[str, Field(max_length=16)] = "30s"
    """Between two scrapes: a whole number and `ms`, `s`, `m` or `h`."""


class PrometheusRule(Model):
    """A PrometheusRule of the Prometheus operator with alerts about this cluster. The chart `podkeeper-cluster` has the
    same ones: have one of them make it."""

    enabled: bool = False
    """It is made if the cluster knows PrometheusRules. It needs `podMonitor`, or another way for metrics to get the
    labels `namespace` and `pod`."""
    labels: Labels = {}
    """Its labels, as a Prometheus selects them."""
    alert_labels: Labels = {}
    """More labels of every alert."""
    disabled: Annotated[list[Name], Field(max_length=64)] = []
    """Names of alerts that are left out."""
    runbook_url: Annotated[str, Field(max_length=1024, pattern=r'^[^"\\\s]*$')] = "docs/runbooks"
    """Where the pages of docs/runbooks are served; the name of the page is added."""


class Monitoring(Model):
    """Who reads the metrics, and who is told when they are bad."""

    pod_monitor: PodMonitor = PodMonitor()
    prometheus_rule: PrometheusRule = PrometheusRule()
