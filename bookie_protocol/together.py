"""Many requests at the same time, but not too many: of a list (`bounded`), or in order (`read_ahead`).

Event loop only; for a blocking client: `client.run(lambda each: bounded(ids, each.metadata))`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from itertools import chain, islice
from typing import Final, TypeVar

from bookie_protocol.lasting import heard

AT_A_TIME: Final = 128

T = TypeVar("T")
R = TypeVar("R")


async def bounded(items: Iterable[T], call: Callable[[T], Awaitable[R]], at_a_time: int = AT_A_TIME) -> list[R]:
    """`call` of each item, results in the order of the items; the first error ends all others and is raised."""
    left = iter(items)
    first = list(islice(left, at_a_time))
    waiting = enumerate(chain(first, left))
    results: dict[int, R] = {}

    async def work() -> None:
        for place, item in waiting:
            results[place] = await call(item)

    tasks = [asyncio.ensure_future(work()) for _ in first]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        raise
    return [results[place] for place in range(len(results))]


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
    """Return the result of the first task. If it were awaited itself, it would be cancelled in place of the
    caller, and an error that it made of that would keep the caller from ending."""
    if not under_way[0].done():
        await asyncio.wait([under_way[0]])
    return under_way.popleft().result()
