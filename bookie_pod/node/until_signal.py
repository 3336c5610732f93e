"""Running something until the process is told to end.

SIGTERM and SIGINT end it in an orderly way, in its own time; a second one ends the process at once. Afterwards signals
are handled as before.

Threads: the main thread runs the event loop.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final

import structlog
import uvloop

from bookie_protocol.errors import ExitCode

_log = structlog.get_logger(__name__)

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


@contextmanager
def signalled(stop: Callable[[], object]) -> Iterator[None]:
    """`stop` is called at the first signal. To be entered in the event loop."""
    loop = asyncio.get_running_loop()
    told: list[int] = []

    def on_signal(number: int) -> None:
        if told:
            _log.warning("second signal: ending at once", signal=signal.Signals(number).name)
            os._exit(ExitCode.BOOKIE_EXCEPTION)
        told.append(number)
        _log.info("stopping", signal=signal.Signals(number).name)
        stop()

    for number in _SIGNALS:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)


def run_until_signal(run: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """The exit code after a signal, or after an end of its own. Raises what `run` raises."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(run))


async def _serve(run: Callable[[], Coroutine[Any, Any, None]]) -> int:
    working = asyncio.get_running_loop().create_task(run())
    told = asyncio.Event()

    def stop() -> None:
        told.set()
        working.cancel()

    with signalled(stop):
        await asyncio.wait({working})
    if working.cancelled() and told.is_set():
        return ExitCode.OK
    working.result()
    return ExitCode.OK
