"""What the operator measures of BookieJobs, for Prometheus. A part of `metrics`.

Threads: any.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.metrics import MetricWrapperBase

from bookie_operator.crds.job_status import BookieJobStatus, Run, RunOutcome
from bookie_operator.planner.operations import read_time

_LABELS: Final = ("namespace", "job", "kind")


class JobMetrics:
    """The metrics of all BookieJobs; those that are gone are forgotten (`forget`)."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.kept = Gauge("podkeeper_operator_jobs", "BookieJobs that this process keeps", registry=registry)
        self.active = Gauge("podkeeper_operator_job_active", "Runs that go on", _LABELS, registry=registry)
        self.last_success = Gauge(
            "podkeeper_operator_job_last_success_timestamp_seconds",
            "When a run ended last that did not fail",
            _LABELS,
            registry=registry,
        )
        self.last_outcome = Gauge(
            "podkeeper_operator_job_last_outcome",
            "1 for how the last run ended: Succeeded, Findings, Failed or Unknown",
            (*_LABELS, "outcome"),
            registry=registry,
        )
        self.runs = Counter("podkeeper_operator_job_runs", "Runs that ended", (*_LABELS, "outcome"), registry=registry)
        self.errors = Counter(
            "podkeeper_operator_job_errors",
            "Passes over a BookieJob that failed",
            ("namespace", "job", "reason"),
            registry=registry,
        )
        self._told: dict[tuple[str, str], set[tuple[MetricWrapperBase, tuple[str, ...]]]] = {}

    def failed(self, namespace: str, name: str, reason: str) -> None:
        self._known(namespace, name, self.errors, (namespace, name, reason))
        self.errors.labels(namespace, name, reason).inc()

    def told(self, namespace: str, name: str, kind: str, status: BookieJobStatus, ended: Sequence[Run]) -> None:
        """`status`: as it was written; `ended`: what is new in its history."""
        labels = (namespace, name, kind)
        self._known(namespace, name, self.active, labels)
        self.active.labels(*labels).set(len(status.active))
        if status.last_successful_time:
            self._known(namespace, name, self.last_success, labels)
            self.last_success.labels(*labels).set(read_time(status.last_successful_time))
        for outcome in RunOutcome if status.last_outcome else ():
            self._known(namespace, name, self.last_outcome, (*labels, outcome.value))
            self.last_outcome.labels(*labels, outcome.value).set(outcome.value == status.last_outcome)
        for run in ended:
            self._known(namespace, name, self.runs, (*labels, run.outcome.value))
            self.runs.labels(*labels, run.outcome.value).inc()

    def forget(self, namespace: str, name: str) -> None:
        """The BookieJob is gone."""
        for metric, labels in self._told.pop((namespace, name), set()):
            with contextlib.suppress(KeyError):
                metric.remove(*labels)

    def _known(self, namespace: str, name: str, metric: MetricWrapperBase, labels: tuple[str, ...]) -> None:
        self._told.setdefault((namespace, name), set()).add((metric, labels))
