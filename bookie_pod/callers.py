"""Who calls over gRPC, and what each caller makes the process hold.

A caller is a connection, however many calls it has under way, and has one share of the process's `MemoryGovernor`.

Invariants
- Whoever waits for room goes on when there is some. Room that others keep without moving for `STUCK_S` is taken from
  them: all calls of such a caller end as `was_cut`.
- A call that has ended holds nothing.
- `cut_receivers` ends calls into which a message may be coming in, those of the callers with most of them first: what
  gRPC has of a message is seen by nobody before it is complete.

Event loop only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from bookie_pod.client_memory import STUCK_S, MemoryGovernor, Share

TAKES_S: Final = 0.1
"""So long a client may take for what it is given, and is in nobody's way, in seconds."""
LOOK_S: Final = 0.02
"""Between two looks of one who waits for room, in seconds."""


class Callers:
    """Of one process."""

    def __init__(self, memory: MemoryGovernor) -> None:
        self.memory = memory
        self._callers: dict[str, Caller] = {}

    @contextmanager
    def call(self, peer: str) -> Iterator[Call]:
        """A call of this connection, for as long as the task runs that serves it."""
        caller = self._callers.get(peer)
        if caller is None:
            caller = self._callers[peer] = Caller(self.memory)
        call = Call(caller)
        caller.calls.add(call)
        token = _CURRENT.set(call)
        try:
            yield call
        finally:
            _CURRENT.reset(token)
            call.end()
            caller.calls.discard(call)
            if not caller.calls and self._callers.get(peer) is caller:
                del self._callers[peer]
                caller.share.end()

    @property
    def receivers(self) -> int:
        """Calls into which a message may be coming in."""
        return sum(call.receives for caller in self._callers.values() for call in caller.calls)

    def cut_receivers(self) -> int:
        """End half of them, one at least; how many."""
        by_caller = [[call for call in caller.calls if call.receives] for caller in self._callers.values()]
        by_caller.sort(key=len, reverse=True)
        receiving = [call for calls in by_caller for call in calls]
        for call in receiving[: (len(receiving) + 1) // 2]:
            call.cut()
        return (len(receiving) + 1) // 2


class Caller:
    """One connection."""

    def __init__(self, memory: MemoryGovernor) -> None:
        self.calls: set[Call] = set()
        self.streams = 0
        """Of the gateway's streaming calls: that many."""
        self.memory = memory
        self.share = self._new_share()

    def _new_share(self) -> Share:
        return self.memory.share(self._cut_off)

    def _cut_off(self) -> None:
        """The governor has ended the share, with all that is held."""
        if self.calls:
            self.share = self._new_share()  # of the calls to come
            for call in self.calls:
                call.forget()
                call.cut()

    def look(self) -> None:
        """Tell the governor since when nothing has moved."""
        waiting = [call.waits_since for call in self.calls if call.waits_since is not None]
        self.share.stuck_since = min(waiting) + TAKES_S if waiting else None


class Call:
    """What one call holds. Belongs to the task that makes it."""

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.receives = False
        """A message may be coming in."""
        self.waits_since: float | None = None
        """Since when its client has not taken what it was given."""
        self.was_cut = False
        self._task = asyncio.current_task()
        self._share = caller.share
        self._held = self._making = 0

    def hold(self, nbytes: int) -> None:
        """So many bytes more are held, or less."""
        if self.was_cut:
            return
        self._held += nbytes
        self._share.hold(nbytes)
        if nbytes > 0:
            self._share.relieve()

    def make(self, nbytes: int) -> None:
        """So many bytes more are to be expected, or less."""
        self._making += nbytes
        self._share.make(nbytes)

    async def room(self, nbytes: int) -> int:
        """Wait for so much room, and take it; it is given back by `make`. How much was taken: never more than half."""
        wanted = min(nbytes, self.caller.memory.limit // 2)
        waited = 0.0
        while not self._share.fits(wanted):
            await asyncio.sleep(LOOK_S)
            waited += LOOK_S
            if waited > STUCK_S:
                self._share.relieve(wanted)
        self.make(wanted)
        return wanted

    @contextmanager
    def giving(self) -> Iterator[None]:
        """While the client is to take something."""
        self.waits_since = time.perf_counter()
        self.caller.look()
        try:
            yield
        finally:
            self.waits_since = None
            self.caller.look()

    def cut(self) -> None:
        """Memory is short, and this call is in the way."""
        if not self.was_cut and self._task is not None:
            self.hold(-self._held)
            self.was_cut = True
            self._task.cancel()

    def forget(self) -> None:
        """What was held is not counted any more."""
        self._held = 0

    def end(self) -> None:
        """Give everything back."""
        self.hold(-self._held)
        self.make(-self._making)


_CURRENT: ContextVar[Call] = ContextVar("call")


def current_call() -> Call:
    """The call that this task serves."""
    return _CURRENT.get()
