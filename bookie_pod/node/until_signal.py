"""Running something until the process is told to end.

SIGTERM and SIGINT cancel it, and it winds up in its own time; a second one ends the process at once.

Threads: the main thread runs the event loop.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any, Final

import structlog
import uvloop

from bookie_protocol.errors import ExitCode

_log = structlog.get_logger(__name__)

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def run_until_signal(run: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """The exit code after a signal, or after an end of its own. Raises what `run` raises."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(run))


async def _serve(run: Callable[[], Coroutine[Any, Any, None]]) -> int:
    loop = asyncio.get_running_loop()
    working = loop.create_task(run())
    told: list[int] = []

    def on_signal(number: int) -> None:
        if told:
            _log.warning("second signal: ending at once", signal=signal.Signals(number).name)
            os._exit(ExitCode.BOOKIE_EXCEPTION)
        told.append(number)
        _log.info("stopping", signal=signal.Signals(number).name)
        working.cancel()

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    try:
        await asyncio.wait({working})
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
    if working.cancelled() and told:
        return ExitCode.OK
    working.result()
    return ExitCode.OK
