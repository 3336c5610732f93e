"""Requests to several bookies at once, their answers one by one as they come.

Invariants
- Every request that was not answered when the ballot is left is given up, and has ended when leaving returns.
- An error that is not of the taxonomy is a defect and is raised, never taken for an answer.

Event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from types import TracebackType
from typing import Any, Generic, TypeVar

from bookie_protocol.errors import PodkeeperError, fresh

T = TypeVar("T")


class Ballot(Generic[T]):
    """`requests` by position. Iterate over it with `async for`, within `async with`."""

    def __init__(self, requests: Mapping[int, Coroutine[Any, Any, T]]) -> None:
        loop = asyncio.get_running_loop()
        self._positions = {loop.create_task(request): position for position, request in requests.items()}
        self._pending = set(self._positions)
        self._done: list[asyncio.Task[T]] = []

    def __aiter__(self) -> Ballot[T]:
        return self

    async def __anext__(self) -> tuple[int, T | PodkeeperError]:
        """Position and answer, or the error in its place; ends when everybody has answered."""
        if not self._done:
            if not self._pending:
                raise StopAsyncIteration
            done, self._pending = await asyncio.wait(self._pending, return_when=asyncio.FIRST_COMPLETED)
            self._done = sorted(done, key=self._positions.__getitem__, reverse=True)
        task = self._done.pop()
        return self._positions[task], _answer(task)

    async def close(self) -> None:
        """Give up what is not answered. Calling it again is fine."""
        tasks, self._positions = list(self._positions), {}
        self._pending, self._done = set(), []
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def __aenter__(self) -> Ballot[T]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _answer(task: asyncio.Task[T]) -> T | PodkeeperError:
    error = task.exception()
    return fresh(error) if isinstance(error, PodkeeperError) else task.result()
