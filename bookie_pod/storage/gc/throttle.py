"""The throttle of the reads and writes of garbage collection, the scrubber and rebuilds of indexes.

Invariants
- No work begins before the work before it is earned, and after a pause no more than `BURST_S` seconds' worth comes at
  once, beside one piece of work.
- A rate that changes, or pressure that begins or ends, counts at once, for what is waited for too.
- While the foreground is under pressure the rate is a tenth: collection gives way, but never stands still, because a
  full disk needs it.
- Of `ScrubPace` both limits hold, entries per second and bytes per second; 0 is no limit. It gives the interpreter away
  after every few entries, whatever the limits, so that a scrub of what the page cache holds does not hold up the event
  loop.
- Every wait ends at once when the work that waits is stopped.

Threads: the thread that collects, scrubs or rebuilds waits; any thread may stop it or change the rate.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from bookie_protocol.pace import Pace

BURST_S: Final = 0.1
YIELD_FACTOR: Final = 0.1
MIN_WAIT_S: Final = 0.001
MAX_WAIT_S: Final = 0.25
"""Seconds of the shortest and the longest single wait, after which pressure and rate are checked again."""
YIELD_ENTRIES: Final = 64
YIELD_SECONDS: Final = 0.0001
PRESSURE_SECONDS: Final = 0.05
"""Pause after every few entries of a scrub without limits while clients wait for the disks."""


class CollectionStopped(Exception):
    """Raised when the collection was asked to stop. Work that is done is kept."""


class Throttle:
    """Permits per second; `by_bytes` tells whether a permit is a byte or an entry."""

    def __init__(
        self,
        rate: float,
        stopped: threading.Event,
        *,
        by_bytes: bool,
        under_pressure: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.rate = rate
        self.by_bytes = by_bytes
        self._stopped = stopped
        self._under_pressure = under_pressure
        self._clock = clock
        self._seen_at = clock()
        self._pace = Pace(rate, BURST_S, self._seen_at)
        self.turns = 0
        """The number of payments and of questions whether work may go on. Any thread may read."""
        self.yielded_s = 0.0
        """Seconds of waiting in which the rate was the low one, since the start. Any thread may read."""

    def change(self, rate: float, *, by_bytes: bool) -> None:
        """Another rate, also for what was used and not earned yet."""
        if by_bytes != self.by_bytes:
            self._pace = Pace(rate, BURST_S, self._seen_at)  # entries are no bytes
        self.rate, self.by_bytes = rate, by_bytes

    def pay(self, entries: int, nbytes: int) -> None:
        """Wait until earlier work is earned, then use the permits of this one. Raises `CollectionStopped`."""
        while True:
            if self._stopped.is_set():
                raise CollectionStopped
            self.turns += 1
            now, pace = self._clock(), self._pace
            pressed = self._under_pressure()
            if pressed and pace.free_at > self._seen_at:
                self.yielded_s += now - self._seen_at
            self._seen_at = now
            pace.change(self.rate * (YIELD_FACTOR if pressed else 1.0), now)
            if pace.free_at <= now:
                break
            self._stopped.wait(min(max(pace.free_at - now, MIN_WAIT_S), MAX_WAIT_S))
        pace.use(nbytes if self.by_bytes else entries, now)


ScrubStopped = CollectionStopped
"""Raised when the scrubber was asked to stop. Work that is done is kept."""


class ScrubPace:
    """The pace of the scrubber and of rebuilds: `pay(entries, bytes)` waits until that much may be read."""

    def __init__(
        self,
        stopped: threading.Event,
        *,
        entries_per_second: float,
        bytes_per_second: float,
        under_pressure: Callable[[], bool] = lambda: False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        limits = ((entries_per_second, False), (bytes_per_second, True))
        self._throttles = [
            Throttle(rate, stopped, by_bytes=by_bytes, under_pressure=under_pressure, clock=clock)
            for rate, by_bytes in limits
            if rate > 0
        ]
        self._stopped = stopped
        self._under_pressure = under_pressure
        self._since_yield = 0
        self._paid = 0

    @property
    def turns(self) -> int:
        """Return a number that grows as long as the paying thread is not held up elsewhere. Any thread."""
        return self._paid + sum(throttle.turns for throttle in self._throttles)

    def pay(self, entries: int, nbytes: int) -> None:
        """Raises `ScrubStopped`."""
        if self._stopped.is_set():
            raise ScrubStopped
        self._paid += 1
        for throttle in self._throttles:
            throttle.pay(entries, nbytes)
        self._since_yield += max(1, entries)
        if self._since_yield >= YIELD_ENTRIES:
            self._since_yield = 0
            if not self._throttles and self._under_pressure():
                self._stopped.wait(PRESSURE_SECONDS)
            else:
                time.sleep(YIELD_SECONDS)

    def wait(self, seconds: float) -> None:
        """Raises `ScrubStopped`."""
        if self._stopped.wait(seconds):
            raise ScrubStopped
