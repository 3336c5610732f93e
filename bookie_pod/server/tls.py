"""TLS of a server's port: a context that follows its files, so that certificates are renewed without a restart; and
whose turn it is to begin a handshake.

A handshake costs a millisecond or two of processor time and some 100 KB. Were all that come at once begun at once, as
after a restart of the bookie, those that came first would make way for the others before they could end, and come
again: nobody would get in.

Invariants
- Files that are no good at start-up end the start; files that become so later leave the last good ones in use.
- Connections keep the certificate that they began with; a new one counts from the next handshake on.
- At most `UNDER_WAY` handshakes are under way that were begun less than `PATIENCE_S` ago, and no more than a half of
  those who may have TLS without being known: whoever goes on with his is through within that, before others could make
  him go, and who does not is in nobody's way after it.
- Those who wait begin in turns of their addresses: whoever has many connections waits for himself.

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

from bookie_protocol.errors import InvalidConfiguration

_log = structlog.get_logger(__name__)


class RenewedTls:
    """What handshakes of one port use."""

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
        """The context for the next handshake, with the files as they were at the last look at them."""
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


UNDER_WAY: Final = 64
"""At two milliseconds each they take an eighth of a second: a quarter of the patience."""
PATIENCE_S: Final = 0.5


class HandshakeTurns:
    """Those of one port, on which so many clients at most have TLS without being known."""

    def __init__(self, most: int) -> None:
        self._most = max(1, most // 2)
        self._under_way: set[asyncio.Future[None]] = set()
        """Turns that were begun a moment ago."""
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        """By address, in the order of their turns."""

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
            if not turn.done():  # else whoever waited is gone
                turn.set_result(None)
                self._under_way.add(turn)
                loop.call_later(PATIENCE_S, self._ended, turn)

    def _ended(self, turn: asyncio.Future[None]) -> None:
        if turn in self._under_way:
            self._under_way.discard(turn)
            self._begin()
