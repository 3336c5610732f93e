"""Appends of many threads, handed to one writer in one order.

Invariants
- Appends of one thread get ascending entry ids in the order in which it made them, whichever call it used.
- What was handed over and not yet sent is bounded in entries and bytes; beyond, callers wait. What was sent is
  bounded by the writer's own window.
- Every append ends: with its entry id, or with the error of its writer, or of the client that was closed.
- A payload may be changed by its owner as soon as the call returned.

`submit` and `submit_many` may be called from any thread; the rest runs on the event loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, TypeVar

from bookie_client.blocking.loop_thread import LoopThread, closed_error, pass_on
from bookie_protocol.digest import Buffer, as_bytes

if TYPE_CHECKING:
    from bookie_client.tracing import CallTraces, Within

MAX_QUEUED_ENTRIES: Final = 4_096
MAX_QUEUED_BYTES: Final = 8 * 1024 * 1024
BATCH_ENTRIES: Final = 1_024
BATCH_BYTES: Final = 2 * 1024 * 1024
SINGLES: Final = 256
"""Maximum number of single entries that are sent, and whose callers are answered, together."""
_LOOK_SECONDS: Final = 1.0
"""Seconds between two checks, by a thread that waits for room, that the client is still open."""


T = TypeVar("T")
Place = TypeVar("Place")
"""The result of an append: an entry id, or a position in a stream."""


class Appending(Protocol[Place]):
    """The writers whose appends are handed over here."""

    async def submit(self, payload: Buffer) -> asyncio.Future[Place]: ...
    async def submit_many(self, payloads: Iterable[Buffer]) -> asyncio.Future[list[Place]]: ...


def as_future(sent: asyncio.Future[int]) -> Future[int]:
    """Return an append under way as threads wait for it. Event loop only."""
    future: Future[int] = _uncancellable()
    sent.add_done_callback(lambda ended: pass_on(ended, future))
    return future


def all_of(batches: Sequence[Future[list[Place]]]) -> Future[list[Place]]:
    """Several batches as one: all their ids, or the first error."""
    future: Future[list[Place]] = _uncancellable()
    waited_for = iter(batches)

    def go_on(_: object = None) -> None:
        # One after the other: nothing here may wait, because it runs on the event loop's thread.
        for batch in waited_for:
            if not batch.done():
                batch.add_done_callback(go_on)
                return
        failed = next((error for batch in batches if (error := batch.exception()) is not None), None)
        if failed is not None:
            future.set_exception(failed)
        else:
            future.set_result([entry_id for batch in batches for entry_id in batch.result()])

    go_on()
    return future


def _uncancellable() -> Future[Any]:
    """Cancelling would not take an entry back, so it is refused."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()
    return future


class _Batch:
    """Payloads whose ids, or first error, are reported together. A batch without payloads only keeps its place in the
    order. `is_single`: the outcome is one id, not a list."""

    __slots__ = ("future", "is_single", "nbytes", "payloads", "within")

    def __init__(self, payloads: list[bytes], nbytes: int, is_single: bool) -> None:
        self.payloads = payloads
        self.nbytes = nbytes
        self.is_single = is_single
        self.future = _uncancellable()
        self.within: Within | None = None
        """It keeps the call within the span of its caller; None without a tracer."""

    def fail(self, error: Exception) -> None:
        self.future.set_exception(error)


