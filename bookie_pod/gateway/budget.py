"""How many bytes of appends may be under way, all calls together.

Invariants
- Room is given in the order in which it was asked for.
- What is larger than the whole budget passes when nothing else is under way.

Event loop only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress


class ByteBudget:
    """`limit` in bytes."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.used = 0
        self._waiters: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def acquire(self, nbytes: int) -> None:
        """Take room as soon as there is some."""
        if not self._waiters and self._fits(nbytes):
            self.used += nbytes
            return
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiter = (nbytes, granted)
        self._waiters.append(waiter)
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.release(nbytes)
            else:
                with suppress(ValueError):  # `_grant` may have passed it over already
                    self._waiters.remove(waiter)
                self._grant()
            raise

    def release(self, nbytes: int) -> None:
        """Give it back."""
        self.used -= nbytes
        self._grant()

    def _fits(self, nbytes: int) -> bool:
        return self.used == 0 or self.used + nbytes <= self._limit

    def _grant(self) -> None:
        while self._waiters and self._fits(self._waiters[0][0]):
            nbytes, granted = self._waiters.popleft()
            if granted.done():
                continue  # cancelled in this very turn of the loop, and does not know it yet
            self.used += nbytes
            granted.set_result(None)
