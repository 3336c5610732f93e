"""How much memory clients may make this process hold: one governor, which everything that serves clients asks.

What is counted: frames, messages and HTTP requests that are not complete or not dealt with, answers that are being
made, and answers that wait for their client. Not what has a bound of its own (caches, journals' queues, answers over
HTTP), and nothing of a single add.

Invariants
- Nobody has more than what is left for all others: one client alone gets a half, each of two a third. `SMALL` is left
  to everybody, whatever the others hold, so that a modest client goes on beside greedy ones.
- Room is given to those who wait for it in the order in which they asked, as soon as somebody gives some back. Who has
  its part already is passed over. Who asks for little waits for nobody, and who holds what it can only give back when
  it has gone on waits for no newcomer.
- Those who hold room until they are told what they asked other connections for (`Waiter.has_begun`) leave a part of
  all there is to such connections, and while they wait, whoever holds nothing is still given some: else both would wait
  for each other.
- When more is held than there is, those lose their connection for whom nothing has moved for longest: a frame that has
  not come to its end, or answers that are not taken, however few of them.

Threads: event loop, but for `Share.make`, `Share.take` and `Share.is_full`, which any thread may call.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

SMALL: Final = 64 * 1024
"""Bytes that a client may hold in any case, as long as something moves."""
UNGOVERNED_BYTES: Final = 256 * 1024 * 1024
"""What clients may hold where nobody says how much."""
STUCK_S: Final = 1.0
"""For how long nothing moves until a client is in the way of one that waits for room."""
URGE_S: Final = 0.1
"""Between two looks whether somebody is kept waiting for too long."""
BEGUN_LEAVES: Final = 4
"""Those who have begun leave such a part to others."""
LONG_S: Final = 10.0
"""For how long nothing moves until a client is in the way even if it holds little: there may be very many of them."""


class MemoryGovernor:
    """The governor of the process."""

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
        self._waiting: deque[Waiter] = deque()
        self.kept_waiting: Waiter | None = None
        """Who waits because others hold too much: nobody else is given what would do for it."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._grants = False
        """`_grant` will be called."""
        self._urging: asyncio.TimerHandle | None = None

    def share(self, cut_off: Callable[[], None], recount: Callable[[], None] = lambda: None) -> Share:
        """Make the share of a new client; `cut_off` ends it. `recount` is called when memory is short, and holds
        what is held then: that something was taken may not have been told."""
        share = Share(self, cut_off, recount)
        self._shares.add(share)
        return share

    @property
    def total(self) -> int:
        return self.held + self.making

    def wait(self, waiter: Waiter) -> None:
        """Let it go on when there is room for it."""
        self._loop = waiter.loop
        place = sum(each.has_begun for each in self._waiting) if waiter.has_begun else len(self._waiting)
        self._waiting.insert(place, waiter)
        self.given_back()
        if self._urging is None:
            self._urging = waiter.loop.call_later(URGE_S, self._urge)

    def leave(self, waiter: Waiter) -> None:
        """It waits no more. Does nothing if it has gone on."""
        with suppress(ValueError):
            self._waiting.remove(waiter)
            if self.kept_waiting is waiter:
                self.kept_waiting = None
            self.given_back()

    def given_back(self) -> None:
        """There may be room for those who wait. Any thread."""
        if self._waiting and not self._grants:
            self._grants = True
            assert self._loop is not None, "that of those who wait"
            self._loop.call_soon_threadsafe(self._grant)

    def _grant(self) -> None:
        self._grants, self.kept_waiting = False, None
        granted, left = [], []
        while self._waiting and (self.kept_waiting is None or self.kept_waiting.has_begun):
            waiter = self._waiting.popleft()
            if waiter.share.take(waiter.nbytes, has_begun=waiter.has_begun):
                granted.append(waiter)
                continue
            left.append(waiter)
            if self._is_kept_waiting(waiter) and (self.kept_waiting is None or not waiter.has_begun):
                self.kept_waiting = waiter
        self._waiting.extendleft(reversed(left))
        for waiter in granted:
            waiter.go_on()

    def _is_kept_waiting(self, waiter: Waiter) -> bool:
        """Whether it waits for what others hold, not for what it holds itself."""
        share, wanted = waiter.share, self.to_be_free(waiter.nbytes, has_begun=waiter.has_begun)
        return self.limit - self.total < wanted <= self.limit - 2 * (share.held + share.making)

    def to_be_free(self, nbytes: int, *, has_begun: bool) -> int:
        """How much has to be free before so many bytes are made: who wants more than a half waits for that."""
        return min(nbytes, self.limit // 2) + (self.limit // BEGUN_LEAVES if has_begun else 0)

    def _urge(self) -> None:
        """Whoever is kept waiting for too long gets the room of those for whom nothing moves."""
        self._urging = None
        self._recount()
        waiter = next(filter(self._is_kept_waiting, self._waiting), None)
        if waiter is not None and waiter.loop.time() - waiter.since > STUCK_S:
            self.relieve(time.perf_counter(), self.to_be_free(waiter.nbytes, has_begun=waiter.has_begun))
        self.given_back()  # also what another thread gave back while those who wait were looked through
        if self._waiting:
            self._urging = self._waiting[0].loop.call_later(URGE_S, self._urge)

    def relieve(self, now: float, wanted: int = 0) -> None:
        """Cut off those who have moved nothing for longest, until no more is held than there is. `now`: as
        `time.perf_counter` has it. `wanted`: so many bytes have to be free too, for somebody who waits; who moved
        something a moment ago makes way for nobody."""
        if self.total + wanted <= self.limit:
            return
        self._recount()
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

    def _recount(self) -> None:
        for share in tuple(self._shares):
            share.recount()

    def forget(self, share: Share) -> None:
        self._shares.discard(share)


class Share:
    """What one client makes the process hold."""

    __slots__ = ("_cut_off", "_governor", "held", "making", "recount", "stuck_since")

    def __init__(self, governor: MemoryGovernor, cut_off: Callable[[], None], recount: Callable[[], None]) -> None:
        self._governor = governor
        self._cut_off = cut_off
        self.recount = recount
        self.held = 0
        self.making = 0
        self.stuck_since: float | None = None
        """Since when nothing has moved though it is the client's turn; None: it does its part."""

    def hold(self, nbytes: int) -> None:
        """Count so many bytes more, or less, as held."""
        self.held += nbytes
        self._governor.held += nbytes
        if nbytes < 0:
            self._governor.given_back()

    def make(self, nbytes: int) -> None:
        """Count so many bytes more, or less, of answers that are being made."""
        governor = self._governor
        with governor.lock:
            self.making += nbytes
            governor.making += nbytes
        if nbytes < 0:
            governor.given_back()

    def take(self, nbytes: int, *, has_begun: bool = False) -> bool:
        """Have so many bytes made if there is room for them: `make` gives them back. See `Waiter.has_begun`."""
        governor = self._governor
        with governor.lock:
            if not (has_begun or self._is_next(nbytes)) or not self.fits(nbytes, has_begun=has_begun):
                return False
            self.making += nbytes
            governor.making += nbytes
            return True

    def _is_next(self, nbytes: int) -> bool:
        first = self._governor.kept_waiting
        if first is None or nbytes <= self._small:
            return True
        return first.has_begun and not self.held + self.making

    def wait(self, nbytes: int, go_on: Callable[[], None], *, has_begun: bool = False) -> Waiter:
        """Call `go_on` when so many bytes were taken for it."""
        waiter = Waiter(self, nbytes, go_on, has_begun)
        self._governor.wait(waiter)
        return waiter

    @property
    def _small(self) -> int:
        """How much it may have in any case."""
        return SMALL - self.held - self.making

    @property
    def is_full(self) -> bool:
        """Whether no more may be made for this client now."""
        governor = self._governor
        return self.held + self.making > max(governor.limit - governor.total, SMALL)

    def fits(self, nbytes: int, *, has_begun: bool = False) -> bool:
        """Whether so many bytes may be made for this client now: not more than is left for the others, unless nobody
        holds anything, or it has no more than `SMALL` then."""
        governor = self._governor
        wanted = governor.to_be_free(nbytes, has_begun=has_begun)
        return wanted <= self.left or nbytes <= self._small or governor.total == 0

    @property
    def left(self) -> int:
        """How much may be made for this client now without it having more than is left for the others."""
        return self._governor.limit - self._governor.total - self.held - self.making

    def relieve(self) -> None:
        """More may be held than there is. See `MemoryGovernor.relieve`."""
        self._governor.relieve(time.perf_counter())

    def end(self) -> None:
        """The client is gone, or has to go. What is being made for it is given back when it was made."""
        governor = self._governor
        governor.held -= self.held
        self.held = 0
        self.stuck_since = None
        governor.forget(self)
        governor.given_back()
        cut_off, self._cut_off = self._cut_off, _gone
        cut_off()


class Waiter:
    """One who waits for room."""

    __slots__ = ("go_on", "has_begun", "loop", "nbytes", "share", "since")

    def __init__(self, share: Share, nbytes: int, go_on: Callable[[], None], has_begun: bool) -> None:
        self.share = share
        self.nbytes = nbytes
        self.go_on = go_on
        self.has_begun = has_begun
        """It holds what it can only give back when it has gone on."""
        self.loop = asyncio.get_running_loop()
        self.since = self.loop.time()


def _gone() -> None:
    """It was told already."""
