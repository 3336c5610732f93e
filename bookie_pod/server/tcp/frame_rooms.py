"""Room for large frames: which of them are read to their end at present, and which wait.

Very many honest clients may send a large entry each at the same time. All these frames together may be more than there
is memory for, and then some clients would lose their connections. So a large frame that has begun is read on when there
is room for all of it, in the order in which they began; until then its client is not read from.

Invariants
- One large frame is read in any case, so each that waits goes on some day, whatever else takes the memory; but for the
  time in which many adds wait, because each frame would become one more of them.
- A part of what clients may hold is left to those that wait, and to all that is small.
- A client that has room and does not use it loses its connection as soon as others wait: it has `PATIENCE_S` for each
  of the `PARTS` of its frame.

Threads: event loop only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

from bookie_pod.client_memory import MemoryGovernor, gone

PATIENCE_S: Final = 3.0
PARTS: Final = 32


class FrameRooms:
    """All rooms of one bookie."""

    def __init__(self, loop: asyncio.AbstractEventLoop, memory: MemoryGovernor, adds_wait: Callable[[], bool]) -> None:
        """`adds_wait`: whether as many do as may."""
        self._loop = loop
        self._memory = memory
        self._adds_wait = adds_wait
        self._reading: dict[FrameRoom, None] = {}
        self._waiting: dict[FrameRoom, int] = {}
        """The waiting rooms and the bytes that each wants, in the order in which they began."""
        self._grants = False

    def of(self, go_on: Callable[[], None], give_up: Callable[[], None]) -> FrameRoom:
        """Make the room of one connection. `go_on`: the frame that waited has room. `give_up`: others wait for the room
        that this connection does not use."""
        return FrameRoom(self, go_on, give_up)

    def look(self, now: float, asleep: float = 0.0) -> None:
        """Every now and then: rooms that are not used go to those that wait. As `Connection.look`."""
        if asleep:
            for room in self._reading:
                room.moved_at = min(now, room.moved_at + asleep)
        if self._waiting:
            for room in [room for room in self._reading if now - room.moved_at > PATIENCE_S]:
                room.give_up()
            self._grant()

    def begin(self, room: FrameRoom, nbytes: int) -> bool:
        """Return whether there is room now. If not, the room waits."""
        if self._waiting or not self._fits(nbytes):
            self._waiting[room] = nbytes
            return False
        self._reading[room] = None
        return True

    def end(self, room: FrameRoom) -> None:
        """The frame is there, or its connection is gone. What that gives back may be counted in this turn of the loop,
        so those that wait go on in the next one."""
        self._reading.pop(room, None)
        self._waiting.pop(room, None)
        self.given_back()

    def given_back(self) -> None:
        """There may be room for those that wait."""
        if self._waiting and not self._grants:
            self._grants = True
            self._loop.call_soon(self._grant)

    def _fits(self, nbytes: int) -> bool:
        return self._memory.total + nbytes <= self._memory.most_kept or not (self._reading or self._adds_wait())

    def _grant(self) -> None:
        self._grants = False
        while self._waiting:
            room, nbytes = next(iter(self._waiting.items()))
            if not self._fits(nbytes):
                break
            del self._waiting[room]
            self._reading[room] = None
            room.begun(nbytes)
            room.go_on()


class FrameRoom:
    """The room for large frames of one connection."""

    __slots__ = ("_come", "_rooms", "give_up", "go_on", "moved_at", "nbytes", "waits")

    def __init__(self, rooms: FrameRooms, go_on: Callable[[], None], give_up: Callable[[], None]) -> None:
        self._rooms = rooms
        self.go_on = go_on
        self.give_up = give_up
        self.nbytes = 0
        """Bytes of the frame that is read at present, which its connection counts as held; 0: there is none."""
        self.waits = False
        self.moved_at = 0.0
        self._come = 0

    def begin(self, nbytes: int) -> bool:
        """A frame has begun that will take so many bytes. False: `go_on` is called when there is room for it."""
        self.waits = not self._rooms.begin(self, nbytes)
        if not self.waits:
            self.begun(nbytes)
        return not self.waits

    def begun(self, nbytes: int) -> None:
        """There is room."""
        self.nbytes, self.waits, self._come = nbytes, False, 0
        self.moved_at = time.perf_counter()

    def came(self, nbytes: int) -> None:
        """Note that `nbytes` of the frame are there, all in all."""
        if (nbytes - self._come) * PARTS >= self.nbytes:
            self._come, self.moved_at = nbytes, time.perf_counter()

    def end(self) -> None:
        """The frame is there, or is read no more."""
        if self.nbytes or self.waits:
            self.nbytes, self.waits = 0, False
            self._rooms.end(self)

    def leave(self) -> None:
        """The connection is gone."""
        self.end()
        self.go_on = self.give_up = gone
