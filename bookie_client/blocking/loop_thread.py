"""One event loop on a thread of its own, and calls into it from any other thread.

Invariants
- A call into the loop returns or raises: when the loop ends, whatever is under way ends with `RuntimeError`. That holds
  also when something on it ended it (`sys.exit()` in a call-back).
- Interrupting a waiting call (`KeyboardInterrupt`) cancels that call alone; the loop goes on.
- After a fork the child has no such thread: every call there says so instead of waiting for ever.
- The loop ends with its owner: when it is stopped, collected, or the interpreter exits.
- Items of an asynchronous iterator (`iterate`) cross the threads in batches (`bookie_client.batches`), so that
  iterating costs one hand-over for many; each still arrives as soon as it can.

`LoopThread` may be used from any thread but its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar

from bookie_client.batches import Batches
from bookie_protocol.logs import get_logger

P = ParamSpec("P")
T = TypeVar("T")

_log = get_logger(__name__)

END_SECONDS: Final = 5.0
"""Seconds that the clean-up of a loop that was not stopped may take."""
_LOOK_SECONDS: Final = 0.05
"""Pause between two checks of a thread that waits for the lock of the door: the loop may have closed it already."""


class LoopEnded(RuntimeError):
    """The loop ended before the call did, or has ended before it."""


class _Door:
    """Closed behind the last call that the loop will run. Shared with the thread, which must not know its owner."""

    def __init__(self) -> None:
        # Of a kind that the holder may take again: a signal handler may have interrupted it.
        self.lock = threading.RLock()
        self.closed = False

    def close(self, last: Callable[[], object] = lambda: None) -> None:
        """Close it, and let `last` be the last call, unless it is closed already."""
        # A thread that a signal interrupted in `post` holds the lock while its handler closes the door and waits for
        # the loop to end. The loop closes it as well, and must not wait for that thread.
        while not self.lock.acquire(timeout=_LOOK_SECONDS):
            if self.closed:
                return
        try:
            if not self.closed:
                self.closed = True
                with suppress(RuntimeError):  # something else has just ended it
                    last()
        finally:
            self.lock.release()


class LoopThread:
    """A running event loop. `at_end` is awaited on it when it ends, however it ends."""

    def __init__(self, name: str, at_end: Callable[[], Awaitable[None]] | None = None) -> None:
        self._loop = _new_event_loop()
        self._pid = os.getpid()
        self._door = _Door()
        # A daemon, so that a client that was forgotten does not keep the interpreter from ending.
        self._thread = threading.Thread(target=_serve, args=(self._loop, self._door, at_end), name=name, daemon=True)
        self._finalizer = weakref.finalize(self, _end, self._loop, self._thread, self._pid)
        self._thread.start()

    def run(self, function: Callable[P, Awaitable[T]], *args: P.args, **kwargs: P.kwargs) -> T:
        """Await `function(*args, **kwargs)` on the loop; returns or raises what it does."""

        async def call() -> T:
            return await function(*args, **kwargs)

        future: Future[T] = Future()
        task: list[asyncio.Task[T]] = []

        def start() -> None:
            begun = self._loop.create_task(call())
            task.append(begun)
            begun.add_done_callback(lambda ended: pass_on(ended, future))

        def cancel() -> None:
            task[0].cancel()

        self.post(start)
        try:
            return future.result()
        except BaseException:
            if not future.done():
                # This thread was interrupted while it waited. `start` was posted before, so it has run before.
                with suppress(RuntimeError):
                    self.post(cancel)
            raise

    def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call an ordinary function on the loop."""

        async def run_it() -> T:
            return function(*args, **kwargs)

        return self.run(run_it)

    def post(self, callback: Callable[[], object]) -> None:
        """Have `callback` called on the loop, in the order of posting; does not wait. Raises `RuntimeError` when
        nothing can be run: closed, after a fork, or on the loop's own thread."""
        self.check()
        with self._door.lock:
            if self._door.closed:
                raise closed_error()
            try:
                self._loop.call_soon_threadsafe(callback)
            except RuntimeError as error:  # a signal handler has just ended it
                raise closed_error() from error

    @property
    def is_inherited(self) -> bool:
        """This process got it by a fork: there is no such thread here."""
        return self._pid != os.getpid()

    def check(self) -> None:
        """Raises `RuntimeError` when this thread may not, or can no longer, use the loop."""
        if self.is_inherited:
            raise RuntimeError(
                f"this client belongs to process {self._pid} and does not survive a fork:"
                f" make a client of its own in process {os.getpid()}"
            )
        if threading.current_thread() is self._thread:
            raise RuntimeError(
                "a blocking call on the client's own event loop would wait for itself: hand it to another thread"
            )
        if self._door.closed:
            raise closed_error()

    def wait(self) -> None:
        """Wait until the loop has ended, unless this is its own thread or that of another process."""
        if not self.is_inherited and threading.current_thread() is not self._thread:
            self._thread.join()

    def stop(self) -> None:
        """End the loop and wait for its end. Calling it again is fine."""
        if self.is_inherited:
            return
        self._door.close(lambda: self._loop.call_soon_threadsafe(self._loop.stop))
        self._finalizer.detach()
        self.wait()


def _new_event_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:  # no build of it for this platform
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def _serve(loop: asyncio.AbstractEventLoop, door: _Door, at_end: Callable[[], Awaitable[None]] | None) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    except (SystemExit, KeyboardInterrupt) as error:
        _log.error("something ended the event loop of a client, which is closed now", error=repr(error))
    finally:
        door.close()
        steps = [_cancel_all, loop.shutdown_asyncgens]
        if at_end is not None:
            steps.insert(0, partial(_clean_up, at_end))
        for step in steps:
            # A call-back raised it, or the process was asked to stop again: the remaining steps must still run.
            with suppress(SystemExit, KeyboardInterrupt, RuntimeError):
                loop.run_until_complete(step())
        asyncio.set_event_loop(None)
        loop.close()


async def _clean_up(at_end: Callable[[], Awaitable[None]]) -> None:
    with suppress(Exception):  # no caller is left who could be informed
        async with asyncio.timeout(END_SECONDS):
            await at_end()


async def _cancel_all() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _end(loop: asyncio.AbstractEventLoop, thread: threading.Thread, pid: int) -> None:
    """The owner was forgotten, or the interpreter exits."""
    if os.getpid() != pid:
        return
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(loop.stop)
    if threading.current_thread() is not thread:
        thread.join(2 * END_SECONDS)


def pass_on(task: asyncio.Future[Any], future: Future[Any]) -> None:
    """Tell those who wait for `future` how `task` ended."""
    if task.cancelled():
        future.set_exception(closed_error())
    elif (error := task.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(task.result())


def closed_error() -> LoopEnded:
    """Return the error of a call that was still running when its client was closed."""
    return LoopEnded("this client was closed: make a new one")


def iterate(thread: LoopThread, make: Callable[[], AsyncIterator[T]], size_of: Callable[[T], int]) -> Iterator[T]:
    """Call `make` on the loop, at once, and iterate over what it returns.

    Leaving the loop, closing the iterator or dropping it ends the asynchronous one too.
    """
    batches = thread.call(lambda: Batches(make(), size_of))
    return _items(thread, batches)


def _items(thread: LoopThread, batches: Batches[T]) -> Iterator[T]:
    try:
        while batch := thread.run(batches.take):
            yield from batch
    finally:
        with suppress(RuntimeError):  # the client was closed, and everything ended with it
            thread.run(batches.close)
