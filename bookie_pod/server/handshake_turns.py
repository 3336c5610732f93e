"""Whose turn it is to begin a TLS handshake.

A handshake costs a millisecond or two of processor time and some 100 KB. Were all that come at once begun at once, as
after a restart of the bookie, those that came first would make way for the others before they could end, and come
again: nobody would get in.

Invariants
- At most `UNDER_WAY` are under way that were begun less than `PATIENCE_S` ago, and no more than a half of those who
  may have TLS without being known: whoever goes on with his is through within that, before others could make him go,
  and who does not is in nobody's way after it.
- Those who wait begin in turns of their addresses: whoever has many connections waits for himself.

Event loop only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

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
