"""The throttle of background copying: so many bytes, and so many requests, a second.

Reads and writes have a budget each, of the same size: a copy to one bookie proceeds at `bytes_per_second`, one to two
bookies at half of that. Unused budget is not saved up, so there are no bursts; a late caller starts afresh.

Invariants
- Callers are served in the order in which they came.
- A piece larger than the budget of a second passes, and those behind it wait longer.
- A throttle that gives way to clients (`YieldingThrottle`) is never faster than `most`, and never slower than a
  `LEAST_SHARE`-th of it, so that copying always ends.
- The clock is the event loop's.

Shared by everything in one process that copies or checks in the background. Event loop only.

Source: docs/internals/auto-recovery.md, section 7 (`replicationRateByBytes`), which counts what is read, by a running
average.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Final

from bookie_protocol.errors import BadRequest
from bookie_protocol.pace import Pace

PIECES_PER_SECOND: Final = 160
"""Under a throttle a request is for this part of a second's budget, though not for less than `LEAST_PIECE`: while a
bookie reads or stores a piece, its clients wait, so many small ones are kinder to them than few large ones."""
LEAST_PIECE: Final = 64 * 1024
"""Bytes below which more requests cost more than they spare: under a low limit a piece is a larger part of a second's
budget."""
LEAST_SHARE: Final = 8
FIRST_SHARE: Final = 4
STEP_SHARE: Final = 32
"""Divisor of the maximum rate that gives the rise after a window."""
FALL: Final = 0.7
"""Factor by which the rate falls after a slow window."""
WINDOW_SECONDS: Final = 1.0
WINDOW_PIECES: Final = 32
FORGOTTEN_SECONDS: Final = 10.0
"""Seconds of pause after which a new window begins. The throttle's own delays are not a pause."""
REMEMBERED: Final = 60
QUANTILE: Final = 0.9
SLOWER: Final = 1.2
"""A window is slow when its quantile is so many times the usual one,"""
SLACK_SECONDS: Final = 0.0003
"""and so much more."""


def piece_bytes(bytes_per_second: float | None, most: int, per_second: int = PIECES_PER_SECOND) -> int:
    """The largest request under such a limit (None: no limit), in bytes: never more than `most`, and just that without
    a limit."""
    if bytes_per_second is None:
        return most
    return min(most, max(LEAST_PIECE, int(bytes_per_second) // per_second))


class _Lane:
    def __init__(self) -> None:
        self.nbytes = 0
        self._bytes = Pace(None)
        self._operations = Pace(None)

    @property
    def free_at(self) -> float:
        return max(self._bytes.free_at, self._operations.free_at)

    def reserve(self, now: float, nbytes: int, operations: int, rate: float | None, ops_rate: float | None) -> float:
        """Take the budget; returns the time at which the caller may go on."""
        self.nbytes += nbytes
        self._bytes.rate, self._operations.rate = rate, ops_rate
        return max(self._bytes.use(nbytes, now), self._operations.use(operations, now))


class ReplicationThrottle:
    """None: no limit. Both limits may be changed while it is in use."""

    def __init__(self, bytes_per_second: float | None = None, ops_per_second: float | None = None) -> None:
        self._reads = _Lane()
        self._writes = _Lane()
        self.limit(bytes_per_second, ops_per_second)

    def limit(self, bytes_per_second: float | None, ops_per_second: float | None = None) -> None:
        """Set new limits. Raises `BadRequest` for one that is not positive."""
        for name, value in (("bytes", bytes_per_second), ("requests", ops_per_second)):
            if value is not None and value <= 0:
                raise BadRequest(f"a throttle of {value} {name} a second lets nothing pass: use None for no limit")
        self.bytes_per_second = bytes_per_second
        self.ops_per_second = ops_per_second

    @property
    def piece_rate(self) -> float | None:
        """Bytes per second by which pieces are measured (`piece_bytes`); None: no limit."""
        return self.bytes_per_second

    @property
    def bytes_read(self) -> int:
        """Bytes that were read through this throttle, so far."""
        return self._reads.nbytes

    @property
    def bytes_written(self) -> int:
        """Bytes that were written through this throttle, so far."""
        return self._writes.nbytes

    async def read(self, nbytes: int, operations: int = 1) -> None:
        """Wait until `nbytes` may be read. What is not known beforehand is guessed, and put right by `correct_read`."""
        await self._wait(self._reads, nbytes, operations)

    async def write(self, nbytes: int, operations: int = 1) -> None:
        """Wait until `nbytes` may be written."""
        await self._wait(self._writes, nbytes, operations)

    def correct_read(self, nbytes: int, operations: int = 0) -> None:
        """Correct what was said before: so many bytes more (or fewer, if negative) were read, by so many more
        requests."""
        now = asyncio.get_running_loop().time()
        self._reads.reserve(now, nbytes, operations, self.bytes_per_second, self.ops_per_second)

    def stored(self, seconds: float) -> None:
        """Bookies took so long to store a piece. This throttle does not mind; `YieldingThrottle` does."""

    def _free_at(self) -> float:
        """Return the time at which all admitted and waiting work has had its share."""
        return max(self._reads.free_at, self._writes.free_at)

    async def _wait(self, lane: _Lane, nbytes: int, operations: int) -> None:
        now = asyncio.get_running_loop().time()
        start = lane.reserve(now, nbytes, operations, self.bytes_per_second, self.ops_per_second)
        if start > now:
            await asyncio.sleep(start - now)


class YieldingThrottle(ReplicationThrottle):
    """`most`: bytes per second that are never exceeded. Limits set by `limit` later are the new most."""

    def __init__(self, most: float, ops_per_second: float | None = None) -> None:
        self._most: float | None = most
        self._quantiles: deque[float] = deque(maxlen=REMEMBERED)
        """Quantiles of the last windows."""
        self._stores: list[float] = []
        self._window_began = self._forgotten_at = 0.0
        super().__init__(most, ops_per_second)

    def limit(self, bytes_per_second: float | None, ops_per_second: float | None = None) -> None:
        """Set the limits; copying starts again with a part of the rate."""
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
