"""Turns of those who wait for the same scarce thing, so that one connection with much to ask delays only itself.

Invariants
- At most `most` turns are under way.
- Connections get turns in rotation, and each connection's turns come in the order in which they began to wait. A turn
  that came by another connection, or that was given up, is not the turn of a connection.
- A connection that waits for no turn has no line.

Event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bookie_pod.server.tcp.wire import Wire

Turn = asyncio.Future[None]


class QuestionTurns:
    """The turns of the questions of one bookie."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._under_way: set[Turn] = set()
        self._waiting: dict[Wire, dict[Turn, None]] = {}
        """The turns that connections wait for, in the order in which the connections get their next ones."""

    def wait(self, turn: Turn, wire: Wire) -> None:
        """Let a connection wait for a turn, which may wait in the lines of several: the first one counts."""
        if not turn.done():
            self._waiting.setdefault(wire, {})[turn] = None

    def leave(self, turn: Turn, wire: Wire) -> None:
        """The connection waits for this turn no more. Calling it again is fine."""
        line = self._waiting.get(wire)
        if line is not None:
            line.pop(turn, None)
            if not line:
                del self._waiting[wire]

    @asynccontextmanager
    async def one(self, turn: Turn) -> AsyncIterator[None]:
        """Wait for the turn, and take it."""
        try:
            self._begin()
            await turn
            yield
        finally:
            turn.cancel()  # its places in the lines count no more
            self._under_way.discard(turn)
            self._begin()

    def _begin(self) -> None:
        while self._waiting and len(self._under_way) < self._most:
            wire, line = next(iter(self._waiting.items()))
            turn = next(iter(line))
            self.leave(turn, wire)
            if turn.done():
                continue
            if line:
                del self._waiting[wire]
                self._waiting[wire] = line  # behind all others
            turn.set_result(None)
            self._under_way.add(turn)
