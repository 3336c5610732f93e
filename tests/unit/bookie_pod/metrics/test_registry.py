"""Counters, gauges and summaries; names, labels and the text."""

from __future__ import annotations

import math
import re
import threading

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from bookie_pod.metrics.registry import Counter, Gauge, OpStats, ProcessCollector, Registry, sanitise
from bookie_pod.metrics.summary import BOUNDS, QUANTILES, Histogram
from tests.support.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def stats(clock: Clock) -> OpStats:
    return OpStats(10.0, clock)


@given(st.lists(st.floats(1e-3, 1e9), min_size=1, max_size=300))
def test_quantiles_are_close_to_the_exact_ones(values: list[float]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value, 1)
    exact = sorted(values)
    for quantile, found in zip(QUANTILES, histogram.quantiles(), strict=True):
        wanted = exact[max(0, math.ceil(quantile * len(values)) - 1)]
        assert found == pytest.approx(wanted, rel=0.017)
    assert histogram.quantiles()[-1] == max(values)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=200))
def test_no_value_is_too_odd(values: list[float]) -> None:
    histogram = Histogram()
    for value in values:
        histogram.add(value, 1)
    assert len(histogram.quantiles()) == len(QUANTILES)
    assert histogram.total == len(values)


def test_buckets_are_bounded() -> None:
    histogram = Histogram()
    value = 1e-30
    while value < 1e40:
        histogram.add(value, 1)
        value *= 1.01
    assert len(histogram.buckets) < 3000


def test_quantiles_cover_the_period_before(stats: OpStats, clock: Clock) -> None:
    stats.observe_ms(5, count=3)
    assert all(math.isnan(value) for value in stats.snapshot(True)[0])
    clock.now += 10
    assert stats.snapshot(True)[0] == [5.0] * len(QUANTILES)
    assert stats.snapshot(True)[1:] == (3, 15.0)
    clock.now += 10
    quantiles, count, total = stats.snapshot(True)
    assert all(math.isnan(value) for value in quantiles)
    assert (count, total) == (3, 15.0)


def test_a_period_that_nobody_looked_at_is_forgotten(stats: OpStats, clock: Clock) -> None:
    stats.observe_ms(5)
    clock.now += 25
    stats.observe_ms(7)
    assert all(math.isnan(value) for value in stats.snapshot(True)[0])
    clock.now += 10
    assert stats.snapshot(True)[0][-1] == 7


def test_success_and_failure_are_apart(stats: OpStats, clock: Clock) -> None:
    stats.observe_ms(1, success=True)
    stats.observe_ms(9, count=2, success=False)
    stats.observe_ms(9, count=0)
    clock.now += 10
    assert stats.snapshot(True) == ([1.0] * len(QUANTILES), 1, 1.0)
    assert stats.snapshot(False) == ([9.0] * len(QUANTILES), 2, 18.0)


def test_threads_lose_nothing(stats: OpStats) -> None:
    counter = Counter()

    def work() -> None:
        for _ in range(5000):
            counter.add()
            stats.observe(2, count=2)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.value == 20_000
    assert stats.snapshot(True)[1:] == (40_000, 80_000.0)


def test_a_gauge_that_cannot_be_read_shows_as_nan() -> None:
    assert Gauge(lambda: 3).value == 3
    assert math.isnan(Gauge(lambda: 1 / 0).value)


def test_counter_and_gauge_without_labels() -> None:
    registry = Registry()
    registry.scope("bookie").counter("WRITE_BYTES").add(7)
    registry.scope("bookie").gauge("SERVER_STATUS", lambda: 1)
    registry.scope("bookie").gauge("ratio", lambda: 0.5)
    assert registry.render() == (
        "# TYPE bookie_SERVER_STATUS gauge\nbookie_SERVER_STATUS 1\n"
        "# TYPE bookie_WRITE_BYTES counter\nbookie_WRITE_BYTES 7\n"
        "# TYPE bookie_ratio gauge\nbookie_ratio 0.5\n"
    )


