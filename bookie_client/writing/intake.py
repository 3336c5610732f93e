"""The way of adds into the pipeline, one by one or in bulk as the window has room, and out of it (`Outbox`).

The adds that one turn of the event loop submits are encoded and sent together.

Invariants
- Entries get their ids in the order in which they were submitted.
- An entry that raises before it got an id was never sent and holds no room.
- An add is sent in the turn in which it was taken in, or before anything that changes where adds go (`flush`).
- Adds leave in the order of their entry ids, and carry the LAC as it is when they leave.
- A re-sent add is the same bytes.

Event loop only.

Source: docs/internals/client-protocol.md, sections 5, 6 and 18.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from bookie_client.connection.channel import Channel
from bookie_client.connection.dialect import AddEncoder
from bookie_client.context import ClientContext
from bookie_client.writing.add_state import AddState
from bookie_client.writing.pending_add import AddHandle, PendingAdd
from bookie_client.writing.window import Window
from bookie_protocol.digest import Buffer, DigestManager, as_bytes
from bookie_protocol.errors import BadRequest, LedgerClosed, PodkeeperError, fresh
from bookie_protocol.trace_context import marked

BULK_BYTES: Final = 256 * 1024
"""Bytes of new adds that are sent without waiting for the end of the turn."""


class Outbox:
    """The outbox of one pipeline. What is put clears `idle`. `after` is called behind each flush that sent
    something, `broke` when one has a defect."""

    def __init__(
        self,
        context: ClientContext,
        state: AddState,
        digest: DigestManager,
        encoder: AddEncoder,
        idle: asyncio.Event,
        after: Callable[[], None],
        broke: Callable[[str, Exception], None],
    ) -> None:
        self._context = context
        self._state = state
        self._digest = digest
        self._encoder = encoder
        self._idle = idle
        self._after = after
        self._broke = broke
        self._loop = asyncio.get_running_loop()
        self._tail = encoder.tail
        self._fresh: list[PendingAdd] = []
        self._fresh_bytes = 0
        self._flush_due = False
        self._ensemble: tuple[str, ...] = ()
        self._channels: list[Channel] = []
        self.marks: dict[int, bytes] = {}
        """Marks of traces (`trace_context`), by the id of the entry that carries each; see `TracedIntake`."""
        self.follow_ensemble()

    def put(self, add: PendingAdd) -> None:
        """Take in a new add."""
        fresh = self._fresh
        if not fresh:  # behind others it is clear already: nothing is idle before they have left
            self._idle.clear()
        fresh.append(add)
        self._fresh_bytes += add.nbytes
        if not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush_turn)
        elif self._fresh_bytes >= BULK_BYTES:
            self.flush()

    def put_run(self, adds: list[PendingAdd], nbytes: int) -> None:
        """Take in many new adds; bytes of all of them."""
        self._idle.clear()
        self._fresh += adds
        self._fresh_bytes += nbytes
        if self._fresh_bytes >= BULK_BYTES:
            self.flush()
        elif not self._flush_due:
            self._flush_due = True
            self._loop.call_soon(self._flush_turn)

    def flush(self) -> None:
        """Send what was put."""
        adds = self._fresh
        if not adds:
            return
        self._fresh, self._fresh_bytes = [], 0
        try:
            self._encoder.make_heads(adds, self._state.piggy_back(), self._digest, self._context.transactions)
            if self.marks:
                self._mark(adds)
            if self._state.everywhere:
                self._send_everywhere(adds)
            else:
                self._send_striped(adds)
        except Exception as defect:  # the adds have begun: the caller that flushes is not the one that waits for them
            self._broke("sending", defect)
            return
        self._after()

    def send_again(self, add: PendingAdd, position: int) -> None:
        """Send an add to the bookie that is at `position` now."""
        add.waiting |= 1 << position
        self._channels[position].send_add(add.frame, add.key, add)

    @property
    def channels(self) -> Sequence[Channel]:
        """The ways to the ensemble that adds go to."""
        return self._channels

    def follow_ensemble(self) -> bool:
        """Adds go to the ensemble that the state names now; whether that is another one."""
        if self._ensemble == self._state.ensemble:
            return False
        self._ensemble = self._state.ensemble
        ledger_id, pool = self._state.ledger_id, self._context.pool
        self._channels = [pool.channel(bookie, ledger_id) for bookie in self._ensemble]
        return True

    def _flush_turn(self) -> None:
        self._flush_due = False
        self.flush()

    def _mark(self, adds: list[PendingAdd]) -> None:
        """Put the marks of these adds into their frames, but for one that is as long as a frame may be."""
        longest = self._context.options.max_frame_size
        for add in adds:
            mark = self.marks.pop(add.entry_id, None)
            if mark is not None and len(add.head) + len(add.body) + len(self._tail) + len(mark) <= longest:
                add.head = marked(add.head, mark)

    def _send_everywhere(self, adds: list[PendingAdd]) -> None:
        everybody = (1 << len(self._channels)) - 1
        for add in adds:
            add.waiting = everybody
        frames = self._frames(adds)
        for channel in self._channels:
            channel.send_adds(frames, adds)

    def _send_striped(self, adds: list[PendingAdd]) -> None:
        mine: list[list[PendingAdd]] = [[] for _ in self._channels]
        for add in adds:
            for position in self._state.targets(add):
                add.waiting |= 1 << position
                mine[position].append(add)
        for channel, its in zip(self._channels, mine, strict=True):
            if its:
                channel.send_adds(self._frames(its), its)

    def _frames(self, adds: list[PendingAdd]) -> bytes:
        """Return the frames of all adds, one behind the other."""
        step = 3 if self._tail else 2
        pieces = [self._tail] * (step * len(adds))
        pieces[::step] = [add.head for add in adds]
        pieces[1::step] = [add.body for add in adds]
        return b"".join(pieces)


class AddBatch:
    """`future` resolves with the entry ids, in the order of the payloads, once `seal` was called and every add
    of the batch was delivered; with the first error as soon as one failed."""

    __slots__ = ("_missing", "future", "ids")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.future: asyncio.Future[list[int]] = loop.create_future()
        self.ids: list[int] = []
        self._missing = 1

    def expect_run(self, first: int, count: int) -> None:
        """Let so many adds, from this entry id on, belong to the batch."""
        self.ids += range(first, first + count)
        self._missing += count

    def seal(self) -> None:
        """Seal the batch: no more adds will come."""
        self.delivered(1)

    def delivered(self, count: int) -> None:
        """Count so many more acknowledged adds."""
        self._missing -= count
        if not self._missing and not self.future.done():
            self.future.set_result(self.ids)

    def failed(self, error: PodkeeperError) -> None:
        """Fail the batch. A caller that does not wait for it gets the error from `flush` or the end of the context."""
        if not self.future.done():
            self.future.set_exception(error)
            self.future.exception()

    def raise_failure(self) -> None:
        """Raise what ended an add of this batch, if something did."""
        error = self.future.exception() if self.future.done() else None
        if error is not None:
            raise fresh(error)


Waiter = asyncio.Future[int] | AddBatch
"""The receiver of an add's outcome."""


