"""Tasks that last as long as the process, because others wait for what they do; those that nobody may wait for, and
those that several do.

A lasting task may be cancelled by its owner; any other end is a fault that nobody would notice by himself. It is told
to whoever watches the process (`watched_by`), and logged where nobody does, as in a client.

Event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any, Final

import structlog

from bookie_protocol.errors import PodkeeperError, fresh

_log = structlog.get_logger(__name__)

_watcher: ContextVar[Callable[[str], None] | None] = ContextVar("watcher", default=None)

PREFIX: Final = "lasting: "
"""What the names of these tasks begin with, for whoever lists all tasks of a loop."""


def watched_by(watcher: Callable[[str], None]) -> None:
    """Lasting tasks that are begun in this context from now on, or in one that comes of it, tell `watcher` in one line
    that they ended."""
    _watcher.set(watcher)


def lasting_task(work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """Begin what ends by being cancelled only."""
    watcher = _watcher.get()

    def ended(task: asyncio.Task[None]) -> None:
        if task.cancelled():
            return
        why = f"the task of the {name} ended" + ("" if task.exception() is None else f": {task.exception()!r}")
        if watcher is not None:
            watcher(why)
        _log.critical("a task ended that lasts as long as the process", task=name, reason=why)

    task = asyncio.get_running_loop().create_task(work, name=PREFIX + name)
    task.add_done_callback(ended)
    return task


def heard(ended: asyncio.Future[Any]) -> None:
    """Whoever still waits for it is told; if nobody does, its error is of no interest, and is not logged."""
    if not ended.cancelled():
        ended.exception()


async def error_of(work: Coroutine[Any, Any, None]) -> PodkeeperError | None:
    """What error it ended with, without its frames. For a task that keeps its outcome for whoever comes later, since
    all who waited may have been cancelled: each of them raises a copy (`errors.fresh`)."""
    try:
        await work
    except PodkeeperError as error:
        return fresh(error)
    return None
