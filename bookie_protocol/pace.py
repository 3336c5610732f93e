"""Rates: an amount per second (`Pace`), and longer pauses after each failure (`doubled`).

Callers wait in their own way, on a thread or on a loop; the account is the same everywhere.

Invariants
- A piece larger than what is free passes, and those behind it wait longer.
- After a pause no more than `burst_s` seconds' worth comes at once.
- Nothing here reads a clock but `turn`: times are the caller's, of any clock that does not go back.

A `Pace` has no lock: one thread, or one event loop, or a lock of the caller's.
"""

from __future__ import annotations

import asyncio
import math


class Pace:
    """`rate`: so much a second; None or 0: no limit. `free_at`: when everything used so far has had its time."""

    __slots__ = ("_burst_s", "free_at", "rate")

    def __init__(self, rate: float | None, burst_s: float = 0.0, free_at: float = -math.inf) -> None:
        self.rate = rate
        self._burst_s = burst_s
        self.free_at = free_at

    def use(self, amount: float, now: float) -> float:
        """Take so much, less if negative; returns the time at which it may begin, which is past if it may at once."""
        if not self.rate:
            return now
        begins = max(self.free_at, now - self._burst_s)
        self.free_at = begins + amount / self.rate
        return begins

    def change(self, rate: float, now: float) -> None:
        """Another rate, also for what was used and has not had its time yet."""
        if self.rate and rate and self.free_at > now:
            self.free_at = now + (self.free_at - now) * self.rate / rate
        self.rate = rate

    async def turn(self, deadline: float = math.inf) -> None:
        """Wait for one turn by the clock of the event loop; turns are given in the order of the calls.

        `TimeoutError` at once if it would come behind the deadline. A caller that is refused, or gives up, has used no
        turn.
        """
        if not self.rate:
            return
        now = asyncio.get_running_loop().time()
        before = self.free_at
        self.use(1, now)
        if self.free_at > deadline:
            self.free_at = before
            raise TimeoutError
        if self.free_at > now:
            try:
                await asyncio.sleep(self.free_at - now)
            except asyncio.CancelledError:
                self.free_at -= 1 / self.rate
                raise


def doubled(first: float, longest: float, failures: int) -> float:
    """The pause after so many failures before this one: `first`, then twice as long each time, up to `longest`."""
    return min(longest, first * 2.0 ** min(failures, 30))
