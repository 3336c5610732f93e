"""What handlers reach, and where they do what blocks (`Workers`): on a few threads, with a bounded queue.

Invariants
- At most `THREADS` pieces of work run and `WAITING` wait; more are refused at once.
- A caller that gives up leaves its work running: its place is free only when the thread is.

Threads: event loop; the work runs on `http-<n>`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Generic, TypeVar

from bookie_pod.metrics.registry import Registry
from bookie_pod.server.status import NodeStatus
from bookie_protocol.errors import TooManyRequests
from bookie_protocol.lasting import heard

T = TypeVar("T")
THREADS: Final = 2
WAITING: Final = 14
R = TypeVar("R")
RENDER_SHARE: Final = 9
"""So many times as long as the processor was at the metrics passes until they are rendered again."""
PIECE_S: Final = 0.002
"""So long they are rendered in one turn of the event loop."""


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
        heard(running)

    def stop(self) -> None:
        """Forget what waits; what runs ends by itself."""
        self._executor.shutdown(wait=False, cancel_futures=True)


class Context(Generic[R]):
    """One per server. `R`: what the handlers of the admin API know."""

    def __init__(
        self, status: NodeStatus, registry: Registry, find_admin: Callable[[], R | None], workers: Workers
    ) -> None:
        self.status = status
        self._registry = registry
        self._rendering: asyncio.Task[str] | None = None
        """Of which nothing is made yet."""
        self._one_renders = asyncio.Lock()
        self._may_render_at = 0.0
        self.workers = workers
        self._find_admin = find_admin

    @property
    def is_serving(self) -> bool:
        """Whether `admin` can be used."""
        return self._find_admin() is not None

    @property
    def admin(self) -> R:
        """The bookie's parts; only while it serves."""
        found = self._find_admin()
        assert found is not None, "the dispatcher asks before"
        return found

    async def metrics(self) -> str:
        """All of them, as they are after the call. Those who wait at the same time are told the same, so that however
        many ask, a tenth of the loop goes to it, and little of any of its turns."""
        if self._rendering is None:
            self._rendering = asyncio.create_task(self._render(), name="metrics")
        return await asyncio.shield(self._rendering)

    async def _render(self) -> str:
        async with self._one_renders:
            await asyncio.sleep(max(0.0, self._may_render_at - time.perf_counter()))
            self._rendering = None
            pieces, worked = list[str](), 0.0
            began = time.thread_time()  # not while the process does not run: the next would be put off for as long
            for piece in self._registry.pieces():
                pieces.append(piece)
                if (took := time.thread_time() - began) > PIECE_S:
                    worked += took
                    await asyncio.sleep(0)
                    began = time.thread_time()
            worked += time.thread_time() - began
            self._may_render_at = time.perf_counter() + RENDER_SHARE * worked
            return "".join(pieces)
