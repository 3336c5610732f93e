"""The main loop of a process until a signal ends it.

SIGTERM and SIGINT end it in an orderly way, in its own time; a second one ends the process at once. Afterwards signals
are handled as before. A thread or a task of the process that ended, or makes no progress, ends it too (`watch`).

The reason of its end is written where Kubernetes shows it, in the file of a container's `terminationMessagePath`: the
one line that standard error gets too. Nothing is created: the file is there only in a container, and Kubernetes made
it.

Threads: the main thread runs the event loop; `tell_kubernetes` is for any.
"""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager, suppress
from typing import Any, Final, NoReturn

import structlog
import uvloop

from bookie_pod.node.processes.watch import PartEnded, Watch
from bookie_protocol.errors import ExitCode, PodkeeperError, StartupError
from bookie_protocol.shown import one_line

_log = structlog.get_logger(__name__)

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
ABORT_S: Final = 10.0
"""Seconds that a process that failed has to tidy up."""
PATH: Final = "/dev/termination-log"
MAX_BYTES: Final = 4096
"""Bytes of it that Kubernetes shows."""


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
    loop = asyncio.get_running_loop()
    watch = Watch()
    watching = loop.create_task(watch.run())
    working = loop.create_task(run())
    told = asyncio.Event()

    def stop() -> None:
        told.set()
        watch.ending()
        working.cancel()

    with signalled(stop):
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
    if not working.done():
        await _give_up(working, watching)
    watching.cancel()
    if working.cancelled() and told.is_set():
        return ExitCode.OK
    working.result()
    return ExitCode.OK


async def _give_up(working: asyncio.Task[None], watching: asyncio.Task[None]) -> NoReturn:
    """A part of the process ended: nothing that may wait for it is waited for."""
    found = watching.exception()
    error = found if isinstance(found, PodkeeperError) else PartEnded(f"the watch over its parts ended: {found!r}")
    _log.critical("the process fails", reason=str(error))
    working.cancel()
    await asyncio.wait([working], timeout=ABORT_S)
    leave(error)


def leave(error: PodkeeperError) -> NoReturn:
    """Say what made the process fail, and end it without waiting for its threads: one of them may be what it is."""
    line = one_line(error)
    with suppress(OSError, ValueError):
        print(f"bookie: {line}", file=sys.stderr, flush=True)
        sys.stdout.flush()
    tell_kubernetes(line)
    os._exit(error.exit_code if isinstance(error, StartupError) else ExitCode.BOOKIE_EXCEPTION)


def tell_kubernetes(line: str, path: str | None = None) -> None:
    """Replace the content of the file, if it is there and may be written."""
    data = line.encode("utf-8", "replace")[: MAX_BYTES - 1] + b"\n"
    try:
        file = os.open(path or PATH, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return  # no container
    try:
        if stat.S_ISREG(os.fstat(file).st_mode):
            os.ftruncate(file, 0)
            os.write(file, data)
    except OSError:
        pass  # standard error has it
    finally:
        os.close(file)
