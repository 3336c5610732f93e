"""Summaries of latencies and sizes, and the histograms beside some of them.

A summary (`OpStats`, Apache BookKeeper's name) counts and adds up for ever, and keeps for its quantiles one
histogram of the running period and one of the period before it. A histogram has 32 buckets per power of two,
so a quantile is off by less than 1.6 %; quantile 1.0 is exact.

A summary that is `summed` also counts, since the start, how many values were below each of a few `BOUNDS`: numbers that
can be added up over bookies and subtracted over time. They are folded out of the fine histograms when a period ends
and when the metrics are asked for, so noting a value costs the same. A value that equals a bound counts as above it.

An exemplar is one value of a bucket together with the trace that it was noted in (`exemplify`): the last one of each.

Invariants
- Every method may be called from any thread, and never blocks for long.
- Memory is bounded: a histogram has fewer than 3000 buckets however many values it saw.
- Observe once per batch with `count`, not once per entry.
"""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_right
from collections.abc import Callable
from itertools import accumulate
from typing import Final, NamedTuple

QUANTILES: Final = (0.5, 0.75, 0.95, 0.99, 0.999, 0.9999, 1.0)
BOUNDS: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 512.0, 2048.0, 8192.0)
"""Milliseconds; powers of two, at which fine buckets begin."""
HISTOGRAM: Final = "_hist"
"""The end of a histogram's name, behind that of its summary."""
_SUB_BUCKETS: Final = 32
_MIN_EXPONENT: Final = -20
_MAX_EXPONENT: Final = 64
_LARGEST: Final = 2.0**_MAX_EXPONENT
_NOTHING: Final = -(2**31)
_FIRST_BUCKETS: Final = [math.frexp(bound)[1] * _SUB_BUCKETS for bound in BOUNDS]
"""The first fine bucket above each of the bounds."""


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


_EMPTY: Final = Histogram()
"""Histogram of a period without observations; never added to."""


class Exemplar(NamedTuple):
    """One value of a bucket, and the trace that it was noted in."""

    trace_id: int
    value: float
    noted_at: float
    """Unix time in seconds."""


class _Outcome:
    """One side of a summary: what succeeded, or what failed."""

    __slots__ = ("count", "current", "ever", "exemplars", "previous", "total")

    def __init__(self) -> None:
        self.count = 0
        self.exemplars: dict[int, Exemplar] = {}
        """The last one of each bucket, by the index of its bound."""
        self.ever = [0] * (len(BOUNDS) + 1)
        """The values of earlier periods, by the bound that they are below; unused without a histogram."""
        self.total = 0.0
        self.current = Histogram()
        self.previous = _EMPTY


class OpStats:
    """A summary of latencies in ms, or of sizes, apart for success and failure."""

    __slots__ = ("_clock", "_failure", "_lock", "_period", "_rollover_s", "_success", "has_histogram")

    def __init__(self, rollover_s: float, clock: Callable[[], float]) -> None:
        self._rollover_s = rollover_s
        self._clock = clock
        self._lock = threading.Lock()
        self._success = _Outcome()
        self._failure = _Outcome()
        self.has_histogram = False
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

    def keep_histogram(self) -> None:
        """Keep a histogram, too, from now on. It costs nothing where values are noted."""
        with self._lock:
            self.has_histogram = True

    def exemplify(self, value: float, trace_id: int, success: bool = True) -> None:
        """Let a value that was noted be the exemplar of its bucket, if there is a histogram."""
        if self.has_histogram:
            bucket = bisect_right(_FIRST_BUCKETS, _bucket(value))
            with self._lock:
                outcome = self._success if success else self._failure
                outcome.exemplars[bucket] = Exemplar(trace_id, value, time.time())

    def exemplars(self, success: bool) -> dict[int, Exemplar]:
        """Return the exemplars of the histogram, by the index of their bounds; the last is that of no bound."""
        with self._lock:
            return dict((self._success if success else self._failure).exemplars)

    def histogram(self, success: bool) -> tuple[list[int], float]:
        """Return, for each of `BOUNDS` and for no bound, the number of values below it since the start; and their
        sum."""
        with self._lock:
            self._roll()
            outcome = self._success if success else self._failure
            counts, total = list(outcome.ever), outcome.total
            _fold(outcome.current, counts)
        return list(accumulate(counts)), total

    def _roll(self) -> None:
        period = int(self._clock() / self._rollover_s)
        if period == self._period:
            return
        for outcome in (self._success, self._failure):
            if self.has_histogram:
                _fold(outcome.current, outcome.ever)
            # If nothing was observed or rendered for a whole period, the running histogram is too old to show.
            outcome.previous = outcome.current if period == self._period + 1 else _EMPTY
            outcome.current = Histogram()
        self._period = period


def _fold(histogram: Histogram, counts: list[int]) -> None:
    """Add the values of a fine histogram to the counts by bound. Each bound is a bound of fine buckets, too."""
    for index, count in histogram.buckets.items():
        counts[bisect_right(_FIRST_BUCKETS, index)] += count


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
