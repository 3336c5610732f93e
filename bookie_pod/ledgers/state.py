"""The one state object of a ledger.

Invariants
- There is at most one `LedgerState` per ledger in a process, so that fencing and adding take turns on it.
- `hot_key` is the ledger's master key exactly while an ordinary add with that key may go straight into `entries`
  without any further check: the key is known, the ledger is neither fenced nor in limbo, its key record is in this
  process's journal, nobody waits for its LAC, and `entries` is the dict of the *active* write-cache half. In every
  other case it is None. Whatever breaks one of these conditions must call `cool_down()`; only the add path's slow
  branch heats a state again. That one comparison is the whole admission check of a hot add.
- `lac` only grows. It is the highest last-add-confirmed that the bookie has *seen*; the bookie never computes it.
  While `lac_known` is False the last stored entry may carry a higher one: the ledger was loaded and no ordinary add
  came since.

Threads: event loop only.

Source: reference wire protocol, sections 8.1 to 8.5; bookie behaviour, sections 7 and 13.3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import asyncio

LAC_UNKNOWN: Final = -2
"""Nothing has been seen of this ledger since it was loaded."""

LAC_NONE: Final = -1
"""The ledger is known to have no confirmed entry."""


class LacWaiter:
    """A one-shot wait for `lac > previous_lac`, or for anything else that makes waiting pointless."""

    __slots__ = ("previous_lac", "timer", "wake")

    def __init__(self, previous_lac: int, wake: Callable[[bool], None]) -> None:
        self.previous_lac = previous_lac
        self.wake = wake
        """Called once, with True if a newer LAC was the reason."""
        self.timer: asyncio.TimerHandle | None = None


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
        "limbo",
        "waiters",
    )

    def __init__(self, ledger_id: int, key: bytes, journal: int) -> None:
        self.ledger_id = ledger_id
        self.key = key
        """The master key; empty or all zero means that nobody has presented one yet."""
        self.journal = journal
        """Index of the journal that owns this ledger."""
        self.hot_key: bytes | None = None
        self.entries: dict[int, bytes] = {}
        """This ledger's dict in the active write-cache half; valid only while `hot_key` is set."""
        self.lac = LAC_UNKNOWN
        self.lac_known = False
        """False: look at the last stored entry before telling anybody how far this ledger is confirmed."""
        self.explicit_lac = b""
        self.fenced = False
        self.limbo = False
        self.key_journaled = False
        self.fence_durable: asyncio.Future[None] | None = None
        """Set while, or after, this process journals the fence; None if the fence was loaded from storage."""
        self.waiters: list[LacWaiter] = []

    def __repr__(self) -> str:
        return f"<LedgerState {self.ledger_id} lac={self.lac} fenced={self.fenced} limbo={self.limbo}>"

    def cool_down(self) -> None:
        """Send the next add through the slow branch, which checks everything."""
        self.hot_key = None

    def raise_lac(self, lac: int) -> None:
        """Take note of a LAC seen in an entry or in a LAC packet, and wake those who waited for it."""
        if lac > self.lac:
            self.lac = lac
        if self.waiters:
            self._wake(newer=True)

    def learn_lac(self, lac: int) -> None:
        """The last stored entry carries `lac`, or there is none (`LAC_NONE`): now everything is known."""
        self.lac_known = True
        self.raise_lac(lac)

    def release_waiters(self) -> None:
        """Wake everybody: the ledger was fenced, deleted, or its LAC was written explicitly."""
        if self.waiters:
            self._wake(newer=False)

    def add_waiter(self, waiter: LacWaiter) -> None:
        self.waiters.append(waiter)
        self.cool_down()

    def remove_waiter(self, waiter: LacWaiter) -> None:
        """Forget a waiter whose time is up or whose connection is gone; no error if it was woken before."""
        if waiter in self.waiters:
            self.waiters.remove(waiter)

    def _wake(self, *, newer: bool) -> None:
        """Wake those whose LAC is surpassed; with `newer=False` all of them.

        The reference implementation consumes a waiter even when the LAC did not pass it; here it keeps waiting.
        """
        due = [w for w in self.waiters if not newer or self.lac > w.previous_lac]
        if not due:
            return
        self.waiters = [w for w in self.waiters if newer and self.lac <= w.previous_lac]
        for waiter in due:
            if waiter.timer is not None:
                waiter.timer.cancel()
            waiter.wake(newer)
