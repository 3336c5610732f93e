"""Long-poll reads: "tell me when the LAC passes this one, or when the time is up".

Invariants
- Each poll is answered exactly once: by a newer LAC, by a fence or deletion, by its timer, or never if its connection
  is gone (then its waiter is removed).
- The number of polls waiting at once is bounded; one more gets TooManyRequests.

Threads: event loop only.

Source: reference wire protocol, section 8.4.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any, Final

from bookie_pod.ledgers.registry import Ledgers
from bookie_pod.ledgers.state import LAC_UNKNOWN, LacWaiter, LedgerState
from bookie_pod.server.tcp.read_lanes import ReadLanes
from bookie_pod.server.tcp.reads import LAST_ENTRY, Reads
from bookie_pod.server.tcp.requests import ReadRequest, Reply
from bookie_protocol.entry import read_prefix
from bookie_protocol.errors import BadRequest, NotThere, PodkeeperError, TooManyRequests

WAITING_MAX: Final = 200_000


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

    def poll(self, request: ReadRequest, reply: Reply, gone: Callable[[], bool]) -> None:
        """Answer when `lac > previous_lac`. `gone()` tells whether the asking connection is closed."""
        assert request.previous_lac is not None
        try:
            if request.piggyback and request.entry_id != LAST_ENTRY:
                raise BadRequest(
                    f"ledger {request.ledger_id}: a piggy-back long poll asks for entry -1, not {request.entry_id}"
                )
            state = self._ledgers.for_read(request.ledger_id)
            if state.lac == LAC_UNKNOWN:
                self._learn_lac_first(state, request, reply, gone)
            else:
                self._wait(state, request, reply, gone)
        except PodkeeperError as error:
            reply.error(error)

    def _learn_lac_first(
        self, state: LedgerState, request: ReadRequest, reply: Reply, gone: Callable[[], bool]
    ) -> None:
        """After a restart the last stored entry may carry a newer LAC than the poll's: look before waiting."""

        def work() -> int:
            return read_prefix(self._reads.on_lane_read(request.ledger_id, LAST_ENTRY))[2]

        def learned(lac: Any, error: BaseException | None) -> None:
            if error is not None and not isinstance(error, NotThere):
                reply.error(error)
                return
            state.raise_lac(lac if error is None else -1)
            try:
                self._wait(state, request, reply, gone)
            except PodkeeperError as refused:
                reply.error(refused)

        self._lanes.run(request.ledger_id, work, learned)

    def _wait(self, state: LedgerState, request: ReadRequest, reply: Reply, gone: Callable[[], bool]) -> None:
        previous = request.previous_lac
        assert previous is not None
        if request.timeout_ms is None or request.timeout_ms <= 0 or state.lac > previous:
            self._answer(state, request, reply, by_lac=False)
            return
        if self.waiting >= self._waiting_max:
            raise TooManyRequests(f"ledger {state.ledger_id}: {self._waiting_max} long polls are waiting already")

        def wake(newer: bool) -> None:
            self.waiting -= 1
            if not gone():
                self._answer(state, request, reply, by_lac=newer)

        def time_is_up() -> None:
            state.remove_waiter(waiter)
            wake(newer=False)

        waiter = LacWaiter(previous, wake)
        waiter.timer = self._loop.call_later(request.timeout_ms / 1000, time_is_up)
        self.waiting += 1
        state.add_waiter(waiter)

    def _answer(self, state: LedgerState, request: ReadRequest, reply: Reply, *, by_lac: bool) -> None:
        previous = request.previous_lac
        assert previous is not None
        if not request.piggyback:
            plain = ReadRequest(request.ledger_id, request.entry_id, wants_lac=True)
            self._reads.read(plain, reply)
            return
        lac = state.lac
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
            self._lanes.run(ledger_id, lambda: self._reads.on_lane_read(ledger_id, entry_id), answer)
        except PodkeeperError as error:
            reply.error(error)
