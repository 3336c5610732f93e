"""Blocking steps of a start, each on a thread of its own.

Invariants
- A cancelled start ends only after the step that runs has: the step uses what would be closed. A long step asks
  `cancelled` now and then and ends early; as long as it asks it makes progress.

Threads: event loop, but for `cancelled`, which the step asks.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

import structlog

_log = structlog.get_logger(__name__)
_T = TypeVar("_T")


class BlockingSteps:
    """The steps of one start."""

    def __init__(self) -> None:
        self._cancelled = threading.Event()
        self.asked = 0
        """How often a step asked whether to go on."""

    def cancelled(self) -> bool:
        """Whether the start was given up. Any thread."""
        self.asked += 1
        return self._cancelled.is_set()

    async def run(self, phase: str, work: Callable[[], _T]) -> _T:
        """Run one step; returns and raises what it does."""
        running = asyncio.get_running_loop().run_in_executor(None, work)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            self._cancelled.set()
            await asyncio.wait([running])
            if not running.cancelled() and (error := running.exception()) is not None:
                _log.info("start cancelled", phase=phase, reason=str(error))
            raise
