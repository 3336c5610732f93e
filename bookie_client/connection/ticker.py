"""The clock of time-outs: one coarse counter for all connections of a client.

So a deadline in ticks means the same to every connection, and one request object may wait in several. The
counter moves by one at a time even when the event loop was held up for long: answers that came meanwhile are
read before their requests are given up.

Event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class Ticker:
    """Runs while something is attached. `seconds`: length of a tick."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.now = 0
        self._callbacks: dict[Callable[[], None], None] = {}
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def attach(self, callback: Callable[[], None]) -> None:
        """Call this at every tick."""
        self._callbacks[callback] = None
        if self._timer is None:
            self._timer = self._loop.call_later(self.seconds, self._tick)

    def detach(self, callback: Callable[[], None]) -> None:
        """Stop calling it."""
        self._callbacks.pop(callback, None)
        if not self._callbacks and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tick(self) -> None:
        self.now += 1
        self._timer = self._loop.call_later(self.seconds, self._tick)
        for callback in list(self._callbacks):
            callback()
