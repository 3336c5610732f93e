"""Metrics as OpenMetrics: the same series as in the plain text, as another reader takes them, and exemplars."""

from __future__ import annotations

import pytest
from prometheus_client.openmetrics import parser as open_metrics
from prometheus_client.samples import Sample

from bookie_pod.metrics.bookie import BookieMetrics
from bookie_pod.metrics.journal import JournalMetrics
from bookie_pod.metrics.registry import ProcessCollector, Registry
from bookie_pod.metrics.requests import RequestMetrics
from bookie_pod.metrics.summary import BOUNDS
from bookie_pod.metrics.text import OPEN_METRICS, takes_open_metrics

TRACE = 0x4BF92F3577B34DA6A3CE929D0E0E4736
PROMETHEUS = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;q=0.3,*/*;q=0.1"
)


def bucket_samples(registry: Registry, name: str) -> list[Sample]:
    families = open_metrics.text_string_to_metric_families(registry.render(OPEN_METRICS))
    return [each for family in families for each in family.samples if each.name == f"{name}_bucket"]


def test_open_metrics_has_the_series_of_the_plain_text() -> None:
    registry = Registry()
    registry.scope("odd", path='a"b\\c\nd,e').counter("things").add(3)
    registry.scope("odd").gauge("nan", lambda: 1 // 0)
    requests = RequestMetrics(registry, BookieMetrics(registry))
    JournalMetrics(registry, 0)
    requests.adds_done(5, 3.0, True)
    requests.add_traced(3.0, TRACE, success=True)
    text = registry.render(OPEN_METRICS)
    assert sum(len(family.samples) for family in open_metrics.text_string_to_metric_families(text)) > 500
    plain = [line.replace('", ', '",') for line in registry.render().splitlines() if line[0] != "#"]
    assert [line.partition(" # ")[0] for line in text.splitlines() if line[0] != "#"] == plain


def test_collected_series_are_open_metrics_too() -> None:
    registry = Registry()
    registry.add_collector(ProcessCollector())
    text = registry.render(OPEN_METRICS)
    assert len(list(open_metrics.text_string_to_metric_families(text))) > 5


def test_bucket_has_the_last_trace_as_its_exemplar() -> None:
    registry = Registry()
    stats = registry.scope("a", disk="1").op_stats("latency", summed=True)
    for value, trace_id in ((3.0, 7), (3.5, TRACE), (9000.0, 8), (0.1, 9)):
        stats.observe_ms(value)
        stats.exemplify(value, trace_id)
    stats.observe_ms(3.0, success=False)
    found = {each.labels["le"]: each.exemplar for each in bucket_samples(registry, "a_latency_hist") if each.exemplar}
    assert {bound: (each.labels, each.value) for bound, each in found.items()} == {
        "0.5": ({"trace_id": f"{9:032x}"}, 0.1),
        "4.0": ({"trace_id": f"{TRACE:032x}"}, 3.5),
        "+Inf": ({"trace_id": f"{8:032x}"}, 9000.0),
    }
    assert all(float(each.timestamp) > 1e9 for each in found.values())
    assert "trace_id" not in registry.render()


def test_exemplars_are_bounded_by_the_buckets() -> None:
    registry = Registry()
    stats = registry.scope("a").op_stats("latency", summed=True)
    for number in range(1, 5000):
        stats.observe_ms(number / 3)
        stats.exemplify(number / 3, number)
    exemplars = [each.exemplar for each in bucket_samples(registry, "a_latency_hist") if each.exemplar]
    assert len(exemplars) <= len(BOUNDS) + 1
    assert {sum(map(len, (*each.labels, *each.labels.values()))) for each in exemplars} == {40}


def test_summary_without_a_histogram_keeps_no_exemplar() -> None:
    stats = Registry().scope("a").op_stats("latency")
    stats.exemplify(3.0, TRACE)
    assert stats.exemplars(True) == {}


@pytest.mark.parametrize(
    ("accept", "takes"),
    [
        (PROMETHEUS, True),
        ("application/openmetrics-text", True),
        ("text/plain, Application/OpenMetrics-Text ; q=0.01", True),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text; q=0.000", False),
        ("text/plain;version=0.0.4", False),
        ("*/*", False),
        ("application/openmetrics-textual", False),
        ("", False),
        (";;,,;q=", False),
    ],
)
def test_format_is_what_the_client_takes(accept: str, takes: bool) -> None:
    assert takes_open_metrics(accept) is takes