class AppendQueue(Generic[Place]):
    """The appends of one writer, whose client may make spans of them."""

    def __init__(self, thread: LoopThread, writer: Appending[Place], traces: CallTraces | None) -> None:
        self._thread = thread
        self._writer = writer
        self._traces = traces
        self._changed = threading.Condition()
        self._batches: deque[_Batch] = deque()
        self._entries = 0
        self._nbytes = 0
        self._is_sending = False
        self._sending: list[_Batch] = []

    # --- any thread -----------------------------------------------------------------------------------------

    def submit(self, payload: Buffer) -> Future[Place]:
        """Hand over one entry; waits only for room."""
        entry = as_bytes(payload)
        return self._put(_Batch([entry], len(entry), is_single=True))

    def submit_many(self, payloads: Iterable[Buffer]) -> list[Future[list[Place]]]:
        """Hand over entries in order, as fast as there is room; one future for each batch of them."""
        return [self._put(_Batch(entries, nbytes, is_single=False)) for entries, nbytes in _in_batches(payloads)]

    def wait_sent(self) -> None:
        """Wait until everything that was handed over before has been sent or has failed."""
        self._put(_Batch([], 0, is_single=False)).result()

    def _put(self, batch: _Batch) -> Future[Any]:
        self._thread.check()
        if self._traces is not None:
            batch.within = self._traces.here()
        with self._changed:
            while self._entries and not self._fits(batch):
                self._changed.wait(_LOOK_SECONDS)
                self._thread.check()
            self._batches.append(batch)
            self._entries += len(batch.payloads)
            self._nbytes += batch.nbytes
            start, self._is_sending = not self._is_sending, True
        if start:
            try:
                self._thread.post(self._start)
            except RuntimeError:  # closed just now, and others have queued behind this one
                self._fail_all()
        return batch.future

    def _fits(self, batch: _Batch) -> bool:
        return (
            self._entries + len(batch.payloads) <= MAX_QUEUED_ENTRIES
            and self._nbytes + batch.nbytes <= MAX_QUEUED_BYTES
        )

    # --- event loop -----------------------------------------------------------------------------------------

    def _start(self) -> None:
        sender = asyncio.get_running_loop().create_task(self._send_all(), name="appends")
        sender.add_done_callback(self._ended)

    async def _send_all(self) -> None:
        while batches := self._next():
            self._sending = batches
            if batches[0].is_single:
                await self._send_singles(batches)
            else:
                await self._send(batches[0])
            self._release(batches)

    def _ended(self, sender: asyncio.Task[None]) -> None:
        """Fail the waiting batches if the sender was cancelled or failed: no other task would answer them."""
        if sender.cancelled() or sender.exception() is not None:
            self._fail_all()

    def _fail_all(self) -> None:
        """Fail every batch with `LoopEnded`: no task will send it any more."""
        batches, self._sending = self._sending, []
        while batches or (batches := self._next()):
            for batch in batches:
                if not batch.future.done():
                    batch.fail(closed_error())
            self._release(batches)
            batches = []

    def _next(self) -> list[_Batch]:
        """Return the oldest batch, or all single entries up to the next one that is not."""
        taken: list[_Batch] = []
        with self._changed:
            while self._batches and len(taken) < SINGLES:
                if taken and not self._batches[0].is_single:
                    break
                taken.append(self._batches.popleft())
                if not taken[0].is_single:
                    break
            if not taken:
                self._is_sending = False
        return taken

    def _release(self, batches: list[_Batch]) -> None:
        """They were sent, or have failed: there is room for others."""
        with self._changed:
            for batch in batches:
                self._entries -= len(batch.payloads)
                self._nbytes -= batch.nbytes
            self._changed.notify_all()

    async def _send_singles(self, batches: list[_Batch]) -> None:
        """One call-back for all of them: adds end in order, so the last one's end is the end of all."""
        submit = self._writer.submit
        sent: list[tuple[_Batch, asyncio.Future[Place]]] = []
        try:
            for batch in batches:
                try:
                    sent.append((batch, await _begun(batch, submit(batch.payloads[0]))))
                except Exception as error:
                    batch.fail(error)
        finally:
            if sent:
                sent[-1][1].add_done_callback(lambda _: _tell_each(sent))

    async def _send(self, batch: _Batch) -> None:
        if not batch.payloads:
            batch.future.set_result([])
            return
        try:
            sent = await _begun(batch, self._writer.submit_many(batch.payloads))
        except Exception as error:
            batch.fail(error)
        else:
            sent.add_done_callback(lambda ended: pass_on(ended, batch.future))


def _begun(batch: _Batch, call: Awaitable[T]) -> Awaitable[T]:
    return call if batch.within is None else batch.within(call)


def _tell_each(sent: Sequence[tuple[_Batch, asyncio.Future[Any]]]) -> None:
    for batch, add in sent:
        if not batch.future.done():
            pass_on(add, batch.future)


def _in_batches(payloads: Iterable[Buffer]) -> Iterator[tuple[list[bytes], int]]:
    """The iterable is the caller's and may block or use this very client: it is read on the caller's thread."""
    entries: list[bytes] = []
    nbytes = 0
    for payload in payloads:
        entry = as_bytes(payload)
        entries.append(entry)
        nbytes += len(entry)
        if len(entries) >= BATCH_ENTRIES or nbytes >= BATCH_BYTES:
            yield entries, nbytes
            entries, nbytes = [], 0
    if entries:
        yield entries, nbytes
