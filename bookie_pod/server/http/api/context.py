"""What handlers reach. Event loop only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final, Generic, TypeVar

from bookie_pod.metrics.registry import Registry
from bookie_pod.server.http.api.workers import Workers
from bookie_pod.server.status import NodeStatus

R = TypeVar("R")

RENDER_SHARE: Final = 9
"""So many times as long as the processor was at the metrics passes until they are rendered again."""


class Context(Generic[R]):
    """One per server. `R`: what the handlers of the admin API know."""

    def __init__(
        self, status: NodeStatus, registry: Registry, find_admin: Callable[[], R | None], workers: Workers
    ) -> None:
        self.status = status
        self._registry = registry
        self._rendering: asyncio.Task[str] | None = None
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
        many ask, a tenth of the loop goes to it."""
        if self._rendering is None:
            self._rendering = asyncio.create_task(self._render(), name="metrics")
        return await asyncio.shield(self._rendering)

    async def _render(self) -> str:
        await asyncio.sleep(max(0.0, self._may_render_at - time.perf_counter()))
        self._rendering = None
        began = time.thread_time()  # no time at which the process did not run: that would put off the next for as long
        text = self._registry.render()
        self._may_render_at = time.perf_counter() + RENDER_SHARE * (time.thread_time() - began)
        return text
