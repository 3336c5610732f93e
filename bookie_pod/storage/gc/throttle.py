"""How fast garbage collection may read and write.

Invariants
- No work begins before the work before it is earned, and after a pause no more than `BURST_S` seconds' worth comes
  at once, beside one piece of work.
- A rate that changes, or pressure that begins or ends, counts at once, for what is waited for too.
- While the foreground is under pressure the rate is a tenth: collection gives way, but never stands still, because a
  full disk needs it.
- Every wait ends at once when the collection is stopped.

Threads: the garbage collection thread waits; any thread may stop it or change the rate.
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
"""Shortest and longest single wait, after which pressure and rate are looked at anew."""


class CollectionStopped(Exception):
    """The collection was asked to stop; what it did so far stands."""


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
        """How often anybody paid, or looked whether it may. Any thread may read."""
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
