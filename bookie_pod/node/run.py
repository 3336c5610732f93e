"""`bookie serve`: one bookie, from start to exit code.

SIGTERM and SIGINT stop it in an orderly way; a second one ends it at once. Every failure is one line and its exit code.

Threads: the main thread runs the event loop.

Source: reference bookie behaviour, section 9.
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
from bookie_pod.node.termination_log import tell_kubernetes
from bookie_pod.node.until_signal import signalled
from bookie_protocol.errors import ExitCode, PodkeeperError, StartupError

_log = structlog.get_logger(__name__)

SWITCH_INTERVAL_S: Final = 0.001
"""How long a background thread may hold the interpreter before the event loop may take it back, in seconds."""


def serve(config: BookieConfig) -> int:
    """Run a bookie until it is told to stop or fails. Raises StartupError for what prevents the start."""
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
    starting = loop.create_task(bookie.start())
    stopping = loop.create_task(stop.wait())
    try:
        await asyncio.wait({starting, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            await asyncio.wait({starting})
        if starting.cancelled():
            await bookie.stop()
            return ExitCode.OK
        starting.result()
        ends: set[asyncio.Future[Any]] = {stopping, bookie.status.failed}
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    except BaseException as error:
        await bookie.abort()
        if isinstance(error, Exception) and not isinstance(error, StartupError):
            _log.critical("unexpected fault", exc_info=error)
            raise UnexpectedError(f"unexpected fault, this is a bug: {error!r}") from error
        raise
    finally:
        stopping.cancel()
    if bookie.status.failed.done():
        failure = bookie.status.failed.result()
        await bookie.abort()
        return _exit_code(failure)
    await bookie.stop()
    return ExitCode.OK


def _exit_code(error: PodkeeperError) -> int:
    code = error.exit_code if isinstance(error, StartupError) else ExitCode.BOOKIE_EXCEPTION
    line = " ".join(str(error).split())
    print(f"bookie: {line}", file=sys.stderr)
    tell_kubernetes(line)
    return code


class UnexpectedError(StartupError):
    """What no check foresaw; the log has the traceback."""