class AddIntake:
    """Takes the adds of one pipeline."""

    def __init__(
        self,
        handle: AddHandle,
        state: AddState,
        outbox: Outbox,
        window: Window,
        *,
        overhead: int,
        max_frame: int,
    ) -> None:
        """`overhead`: bytes of a frame beside the payload."""
        self._handle = handle
        self._state = state
        self._outbox = outbox
        self._window = window
        self._overhead = overhead
        self._max_payload = max_frame - overhead
        self._loop = asyncio.get_running_loop()

    def try_submit(self, payload: Buffer) -> asyncio.Future[int] | None:
        """Send one entry now; None when the window is full. Raises as `submit`."""
        body = payload if payload.__class__ is bytes and len(payload) <= self._max_payload else self.body(payload)
        nbytes = len(body) + self._overhead
        if not self._window.try_acquire(nbytes):
            return None
        waiter: asyncio.Future[int] = self._loop.create_future()
        self._add(body, nbytes, waiter)
        return waiter

    async def submit(self, payload: Buffer) -> asyncio.Future[int]:
        """Send one entry as soon as the window has room; the future resolves with its id, or its error.

        Raises `BadRequest` (the entry fits no frame), `LedgerClosed`.
        """
        body = self.body(payload)
        nbytes = len(body) + self._overhead
        await self._window.acquire(nbytes)
        waiter: asyncio.Future[int] = self._loop.create_future()
        self._add(body, nbytes, waiter)
        return waiter

    async def submit_many(self, payloads: Iterable[Buffer]) -> asyncio.Future[list[int]]:
        """Send entries in order as the window has room; one future for all of them.

        Raises what ended appending, or what `payloads` raised; what was sent before goes on.
        """
        batch = AddBatch(self._loop)
        source = iter(payloads)
        try:
            more = True
            while more:
                bodies: list[bytes] = []
                try:
                    more = self._take_bodies(source, bodies)
                finally:
                    await self._submit_bodies(bodies, batch)
        except LedgerClosed:
            batch.raise_failure()
            raise
        batch.seal()
        return batch.future

    def _take_bodies(self, source: Iterator[Buffer], bodies: list[bytes]) -> bool:
        """Take about `BULK_BYTES` from the source; False: it has no more. Raises what the source raises, or `body`."""
        nbytes, longest, overhead = 0, self._max_payload, self._overhead
        for payload in source:
            body = payload if payload.__class__ is bytes and len(payload) <= longest else self.body(payload)
            bodies.append(body)
            nbytes += len(body) + overhead
            if nbytes >= BULK_BYTES:
                return True
        return False

    async def _submit_bodies(self, bodies: list[bytes], batch: AddBatch) -> None:
        """Send what `_take_bodies` took: at once if the window has room for all of it."""
        overhead, window = self._overhead, self._window
        nbytes = sum(map(len, bodies)) + overhead * len(bodies)
        if window.try_acquire(nbytes, len(bodies)):
            self._add_run(bodies, nbytes, batch)
        else:
            run: list[bytes] = []
            nbytes = 0
            for body in bodies:
                size = len(body) + overhead
                if not window.try_acquire(size):
                    nbytes = self._add_run(run, nbytes, batch)
                    await window.acquire(size)
                run.append(body)
                nbytes += size
            self._add_run(run, nbytes, batch)
        if nbytes >= BULK_BYTES:
            await asyncio.sleep(0)

    def submit_overdrawn(self, body: bytes, waiter: asyncio.Future[int]) -> None:
        """Send one entry whatever the window says: the caller bounds what it does so with."""
        nbytes = len(body) + self._overhead
        self._window.take(nbytes)
        self._add(body, nbytes, waiter)

    def body(self, payload: Buffer) -> bytes:
        """The payload as it is now, and immutable. Raises `BadRequest` when it does not fit a frame."""
        body = as_bytes(payload)
        if len(body) > self._max_payload:
            raise BadRequest(
                f"ledger {self._state.ledger_id}: an entry of {len(body)} bytes is larger than the {self._max_payload}"
                " that fit a frame (max_frame_size): split it"
            )
        return body

    def _add(self, body: bytes, nbytes: int, waiter: Waiter) -> int:
        """Gives out the next entry id, and lets the add leave with this turn. The caller has room in the window."""
        try:
            add = self._state.begin(len(body), waiter)
        except PodkeeperError:
            self._window.release(1, nbytes)
            raise
        add.handle = self._handle
        add.body = body
        add.nbytes = nbytes
        self._outbox.put(add)
        return add.entry_id

    def _add_run(self, run: list[bytes], nbytes: int, batch: AddBatch) -> int:
        """Add many entries, which have taken `nbytes` of the window, as `_add` does one. Empties the run and
        returns its size now, 0."""
        if not run:
            return 0
        try:
            adds = self._state.begin_many(run, batch)
        except PodkeeperError:
            self._window.release(len(run), nbytes)
            raise
        finally:
            run.clear()
        handle, overhead = self._handle, self._overhead
        for add in adds:
            add.handle = handle
            add.nbytes = len(add.body) + overhead
        batch.expect_run(adds[0].entry_id, len(adds))
        self._outbox.put_run(adds, nbytes)
        return 0
