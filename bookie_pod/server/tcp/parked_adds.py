"""Adds of one connection that wait for room.

Invariants
- Parked adds are admitted in the order in which they came; an add of a ledger that has one parked is parked too.
- Each has a deadline (`dbStorage_maxThrottleTimeMs` after it came); past it the add gets TooManyRequests. No add is
  dropped without an answer while its connection lives.
- Bounds: adds over all connections (then TooManyRequests at once), bytes per connection and over all (then the
  connection reads nothing more).

Threads: event loop only.

Source: reference wire protocol, section 10.3; bookie behaviour, section 3.1.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from typing import Final

from bookie_pod.server.tcp.admission import WriteAdmission
from bookie_pod.server.tcp.requests import AddRequest, Reply
from bookie_protocol.errors import TooManyRequests

CONNECTION_BYTES_MAX: Final = 1024 * 1024
TOTAL_BYTES_MAX: Final = 64 * 1024 * 1024

_Parked = tuple[float, AddRequest, Reply]


class ParkedAdds:
    """The queue of one connection. `on_change` is told whether the connection should stop reading."""

    def __init__(
        self,
        admission: WriteAdmission,
        loop: asyncio.AbstractEventLoop,
        *,
        adds_max: int,
        timeout_ms: int,
        admit: Callable[[AddRequest, Reply], None],
        on_change: Callable[[bool], None],
        on_admitted: Callable[[], None],
    ) -> None:
        self._admission = admission
        self._loop = loop
        self._adds_max = adds_max
        self._timeout_s = timeout_ms / 1000
        self._admit = admit
        self._on_change = on_change
        self._on_admitted = on_admitted
        self._queue: deque[_Parked] = deque()
        self._ledgers: Counter[int] = Counter()
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._queue)

    def holds(self, ledger_id: int) -> bool:
        return self._ledgers[ledger_id] > 0

    def park(self, request: AddRequest, reply: Reply) -> None:
        """Let an add wait. Raises TooManyRequests if too many wait already."""
        if self._admission.parked_adds >= self._adds_max:
            raise TooManyRequests(f"ledger {request.ledger_id}: {self._adds_max} adds are waiting for room already")
        self._queue.append((self._loop.time() + self._timeout_s, request, reply))
        self._ledgers[request.ledger_id] += 1
        self._count(1, len(request.entry))
        self._admission.wait(self._retry)
        if self._timer is None:
            self._set_timer()
        if self._bytes > CONNECTION_BYTES_MAX or self._admission.parked_bytes > TOTAL_BYTES_MAX:
            self._on_change(True)

    def drop_all(self) -> None:
        """The connection is gone."""
        self._admission.stop_waiting(self._retry)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._queue:
            self._pop()

    def _retry(self) -> None:
        """Admit from the front what has room now. A ledger of a full directory does not hold up the others."""
        blocked: set[int] = set()
        kept: list[_Parked] = []
        while self._queue:
            deadline, request, reply = self._pop()
            if request.ledger_id in blocked or not self._admission.has_room(request.ledger_id):
                blocked.add(request.ledger_id)
                kept.append((deadline, request, reply))
            else:
                self._admit(request, reply)
        for parked in kept:
            self._queue.append(parked)
            self._ledgers[parked[1].ledger_id] += 1
            self._count(1, len(parked[1].entry))
        self._on_admitted()
        self._after_change()

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        while self._queue and self._queue[0][0] <= now:
            _, request, reply = self._pop()
            reply.error(
                TooManyRequests(
                    f"ledger {request.ledger_id}: no room for entry {request.entry_id} within"
                    f" {self._timeout_s:.1f} s (dbStorage_maxThrottleTimeMs)"
                )
            )
        self._after_change()

    def _after_change(self) -> None:
        if self._queue:
            self._admission.wait(self._retry)
            if self._timer is None:
                self._set_timer()
        elif self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._bytes <= CONNECTION_BYTES_MAX // 2:
            self._on_change(False)

    def _pop(self) -> _Parked:
        parked = self._queue.popleft()
        request = parked[1]
        self._ledgers[request.ledger_id] -= 1
        if not self._ledgers[request.ledger_id]:
            del self._ledgers[request.ledger_id]
        self._count(-1, -len(request.entry))
        return parked

    def _count(self, adds: int, nbytes: int) -> None:
        self._bytes += nbytes
        self._admission.parked_adds += adds
        self._admission.parked_bytes += nbytes

    def _set_timer(self) -> None:
        self._timer = self._loop.call_at(self._queue[0][0], self._expire)
