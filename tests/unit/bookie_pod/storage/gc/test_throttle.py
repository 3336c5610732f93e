"""The throttle on a clock of the test's own: no waiting, no luck."""

from __future__ import annotations

import threading

import pytest

from bookie_pod.storage.gc.throttle import (
    BURST_S,
    MAX_WAIT_S,
    PRESSURE_SECONDS,
    YIELD_ENTRIES,
    YIELD_SECONDS,
    CollectionStopped,
    ScrubPace,
    ScrubStopped,
    Throttle,
)


class VirtualTime(threading.Event):
    """A clock that a wait moves on. `at` runs things at given times."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1_000_000.0
        self.begin = self.now
        self.waits: list[float] = []
        self.at: list[tuple[float, object]] = []

    def clock(self) -> float:
        return self.now

    @property
    def passed(self) -> float:
        return self.now - self.begin

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.waits.append(timeout)
        self.now += timeout
        while self.at and self.at[0][0] <= self.passed:
            self.at.pop(0)[1]()  # type: ignore[operator]
        return self.is_set()


def _throttle(time: VirtualTime, rate: float, *, by_bytes: bool = True, pressure: list[bool] | None = None) -> Throttle:
    flag = pressure or [False]
    return Throttle(rate, time, by_bytes=by_bytes, under_pressure=lambda: flag[0], clock=time.clock)


@pytest.mark.parametrize("size", [100, 5_000, 1_000_000])
def test_by_bytes_the_rate_holds_whatever_the_size_of_entries(size: int) -> None:
    """Scenario A6."""
    time = VirtualTime()
    throttle = _throttle(time, 1_000_000)
    count = max(20, 1_000_000 // size)
    for _ in range(count):
        throttle.pay(1, size)
    expected = count * size / 1_000_000
    assert expected - size / 1_000_000 - BURST_S <= time.passed <= expected + 0.01


@pytest.mark.parametrize("size", [100, 1_000_000])
def test_by_entries_big_entries_cost_as_little_as_small_ones(size: int) -> None:
    """Scenario A6: why by bytes is the default."""
    time = VirtualTime()
    throttle = _throttle(time, 1000, by_bytes=False)
    for _ in range(3000):
        throttle.pay(1, size)
    assert 2.8 <= time.passed <= 3.1


def test_a_pause_earns_no_more_than_a_burst() -> None:
    time = VirtualTime()
    throttle = _throttle(time, 1000)
    throttle.pay(1, 1)
    time.now += 3600
    begin = time.now
    for _ in range(1100):
        throttle.pay(1, 1)
    assert time.now - begin >= 1100 / 1000 - BURST_S - 0.01


def test_under_pressure_a_tenth_and_never_nothing() -> None:
    time, pressure = VirtualTime(), [True]
    throttle = _throttle(time, 1000, pressure=pressure)
    for _ in range(200):
        throttle.pay(1, 1)
    assert 1.8 <= time.passed <= 2.1


def test_pressure_that_ends_shortens_a_wait_that_goes_on() -> None:
    time, pressure = VirtualTime(), [True]
    throttle = _throttle(time, 1000, pressure=pressure)
    time.at = [(1.0, lambda: pressure.__setitem__(0, False))]
    throttle.pay(1, 2000)  # 20 s under pressure, 2 s without
    throttle.pay(1, 1)
    assert time.passed < 3.5
    assert max(time.waits) <= MAX_WAIT_S


def test_a_new_rate_counts_for_a_wait_that_goes_on() -> None:
    time = VirtualTime()
    throttle = _throttle(time, 1)
    time.at = [(1.0, lambda: throttle.change(1_000_000, by_bytes=True))]
    throttle.pay(1, 1_000_000)
    throttle.pay(1, 1)
    assert time.passed < 2.5


def test_entries_that_are_owed_do_not_become_bytes() -> None:
    time = VirtualTime()
    throttle = _throttle(time, 1_000_000_000)
    throttle.pay(1, 10_000_000_000)
    throttle.change(10, by_bytes=False)
    throttle.pay(1, 1)
    assert time.passed < 0.2


def test_a_stop_ends_every_wait() -> None:
    time = VirtualTime()
    throttle = _throttle(time, 1)
    time.at = [(1.0, time.set)]
    throttle.pay(1, 1_000_000)
    with pytest.raises(CollectionStopped):
        throttle.pay(1, 1)
    assert time.passed < 1.5
    with pytest.raises(CollectionStopped):
        throttle.pay(0, 0)


def test_what_was_waited_because_clients_wait_is_counted_and_work_goes_on() -> None:
    time, pressure = VirtualTime(), [True]
    throttle = _throttle(time, 1_000_000, pressure=pressure)
    for _ in range(21):
        throttle.pay(1, 10_000)
    assert time.passed == pytest.approx(2.0 - BURST_S, abs=0.2)  # at a tenth of the rate, not at none
    assert throttle.yielded_s == pytest.approx(time.passed)
    pressure[0] = False
    for _ in range(100):
        throttle.pay(1, 10_000)
    assert throttle.yielded_s == pytest.approx(2.0 - BURST_S, abs=0.2)


def _pace(time: VirtualTime, entries: float = 0, nbytes: float = 0, *, pressure: bool = False) -> ScrubPace:
    return ScrubPace(
        time,
        entries_per_second=entries,
        bytes_per_second=nbytes,
        under_pressure=lambda: pressure,
        clock=time.clock,
    )


@pytest.mark.parametrize(
    ("entries", "nbytes", "seconds"), [(100, 0, 10), (0, 100_000, 20), (100, 100_000, 20), (0, 0, 0)]
)
def test_a_scrub_keeps_both_of_its_rates(
    entries: float, nbytes: float, seconds: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    time, slept = VirtualTime(), list[float]()
    monkeypatch.setattr("bookie_pod.storage.gc.throttle.time.sleep", slept.append)
    pace = _pace(time, entries, nbytes)
    turns = pace.turns
    for _ in range(500):
        pace.pay(2, 4000)
        assert pace.turns > turns
        turns = pace.turns
    assert seconds * 0.9 <= time.passed <= seconds * 1.05
    assert slept == [YIELD_SECONDS] * (1000 // YIELD_ENTRIES)


def test_a_scrub_without_a_rate_pauses_while_clients_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    time, slept = VirtualTime(), list[float]()
    monkeypatch.setattr("bookie_pod.storage.gc.throttle.time.sleep", slept.append)
    pace = _pace(time, pressure=True)
    for _ in range(2 * YIELD_ENTRIES - 1):
        pace.pay(0, 1)
    assert (time.waits, slept) == ([PRESSURE_SECONDS], [])
    pace.pay(0, 1)
    assert time.waits == [PRESSURE_SECONDS] * 2
    limited = _pace(time, entries=1e9, pressure=True)
    for _ in range(YIELD_ENTRIES):
        limited.pay(1, 1)
    assert (time.waits.count(PRESSURE_SECONDS), slept) == (2, [YIELD_SECONDS])


def test_a_scrub_that_is_stopped() -> None:
    time = VirtualTime()
    pace = _pace(time)
    pace.wait(5.0)
    assert time.waits == [5.0]
    time.set()
    with pytest.raises(ScrubStopped):
        pace.wait(5.0)
    with pytest.raises(ScrubStopped):
        pace.pay(1, 1)
