"""Long-poll reads: "tell me when the LAC passes this one, or when the time is up".

Invariants
- Each poll is answered exactly once: by a newer LAC, by a fence or deletion, or by its timer. When its connection goes,
  it is taken away and answered never.
- Polls that end together are answered a few in each turn of the event loop, one of each connection in turn: one entry
  may end all that wait, and one connection may have half of them.
- The number of polls waiting at once is bounded, and no connection has more of them than are left for the others; one
  more gets TooManyRequests. A poll that waits counts as no read in progress: nothing is being made for it.

Threads: event loop only.

Source: docs/internals/wire-protocol.md, section 8.4.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from typing import Any, Final

from bookie_pod.ledgers.registry import Ledgers
from bookie_pod.ledgers.state import LAC_NONE, LacWaiter, LedgerState
from bookie_pod.server.tcp import lane_reads
from bookie_pod.server.tcp.read_lanes import ReadLanes
from bookie_pod.server.tcp.reads import Reads
from bookie_pod.server.tcp.requests import ReadRequest, Reply
from bookie_pod.server.tcp.wire import Wire
from bookie_protocol.entry import LAST_ENTRY
from bookie_protocol.errors import BadRequest, BookieUnavailable, NotThere, PodkeeperError, TooManyRequests

WAITING_MAX: Final = 200_000
ENDED_PER_TURN: Final = 64
"""The number of polls that are answered in one turn of the event loop: it takes some 3 ms."""
POLL_BYTES: Final = 3584
"""Bytes of a waiting poll, about: its request, its reply, its timer."""


class LongPolls:
    """Waits for the last-add-confirmed of ledgers."""

    def __init__(
        self,
        ledgers: Ledgers,
        reads: Reads,
        lanes: ReadLanes,
        loop: asyncio.AbstractEventLoop,
        waiting_max: int = WAITING_MAX,
    ) -> None:
        self._ledgers = ledgers
        self._reads = reads
        self._lanes = lanes
        self._loop = loop
        self._waiting_max = waiting_max
        self.waiting = 0
        self._left = ENDED_PER_TURN
        """The number of polls that may still be answered in this turn."""
        self._ended: dict[Wire, deque[tuple[_Poll, bool]]] = {}
        """Polls that are over and not answered yet, each with whether there is a newer LAC. The connection whose turn
        it is comes first."""

    def poll(self, request: ReadRequest, reply: Reply, wire: Wire) -> None:
        """Answer when `lac > previous_lac`."""
        assert request.previous_lac is not None
        try:
            if request.piggyback and request.entry_id != LAST_ENTRY:
                raise BadRequest(
                    f"ledger {request.ledger_id}: a piggy-back long poll asks for entry -1, not {request.entry_id}"
                )
            state = self._ledgers.for_read(request.ledger_id)
            if state.lac_known or state.lac > request.previous_lac:
                self._wait(state, request, reply, wire)
            else:
                self._learn_lac_first(request, reply, wire)
        except PodkeeperError as error:
            reply.error(error)

    def _learn_lac_first(self, request: ReadRequest, reply: Reply, wire: Wire) -> None:
        """After a restart the last stored entry may carry a newer LAC than the poll's: look before waiting."""

        def learned(lac: int | None, error: BaseException | None) -> None:
            if error is not None:
                reply.error(error)
                return
            try:
                if wire.closed:
                    raise BookieUnavailable("the connection that asked is closed")
                # Looked up again: the state may have been evicted, or the ledger deleted, meanwhile.
                state = self._ledgers.for_read(request.ledger_id)
                if lac is not None:
                    state.learn_lac(lac)
                self._wait(state, request, reply, wire)
            except PodkeeperError as refused:
                reply.error(refused)

        self._lanes.run(request.ledger_id, lambda: self._reads.on_lane_last_lac(request.ledger_id), learned)

    def _wait(self, state: LedgerState, request: ReadRequest, reply: Reply, wire: Wire) -> None:
        previous = request.previous_lac
        assert previous is not None
        if request.timeout_ms is None or request.timeout_ms <= 0 or state.lac > previous:
            self.answer(state, request, reply, by_lac=False)
            return
        if len(wire.on_lost) >= self._waiting_max - self.waiting:
            raise TooManyRequests(
                f"ledger {state.ledger_id}: of {self._waiting_max} long polls {self.waiting} are waiting already,"
                f" {len(wire.on_lost)} of them of this connection"
            )

        _Poll(self, state, request, reply, wire).begin(self._loop, request.timeout_ms / 1000)

    def end(self, poll: _Poll, *, newer: bool) -> None:
        """Answer a poll that is over: now, or when it is its turn."""
        if self._left == ENDED_PER_TURN:
            self._loop.call_soon(self._next_turn)
        if self._left and poll.wire not in self._ended:
            self._left -= 1
            poll.answer(newer=newer)
        else:
            self._ended.setdefault(poll.wire, deque()).append((poll, newer))

    def _next_turn(self) -> None:
        self._left = ENDED_PER_TURN
        if self._ended:
            self._loop.call_soon(self._next_turn)
        while self._left and self._ended:
            self._left -= 1
            wire = next(iter(self._ended))
            polls = self._ended.pop(wire)
            poll, newer = polls.popleft()
            if polls:
                self._ended[wire] = polls
            poll.answer(newer=newer)

    def answer(self, state: LedgerState, request: ReadRequest, reply: Reply, *, by_lac: bool) -> None:
        """The wait is over, or there was none. `by_lac`: it ended by a newer one."""
        previous = request.previous_lac
        assert previous is not None
        if not request.piggyback:
            plain = ReadRequest(request.ledger_id, request.entry_id, wants_lac=True)
            self._reads.read(plain, reply)
            return
        lac = max(state.lac, LAC_NONE)
        if lac <= previous:
            reply.entry(None, max_lac=lac)
            return
        time_ms = time.time_ns() // 1_000_000 if by_lac else None
        self._read_next(request.ledger_id, previous + 1, lac, time_ms, reply)

    def _read_next(self, ledger_id: int, entry_id: int, lac: int, time_ms: int | None, reply: Reply) -> None:
        """Entry `previous_lac + 1`; with striping it may live on other bookies: then an answer without a body."""

        def answer(body: Any, error: BaseException | None) -> None:
            if error is None:
                reply.entry(body, entry_id=entry_id, max_lac=lac, lac_time_ms=time_ms)
            elif isinstance(error, NotThere):
                reply.entry(None, max_lac=lac)
            else:
                reply.error(error)

        try:
            lane_reads.run(self._lanes, ledger_id, lambda: self._reads.on_lane_read(ledger_id, entry_id), answer, reply)
        except PodkeeperError as error:
            reply.error(error)


