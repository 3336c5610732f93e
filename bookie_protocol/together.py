"""Many requests at the same time, but not too many.

Event loop only; for a blocking client: `client.run(lambda each: bounded(ids, each.metadata))`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from itertools import chain, islice
from typing import Final, TypeVar

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
