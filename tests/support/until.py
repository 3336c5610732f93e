"""Waiting for a condition of something that offers no event."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


async def until(condition: Callable[[], object], seconds: float = 5.0) -> None:
    """Return once `condition()` is true; TimeoutError after `seconds`."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.002)
