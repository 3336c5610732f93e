"""Few in one turn of the event loop: those who come later go on in the next turns, in the order in which they came.

Event loop only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class Turns:
    """Lets `most` go on in one turn of the event loop."""

    def __init__(self, most: int) -> None:
        self._most = self._left = most
        self._waiting: deque[Callable[[], bool]] = deque()

    def take(self, go_on: Callable[[], bool]) -> bool:
        """Return True if the caller may go on now. Else call `go_on` in a later turn: it returns False if it has
        nothing to do any more."""
        if self._left == self._most:
            asyncio.get_running_loop().call_soon(self._next)
        if self._left:
            self._left -= 1
            return True
        self._waiting.append(go_on)
        return False

    async def one(self) -> None:
        """Wait for a turn that has room."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def go_on() -> bool:
            if turn.cancelled():
                return False
            turn.set_result(None)
            return True

        if not self.take(go_on):
            await turn

    def _next(self) -> None:
        self._left = self._most
        try:
            while self._waiting and self._left:
                self._left -= 1
                if not self._waiting.popleft()():
                    self._left += 1
        finally:
            if self._left < self._most:
                asyncio.get_running_loop().call_soon(self._next)
