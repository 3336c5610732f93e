"""A throttle that gives way to clients: the rate follows how busy bookies are.

Nobody tells a copier what clients feel, but its own adds take the same way as theirs: while bookies, disks or
processors are wanted by others, they take longer. So the rate falls when they do, and rises again when they do not.

Invariants
- The rate is never above `most`, and never below a `LEAST_SHARE`-th of it, so that copying always ends. It begins at a
  `FIRST_SHARE`-th.
- It is judged once in a window of at least `WINDOW_SECONDS` and `WINDOW_PIECES`, by a quantile: single stalls of a disk
  do not count.
- The size of pieces does not follow the rate, so that their times compare.
- What is usual is learned: the best window of the last `REMEMBERED`. Where things stay slower for good (more clients,
  an older disk) that is what is usual after so many windows at the least rate.

Event loop only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from bookie_client.replication.throttle import ReplicationThrottle

LEAST_SHARE: Final = 8
FIRST_SHARE: Final = 4
STEP_SHARE: Final = 32
"""What the rate rises by after a window, as a part of the most."""
FALL: Final = 0.7
"""What is left of the rate after a window that was slow."""
WINDOW_SECONDS: Final = 1.0
WINDOW_PIECES: Final = 32
FORGOTTEN_SECONDS: Final = 10.0
"""After such a pause a window begins anew. What the throttle itself holds back is no pause."""
REMEMBERED: Final = 60
QUANTILE: Final = 0.9
SLOWER: Final = 1.2
"""A window is slow when its quantile is so many times the usual one,"""
SLACK_SECONDS: Final = 0.0003
"""and so much more."""


class YieldingThrottle(ReplicationThrottle):
    """`most`: bytes per second that are never exceeded. Limits set by `limit` later are the new most."""

    def __init__(self, most: float, ops_per_second: float | None = None) -> None:
        self._most: float | None = most
        self._quantiles: deque[float] = deque(maxlen=REMEMBERED)
        """Of the last windows."""
        self._stores: list[float] = []
        self._window_began = self._forgotten_at = 0.0
        super().__init__(most, ops_per_second)

    def limit(self, bytes_per_second: float | None, ops_per_second: float | None = None) -> None:
        """As of every throttle; copying begins anew with a part of it."""
        super().limit(bytes_per_second, ops_per_second)
        self._most = bytes_per_second
        if bytes_per_second is not None:
            self.bytes_per_second = bytes_per_second / FIRST_SHARE

    @property
    def piece_rate(self) -> float | None:
        """The rate at which copying begins, whatever it is now: pieces of one size, the times of which compare."""
        return None if self._most is None else self._most / FIRST_SHARE

    def stored(self, seconds: float) -> None:
        """Bookies took so long to store a piece."""
        if self._most is None or self.bytes_per_second is None:
            return
        now = asyncio.get_running_loop().time()
        if now >= self._forgotten_at:
            self._window_began, self._stores = now, []
        self._forgotten_at = max(now, self._free_at()) + FORGOTTEN_SECONDS
        self._stores.append(seconds)
        if now - self._window_began < WINDOW_SECONDS or len(self._stores) < WINDOW_PIECES:
            return
        found = sorted(self._stores)[int(QUANTILE * len(self._stores))]
        self._window_began, self._stores = now, []
        self.bytes_per_second = self._next_rate(found, self._most, self.bytes_per_second)
        self._quantiles.append(found)

    def _next_rate(self, found: float, most: float, rate: float) -> float:
        usual = min(self._quantiles, default=found)
        if found > usual * SLOWER + SLACK_SECONDS:
            return max(most / LEAST_SHARE, rate * FALL)
        return min(most, rate + most / STEP_SHARE)
