"""TLS of a server's port: a context that follows its files, and the turns and steps of handshakes.

Certificates are renewed without a restart. A handshake costs a millisecond or two of processor time and some 100 KB. If
all handshakes began at once, as after a restart of the bookie, the first would be closed for the others before they
could end, and come again: none would succeed.

Invariants
- Files that are no good at start-up end the start; files that become so later leave the last good ones in use.
- Connections keep the certificate that they began with; a new one counts from the next handshake on.
- At most `UNDER_WAY` handshakes are under way that were begun less than `PATIENCE_S` ago, and no more than half of
  those who may have TLS without being known. A client that goes on with its handshake ends it within that time, before
  others can have it closed, and one that does not delays no other after it.
- Waiting handshakes begin in turns of their addresses: an address with many connections delays only itself.
- In one turn of the event loop `STEPS` steps of handshakes are made: all else waits for them. A step is made of bytes
  that a client has sent, and each client has one at a time, in the order in which the bytes came. So a silent client
  delays no other.

Threads: event loop; `RenewedTls` is made anywhere, once at start-up. Its files are small, and looked at only once in an
interval.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Final

import structlog

from bookie_pod.server.turns import Turns
from bookie_protocol.errors import InvalidConfiguration

_log = structlog.get_logger(__name__)
UNDER_WAY: Final = 64
"""The number of handshakes under way: at two milliseconds each they take an eighth of a second, a quarter of the
patience.
"""
PATIENCE_S: Final = 0.5
STEPS: Final = 4
"""The number of steps in one turn. A handshake has two or three, of which one takes most of its time."""


class RenewedTls:
    """The TLS context of the handshakes of one port."""

    def __init__(
        self,
        port: str,
        files: Sequence[str | None],
        load: Callable[[], ssl.SSLContext],
        refresh_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`port`: its name in the log. `load` reads `files`. `refresh_s`: between two looks at them, 0 for none;
        `clock` in seconds.

        Raises InvalidConfiguration as `load` does.
        """
        self._port = port
        self._files = tuple(path for path in files if path)
        self._load = load
        self._refresh_s = refresh_s
        self._clock = clock
        self._looked_at = clock()
        # Before the files are read: one that changes meanwhile is read again.
        self._seen = self._identity()
        self._context = load()

    def context(self) -> ssl.SSLContext:
        """Return the context for the next handshake, with the files as they were at the last look at them."""
        now = self._clock()
        if self._refresh_s and now - self._looked_at >= self._refresh_s:
            self._looked_at = now
            self._refresh()
        return self._context

    def _refresh(self) -> None:
        found = self._identity()
        if found == self._seen:
            return
        try:
            self._context = self._load()
        except InvalidConfiguration as error:
            _log.error("new TLS files cannot be used: the last ones stay in use", port=self._port, reason=str(error))
            return
        self._seen = found
        _log.info("new TLS files", port=self._port, files=list(self._files))

    def _identity(self) -> tuple[tuple[int, int, int], ...]:
        """Another one when a file was exchanged."""
        found = []
        for path in self._files:
            try:
                status = os.stat(path)
            except OSError:
                found.append((0, 0, 0))
            else:
                found.append((status.st_ino, status.st_mtime_ns, status.st_size))
        return tuple(found)


class HandshakeTurns:
    """The turns of one port, on which at most `most` clients have TLS without being known."""

    def __init__(self, most: int) -> None:
        self._most = max(1, most // 2)
        self._under_way: set[asyncio.Future[None]] = set()
        """Turns that were begun a moment ago."""
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """The waiting handshakes by address, in the order of their turns."""
        self.steps = Turns(STEPS)

    @asynccontextmanager
    async def one(self, address: str) -> AsyncIterator[None]:
        """Wait for a turn of this address, and take it."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(address, deque()).append(turn)
        self._begin()
        try:
            await turn
            yield
        finally:
            self._ended(turn)

    def _begin(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting and len(self._under_way) < min(UNDER_WAY, self._most):
            address, line = next(iter(self._waiting.items()))
            turn = line.popleft()
            del self._waiting[address]
            if line:
                self._waiting[address] = line  # behind all others
            if not turn.done():  # else the connection that waited is gone
                turn.set_result(None)
                self._under_way.add(turn)
                loop.call_later(PATIENCE_S, self._ended, turn)

    def _ended(self, turn: asyncio.Future[None]) -> None:
        if turn in self._under_way:
            self._under_way.discard(turn)
            self._begin()
