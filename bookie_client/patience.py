"""Asking a bookie again that could not answer just now.

Event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from bookie_protocol.errors import ConnectionLost, TooManyRequests

HEARD_TRIES: Final = 6
HEARD_SECONDS: Final = 0.1
"""Seconds before `heard` asks a bookie again the first time; they double."""

T = TypeVar("T")


@dataclass(slots=True)
class Patience:
    """Retries while a bookie is busy or away: the number of tries, and pauses that double, the first of `pause`
    seconds."""

    tries: int
    pause: float

    async def again(self) -> bool:
        """Pause before another try; False, at once, behind the last one."""
        self.tries -= 1
        if self.tries <= 0:
            return False
        await asyncio.sleep(self.pause)
        self.pause *= 2
        return True


async def heard(ask: Callable[[], Awaitable[T]]) -> T:
    """Return the answer of a bookie, which is asked again while it is busy, or when its connection breaks. Raise its
    error, at the latest that of the last try."""
    patience = Patience(HEARD_TRIES, HEARD_SECONDS)
    while True:
        try:
            return await ask()
        except (TooManyRequests, ConnectionLost):
            if not await patience.again():
                raise
