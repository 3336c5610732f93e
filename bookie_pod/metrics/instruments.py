"""Counters, gauges and summaries.

A summary (`OpStats`, Apache BookKeeper's name) counts and adds up for ever, and keeps for its quantiles one
histogram of the running period and one of the period before it. A histogram has 32 buckets per power of two,
so a quantile is off by less than 1.6 %; quantile 1.0 is exact.

Invariants
- Every method may be called from any thread, never blocks for long and never raises.
- Memory is bounded: a histogram has fewer than 3000 buckets however many values it saw.
- Observe once per batch with `count`, not once per entry.

Source: reference bookie behaviour, section 11.1.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Final

QUANTILES: Final = (0.5, 0.75, 0.95, 0.99, 0.999, 0.9999, 1.0)
_SUB_BUCKETS: Final = 32
_MIN_EXPONENT: Final = -20
_MAX_EXPONENT: Final = 64
_LARGEST: Final = 2.0**_MAX_EXPONENT
_NOTHING: Final = -(2**31)


class Counter:
    """A number that grows; a few of the reference implementation's counters also shrink."""

    __slots__ = ("_lock", "_value")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._value: float = 0

    def add(self, n: float = 1) -> None:
        """Add `n`, which may be negative for a counter that is really a level."""
        with self._lock:
            self._value += n

    @property
    def value(self) -> int:
        """The current number; fractions of a ms add up but do not show."""
        return int(self._value)


class Gauge:
    """A level that is asked for when somebody looks. `read` must be cheap; what it raises shows as NaN."""

    __slots__ = ("_read",)

    def __init__(self, read: Callable[[], float]) -> None:
        self._read = read

    @property
    def value(self) -> float:
        """The current level, NaN if it could not be read."""
        try:
            return self._read()
        except Exception:
            return math.nan


class Histogram:
    """Counts of values in logarithmic buckets. Not thread-safe: `OpStats` holds its lock."""

    __slots__ = ("buckets", "largest", "total")

    def __init__(self) -> None:
        self.buckets: dict[int, int] = {}
        self.total = 0
        self.largest = -math.inf

    def add(self, value: float, count: int) -> None:
        """Note `count` occurrences of `value`."""
        index = _bucket(value)
        self.buckets[index] = self.buckets.get(index, 0) + count
        self.total += count
        if value > self.largest:
            self.largest = value

    def quantiles(self) -> list[float]:
        """One value per `QUANTILES`, all NaN if nothing was noted."""
        if not self.total:
            return [math.nan] * len(QUANTILES)
        ordered = sorted(self.buckets.items())
        found: list[float] = []
        position, seen = 0, ordered[0][1]
        for quantile in QUANTILES[:-1]:
            rank = math.ceil(quantile * self.total)
            while seen < rank:
                position += 1
                seen += ordered[position][1]
            found.append(min(_middle(ordered[position][0]), self.largest))
        found.append(self.largest)
        return found


class _Outcome:
    """One side of a summary: what succeeded, or what failed."""

    __slots__ = ("count", "current", "previous", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.current = Histogram()
        self.previous = Histogram()


class OpStats:
    """A summary of latencies in ms, or of sizes, apart for success and failure."""

    __slots__ = ("_clock", "_failure", "_lock", "_period", "_rollover_s", "_success")

    def __init__(self, rollover_s: float, clock: Callable[[], float]) -> None:
        self._rollover_s = rollover_s
        self._clock = clock
        self._lock = threading.Lock()
        self._success = _Outcome()
        self._failure = _Outcome()
        self._period = int(clock() / rollover_s)

    def observe(self, value: float, count: int = 1, success: bool = True) -> None:
        """Note `count` occurrences of `value`; a count below 1 notes nothing."""
        if count < 1:
            return
        with self._lock:
            self._roll()
            outcome = self._success if success else self._failure
            outcome.count += count
            outcome.total += value * count
            outcome.current.add(value, count)

    def observe_ms(self, value: float, count: int = 1, success: bool = True) -> None:
        """Note `count` operations that took `value` ms each."""
        self.observe(value, count, success)

    def snapshot(self, success: bool) -> tuple[list[float], int, float]:
        """Quantiles of the previous period; count and sum since the start."""
        with self._lock:
            self._roll()
            outcome = self._success if success else self._failure
            return outcome.previous.quantiles(), outcome.count, outcome.total

    def _roll(self) -> None:
        period = int(self._clock() / self._rollover_s)
        if period == self._period:
            return
        for outcome in (self._success, self._failure):
            # If nobody observed or looked for a whole period, the running histogram is too old to show.
            outcome.previous = outcome.current if period == self._period + 1 else Histogram()
            outcome.current = Histogram()
        self._period = period


def _bucket(value: float) -> int:
    if not value > 0:  # zero, negative (a clock that went back) or NaN
        return _NOTHING
    mantissa, exponent = math.frexp(min(value, _LARGEST))
    if exponent < _MIN_EXPONENT:
        return _MIN_EXPONENT * _SUB_BUCKETS
    return exponent * _SUB_BUCKETS + int((mantissa - 0.5) * 2 * _SUB_BUCKETS)


def _middle(index: int) -> float:
    if index == _NOTHING:
        return 0.0
    exponent, part = divmod(index, _SUB_BUCKETS)
    return math.ldexp(0.5 + (part + 0.5) / (2 * _SUB_BUCKETS), exponent)
