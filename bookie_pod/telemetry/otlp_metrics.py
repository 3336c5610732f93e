"""The metrics of a process as OTLP has them: the same names and labels as at `/metrics`.

Counters are sums, gauges are gauges, and a summary is its count and sum; one that has a histogram beside it is that
histogram, too. Quantiles stay at `/metrics`: they cannot be added up.

Threads: one of its own, which blocks in an export.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from operator import index
from typing import Final, SupportsFloat, SupportsIndex

import structlog
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

from bookie_pod.logs import FewLines
from bookie_pod.metrics.registry import OpStats, Registry
from bookie_pod.metrics.summary import BOUNDS, HISTOGRAM

_CUMULATIVE: Final = AggregationTemporality.CUMULATIVE
_LARGEST: Final = 2**63 - 1
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(r"\\(.)")

_log = structlog.get_logger(__name__)


class MetricsExport:
    """Exports all metrics of a registry every `interval_s` seconds, and once more when it stops."""

    def __init__(
        self, endpoint: str, registry: Registry, resource: Resource, interval_s: float, timeout_s: float
    ) -> None:
        self._registry = registry
        self._resource = resource
        self._interval_s = interval_s
        self._began = time.time_ns()
        self._exporter = OTLPMetricExporter(endpoint=f"{endpoint}/v1/metrics", timeout=timeout_s)
        self._ended = threading.Event()
        self._faults = FewLines(_log)
        self._thread = threading.Thread(target=self._run, name="OtelMetrics", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()
        self._exporter.shutdown()

    def _run(self) -> None:
        while not self._ended.wait(self._interval_s):
            self._export()
        self._export()

    def _export(self) -> None:
        try:
            self._exporter.export(metrics_data(self._registry, self._resource, self._began))
        except Exception as error:  # whatever it is, the next export may succeed
            self._faults.warning("metrics could not be exported", error=repr(error))


def metrics_data(registry: Registry, resource: Resource, began_ns: int) -> MetricsData:
    """Return all metrics now; counters count since `began_ns`."""
    scope = ScopeMetrics(InstrumentationScope("podkeeper"), list(_metrics(registry, began_ns, time.time_ns())), "")
    return MetricsData([ResourceMetrics(resource, [scope], "")])


def _metrics(registry: Registry, began: int, now: int) -> Iterator[Metric]:
    sums: dict[str, list[NumberDataPoint]] = {}
    gauges: dict[str, list[NumberDataPoint]] = {}
    histograms: dict[str, list[HistogramDataPoint]] = {}
    for number in registry.numbers(""):
        point = NumberDataPoint(_labels(number.labels), began, now, _number(number.value))
        (sums if number.kind == "counter" else gauges).setdefault(number.name, []).append(point)
    for name, labels, stats in registry.every_summary():
        for success in (False, True):
            attributes = {**_labels(labels), "success": str(success).lower()}
            _, count, total = stats.snapshot(success)
            for end, value in (("_count", count), ("_sum", total)):
                sums.setdefault(name + end, []).append(NumberDataPoint(attributes, began, now, value))
            if stats.has_histogram:
                point_of = _histogram_point(stats, attributes, success, began, now)
                histograms.setdefault(name + HISTOGRAM, []).append(point_of)
    for name, points in sums.items():
        # A few counters of the reference implementation shrink, too.
        yield Metric(name, None, None, Sum(points, _CUMULATIVE, is_monotonic=name.endswith("_count")))
    for name, points in gauges.items():
        yield Metric(name, None, None, Gauge(points))
    for name, found in histograms.items():
        yield Metric(name, None, "ms", Histogram(found, _CUMULATIVE))


def _histogram_point(
    stats: OpStats, attributes: dict[str, str], success: bool, began: int, now: int
) -> HistogramDataPoint:
    below, total = stats.histogram(success)
    counts = [more - less for less, more in zip((0, *below), below, strict=False)]
    return HistogramDataPoint(attributes, began, now, below[-1], total, counts, BOUNDS, 0.0, 0.0)


def _number(value: SupportsFloat) -> int | float:
    """Return the value as OTLP takes it: one of another type, or an integer of more than 64 bits, would fail the whole
    export."""
    if isinstance(value, SupportsIndex) and abs(whole := index(value)) <= _LARGEST:
        return whole
    return float(value)


def _labels(text: str) -> dict[str, str]:
    """Return the labels in the text between the braces of a series."""
    return {name: _ESCAPED.sub(_unescaped, value) for name, value in _LABEL.findall(text)}


def _unescaped(found: re.Match[str]) -> str:
    return "\n" if found[1] == "n" else found[1]
