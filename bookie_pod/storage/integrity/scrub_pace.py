"""How fast the scrubber may go.

Invariants
- Both limits hold: entries per second and bytes per second; 0 is no limit.
- While clients wait for the disks a tenth of that.
- The interpreter is given away after every few entries, whatever the limits, so that a scrub of what the page cache
  holds does not hold up the event loop.
- Every wait ends at once when the scrubber is stopped.

Threads: the scrubber's.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from bookie_pod.storage.gc.throttle import CollectionStopped, Throttle

YIELD_ENTRIES: Final = 64
YIELD_SECONDS: Final = 0.0001
PRESSURE_SECONDS: Final = 0.05
"""Pause after every few entries of a scrub without limits while clients wait for the disks."""

ScrubStopped = CollectionStopped
"""The scrubber was asked to stop; what it did so far stands."""


class ScrubPace:
    """`pay(entries, bytes)` waits until that much may be read."""

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
        """Grows as long as whoever pays is not held up elsewhere. Any thread."""
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