def test_summary_has_the_reference_shape() -> None:
    clock = Clock(0.0)
    registry = Registry(10, clock)
    stats = registry.scope("bookie").scope("journal", journalIndex="0").op_stats("JOURNAL_SYNC")
    stats.observe_ms(2, count=3)
    clock.now = 10
    lines = registry.render().splitlines()
    assert lines[0] == "# TYPE bookie_journal_JOURNAL_SYNC summary"
    assert lines[1] == 'bookie_journal_JOURNAL_SYNC{success="false",quantile="0.5", journalIndex="0"} NaN'
    assert lines[8:11] == [
        'bookie_journal_JOURNAL_SYNC_count{success="false", journalIndex="0"} 0',
        'bookie_journal_JOURNAL_SYNC_sum{success="false", journalIndex="0"} 0.0',
        'bookie_journal_JOURNAL_SYNC{success="true",quantile="0.5", journalIndex="0"} 2.0',
    ]
    assert lines[16:] == [
        'bookie_journal_JOURNAL_SYNC{success="true",quantile="1.0", journalIndex="0"} 2.0',
        'bookie_journal_JOURNAL_SYNC_count{success="true", journalIndex="0"} 3',
        'bookie_journal_JOURNAL_SYNC_sum{success="true", journalIndex="0"} 6.0',
    ]
    assert [re.search(r'quantile="([^"]+)"', line)[1] for line in lines[10:17]] == [  # type: ignore[index]
        "0.5",
        "0.75",
        "0.95",
        "0.99",
        "0.999",
        "0.9999",
        "1.0",
    ]


def test_one_type_line_for_all_series_of_a_name() -> None:
    registry = Registry()
    for index in "01":
        registry.scope("j", journalIndex=index).counter("c").add()
    assert registry.render() == '# TYPE j_c counter\nj_c{journalIndex="0"} 1\nj_c{journalIndex="1"} 1\n'


def test_names_are_sanitised_and_values_escaped() -> None:
    assert sanitise("Bookie-1.x/y") == "Bookie_1_x_y"
    registry = Registry()
    registry.scope("s", path='a"b\\c\nd').counter("n-1").add()
    assert registry.render() == '# TYPE s_n_1 counter\ns_n_1{path="a\\"b\\\\c\\nd"} 1\n'


@given(st.text(max_size=30), st.text(max_size=30), st.integers(0, 1000))
def test_any_name_and_label_can_be_parsed(name: str, label: str, amount: int) -> None:
    registry = Registry()
    registry.scope("x", label=label).counter(name).add(amount)
    (family,) = text_string_to_metric_families(registry.render())
    (sample,) = family.samples
    assert sample.labels == {"label": label}
    assert sample.value == amount


def test_same_name_and_labels_is_the_same_instrument() -> None:
    scope = Registry().scope("a", x="1")
    assert scope.counter("c") is scope.counter("c")
    assert scope.op_stats("o") is scope.op_stats("o")
    scope.gauge("g", lambda: 0)
    with pytest.raises(ValueError, match="exists"):
        scope.gauge("g", lambda: 0)
    with pytest.raises(ValueError, match="gauge"):
        scope.gauge("c", lambda: 0)


def test_nothing_is_shared_between_registries() -> None:
    first, second = Registry(), Registry()
    first.scope().counter("c").add()
    assert second.render() == ""


def test_thread_counter_takes_its_labels_from_the_thread() -> None:
    registry = Registry()
    counter = registry.scope("bookie").thread_counter("sync_thread_time")
    for name in ("read-1", "read-1", "read-2", "checkpoint"):
        thread = threading.Thread(target=lambda: counter.add(1.6), name=name)
        thread.start()
        thread.join()
    assert registry.render().splitlines()[1:] == [
        'bookie_sync_thread_time{threadPool="read",thread="1"} 3',
        'bookie_sync_thread_time{threadPool="read",thread="2"} 1',
        'bookie_sync_thread_time{threadPool="checkpoint",thread="0"} 1',
    ]


