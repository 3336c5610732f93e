"""Bytes per second of one task."""

from __future__ import annotations

import pytest

from pyspark_bookie.common.throttle import SLICE_SECONDS, Throttle, share


class Clock:
    def __init__(self):
        self.now = 100.0
        self.slept = []

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.now += seconds


def throttle(rate):
    clock = Clock()
    return clock, Throttle(rate, clock=lambda: clock.now, sleep=clock.sleep)


def test_the_rate_is_kept_over_time_in_short_sleeps():
    clock, limited = throttle(1000.0)
    for _ in range(50):
        limited.take(200)
    assert clock.now - 100.0 == pytest.approx(10.0 - 1.0)
    assert max(clock.slept) <= SLICE_SECONDS


def test_what_was_not_used_is_not_saved_up():
    clock, limited = throttle(1000.0)
    clock.now += 3600
    limited.take(3000)
    assert sum(clock.slept) == pytest.approx(2.0)


def test_no_rate_no_wait():
    clock, limited = throttle(None)
    limited.take(10**12)
    assert not clock.slept
    assert share(None, 5) is None
    assert share(100, 4) == 25
    assert share(100, 0) == 100
