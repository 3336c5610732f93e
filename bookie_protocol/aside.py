"""Work that strangers can make large, kept from holding the event loop up.

`Aside` does it on a thread, one piece at a time. A thread shares the interpreter with the event loop, which has its
turn every few milliseconds. One piece at a time bounds the memory: however many callers come, the results of one are
being made.

`Decoding` chooses by the size of what is decoded: `PER_TURN` bytes in each turn of the event loop, over all callers;
what is larger is decoded aside.

`Slices` is for work that stays on the event loop: it counts the steps, and lets others have their turn in between.

Threads: event loop; the work of `Aside` runs on a thread of the loop's pool.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from bookie_protocol.lasting import heard

T = TypeVar("T")
PER_TURN: Final = 16 * 1024
"""Bytes of metadata that take a few milliseconds to decode."""
STEPS: Final = 1_000
"""Steps of `Slices` that take a few milliseconds."""


class Aside:
    """One queue of work on a thread."""

    def __init__(self) -> None:
        self._one = asyncio.Lock()

    async def run(self, work: Callable[[], T]) -> T:
        """Return what `work` returns, or raise its error. A caller that gives up keeps its place until `work` ends."""
        async with self._one:
            running = asyncio.ensure_future(asyncio.to_thread(work))
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                while not running.done():
                    with suppress(asyncio.CancelledError):  # of a time-out round the first one
                        await asyncio.wait([running])
                heard(running)
                raise


class Decoding:
    """The decoding of what one service reads."""

    def __init__(self) -> None:
        self._aside = Aside()
        self._left = PER_TURN
        self._waiting: deque[tuple[asyncio.Future[None], int]] = deque()
        """The callers that wait for a turn with room, with their bytes, in order: small ones do not starve others."""

    async def run(self, decode: Callable[[], T], nbytes: int) -> T:
        """Return what `decode` returns, or raise its error. `nbytes`: how much it decodes."""
        if nbytes > PER_TURN:
            return await self._aside.run(decode)
        if self._waiting or self._left < nbytes:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append((turn, nbytes))
            await turn
        else:
            self._take(nbytes)
        return decode()

    def _take(self, nbytes: int) -> None:
        if self._left == PER_TURN and nbytes:
            asyncio.get_running_loop().call_soon(self._next_turn)
        self._left -= nbytes

    def _next_turn(self) -> None:
        self._left = PER_TURN
        while self._waiting and self._waiting[0][1] <= self._left:
            turn, nbytes = self._waiting.popleft()
            if not turn.cancelled():
                self._take(nbytes)
                turn.set_result(None)


class Slices:
    """The steps of one piece of work: about so many in each turn of the event loop."""

    def __init__(self) -> None:
        self._left = STEPS

    async def took(self, steps: int) -> None:
        """Count steps that were taken; others have their turn if these were enough."""
        self._left -= steps
        if self._left <= 0:
            self._left = STEPS
            await asyncio.sleep(0)
