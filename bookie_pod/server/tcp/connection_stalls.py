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
"""Bytes of requests that a connection takes at a time while others wait."""


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
    """Too many requests, or bytes of them, wait for what the metadata service knows of their ledgers."""
    TURN = 256
    """Enough requests were dealt with one by one, or enough of large frames came: it is others' turn."""
    REQUESTS = 512
    """The connection has as many requests that are answered later as are left for the others."""
    ROOM = 1024
    """A large frame waits until there is room for it."""
    STOPPING = 32
    """The bookie is stopping; never lifted."""


class LoopTurns:
    """The turns of connections on the event loop.

    Each turn serves a bounded number of bytes of large frames, and of requests that are dealt with one by one, of all
    connections. The connections that come after them are served in the next turns: they may want a few bytes. The first
    bytes of each are taken before it is known that they are some of many.
    """

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
