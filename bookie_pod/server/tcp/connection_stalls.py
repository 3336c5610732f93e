"""The reasons for which a connection reads nothing at present, whose turn it is to be served on, and how long a client
that does not take its answers is waited for.

Invariants
- While the transport holds more than its high-water mark nothing is read from the client (`Stall.SLOW_RECEIVER`).
- A client that has taken nothing for `response_backpressure_timeout_ms` is disconnected, or further answers to it are
  dropped, as `close_on_response_timeout` says; with a negative time it is waited for as long as it is there.
- Who takes answers again is served again.

Threads: event loop only.

Source: reference wire protocol, section 10.3.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from enum import IntFlag
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from bookie_pod.server.tcp.connection import Connection

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


class SlowReceiver:
    """Watches one connection; it sets `Connection.drops_answers`."""

    def __init__(self, conn: Connection) -> None:
        self._conn = conn
        self._timer: asyncio.TimerHandle | None = None

    def full(self) -> None:
        """The transport holds too much: take no more requests."""
        conn = self._conn
        conn.stall(Stall.SLOW_RECEIVER)
        timeout_ms = conn.context.options.response_backpressure_timeout_ms
        if timeout_ms >= 0 and self._timer is None:
            self._timer = conn.context.loop.call_later(timeout_ms / 1000, self._too_slow)

    def drained(self) -> None:
        """The client took enough."""
        self.cancel()
        self._conn.drops_answers = False
        self._conn.unstall(Stall.SLOW_RECEIVER)

    def cancel(self) -> None:
        """Nobody waits any more, as when the connection is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        self._timer = None
        conn = self._conn
        close = conn.context.options.close_on_response_timeout
        action = "close" if close else "drop answers"
        conn.context.complaints.warning("client reads its answers too slowly", peer=conn.peer, action=action)
        if close and conn.transport is not None:
            conn.transport.abort()
        else:
            conn.drops_answers = True
