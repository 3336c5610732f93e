"""Adds of one connection that wait for room.

Invariants
- Parked adds are admitted in the order in which they came to their *place* (see `WriteAdmission`); an add comes behind
  what is parked there already, whatever its ledger. A place without room does not hold up the others.
- An add that waits for the write cache has a deadline (`dbStorage_maxThrottleTimeMs` after it came); past it the add
  gets TooManyRequests. One that waits for the journal, or for the limit on adds in progress, waits as long as it takes.
  If the bookie turns read-only meanwhile, the add gets BookieReadOnly. No add is dropped without an answer while its
  connection lives.
- Bounds: adds over all connections (then TooManyRequests at once), bytes per connection and over all (then the
  connection reads nothing more, and if memory is short as well, an add gets TooManyRequests: each of very many
  connections would park one). Their bytes count as held by their client. No connection parks more adds than are left
  for the others: it reads nothing more before it would be refused, and one alone gets a half of them, each of two a
  third.

Threads: event loop only.

Source: docs/internals/wire-protocol.md, section 10.3; docs/internals/bookie-behaviour.md, section 3.1.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Callable
from typing import Final

from bookie_pod.server.tcp.admission import WriteAdmission
from bookie_pod.server.tcp.requests import AddRequest, Reply
from bookie_protocol.errors import BookieReadOnly, PodkeeperError, TooManyRequests

CONNECTION_BYTES_MAX: Final = 1024 * 1024
TURN_BYTES: Final = 64 * 1024
"""Bytes of adds that one connection hands to a journal before it is the turn of the next."""
LOOK_AGAIN_S: Final = 0.1
"""Seconds for which an add that has waited too long, but not for the write cache, is left alone at least."""
_ADD_OVERHEAD: Final = 256
"""Bytes that an add of no bytes counts of a turn."""

_Parked = tuple[float, AddRequest, Reply, bool]
"""Deadline, add, its reply, whether it waits for the write cache."""


class ParkedAdds:
    """The adds of one connection, by place. `on_change` is called with whether the connection should stop reading.

    Each add that leaves is reported to `waited` (ledger, seconds, whether for the write cache, whether in vain) and
    then given to `admit` or `refuse`.
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
        hold: Callable[[int], None],
        is_short: Callable[[], bool],
    ) -> None:
        """`adds_max`: over all connections; 0: any number. `hold` is called with the bytes that come, and with minus
        those that go. `is_short` returns True if others need what is left of the memory."""
        self._admission = admission
        self._loop = loop
        self._adds_max = adds_max
        self._timeout_s = timeout_ms / 1000
        self._admit = admit
        self._refuse = refuse
        self._waited = waited
        self._on_change = on_change
        self._on_admitted = on_admitted
        self._hold = hold
        self._is_short = is_short
        self._queues: dict[int, deque[_Parked]] = {}
        self._adds = 0
        self.nbytes = 0
        """This is the size of the entries that wait."""
        self._timer: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return self._adds

    def holds(self, ledger_id: int) -> bool:
        """Return whether an add of this ledger has to wait behind others."""
        return self._admission.place_of(ledger_id) in self._queues

    def park(self, request: AddRequest, reply: Reply) -> None:
        """Let an add wait. Raises TooManyRequests if too many wait already."""
        if 0 < self._adds_max <= self._admission.parked_adds:
            raise TooManyRequests(f"ledger {request.ledger_id}: {self._adds_max} adds are waiting for room already")
        if self._has_too_many_bytes() and self._is_short():
            waiting = self._admission.parked_bytes
            raise TooManyRequests(f"ledger {request.ledger_id}: {waiting} bytes of adds are waiting for room already")
        deadline = self._loop.time() + self._timeout_s
        place = self._admission.place_of(request.ledger_id)
        self._queues.setdefault(place, deque()).append(
            (deadline, request, reply, self._admission.cache_full(request.ledger_id))
        )
        self._count(1, len(request.entry))
        self._admission.wait(place, self)
        if self._timer is None:
            self._timer = self._loop.call_at(deadline, self._expire)
        if self.nbytes > CONNECTION_BYTES_MAX or self._has_too_many_bytes() or self._adds >= self._adds_left():
            self._on_change(True)

    def drop_all(self) -> None:
        """The connection is gone."""
        self._stop_timer()
        for place in tuple(self._queues):
            while place in self._queues:
                self._pop(place)
            self._admission.stop_waiting(place, self)

    def admit_some(self, place: int) -> bool:
        """See `WaitingAdds`."""
        left = TURN_BYTES
        while left > 0 and place in self._queues and self._admission.has_room(place):
            request, reply = self._take(place, in_vain=False)
            left -= len(request.entry) + _ADD_OVERHEAD
            self._admit(request, reply)
        self._on_admitted()
        self._after_change()
        return place in self._queues

    def mode_changed(self) -> None:
        """See `WaitingAdds`."""
        for place, queue in tuple(self._queues.items()):
            for _ in range(len(queue)):
                if self._admission.refuses(high_priority=queue[0][1].high_priority):
                    request, reply = self._take(place, in_vain=True)
                    error = BookieReadOnly(f"ledger {request.ledger_id}: this bookie has turned read-only")
                    self._refuse(error, reply)
                else:
                    queue.rotate(-1)  # a whole round keeps the order
            self._leave(place)
        self._after_change()

    def _expire(self) -> None:
        self._timer = None
        now = self._loop.time()
        for place in tuple(self._queues):
            while (queue := self._queues.get(place)) is not None and queue[0][0] <= now:
                if not self._admission.cache_full(place):
                    break
                request, reply = self._take(place, in_vain=True)
                error = TooManyRequests(
                    f"ledger {request.ledger_id}: no room for entry {request.entry_id} within"
                    f" {self._timeout_s:.1f} s (dbStorage_maxThrottleTimeMs)"
                )
                self._refuse(error, reply)
            self._leave(place)
        self._after_change()

    def _leave(self, place: int) -> None:
        if place not in self._queues:
            self._admission.stop_waiting(place, self)

    def _after_change(self) -> None:
        if not self._queues:
            self._stop_timer()
        elif self._timer is None:
            self._set_timer()
        if self.nbytes <= CONNECTION_BYTES_MAX // 2 and 2 * self._adds <= self._adds_left():
            self._on_change(False)

    def _has_too_many_bytes(self) -> bool:
        """Return True if all connections together have."""
        return self._admission.parked_bytes > self._admission.parked_bytes_max

    def _adds_left(self) -> float:
        """Adds that may be parked still, over all connections."""
        return self._adds_max - self._admission.parked_adds if self._adds_max else math.inf

    def _set_timer(self) -> None:
        """Set the timer for the earliest deadline; one that is past belongs to an add that waits for a journal: look
        again later."""
        now = self._loop.time()
        deadlines = (queue[0][0] for queue in self._queues.values())
        later = now + max(self._timeout_s, LOOK_AGAIN_S)
        due = min(deadline if deadline > now else later for deadline in deadlines)
        self._timer = self._loop.call_at(due, self._expire)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _take(self, place: int, *, in_vain: bool) -> tuple[AddRequest, Reply]:
        deadline, request, reply, for_cache = self._pop(place)
        self._waited(request.ledger_id, self._loop.time() - (deadline - self._timeout_s), for_cache, in_vain)
        return request, reply

    def _pop(self, place: int) -> _Parked:
        queue = self._queues[place]
        parked = queue.popleft()
        if not queue:
            del self._queues[place]
        self._count(-1, -len(parked[1].entry))
        return parked

    def _count(self, adds: int, nbytes: int) -> None:
        self._adds += adds
        self.nbytes += nbytes
        self._hold(nbytes)
        self._admission.parked_adds += adds
        self._admission.parked_bytes += nbytes