def test_thread_names_that_never_repeat_do_not_fill_the_memory() -> None:
    registry = Registry()
    counter = registry.scope().thread_counter("c")
    for number in range(300):
        thread = threading.Thread(target=counter.add, name=f"t-{number}")
        thread.start()
        thread.join()
    lines = registry.render().splitlines()
    assert len(lines) == 1 + 256 + 1
    assert lines[-1] == 'c{threadPool="other",thread="0"} 44'


def test_special_numbers() -> None:
    registry = Registry()
    for name, value in (("a", math.inf), ("b", -math.inf), ("c", math.nan)):
        registry.scope().gauge(name, lambda value=value: value)
    assert [line for line in registry.render().splitlines() if line[0] != "#"] == ["a +Inf", "b -Inf", "c NaN"]


def test_process_metrics() -> None:
    registry = Registry()
    registry.add_collector(ProcessCollector())
    samples = {
        sample.name: sample.value
        for family in text_string_to_metric_families(registry.render())
        for sample in family.samples
    }
    assert samples["process_cpu_seconds_total"] > 0
    assert 1e6 < samples["process_resident_memory_bytes"] < samples["process_virtual_memory_bytes"]
    assert 0 < samples["process_open_fds"] <= samples["process_max_fds"]
    assert samples["process_start_time_seconds"] == pytest.approx(psutil.Process().create_time(), abs=2)


def test_without_proc_nothing_is_reported(tmp_path: object) -> None:
    registry = Registry()
    registry.add_collector(ProcessCollector(str(tmp_path)))
    assert registry.render() == ""


def test_flag_is_a_number() -> None:
    """Prometheus refuses a whole page for one value that is none."""
    registry = Registry()
    registry.scope("scrubber").gauge("RUNNING", lambda: True)
    registry.scope("scrubber").gauge("DONE", lambda: False)
    (done, running) = list(text_string_to_metric_families(registry.render()))
    assert [sample.value for sample in (*done.samples, *running.samples)] == [0.0, 1.0]
    assert "scrubber_RUNNING 1\n" in registry.render()


_LATENCIES = st.lists(st.floats(1e-3, 1e5).filter(lambda value: value not in BOUNDS), max_size=40)


@given(st.lists(_LATENCIES, min_size=2, max_size=2), st.sampled_from([0.0, 10.0, 35.0]))
def test_histograms_of_bookies_add_up(bookies: list[list[float]], pause: float) -> None:
    counts, total = [0] * (len(BOUNDS) + 1), 0.0
    for values in bookies:
        clock = Clock()
        stats = OpStats(10.0, clock)
        stats.keep_histogram()
        for value in values:
            stats.observe_ms(value)
            clock.now += pause
        found, added = stats.histogram(True)
        counts, total = [one + other for one, other in zip(counts, found, strict=True)], total + added
        assert stats.histogram(False) == ([0] * len(counts), 0.0)
    every = [value for values in bookies for value in values]
    assert counts == [sum(value <= bound for value in every) for bound in (*BOUNDS, math.inf)]
    assert total == pytest.approx(sum(every))


def test_histogram_stands_beside_its_summary(clock: Clock) -> None:
    registry = Registry(10.0, clock)
    scope = registry.scope("a", place="x")
    scope.op_stats("plain").observe_ms(3.0)
    scope.op_stats("latency", summed=True).observe_ms(3.0, 2)
    assert scope.op_stats("latency").has_histogram, "it is the one that exists"
    families = {each.name: each for each in text_string_to_metric_families(registry.render())}
    assert set(families) == {"a_plain", "a_latency", "a_latency_hist"}
    histogram = families["a_latency_hist"]
    assert histogram.type == "histogram"
    buckets = [each for each in histogram.samples if each.labels.get("success") == "true" and "le" in each.labels]
    assert [float(each.labels["le"]) for each in buckets] == [*BOUNDS, math.inf]
    assert [each.value for each in buckets] == [0, 0, 0, *[2] * (len(BOUNDS) - 2)]
    assert all(each.labels["place"] == "x" for each in histogram.samples)
