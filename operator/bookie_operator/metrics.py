"""Metrics of the operator itself and of BookieJobs, for Prometheus.

Threads: any; `render` too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics import MetricWrapperBase

from bookie_operator.crds.cluster_status import BackupStatus, Condition, Operation
from bookie_operator.crds.job_spec import BookieJobStatus, Run, RunOutcome
from bookie_operator.planner.operations import read_time

_LABELS: Final = ("namespace", "job", "kind")
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS: Final = (0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60, 300)


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


class OperatorMetrics:
    """The metrics of one process. Clusters that are gone are forgotten (`forget`)."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._registry = registry or CollectorRegistry()
        of = self._registry
        cluster = ("namespace", "cluster")
        self.duration = Histogram(
            "podkeeper_operator_reconcile_seconds", "How long a pass over a cluster took", buckets=_BUCKETS, registry=of
        )
        self.errors = Counter(
            "podkeeper_operator_reconcile_errors", "Passes and actions that failed", (*cluster, "reason"), registry=of
        )
        self.decisions = Counter(
            "podkeeper_operator_decisions",
            "Decisions, by kind and by action or reason",
            (*cluster, "decision", "reason"),
            registry=of,
        )
        self.last_pass = Gauge(
            "podkeeper_operator_last_pass_timestamp_seconds",
            "When the last pass over a cluster ended",
            cluster,
            registry=of,
        )
        self.step_since = Gauge(
            "podkeeper_operator_operation_last_progress_timestamp_seconds",
            "When the running operation last came nearer to its end",
            (*cluster, "type", "step"),
            registry=of,
        )
        self.step_age = Gauge(
            "podkeeper_operator_operation_step_age_seconds",
            "How long the running operation has waited in its step, as of the last pass",
            (*cluster, "type", "step"),
            registry=of,
        )
        self.conditions = Gauge(
            "podkeeper_operator_cluster_condition",
            "1 for what each condition is",
            (*cluster, "condition", "status"),
            registry=of,
        )
        self.backup_success = Gauge(
            "podkeeper_operator_backup_last_success_timestamp_seconds",
            "When the last backup of the metadata ended that succeeded",
            cluster,
            registry=of,
        )
        self.backup_due = Gauge(
            "podkeeper_operator_backup_next_timestamp_seconds",
            "When the next backup of the metadata is due",
            cluster,
            registry=of,
        )
        self.clusters = Gauge("podkeeper_operator_clusters", "Clusters that this process keeps", registry=of)
        self.leader = Gauge("podkeeper_operator_leader", "1 while this process may act", registry=of)
        self.jobs = JobMetrics(of)
        self._steps: dict[tuple[str, str], tuple[str, ...]] = {}
        self._told: dict[tuple[str, str], set[tuple[str, ...]]] = {}
        self._counted: dict[tuple[str, str], set[tuple[Counter, tuple[str, ...]]]] = {}

    def failed(self, namespace: str, name: str, reason: str) -> None:
        self._count(self.errors, namespace, name, reason)

    def decided(self, namespace: str, name: str, decision: str, reason: str) -> None:
        self._count(self.decisions, namespace, name, decision, reason)

    def passed(self, namespace: str, name: str, seconds: float, now: float) -> None:
        self.duration.observe(seconds)
        self.last_pass.labels(namespace, name).set(now)

    def operation(self, namespace: str, name: str, operation: Operation | None, since: float, now: float) -> None:
        """`since`: of its last progress, seconds since 1970."""
        before = self._steps.pop((namespace, name), None)
        labels = None if operation is None else (namespace, name, operation.type.value, operation.step)
        if before is not None and before != labels:
            self.step_age.remove(*before)
            self.step_since.remove(*before)
        if labels is not None:
            self._steps[namespace, name] = labels
            self.step_age.labels(*labels).set(max(0.0, now - since))
            self.step_since.labels(*labels).set(since)

    def told(self, namespace: str, name: str, conditions: Sequence[Condition]) -> None:
        found: set[tuple[str, ...]] = {(namespace, name, each.type, each.status) for each in conditions}
        for gone in self._told.get((namespace, name), set()) - found:
            self.conditions.remove(*gone)
        for labels in found:
            self.conditions.labels(*labels).set(1)
        self._told[namespace, name] = found

    def backup(self, namespace: str, name: str, status: BackupStatus | None) -> None:
        """`status`: as it was written; None: there are no backups."""
        told = status or BackupStatus()
        for gauge, at in (
            (self.backup_success, told.last_successful_time),
            (self.backup_due, told.next_schedule_time),
        ):
            if at:
                gauge.labels(namespace, name).set(read_time(at))
            else:
                with contextlib.suppress(KeyError):
                    gauge.remove(namespace, name)

    def forget(self, namespace: str, name: str) -> None:
        """The cluster is gone."""
        self.backup(namespace, name, None)
        self.operation(namespace, name, None, 0.0, 0.0)
        self.told(namespace, name, ())
        self._told.pop((namespace, name), None)
        for counter, labels in self._counted.pop((namespace, name), set()):
            counter.remove(*labels)
        with contextlib.suppress(KeyError):
            self.last_pass.remove(namespace, name)

    def render(self) -> bytes:
        """The exposition format."""
        return generate_latest(self._registry)

    def _count(self, counter: Counter, *labels: str) -> None:
        counter.labels(*labels).inc()
        self._counted.setdefault((labels[0], labels[1]), set()).add((counter, labels))
