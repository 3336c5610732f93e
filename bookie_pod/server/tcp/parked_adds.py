"""Adds of one connection that wait for room.

Invariants
- Parked adds of a ledger are admitted in the order in which they came; an add of a ledger that has one parked is parked
  too. A ledger that finds no room does not hold up the others.
- An add that waits for the write cache has a deadline (`dbStorage_maxThrottleTimeMs` after it came); past it the add
  gets TooManyRequests. One that waits for the journal, or for the limit on adds in progress, waits as long as it takes.
  If the bookie turns read-only meanwhile, the add gets BookieReadOnly. No add is dropped without an answer while its
  connection lives.
- Bounds: adds over all connections (then TooManyRequests at once), bytes per connection and over all (then the
  connection reads nothing more).

Threads: event loop only.

Source: reference wire protocol, section 10.3; bookie behaviour, section 3.1.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from bookie_pod.server.tcp.admission import WriteAdmission
from bookie_pod.server.tcp.requests import AddRequest, Reply
from bookie_protocol.errors import BookieReadOnly, PodkeeperError, TooManyRequests

CONNECTION_BYTES_MAX: Final = 1024 * 1024
TOTAL_BYTES_MAX: Final = 64 * 1024 * 1024

_Parked = tuple[float, AddRequest, Reply, bool]
"""Deadline, add, its reply, whether it waits for the write cache."""


class ParkedAdds:
    """The adds of one connection, by ledger. `on_change` is told whether the connection should stop reading.

    Each add that leaves is told to `waited` (ledger, seconds, whether for the write cache, whether in vain) and then
    given to `admit` or `refuse`.
    """

    def __init__(
        self,
        admission: WriteAdmission,
        loop: asyncio.AbstractEventLoop,
        *,
        adds_max: int,
        timeout_ms: int,
        admit: Callable[[AddRequest, Reply], None],
        refuse: Callable[[PodkeeperError, Reply], None],
        waited: Callable[[int, float, bool, bool], None],
        on_change: Callable[[bool], None],
        on_admitted: Callable[[], None],
    ) -> None:
        self._admission = admission
        self._loop = loop
        self._adds_max = adds_max
        self._timeout_s = timeout_ms / 1000
        self._admit = admit
        self._refuse = refuse
        self._waited = waited
        self._on_change = on_change
        self._on_admitted = on_admitted
        self._queues: dict[int, deque[_Parked]] = {}
        self._adds = 0
        self._bytes = 0
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return self._adds

    def holds(self, ledger_id: int) -> bool:
        return ledger_id in self._queues

    def park(self, request: AddRequest, reply: Reply) -> None:
        """Let an add wait. Raises TooManyRequests if too many wait already."""
        if self._admission.parked_adds >= self._adds_max:
            raise TooManyRequests(f"ledger {request.ledger_id}: {self._adds_max} adds are waiting for room already")
        deadline = self._loop.time() + self._timeout_s
        self._queues.setdefault(request.ledger_id, deque()).append(
            (deadline, request, reply, self._admission.cache_full(request.ledger_id))
        )
        self._count(1, len(request.entry))
        self._admission.wait(self._retry)
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._expire)
        if self._bytes > CONNECTION_BYTES_MAX or self._admission.parked_bytes > TOTAL_BYTES_MAX:
            self._on_change(True)

    def drop_all(self) -> None:
        """The connection is gone."""
        self._admission.stop_waiting(self._retry)
        self._stop_timer()
        for ledger_id in tuple(self._queues):
            while ledger_id in self._queues:
                self._pop(ledger_id)

    def _retry(self) -> None:
        """Admit what has room now; refuse what a bookie that turned read-only does not take."""
        # Again after each hand-over: without journaled data it acknowledges at once, and so makes room.
        while self._admit_round():
            self._on_admitted()
        self._after_change()

    def _admit_round(self) -> bool:
        """One walk over the ledgers; True if an add was admitted."""
        admitted = False
        for ledger_id in tuple(self._queues):
            while (queue := self._queues.get(ledger_id)) is not None:
                if self._admission.refuses(high_priority=queue[0][1].high_priority):
                    _, reply = self._take(ledger_id, in_vain=True)
                    self._refuse(BookieReadOnly(f"ledger {ledger_id}: this bookie has turned read-only"), reply)
                elif self._admission.has_room(ledger_id):
                    self._admit(*self._take(ledger_id, in_vain=False))
                    admitted = True
                else:
                    break
        return admitted

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        for ledger_id in tuple(self._queues):
            while (queue := self._queues.get(ledger_id)) is not None and queue[0][0] <= now:
                if not self._admission.cache_full(ledger_id):
                    break
                request, reply = self._take(ledger_id, in_vain=True)
                error = TooManyRequests(
                    f"ledger {ledger_id}: no room for entry {request.entry_id} within"
                    f" {self._timeout_s:.1f} s (dbStorage_maxThrottleTimeMs)"
                )
                self._refuse(error, reply)
        self._after_change()

    def _after_change(self) -> None:
        if not self._queues:
            self._admission.stop_waiting(self._retry)
            self._stop_timer()
        else:
            self._admission.wait(self._retry)
            if self._timer is None:
                self._set_timer()
        if self._bytes <= CONNECTION_BYTES_MAX // 2:
            self._on_change(False)

    def _set_timer(self) -> None:
        """For the earliest deadline; one that is past belongs to an add that waits for a journal: look again later."""
        now = self._loop.time()
        deadlines = (queue[0][0] for queue in self._queues.values())
        due = min(deadline if deadline > now else now + self._timeout_s for deadline in deadlines)
        self._timer = self._loop.call_at(due, self._expire)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _take(self, ledger_id: int, *, in_vain: bool) -> tuple[AddRequest, Reply]:
        deadline, request, reply, for_cache = self._pop(ledger_id)
        self._waited(ledger_id, self._loop.time() - (deadline - self._timeout_s), for_cache, in_vain)
        return request, reply

    def _pop(self, ledger_id: int) -> _Parked:
        queue = self._queues[ledger_id]
        parked = queue.popleft()
        if not queue:
            del self._queues[ledger_id]
        self._count(-1, -len(parked[1].entry))
        return parked

    def _count(self, adds: int, nbytes: int) -> None:
        self._adds += adds
        self._bytes += nbytes
        self._admission.parked_adds += adds
        self._admission.parked_bytes += nbytes
