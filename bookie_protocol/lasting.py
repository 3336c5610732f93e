"""Tasks that last as long as the process, tasks without a waiting caller, and tasks that several callers wait for.

The last kind is, for example, the end of an object with a `close()` (`Ending`).

A lasting task may be cancelled by its owner; any other end is a fault that would stay unnoticed. It is reported to the
watcher of the process (`watched_by`), and logged if there is none, as in a client.

Event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any, Final

from bookie_protocol.errors import PodkeeperError, fresh
from bookie_protocol.logs import get_logger

_log = get_logger(__name__)

_watcher: ContextVar[Callable[[str], None] | None] = ContextVar("watcher", default=None)

PREFIX: Final = "lasting: "
"""Prefix of the names of these tasks, for listings of all tasks of a loop."""


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
    """Mark the outcome as seen: callers that still wait get it; without one its error is not logged."""
    if not ended.cancelled():
        ended.exception()


async def error_of(work: Coroutine[Any, Any, None]) -> PodkeeperError | None:
    """Return the error that the work ended with, without its frames.

    It suits a task that keeps its outcome for later callers, since all that waited may have been cancelled: each of
    them raises a copy (`errors.fresh`).
    """
    try:
        await work
    except PodkeeperError as error:
        return fresh(error)
    return None


class Ending:
    """The end of an object that has a `close()`: it is carried out once, for all callers.

    Invariants
    - A caller that is cancelled stops waiting. The work goes on to its end.
    - Later callers wait for the same work and get the same outcome. After an error that `again` accepts the next call
      repeats the work.

    `name`: of the task.
    """

    def __init__(self, name: str, *, again: Callable[[PodkeeperError], bool] = lambda _: False) -> None:
        self._name = name
        self._again = again
        self._task: asyncio.Task[PodkeeperError | None] | None = None

    @property
    def has_begun(self) -> bool:
        """Return True if it was asked for."""
        return self._task is not None

    async def reach(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Carry out `work`, or wait until it is done. Raises what it raised."""
        if self._task is None or self._may_try_again(self._task):
            self._task = asyncio.get_running_loop().create_task(error_of(work()), name=self._name)
        failure = await asyncio.shield(self._task)
        if failure is not None:
            raise fresh(failure)

    async def settle(self) -> None:
        """Wait until work that has begun is done; its outcome is for those who asked for it."""
        if self._task is not None and not self._task.done():  # one that is done may be of a loop that ended
            await asyncio.wait([self._task])

    def _may_try_again(self, task: asyncio.Task[PodkeeperError | None]) -> bool:
        if not task.done():
            return False
        if task.cancelled():  # its loop was ending
            return True
        if task.exception() is not None:
            return False
        failure = task.result()
        return failure is not None and self._again(failure)
