"""`bookie serve`: one bookie, from start to exit code.

SIGTERM and SIGINT stop it in an orderly way; a second one ends it at once. Every failure is one line and its exit code.
A part that ended, or makes no progress, is such a failure at any time (`watch`). A bookie that failed waits for no
thread for longer than `ABORT_S`: the journals have what counts.

Threads: the main thread runs the event loop.

Source: docs/internals/bookie-behaviour.md, section 9.
"""

from __future__ import annotations

import asyncio
import gc
import sys
from typing import Any, Final

import structlog
import uvloop

from bookie_pod.config.model import BookieConfig
from bookie_pod.node.bookie import Bookie
from bookie_pod.node.processes.until_signal import ABORT_S, leave, signalled
from bookie_pod.node.processes.watch import Watch
from bookie_protocol.errors import ExitCode, StartupError

_log = structlog.get_logger(__name__)

SWITCH_INTERVAL_S: Final = 0.001
"""Seconds that a background thread may hold the interpreter before the event loop may take it back."""


def serve(config: BookieConfig) -> int:
    """Run a bookie until it is stopped or fails. Raises StartupError for what prevents the start."""
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    # Entries are immutable bytes in plain dicts: nothing on the hot path makes cycles. The collector would only walk
    # the caches at the worst moment, so it runs when the loop is idle instead (`Bookie`).
    gc.disable()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config))


async def _serve(config: BookieConfig) -> int:
    stop = asyncio.Event()
    with signalled(stop.set):
        return await _run(config, stop)


async def _run(config: BookieConfig, stop: asyncio.Event) -> int:
    loop = asyncio.get_running_loop()
    bookie = Bookie(config)
    bookie.watch(Watch(bookie.steps))
    starting = loop.create_task(bookie.start())
    stopping = loop.create_task(stop.wait())
    failed = bookie.status.failed
    try:
        await _first(starting, stopping, failed)
        if not starting.done():
            starting.cancel()
            await _first(starting, failed)
        if not failed.done() and not starting.cancelled():
            starting.result()
            await _first(stopping, failed)
        if not failed.done():
            stopped = loop.create_task(bookie.stop())
            await _first(stopped, failed)
            if stopped.done():
                stopped.result()
                return ExitCode.OK
    except BaseException as error:
        is_tidy = await _abort(bookie, starting)
        if isinstance(error, Exception) and not isinstance(error, StartupError):
            _log.critical("unexpected fault", exc_info=error)
            error = UnexpectedError(f"unexpected fault, this is a bug: {error!r}")
        if isinstance(error, StartupError) and not is_tidy:
            leave(error)  # closing the event loop waits for its threads
        raise error
    finally:
        stopping.cancel()
    failure = failed.result()
    await _abort(bookie, starting)
    return leave(failure)


async def _first(*ends: asyncio.Future[Any]) -> None:
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)


async def _abort(bookie: Bookie, starting: asyncio.Task[None]) -> bool:
    """Tidy up as far as that goes within `ABORT_S`; whether that was all."""
    bookie.drop_clients()

    async def abort() -> None:
        if not starting.done():
            starting.cancel()
            await asyncio.wait([starting])  # nothing is closed under its feet
        await bookie.abort()

    tidying = asyncio.create_task(abort())
    await asyncio.wait([tidying], timeout=ABORT_S)
    return tidying.done()


class UnexpectedError(StartupError):
    """An error that no check foresaw; the log has the traceback."""
