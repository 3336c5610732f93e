"""A limit of requests a second, with bursts of up to one second's worth.

Threads: event loop only.
"""

from __future__ import annotations

import asyncio
from typing import Final

_BURST_SECONDS: Final = 1.0


class RateLimit:
    """`per_second` 0: no limit."""

    def __init__(self, per_second: float) -> None:
        self._interval = 1 / per_second if per_second > 0 else 0.0
        self._free_at = 0.0
        """The moment at which the next turn would be due had there been no burst."""

    async def turn(self, deadline: float) -> None:
        """Wait for our turn; turns are given in the order of the calls.

        `TimeoutError` at once if ours would come behind the deadline. Who refuses, or gives up, has used no turn.
        """
        if not self._interval:
            return
        now = asyncio.get_running_loop().time()
        due = max(self._free_at, now - _BURST_SECONDS)
        mine = due + self._interval
        if mine > deadline:
            raise TimeoutError
        self._free_at = mine
        if mine > now:
            try:
                await asyncio.sleep(mine - now)
            except asyncio.CancelledError:
                self._free_at -= self._interval
                raise