class _Poll(LacWaiter):
    """One that waits. Nothing of it holds it when it is over: it is gone without the collector of cycles."""

    __slots__ = ("_polls", "_reply", "_request", "_state", "_timer", "wire")

    def __init__(self, polls: LongPolls, state: LedgerState, request: ReadRequest, reply: Reply, wire: Wire) -> None:
        assert request.previous_lac is not None
        super().__init__(request.previous_lac)
        self._polls = polls
        self._state = state
        self._request = request
        self._reply = reply
        self.wire = wire
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, loop: asyncio.AbstractEventLoop, timeout_s: float) -> None:
        """Wait for so long at most."""
        self._timer = loop.call_later(timeout_s, self._time_is_up)
        self._polls.waiting += 1
        self.wire.on_lost[self._lost] = None
        self._reply.wait()
        self._state.add_waiter(self)

    def wake(self, newer: bool) -> None:
        self._stop_timer()
        self._polls.end(self, newer=newer)

    def answer(self, *, newer: bool) -> None:
        """Answer, unless the connection was lost."""
        if self._lost not in self.wire.on_lost:
            return
        del self.wire.on_lost[self._lost]
        self._polls.waiting -= 1
        self._reply.go_on(newer=newer)
        self._polls.answer(self._state, self._request, self._reply, by_lac=newer)

    def _time_is_up(self) -> None:
        self._state.remove_waiter(self)
        self.wake(newer=False)

    def _lost(self) -> None:
        self._state.remove_waiter(self)
        self._stop_timer()
        self._polls.waiting -= 1

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
