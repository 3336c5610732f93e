"""Counters and summaries."""

from __future__ import annotations

import math
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_pod.metrics.registry import QUANTILES, Counter, Gauge, Histogram, OpStats
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
