"""Work that goes on beside a serving bookie.

Invariants
- A task that fails ends the bookie: nothing fails in silence. One that only watches, trims or mends what can wait
  (`assist`) is logged and restarted instead, because a bookie is worth more than what such a task does for it.
- `cancel` ends every task; none is started afterwards.

Threads: event loop, but for what `on_loop` returns and `LoopBridge.run`, which any thread may call.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from typing import Final

import structlog

from bookie_protocol.errors import StorageFault

COLLECT_INTERVAL_S: Final = 30.0
"""Seconds between two runs of the cycle collector."""
LONG_PAUSE_S: Final = 0.05
"""A collection of everything that took longer leaves what it found alive out of those to come."""
THAW_S: Final = 3600.0
"""Seconds until objects that were left out are looked at again: they may have died in the meantime."""
FULL_SHARE: Final = 1000
"""The pause after a collection of all objects, as a multiple of the time that it took."""
ASSIST_RETRY_S: Final = 30.0
"""Seconds until a task that assists is restarted after a failure."""
CHECK_S: Final = 1.0
"""Seconds between two looks at whether the loop is closed: a call that it took before that never runs."""

_log = structlog.get_logger(__name__)


class BackgroundTasks:
    """The tasks of one bookie; `on_failure` hears of the first error of each."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_failure: Callable[[BaseException], None]) -> None:
        self.loop = loop
        self._on_failure = on_failure
        self._tasks: set[asyncio.Future[None]] = set()

    def run(self, work: Awaitable[None]) -> None:
        """Run until done or cancelled."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def assist(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run what a bookie can do without, until it is done or cancelled; after a failure once more, a while later."""
        self.run(_assisting(name, work))

    def watch(self, task: asyncio.Task[object]) -> None:
        """Watch a task that another part owns for its failure."""
        task.add_done_callback(self._judge)

    def on_loop(self, function: Callable[..., None]) -> Callable[..., None]:
        """The same function for other threads: it runs on the loop, and nowhere once the loop is closed."""

        def hop(*arguments: object) -> None:
            with suppress(RuntimeError):
                self.loop.call_soon_threadsafe(function, *arguments)

        return hop

    def cancel(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _done(self, task: asyncio.Future[None]) -> None:
        self._tasks.discard(task)
        self._judge(task)

    def _judge(self, task: asyncio.Future[None] | asyncio.Task[object]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self._on_failure(error)


async def _assisting(name: str, work: Callable[[], Awaitable[None]]) -> None:
    told = False
    while True:
        try:
            await work()
        except Exception as error:
            # Resources may be short for hours, and the log is one of them: the first failure of each kind tells enough.
            (_log.debug if told else _log.warning)("a background task is restarted", task=name, error=repr(error))
            told = True
            await asyncio.sleep(ASSIST_RETRY_S)
        else:
            return


async def collect_cycles() -> None:
    """Collect garbage now and then: the collector is off, see `run`. Young garbage each time; and all of it as often as
    that costs next to nothing, because what is young when it is looked at, and dies later, is found in no other way.

    That is one pause of the event loop, about a quarter of a second for a million objects (500,000 ledgers). So that it
    stays rare, what lived through a long one is frozen; nothing of that keeps reference counts from freeing it."""
    clock = asyncio.get_running_loop().time
    due = clock()
    thaw = due + THAW_S
    while True:
        await asyncio.sleep(COLLECT_INTERVAL_S)
        began = clock()
        if began < due:
            gc.collect(1)
            continue
        if began >= thaw:
            gc.unfreeze()
            thaw = began + THAW_S
        gc.collect()
        took = clock() - began
        due = clock() + FULL_SHARE * took
        if took > LONG_PAUSE_S:
            gc.freeze()


class LoopBridge:
    """The storage's `OnLoop`. `run` blocks until the function has run on the event loop; on the loop's own thread it
    runs it at once."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._thread = threading.get_ident()

    def run(self, function: Callable[[], None]) -> None:
        """Run on the loop and wait; raises what the function raised, StorageFault if the loop is closed."""
        if threading.get_ident() == self._thread:
            function()
            return
        result: Future[None] = Future()

        def call() -> None:
            try:
                function()
            except BaseException as error:
                result.set_exception(error)
            else:
                result.set_result(None)

        try:
            self._loop.call_soon_threadsafe(call)
        except RuntimeError as error:
            raise StorageFault("the event loop is closed: the bookie has stopped") from error
        while not wait((result,), CHECK_S).done:
            if self._loop.is_closed() and not result.done():
                raise StorageFault("the event loop is closed: the bookie has stopped")
        result.result()
