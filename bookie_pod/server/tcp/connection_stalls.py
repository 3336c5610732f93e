"""The reasons for which a connection reads nothing at present, and whose turn it is to be served on.

Threads: event loop only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from enum import IntFlag
from typing import Final

LARGE_FRAME_BYTES: Final = 64 * 1024
"""A frame of which so much has come without its end is a large one."""
LARGE_PER_TURN: Final = 2 * 1024 * 1024
"""Bytes of large frames that are taken in one turn of the event loop, over all connections: about a millisecond."""
COLD_BYTES: Final = 32 * 1024
"""A request that is dealt with by itself counts like so many: it takes some 25 microseconds."""
GO_ON_PER_TURN: Final = 8
"""Connections that go on in one turn. The event loop takes some 256 KiB from one at a time."""
PART: Final = LARGE_PER_TURN // GO_ON_PER_TURN
"""Of requests a connection takes so many at a time while others wait."""


class Stall(IntFlag):
    """Independent reasons; a connection goes on when none is left."""

    SLOW_RECEIVER = 1
    """The client does not take its answers."""
    READS_IN_FLIGHT = 2
    """Too many reads, or bytes of their answers, are under way."""
    ADDS_PARKED = 4
    """Too many bytes wait for room in the write cache."""
    READS_LIMIT = 8
    """`maxReadsInProgressLimit` is reached."""
    HANDSHAKE = 16
    """An authentication step or the TLS handshake is under way."""
    READS_PUT_ASIDE = 64
    """Too many reads wait until there is room for their answers."""
    LEDGER_ASKED = 128
    """An add waits for what the metadata service knows of its ledger."""
    TURN = 256
    """So many requests were dealt with one by one, or so much of large frames came, that it is others' turn."""
    REQUESTS = 512
    """Of requests that are answered later it has as many as are left for the others."""
    STOPPING = 32
    """The bookie is stopping; never lifted."""


class LoopTurns:
    """Serves a bounded number of bytes of large frames, and of requests that are dealt with one by one, in each turn of
    the event loop, whoever sent them, and then those who come behind in the next ones: they may want a few bytes. What
    each brings first is taken before anybody knows that it is one of many."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._left = LARGE_PER_TURN
        self._waiting: deque[Callable[[], None]] = deque()

    def came(self, nbytes: int, go_on: Callable[[], None], part: int = 0) -> bool:
        """Count so many bytes. False if their sender has to wait until `go_on` is called: there were enough in this
        turn, or it has had its `PART` and others wait."""
        if self._left == LARGE_PER_TURN and not self._waiting:
            self._loop.call_soon(self._next_turn)
        self._left -= nbytes
        if self._left >= 0 and not (self._waiting and part >= PART):
            return True
        self._waiting.append(go_on)
        return False

    def _next_turn(self) -> None:
        self._left = LARGE_PER_TURN
        for _ in range(min(GO_ON_PER_TURN, len(self._waiting))):
            self._waiting.popleft()()
        if self._waiting:
            self._loop.call_soon(self._next_turn)
