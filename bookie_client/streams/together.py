"""Several requests at the same time, but not too many.

Event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

AT_A_TIME: Final = 16

T = TypeVar("T")


async def together(calls: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Their results, in order; the first error ends those that have not begun, and is raised."""
    results: list[T] = []
    for first in range(0, len(calls), AT_A_TIME):
        tasks = [asyncio.ensure_future(call()) for call in calls[first : first + AT_A_TIME]]
        try:
            results += await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            raise
    return results
