"""Waiting for a condition of something that offers no event.

A look may cost its process and others: a page of metrics, a session, a list of all ledgers. So the pause before the
next one is ten times what the last one took, and at least a twentieth of the time that was waited already: looks take a
tenth of a processor at most, and what is awaited is seen a twentieth later than it could be.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

_LEAST_S = 0.002
_MOST_S = 0.1
"""Of a pause."""


async def until(condition: Callable[[], object], seconds: float = 5.0) -> None:
    """Return once `condition()` is true; TimeoutError after `seconds`."""
    async with asyncio.timeout(seconds):
        looks = _Looks(condition)
        while not looks.found():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(looks.pause_s)


def until_true(condition: Callable[[], object], seconds: float = 5.0) -> None:
    """As `until`, for tests without an event loop."""
    end = time.monotonic() + seconds
    looks = _Looks(condition)
    while not looks.found():
        if time.monotonic() > end:
            raise TimeoutError
        time.sleep(looks.pause_s)


class _Looks:
    """`pause_s`: how long to wait after the look that was last."""

    def __init__(self, condition: Callable[[], object]) -> None:
        self._condition = condition
        self._began = time.monotonic()
        self.pause_s = _LEAST_S

    def found(self) -> object:
        before = time.monotonic()
        found = self._condition()
        now = time.monotonic()
        self.pause_s = min(max(_LEAST_S, 10 * (now - before), (now - self._began) / 20), _MOST_S)
        return found
