"""Requests under way ahead of their consumer, answers in order.

Invariants
- At most `window` requests are under way or answered and not yet taken.
- Leaving the iteration early, or an error, ends all requests that are under way.

Threads: event loop only.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

from bookie_protocol.lasting import heard

T = TypeVar("T")
U = TypeVar("U")


async def read_ahead(
    source: AsyncGenerator[T, None], read: Callable[[T], Awaitable[U]], window: int
) -> AsyncGenerator[U, None]:
    """`read(item)` for each item of `source`, in its order; closes `source` at the end."""
    loop = asyncio.get_running_loop()

    async def run(item: T) -> U:
        return await read(item)

    under_way: deque[asyncio.Task[U]] = deque()
    try:
        async with aclosing(source):
            async for item in source:
                under_way.append(loop.create_task(run(item)))
                if len(under_way) >= window:
                    yield await _first(under_way)
        while under_way:
            yield await _first(under_way)
    finally:
        for task in under_way:
            task.cancel()
        if under_way:
            await asyncio.wait(under_way)
        for task in under_way:
            heard(task)  # the first error was raised already


async def _first(under_way: deque[asyncio.Task[U]]) -> U:
    """What the first one gives. Awaited itself it would be cancelled in place of whoever waits, and an error that it
    made of that would keep the other from ending."""
    if not under_way[0].done():
        await asyncio.wait([under_way[0]])
    return under_way.popleft().result()
