"""The one state object of a ledger, and those who wait for its last-add-confirmed (LAC) to pass one that they know.

Invariants
- There is at most one `LedgerState` per ledger in a process, so that fencing and adding take turns on it.
- `hot_key` is the ledger's master key, with a life behind it if clients have to, or may, name one
  (`bookie_protocol.keys`), exactly while an add with that key and life may go straight into `entries` without any
  further check: the key is known, the ledger is not fenced, its key record is in this process's journal, no client
  waits for its LAC, and `entries` is the dict of the *active* write-cache half. In every other case it is None.
  Whatever breaks one of these conditions must call `cool_down()`; only the add path's slow branch heats a state again.
  That one comparison is the whole admission check of a hot add.
- `entries` exists exactly while `hot_key` is set: a state must not keep what the write cache has let go of.
- `lac` only grows. It is the highest last-add-confirmed that the bookie has *seen*; the bookie never computes it.
  While `lac_known` is False the last stored entry may carry a higher one: the ledger was loaded and no ordinary add
  came since.
- Each waiter is woken at most once, and never after it was removed.
- A LAC that wakes no waiter costs one comparison, however many wait: they are in a heap, the lowest in front. To wait,
  to be woken and to be removed costs the logarithm of their number.
- A waiter that is removed may stay in the heap until it is in front, or until those outnumber the others.

Threads: event loop only.

Source: docs/internals/wire-protocol.md, sections 8.1 to 8.5; docs/internals/bookie-behaviour.md, sections 7 and 13.3.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from bookie_protocol.keys import NO_LIFE

if TYPE_CHECKING:
    import asyncio

_FEW: Final = 16
"""Removed waiters that the heap may hold whatever their share."""
LAC_UNKNOWN: Final = -2
"""LAC of a ledger of which nothing has been seen since it was loaded."""

LAC_NONE: Final = -1
"""The ledger is known to have no confirmed entry."""


class LacWaiter(ABC):
    """A one-shot wait for `lac > previous_lac`, or for anything else that makes waiting pointless."""

    __slots__ = ("previous_lac", "waits")

    def __init__(self, previous_lac: int) -> None:
        self.previous_lac = previous_lac
        self.waits = False
        """True while it is among the waiters of its ledger."""

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
        heap, due = self._heap, []
        while heap and heap[0][0] < lac:
            due.append(heappop(heap)[2])
        self._wake(due, newer=True)

    def release(self) -> None:
        """Wake everybody."""
        heap, self._heap = self._heap, []
        self._wake([waiter for _, _, waiter in sorted(heap)], newer=False)

    def _wake(self, waiters: list[LacWaiter], *, newer: bool) -> None:
        waiting = [waiter for waiter in waiters if waiter.waits]
        for waiter in waiting:  # first: a waiter that is woken may wait again, or take others away
            waiter.waits = False
        self._count -= len(waiting)
        for waiter in waiting:
            waiter.wake(newer)


class LedgerState:
    """Key, fence, LAC and waiters of one ledger."""

    __slots__ = (
        "entries",
        "explicit_lac",
        "fence_durable",
        "fenced",
        "hot_key",
        "journal",
        "key",
        "key_journaled",
        "lac",
        "lac_known",
        "ledger_id",
        "life",
        "limbo",
        "waiters",
    )

    def __init__(self, ledger_id: int, key: bytes, journal: int) -> None:
        self.ledger_id = ledger_id
        self.key = key
        """The master key; empty: no client has presented one yet. All zero: it was begun without one."""
        self.life = NO_LIFE
        """The life that the ledger's writer, or copies, named and the metadata service confirmed."""
        self.journal = journal
        """Index of the journal that owns this ledger."""
        self.hot_key: bytes | None = None
        self.entries: dict[int, bytes]
        """This ledger's dict in the active write-cache half; there only while `hot_key` is set."""
        self.lac = LAC_UNKNOWN
        self.lac_known = False
        """False: look at the last stored entry before telling anybody how far this ledger is confirmed."""
        self.explicit_lac = b""
        self.fenced = False
        self.limbo = False
        self.key_journaled = False
        self.fence_durable: asyncio.Future[None] | None = None
        """Set while, or after, this process journals the fence; None if the fence was loaded from storage."""
        self.waiters: LacWaiters | None = None
        """The waiters for its LAC; None: there are none."""

    def __repr__(self) -> str:
        return f"<LedgerState {self.ledger_id} lac={self.lac} fenced={self.fenced} limbo={self.limbo}>"

    def heat(self, entries: dict[int, bytes], life: bytes = NO_LIFE) -> None:
        """Let adds that name this life go straight into `entries`."""
        self.entries = entries
        self.hot_key = self.key + life

    def cool_down(self) -> None:
        """Send the next add through the slow branch, which checks everything."""
        if self.hot_key is not None:
            self.hot_key = None
            del self.entries

    def raise_lac(self, lac: int) -> None:
        """Take note of a LAC seen in an entry or in a LAC packet, and wake those who waited for it."""
        if lac > self.lac:
            self.lac = lac
        if self.waiters is not None:
            self.waiters.pass_by(self.lac)
            self._forget_nobody()

    def learn_lac(self, lac: int) -> None:
        """The last stored entry carries `lac`, or there is none (`LAC_NONE`): now everything is known."""
        self.lac_known = True
        self.raise_lac(lac)

    def release_waiters(self) -> None:
        """Wake everybody: the ledger was fenced or deleted."""
        if self.waiters is not None:
            self.waiters.release()
            self._forget_nobody()

    def add_waiter(self, waiter: LacWaiter) -> None:
        if self.waiters is None:
            self.waiters = LacWaiters()
        self.waiters.add(waiter)
        self.cool_down()

    def remove_waiter(self, waiter: LacWaiter) -> None:
        """Forget a waiter whose time is up or whose connection is gone; no error if it was woken before."""
        if self.waiters is not None:
            self.waiters.remove(waiter)
            self._forget_nobody()

    def _forget_nobody(self) -> None:
        """Make the next adds hot again if no client waits for the LAC any more."""
        if not self.waiters:
            self.waiters = None
