"""Blocking work of HTTP handlers: a few threads, a bounded queue.

Invariants
- At most `THREADS` pieces of work run and `WAITING` wait; more are refused at once.
- A caller that gives up leaves its work running: its place is free only when the thread is.

Threads: event loop; the work runs on `http-<n>`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from bookie_protocol.errors import TooManyRequests

T = TypeVar("T")
THREADS: Final = 2
WAITING: Final = 14


class Workers:
    """The threads of one HTTP server; `stop` ends them."""

    def __init__(self, threads: int = THREADS, waiting: int = WAITING) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="http")
        self._limit = threads + waiting
        self._under_way = 0

    async def run(self, work: Callable[[], T]) -> T:
        """What `work` returns or raises. `TooManyRequests` when all places are taken."""
        if self._under_way >= self._limit:
            raise TooManyRequests("too many requests that read files are under way; try again later")
        self._under_way += 1
        running = asyncio.get_running_loop().run_in_executor(self._executor, work)
        running.add_done_callback(self._done)
        return await asyncio.shield(running)

    def _done(self, running: asyncio.Future[T]) -> None:
        self._under_way -= 1
        if not running.cancelled():
            running.exception()  # whoever asked may have gone

    def stop(self) -> None:
        """Forget what waits; what runs ends by itself."""
        self._executor.shutdown(wait=False, cancel_futures=True)
