"""Those who wait for the last-add-confirmed (LAC) of one ledger to pass one that they know.

Invariants
- Each waiter is woken at most once, and never after it was removed.
- A LAC that passes nobody's costs one comparison, however many wait: they stand in a heap, the lowest in front. To
  wait, to be woken and to be removed costs the logarithm of their number.
- Whoever is removed may stay in the heap until it is in front, or until those outnumber the others.

Threads: event loop only.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from heapq import heapify, heappop, heappush
from typing import Final

_FEW: Final = 16
"""Removed waiters that the heap may hold whatever their share."""


class LacWaiter(ABC):
    """A one-shot wait for `lac > previous_lac`, or for anything else that makes waiting pointless."""

    __slots__ = ("previous_lac", "waits")

    def __init__(self, previous_lac: int) -> None:
        self.previous_lac = previous_lac
        self.waits = False
        """Whether it is among those of its ledger."""

    @abstractmethod
    def wake(self, newer: bool) -> None:
        """Called once, with True if a newer LAC was the reason."""


class LacWaiters:
    """The waiters of one ledger."""

    __slots__ = ("_count", "_heap", "_made")

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, LacWaiter]] = []
        """Previous LAC, a number that no other waiter has, and the waiter."""
        self._made = 0
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, waiter: LacWaiter) -> None:
        waiter.waits = True
        self._made += 1
        self._count += 1
        heappush(self._heap, (waiter.previous_lac, self._made, waiter))

    def remove(self, waiter: LacWaiter) -> None:
        """Forget a waiter whose time is up or whose connection is gone; no error if it was woken before."""
        if not waiter.waits:
            return
        waiter.waits = False
        self._count -= 1
        if len(self._heap) > 2 * self._count + _FEW:
            self._heap = [each for each in self._heap if each[2].waits]
            heapify(self._heap)

    def pass_by(self, lac: int) -> None:
        """Wake those whose LAC is surpassed.

        The reference implementation consumes a waiter even when the LAC did not pass it; here it keeps waiting.
        """
        heap = self._heap
        if not heap or heap[0][0] >= lac:
            return
        due = []
        while heap and heap[0][0] < lac:
            due.append(heappop(heap)[2])
        self._wake(due, newer=True)

    def release(self) -> None:
        """Wake everybody."""
        heap, self._heap = self._heap, []
        self._wake([waiter for _, _, waiter in sorted(heap)], newer=False)

    def _wake(self, waiters: list[LacWaiter], *, newer: bool) -> None:
        waiting = [waiter for waiter in waiters if waiter.waits]
        for waiter in waiting:  # first: whoever is woken may wait anew, or take others away
            waiter.waits = False
        self._count -= len(waiting)
        for waiter in waiting:
            waiter.wake(newer)
