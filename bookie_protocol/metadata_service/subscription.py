"""A stream of snapshots of which only the newest matters.

Invariants
- Bounded: at most one undelivered snapshot is held; a slow reader skips to the newest.
- Closing stops the background task; a closed or finished subscription ends the iteration.

Event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Generic, TypeVar

from bookie_protocol.errors import fresh

T = TypeVar("T")


class Subscription(Generic[T]):
    """Iterate with `async for`; use as an async context manager, or call `close`.

    `feed` is the background work: it gets `publish` and runs until it returns (the stream ends after the last
    snapshot) or raises (the reader gets the error after the last snapshot).
    """

    def __init__(self, feed: Callable[[Callable[[T], None]], Awaitable[None]]) -> None:
        self._waiting: list[T] = []
        self._changed = asyncio.Event()
        self._ended = False
        self._error: BaseException | None = None
        self._task = asyncio.get_running_loop().create_task(self._run(feed))

    async def _run(self, feed: Callable[[Callable[[T], None]], Awaitable[None]]) -> None:
        try:
            await feed(self._publish)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # handed to the reader
            self._error = fresh(error)
        finally:
            self._ended = True
            self._changed.set()

    def _publish(self, snapshot: T) -> None:
        self._waiting[:] = [snapshot]
        self._changed.set()

    def __aiter__(self) -> Subscription[T]:
        return self

    async def __anext__(self) -> T:
        while not self._waiting:
            if self._ended:
                if self._error is not None:
                    raise fresh(self._error)
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return self._waiting.pop()

    async def close(self) -> None:
        """Stop watching; an iteration under way ends."""
        self._ended = True
        self._task.cancel()
        self._changed.set()
        await asyncio.wait([self._task])

    async def __aenter__(self) -> Subscription[T]:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
