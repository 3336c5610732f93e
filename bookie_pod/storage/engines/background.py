"""The storage thread of an engine that has one for all directories: flushes on request, and again after a failure.

Invariants
- At most one requested flush waits. One that failed is repeated by itself after `RETRY_SECONDS`; a checkpoint does
  not wait for that.
- A failure of the disks is told as `NoWritableDirectory`, which makes the bookie read-only; `StorageFailed` and
  faults of our own are told as they are, and stop it. So is the fault of one directory, which changes nothing: when it
  comes again and again, the engine gives that directory up.
- Nothing runs after `close` returned.

Threads: `request` and `begun` on the event loop; `run` from background threads; the work on the storage thread.

Source: reference bookie behaviour, sections 4 and 13.1.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog

from bookie_protocol.errors import DirectoryFault, NoWritableDirectory, StorageFailed, StorageFault

_log = structlog.get_logger(__name__)

RETRY_SECONDS: Final = 1.0


class BackgroundFlush:
    """One thread, and the flush it makes on request."""

    def __init__(self, name: str, work: Callable[[], None], pause: float = 0) -> None:
        """`pause` seconds pass between a request and the work, so that one flush does for many."""
        self._work = work
        self._pause = pause
        self._thread = ThreadPoolExecutor(1, name)
        self._callbacks: list[Callable[[BaseException], None]] = []
        self._wanted = False
        self._closed = False
        self._hurry = threading.Event()
        self._retry: threading.Timer | None = None
        self.began: float | None = None
        """When the requested flush began that goes on (monotonic); None: none does. Any thread."""

    def on_failure(self, callback: Callable[[BaseException], None]) -> None:
        self._callbacks.append(callback)

    def request(self, *, hurry: bool = False) -> None:
        """Have the work done soon, unless it is waiting already; with `hurry` without the pause."""
        if hurry:
            self._hurry.set()
        if self._wanted or self._closed:
            return
        self._wanted = True
        self._submit()

    def _submit(self) -> None:
        with contextlib.suppress(RuntimeError):  # closed meanwhile
            self._thread.submit(self._requested)

    def begun(self) -> None:
        """What was asked for is being done: further requests ask for more."""
        self._wanted = False

    def run(self, work: Callable[[], None]) -> None:
        """Run `work` on the storage thread and wait; raises what it raised, `StorageFault` once closed."""
        if self._wanted:
            self._hurry.set()  # what waits goes first, without its pause
        try:
            running = self._thread.submit(work)
        except RuntimeError as error:
            raise StorageFault("the storage is closed") from error
        running.result()

    def _requested(self) -> None:
        if self._pause:
            self._hurry.wait(self._pause)
            self._hurry.clear()
        if not self._wanted or self._closed:
            return  # a checkpoint has done it
        self.began = time.monotonic()
        try:
            self._work()
        except BaseException as error:
            _log.error("flush of the memtable failed", error=str(error))
            if not isinstance(error, StorageFailed):
                self._retry_later()
            for callback in self._callbacks:
                callback(_told(error))
        finally:
            self.began = None

    def _retry_later(self) -> None:
        """Until then, further requests count as made."""
        self._wanted = True
        timer = self._retry = threading.Timer(RETRY_SECONDS, self._submit)
        timer.daemon = True
        timer.name = "storage-0-retry"
        timer.start()

    def close(self) -> None:
        """Wait for what is running, drop what waits."""
        self._closed = True
        self._hurry.set()
        self._thread.shutdown(wait=True, cancel_futures=True)
        if self._retry is not None:
            self._retry.cancel()
            self._retry.join()


def _told(error: BaseException) -> BaseException:
    if not isinstance(error, StorageFault) or isinstance(error, StorageFailed | NoWritableDirectory | DirectoryFault):
        return error
    return NoWritableDirectory(f"the memtable cannot be flushed: {error}")
