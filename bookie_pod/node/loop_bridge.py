"""Running a function on the event loop from another thread.

Threads: `LoopBridge.run` from any thread but the loop's own blocks until the function ran; on the loop's own thread it
runs it at once.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Final

from bookie_protocol.errors import StorageFault

CHECK_S: Final = 1.0
"""Between two looks at whether the loop is closed, in seconds: a call that it took before that never runs."""


class LoopBridge:
    """The storage's `OnLoop`."""

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
