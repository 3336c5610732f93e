"""The memory that clients may make this process hold: one governor, which all parts that serve clients ask.

What is counted: frames, messages and HTTP requests that are not complete or not dealt with, answers that are being
made, and answers that wait for their client. Not what has a bound of its own (caches, journals' queues, answers over
HTTP that are being made), and nothing of a single add.

Invariants
- No client has more than what is left for all others: one client alone gets a half, each of two a third. `SMALL` is
  left to every client, whatever the others hold, so that a modest client goes on beside greedy ones.
- Room is given to those who wait for it in the order in which they asked, as soon as some is given back. A client that
  has its part already is passed over. A client that asks for little does not wait, and one that holds what it can only
  give back when it has gone on does not wait for newcomers.
- Clients that hold room until other connections have answered them (`Waiter.has_begun`) leave a part of the limit to
  such connections, and while they wait, a client that holds nothing is still given some: else both would wait for each
  other.
- When more is held than there is, those lose their connection for whom nothing has moved for longest: a frame that has
  not come to its end, or answers that are not taken, however few of them. Those who hold little come last, and
  only where they hold more than a half together: it is the sum that counts, and there may be very many of them. They go
  in lots, since to find them is to look at all.
- What is kept back for a reason of the server's (`Share.is_kept_back`) is not the fault of its clients, but they may be
  very many. If more is held than there is, and they hold more than their part (`LEAVES`), the newest of them go first:
  the end of any other client would not help. The same part is the bound of what they hold together with those that hold
  little. They may all wait for the room that they fill: when a client has waited for it for `LONG_S`, the newest of the
  others go too.

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
"""Bytes that clients may hold if no limit is set."""
STUCK_S: Final = 1.0
"""Seconds without progress until a client is in the way of one that waits for room."""
URGE_S: Final = 0.1
"""Seconds between two checks for a client that is kept waiting for too long."""
BEGUN_LEAVES: Final = 4
"""Divisor of the limit that those who have begun leave to others."""
LOT: Final = 16
"""Such a part of all there is goes together of those who hold little."""
LEAVES: Final = 4
"""Large frames, and all that is kept back, leave such a part of the limit to all else."""
LONG_S: Final = 10.0
"""Seconds without progress until a client is in the way even if it holds little: there may be very many of them."""


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
        self._shares: dict[Share, None] = {}
        """This has the shares in the order in which their clients came."""
        self._waiting: deque[Waiter] = deque()
        self.kept_waiting: Waiter | None = None
        """The waiter that waits because others hold too much: no other one is given what would suffice for it."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._grants = False
        """`_grant` will be called."""
        self._urging: asyncio.TimerHandle | None = None

    def share(self, cut_off: Callable[[], None], recount: Callable[[], None] = lambda: None) -> Share:
        """Make the share of a new client; `cut_off` ends it. `recount` is called when memory is short, and sets
        what is held then: the taking of data may not have been reported."""
        share = Share(self, cut_off, recount)
        self._shares[share] = None
        return share

    @property
    def total(self) -> int:
        return self.held + self.making

    @property
    def most_kept(self) -> int:
        """Return the bytes that large frames may take, and what is kept back. See `LEAVES`."""
        return self.limit - self.limit // LEAVES

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
        """Return True if it waits for what others hold, not for what it holds itself."""
        return self.limit - self.total < self._wanted(waiter) and self._would_fit(waiter)

    def _would_fit(self, waiter: Waiter) -> bool:
        """Return True if there would be room for it if no other client held anything."""
        return self._wanted(waiter) <= self.limit - 2 * (waiter.share.held + waiter.share.making)

    def _lacks(self, waiter: Waiter) -> int:
        """Return the bytes that others have to give back before it can go on."""
        return self._wanted(waiter) - waiter.share.left

    def _wanted(self, waiter: Waiter) -> int:
        return self.to_be_free(waiter.nbytes, has_begun=waiter.has_begun)

    def to_be_free(self, nbytes: int, *, has_begun: bool) -> int:
        """Return the bytes that have to be free before `nbytes` are made: a client that wants more than a half
        waits for a half."""
        return min(nbytes, self.limit // 2) + (self.limit // BEGUN_LEAVES if has_begun else 0)

    def _urge(self) -> None:
        """Give the first waiter that waits too long the room of clients without progress."""
        self._urging = None
        self._recount()
        waiter = next((each for each in self._waiting if self._lacks(each) > 0 and self._would_fit(each)), None)
        waited = 0.0 if waiter is None else waiter.loop.time() - waiter.since
        if waiter is not None and waited > STUCK_S:
            share = waiter.share
            self.relieve(time.perf_counter(), self._wanted(waiter) + share.held + share.making)
            if waited > LONG_S and share in self._shares:  # it may have been among those that were cut off
                self._cut_kept_back(waiter)
        self.given_back()  # also what another thread gave back while those who wait were looked through
        if self._waiting:
            self._urging = self._waiting[0].loop.call_later(URGE_S, self._urge)

    def _cut_kept_back(self, waiter: Waiter) -> None:
        """Cut off the newest of those of which everything is kept back, if the waiter fits in without them."""
        newest = [each for each in reversed(self._shares) if each.is_kept_back and each is not waiter.share]
        if 0 < self._lacks(waiter) <= sum(each.held for each in newest):
            self._cut(_large_first(newest), self._lacks(waiter))

    def relieve(self, now: float, wanted: int = 0) -> None:
        """Cut off the clients without progress for longest, until no more is held than the limit. `now`: as
        `time.perf_counter` has it.

        `wanted`: these bytes have to be free too, for a waiter; a client with recent progress makes way for none.
        """
        if self.total + wanted <= self.limit:
            return
        self._recount()
        if self.total + wanted <= self.limit:
            return
        newest = [share for share in reversed(self._shares) if share.is_kept_back]
        if not wanted:
            self._cut_part(newest, self.most_kept)
        latest = now - STUCK_S if wanted else now
        stuck = [(since, share) for share in self._shares if (since := share.stuck_since) is not None]
        stuck.sort(key=lambda each: each[0])
        oldest = [
            share
            for since, share in stuck
            if since <= (latest if share.held > SMALL else now - LONG_S) and not (wanted and share.waits)
        ]
        self._cut(oldest, self.total + wanted - self.limit)
        if not wanted:
            rest = [share for _, share in stuck]
            self._cut_part(rest, self.limit // 2)
            self._cut_part(rest + newest, self.most_kept)

    def _cut_part(self, shares: list[Share], most: int) -> None:
        """Cut off some of those that are left of these if together they hold more than `most`, and there is not memory
        enough for all. They go in this order, but first those that hold more than `SMALL`, and a lot of them."""
        shares = [share for share in shares if share in self._shares]
        excess = min(self.total - self.limit, sum(share.held for share in shares) - most)
        if excess > 0:
            self._cut(_large_first(shares), excess + self.limit // LOT)

    def _cut(self, shares: list[Share], excess: int) -> None:
        """Cut off in this order until so much is given back."""
        for share in shares:
            if excess <= 0:
                break
            excess -= share.held
            self.cut_off += 1
            share.end()

    def _recount(self) -> None:
        for share in tuple(self._shares):
            share.recount()

    def forget(self, share: Share) -> None:
        self._shares.pop(share, None)


class Share:
    """The memory that one client makes the process hold."""

    __slots__ = ("_cut_off", "_governor", "held", "is_kept_back", "making", "recount", "stuck_since", "waits")

    def __init__(self, governor: MemoryGovernor, cut_off: Callable[[], None], recount: Callable[[], None]) -> None:
        self._governor = governor
        self._cut_off = cut_off
        self.recount = recount
        self.held = 0
        self.making = 0
        self.stuck_since: float | None = None
        """Time since which nothing has moved though it is the client's turn; None: it does its part."""
        self.is_kept_back = False
        """All that is held waits here for a reason of ours."""
        self.waits = False
        """The client would go on if it had room: it makes way only where more is held than there is."""

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
        """Return the bytes that it may have in any case."""
        return SMALL - self.held - self.making

    @property
    def is_full(self) -> bool:
        """Return True if no more may be made for this client now."""
        governor = self._governor
        return self.held + self.making > max(governor.limit - governor.total, SMALL)

    def fits(self, nbytes: int, *, has_begun: bool = False) -> bool:
        """Return True if these bytes may be made for this client now: not more than is left for the others, unless
        nothing is held at all, or it has no more than `SMALL` then."""
        governor = self._governor
        wanted = governor.to_be_free(nbytes, has_begun=has_begun)
        return wanted <= self.left or nbytes <= self._small or governor.total == 0

    @property
    def left(self) -> int:
        """Return the bytes that may be made for this client now without it having more than is left for the others."""
        return self._governor.limit - self._governor.total - self.held - self.making

    def relieve(self) -> None:
        """Relieve the governor if more is held than its limit. See `MemoryGovernor.relieve`."""
        self._governor.relieve(time.perf_counter())

    def end(self) -> None:
        """The client is gone, or has to go. What is being made for it is given back when it was made."""
        governor = self._governor
        governor.held -= self.held
        self.held = 0
        self.stuck_since = None
        governor.forget(self)
        governor.given_back()
        cut_off, self._cut_off = self._cut_off, gone
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


def _large_first(shares: list[Share]) -> list[Share]:
    """Return them in their order, but those that hold little last: the end of many of them would give back little."""
    return sorted(shares, key=lambda share: share.held <= SMALL)


def gone() -> None:
    """Do nothing: the client is gone. It takes the place of what would hold its connection in a cycle."""
