"""The appends that a stream's writer has not finished: units of entries, from the first call to the last position.

Invariants
- Units are sent in the order in which they came. What a ledger did not keep goes back to the front, in order.
- A unit ends once: with the positions of all its entries, or with an error.
- Room in the window is taken before a unit exists, and given back when it ends.

Event loop only.

Source: docs/internals/client-protocol.md, section 25, item 3.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from bookie_client.streams.model import StreamPosition
from bookie_client.writing.window import Window

if TYPE_CHECKING:
    from bookie_client.tracing import Within


class Unit:
    """Entries that are sent together; without any it only marks a place in the order. `is_single`: the future's result
    is the one position, not a list."""

    __slots__ = ("first_id", "future", "is_single", "nbytes", "payloads", "positions", "room", "sent_to", "within")

    def __init__(self, payloads: list[bytes], nbytes: int, *, is_single: bool, loop: asyncio.AbstractEventLoop) -> None:
        self.payloads = payloads
        self.nbytes = nbytes
        self.room = len(payloads)
        self.is_single = is_single
        self.future: asyncio.Future[Any] = loop.create_future()
        self.positions: list[StreamPosition] = []
        self.first_id = -1
        self.within: Within | None = None
        """It keeps the call within the span of its caller; None without a tracer."""
        self.sent_to = -1
        """The ledger that may have it; -1: none."""

    def place(self, ledger_id: int, count: int) -> None:
        """The first `count` payloads are in this ledger."""
        first = self.first_id
        self.sent_to = -1
        self.positions += [StreamPosition(ledger_id, entry_id) for entry_id in range(first, first + count)]
        self.payloads = self.payloads[count:]

    def succeed(self) -> None:
        if not self.future.done():
            self.future.set_result(self.positions[0] if self.is_single else self.positions)

    def fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)
            # A caller that does not wait for it gets the error from `flush` or the end of the context.
            self.future.exception()


class Appends:
    """The units of one writer: `unsent`, then `sent` to the open ledger."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.unsent: deque[Unit] = deque()
        self.sent: deque[Unit] = deque()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def pending(self) -> int:
        """Entries that are neither acknowledged nor failed."""
        return sum(unit.room for queue in (self.unsent, self.sent) for unit in queue)

    def put(self, unit: Unit) -> None:
        """The caller has room in the window."""
        self.unsent.append(unit)
        self._idle.clear()

    async def idle(self) -> None:
        """Wait until every unit has ended."""
        await self._idle.wait()

    def settle(self, ledger_id: int, entries: int) -> bool:
        """The ledger keeps so many entries: units sent to it end, or go back to wait for the next one. Whether any
        entry was kept that was not known to be."""
        back: list[Unit] = []
        kept = False
        while self.sent:
            unit = self.sent.popleft()
            count = max(0, min(len(unit.payloads), entries - unit.first_id))
            kept = kept or count > 0
            unit.place(ledger_id, count)
            if unit.payloads:
                back.append(unit)
            else:
                self._end(unit)
        self.unsent.extendleft(reversed(back))
        return kept

    def next_unit(self, ledger_id: int, first_id: int) -> Unit:
        """Return the next unit, which is sent to this ledger from that entry id on."""
        unit = self.unsent.popleft()
        unit.sent_to, unit.first_id = ledger_id, first_id
        self.sent.append(unit)
        return unit

    def split_next(self, count: int) -> None:
        """Send only the first `count` payloads of the next unit together; the others follow them, as before. The
        outcomes of both parts are reported together."""
        rest = self.unsent[0]
        front = Unit(rest.payloads[:count], 0, is_single=False, loop=rest.future.get_loop())
        front.nbytes = sum(map(len, front.payloads))
        front.positions, front.within = rest.positions, rest.within
        rest.payloads = rest.payloads[count:]
        rest.room -= count
        rest.nbytes -= front.nbytes
        self.unsent.appendleft(front)

    def acknowledge(self, unit: Unit) -> None:
        """All of a unit was acknowledged; units do so in the order in which they were sent."""
        self.sent.remove(unit)  # it is the first one
        unit.place(unit.sent_to, len(unit.payloads))
        self._end(unit)

    def passed(self) -> None:
        """The next unit is a mark, and its place has come."""
        self._end(self.unsent.popleft())

    def fail_all(self, error: BaseException) -> None:
        """Fail all units: none is sent any more."""
        units = [*self.sent, *self.unsent]
        self.sent.clear()
        self.unsent.clear()
        for unit in units:
            unit.sent_to = -1  # an answer of its ledger concerns it no more
            unit.fail(error)
            self._release(unit)

    def _end(self, unit: Unit) -> None:
        unit.succeed()
        self._release(unit)

    def _release(self, unit: Unit) -> None:
        self.window.release(unit.room, unit.nbytes)
        if not self.unsent and not self.sent:
            self._idle.set()
