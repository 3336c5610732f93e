"""How fast garbage collection may read and write.

Invariants
- Work is paid for before it is done, and after a pause no more than `BURST_S` seconds' worth comes at once.
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

BURST_S: Final = 0.1
YIELD_FACTOR: Final = 0.1
MAX_WAIT_S: Final = 0.25
"""Longest single wait, after which the pressure is looked at anew."""


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
        self._free_at = clock()

    def change(self, rate: float, *, by_bytes: bool) -> None:
        """Another rate, from the next piece of work on."""
        self.rate, self.by_bytes = rate, by_bytes

    def pay(self, entries: int, nbytes: int) -> None:
        """Wait until this much work may be done. Raises `CollectionStopped`."""
        cost = nbytes if self.by_bytes else entries
        while True:
            if self._stopped.is_set():
                raise CollectionStopped
            now = self._clock()
            wait = self._free_at - now
            if wait <= 0:
                break
            self._stopped.wait(min(wait, MAX_WAIT_S))
        rate = self.rate * (YIELD_FACTOR if self._under_pressure() else 1.0)
        self._free_at = max(self._free_at, now - BURST_S) + cost / rate
