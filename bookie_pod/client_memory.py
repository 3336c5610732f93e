"""How much memory clients may make this process hold: one governor, which everything that serves clients asks.

What is counted: frames and messages that are not complete or not dealt with, answers that are being made, and answers
that wait for their client. Not what has a bound of its own (caches, journals' queues, HTTP), and nothing of a single
add.

Invariants
- Nobody has more than what is left for all others: one client alone gets a half, each of two a third. `SMALL` is left
  to everybody, whatever the others hold, so that a modest client goes on beside greedy ones.
- A client that is asked to wait goes on when it, or somebody else, has given memory back.
- When more is held than there is, those lose their connection for whom nothing has moved for longest: a frame that has
  not come to its end, or answers that are not taken, however few of them.

Threads: event loop, but for `Share.make` and `Share.is_full`, which any thread may call.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

SMALL: Final = 64 * 1024
"""Bytes that a client may hold in any case, as long as something moves."""
UNGOVERNED_BYTES: Final = 256 * 1024 * 1024
"""What clients may hold where nobody says how much."""
STUCK_S: Final = 1.0
"""For how long nothing moves until a client is in the way of one that waits for room."""
LONG_S: Final = 10.0
"""For how long nothing moves until a client is in the way even if it holds little: there may be very many of them."""


class MemoryGovernor:
    """Of the process."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        """Bytes in frames and unsent answers."""
        self.making = 0
        """Bytes of answers between the disk and the event loop, or reserved for them."""
        self.cut_off = 0
        """Clients that lost their connection, since the start."""
        self.lock = threading.Lock()
        self._shares: set[Share] = set()

    def share(self, cut_off: Callable[[], None]) -> Share:
        """That of a new client; `cut_off` ends it."""
        share = Share(self, cut_off)
        self._shares.add(share)
        return share

    @property
    def total(self) -> int:
        return self.held + self.making

    def relieve(self, now: float, wanted: int = 0) -> None:
        """Cut off those who have moved nothing for longest, until no more is held than there is. `now`: as
        `time.perf_counter` has it. `wanted`: so many bytes have to be free too, for somebody who waits; who moved
        something a moment ago makes way for nobody."""
        excess = self.total + wanted - self.limit
        if excess <= 0:
            return
        latest = now - STUCK_S if wanted else now
        stuck = [
            (since, share)
            for share in self._shares
            if (since := share.stuck_since) is not None and since <= (latest if share.held > SMALL else now - LONG_S)
        ]
        for _, share in sorted(stuck, key=lambda each: each[0]):
            excess -= share.held
            self.cut_off += 1
            share.end()
            if excess <= 0:
                return

    def forget(self, share: Share) -> None:
        self._shares.discard(share)


class Share:
    """What one client makes the process hold."""

    __slots__ = ("_cut_off", "_governor", "held", "making", "stuck_since")

    def __init__(self, governor: MemoryGovernor, cut_off: Callable[[], None]) -> None:
        self._governor = governor
        self._cut_off = cut_off
        self.held = 0
        self.making = 0
        self.stuck_since: float | None = None
        """Since when nothing has moved though it is the client's turn; None: it does its part."""

    def hold(self, nbytes: int) -> None:
        """So many bytes more are held, or less."""
        self.held += nbytes
        self._governor.held += nbytes

    def make(self, nbytes: int) -> None:
        """So many bytes more of answers are being made, or less."""
        governor = self._governor
        with governor.lock:
            self.making += nbytes
            governor.making += nbytes

    @property
    def is_full(self) -> bool:
        """Whether no more may be made for this client now."""
        governor = self._governor
        return self.held + self.making > max(governor.limit - governor.total, SMALL)

    def fits(self, nbytes: int) -> bool:
        """Whether so many bytes may be made for this client now: not more than is left for the others, unless nobody
        holds anything, or it has no more than `SMALL` then."""
        small = SMALL - self.held - self.making
        return nbytes <= max(self.left, small) or self._governor.total == 0

    @property
    def left(self) -> int:
        """So much may be made for this client now without it having more than is left for the others."""
        return self._governor.limit - self._governor.total - self.held - self.making

    def relieve(self, wanted: int = 0) -> None:
        """More may be held than there is; or so many bytes were waited for in vain, and nobody makes way for what this
        client could not have if the others held nothing. See `MemoryGovernor.relieve`."""
        if wanted <= self._governor.limit - 2 * (self.held + self.making) or not wanted:
            self._governor.relieve(time.perf_counter(), wanted)

    def end(self) -> None:
        """The client is gone, or has to go. What is being made for it is given back when it was made."""
        governor = self._governor
        governor.held -= self.held
        self.held = 0
        self.stuck_since = None
        governor.forget(self)
        cut_off, self._cut_off = self._cut_off, _gone
        cut_off()


def _gone() -> None:
    """It was told already."""
