"""The context of handlers, and the few threads for work that blocks (`Workers`), with a bounded queue.

Invariants
- At most `THREADS` pieces of work run and `WAITING` wait; more are refused at once. A quarter of these places is for
  operators and admins.
- A caller that gives up leaves its work running: its place is free only when the thread is.

Threads: event loop; the work runs on `http-<n>`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, TypeAlias, TypeVar

from bookie_pod.metrics.registry import Registry
from bookie_pod.metrics.text import PLAIN, TextFormat
from bookie_pod.roles import NOBODY, Caller
from bookie_pod.server.status import NodeStatus
from bookie_protocol.errors import TooManyRequests
from bookie_protocol.lasting import heard

T = TypeVar("T")
THREADS: Final = 2
WAITING: Final = 14
KEPT: Final = 4
"""One in so many places is kept for operators and admins."""
FindAdmin: TypeAlias = Callable[[], Mapping[type, Any] | None]
RENDER_SHARE: Final = 9
"""The pause between two renderings of the metrics, as a multiple of the processor time that the last one took."""
PIECE_S: Final = 0.002
"""Seconds of rendering in one turn of the event loop."""


class Workers:
    """The threads of one HTTP server; `stop` ends them."""

    def __init__(self, threads: int = THREADS, waiting: int = WAITING) -> None:
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix="http")
        self._limit = threads + waiting
        self._under_way = 0

    async def run(self, work: Callable[[], T], caller: Caller = NOBODY) -> T:
        """Return what `work` returns, or raise its error. Raises `TooManyRequests` when all places that the caller may
        have are taken."""
        kept = 0 if caller.runs_cluster else self._limit // KEPT
        if self._under_way >= self._limit - kept:
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


class Context:
    """The context of one server. `find_admin` returns a room of the admin API by its type, or None before it exists."""

    def __init__(self, status: NodeStatus, registry: Registry, find_admin: FindAdmin, workers: Workers) -> None:
        self.status = status
        self.registry = registry
        self._rendering: dict[TextFormat, asyncio.Task[str]] = {}
        """The renderings to which new requests are added, of which nothing is made yet."""
        self._one_renders = asyncio.Lock()
        self._may_render_at = 0.0
        self.workers = workers
        self._find_admin = find_admin

    @property
    def is_serving(self) -> bool:
        """Return whether the admin API has rooms now."""
        return self._find_admin() is not None

    def find(self, kind: type[T]) -> T | None:
        """Return a room of the admin API; None if this process has no such room. Only while it serves."""
        rooms = self._find_admin()
        assert rooms is not None, "the dispatcher asks before"
        return rooms.get(kind)

    def room(self, kind: type[T]) -> T:
        """Return a room that every process has which serves the route."""
        found = self.find(kind)
        assert found is not None, f"a route without its room: {kind.__name__}"
        return found

    async def metrics(self, text: TextFormat = PLAIN) -> str:
        """Return all metrics, as they are after the call.

        Requests that wait at the same time get the same text, so that any number of them takes a tenth of the loop, and
        little of any of its turns.
        """
        if text not in self._rendering:
            self._rendering[text] = asyncio.create_task(self._render(text), name="metrics")
        return await asyncio.shield(self._rendering[text])

    async def _render(self, text: TextFormat) -> str:
        async with self._one_renders:
            await asyncio.sleep(max(0.0, self._may_render_at - time.perf_counter()))
            del self._rendering[text]
            pieces, worked = list[str](), 0.0
            began = time.thread_time()  # not while the process does not run: the next would be put off for as long
            for piece in self.registry.pieces(text):
                pieces.append(piece)
                if (took := time.thread_time() - began) > PIECE_S:
                    worked += took
                    await asyncio.sleep(0)
                    began = time.thread_time()
            worked += time.thread_time() - began
            self._may_render_at = time.perf_counter() + RENDER_SHARE * worked
            return "".join(pieces)
