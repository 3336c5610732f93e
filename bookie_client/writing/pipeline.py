"""The add pipeline: carries out what `AddState` decides, over channels and the metadata.

Invariants
- Adds end in the order of their entry ids, each once.
- Acknowledgements of one turn of the event loop are delivered together, and before anything that the same turn
  brought against the ledger takes effect.
- Metadata first: nothing is sent to a replacement bookie before `change` returned the ensemble that is
  stored.
- At most one ensemble change and one task that mends degraded positions run, and both end with the pipeline. A
  defect in one of them fails all pending adds, in order: nobody waits for what can no longer happen.

The writer passes a `change` that stores a new segment; a recovery passes one that collects segments until it
closes the ledger. Event loop only.

Source: reference client protocol, sections 6, 7 and 14.7.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping

from bookie_client.connection.dialect import AddEncoder
from bookie_client.context import ClientContext
from bookie_client.logs import get_logger
from bookie_client.reading.background import fail_on_defect
from bookie_client.writing.add_batch import AddBatch
from bookie_client.writing.add_state import AddState
from bookie_client.writing.change_runner import ChangeRunner, EnsembleChange
from bookie_client.writing.mending import mend
from bookie_client.writing.outbox import BULK_BYTES, Outbox
from bookie_client.writing.outcome import Outcome
from bookie_client.writing.pending_add import PendingAdd
from bookie_client.writing.window import Window
from bookie_protocol.digest import Buffer, DigestManager
from bookie_protocol.errors import BadRequest, LedgerClosed, PodkeeperError

Waiter = asyncio.Future[int] | AddBatch
"""Who is told how an add ended."""

_log = get_logger(__name__)


class AddPipeline:
    """All adds of one handle, with their window. `close` it."""

    def __init__(
        self,
        context: ClientContext,
        state: AddState,
        digest: DigestManager,
        encoder: AddEncoder,
        change: EnsembleChange,
        *,
        on_failure: Callable[[PodkeeperError], None] | None = None,
    ) -> None:
        """`on_failure` is called once, after the pending adds were told."""
        self.ledger_id = state.ledger_id
        self.state = state
        self._context = context
        self._on_failure = on_failure
        options = context.options
        self._window = Window.of(options)
        self._overhead = context.pool.dialect.add_overhead + digest.overhead
        self._max_payload = options.max_frame_size - self._overhead
        self._loop = asyncio.get_running_loop()
        self._outbox = Outbox(context, state, digest, encoder, self._after_sending)
        self._changes = ChangeRunner(state, change, options.degraded_retry_interval)
        self._tasks: set[asyncio.Task[None]] = set()
        self._mending = False
        self._delivery_due = False
        self._idle = asyncio.Event()
        self._idle.set()

    # --- adding ---------------------------------------------------------------------------------------------

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
        body = payload if payload.__class__ is bytes else bytes(memoryview(payload))
        if len(body) > self._max_payload:
            raise BadRequest(
                f"ledger {self.ledger_id}: an entry of {len(body)} bytes is larger than the {self._max_payload} that"
                " fit a frame (max_frame_size): split it"
            )
        return body

    async def idle(self) -> None:
        """Wait until every add has ended and no ensemble change runs."""
        await self._idle.wait()

    def abandon(self, error: PodkeeperError) -> None:
        """Fail everything that is pending."""
        self._settle()
        self._carry_out(self.state.abandon(error))

    async def close(self) -> None:
        """End the background tasks; call it when idle, or after `abandon`."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _add(self, body: bytes, nbytes: int, waiter: Waiter) -> int:
        """Gives out the next entry id, and lets the add leave with this turn. The caller has room in the window."""
        try:
            add = self.state.begin(len(body), waiter)
        except PodkeeperError:
            self._window.release(1, nbytes)
            raise
        add.answers = self
        add.body = body
        add.nbytes = nbytes
        self._idle.clear()
        self._outbox.put(add)
        return add.entry_id

    def _add_run(self, run: list[bytes], nbytes: int, batch: AddBatch) -> int:
        """As `_add`, for many, which have taken `nbytes` of the window. Empties the run: its size now, 0."""
        if not run:
            return 0
        try:
            adds = self.state.begin_many(run, batch)
        except PodkeeperError:
            self._window.release(len(run), nbytes)
            raise
        finally:
            run.clear()
        overhead = self._overhead
        for add in adds:
            add.answers = self
            add.nbytes = len(add.body) + overhead
        batch.expect_run(adds[0].entry_id, len(adds))
        self._idle.clear()
        self._outbox.put_run(adds, nbytes)
        return 0

    def _after_sending(self) -> None:
        if self.state.late_failures:
            self._settle()
            self._carry_out(self.state.wanted_change())

    def frame(self, add: PendingAdd) -> bytes:
        """The bytes of an add that was sent before (`AddAnswers`)."""
        return self._outbox.frame(add)

    # --- answers (AddAnswers) ---------------------------------------------------------------------

    def deliver_soon(self) -> None:
        """An add can be delivered: at the end of this turn."""
        if not self._delivery_due:
            self._delivery_due = True
            self._loop.call_soon(self._deliver_due)

    def add_answered(self, add: PendingAdd) -> None:
        """A bookie answered an add that was delivered before."""
        if not add.waiting:
            add.lingering = False
            self._window.release_lingering(add.nbytes)

    def add_refused(self, add: PendingAdd, bookie: str, error: PodkeeperError) -> None:
        """A bookie did not store an add, or nobody can tell."""
        self._settle()
        outcome = self.state.refused(add, bookie, error)
        if add.lingering:
            self.add_answered(add)
        self._carry_out(outcome)

    # --- what the state machine decided ---------------------------------------------------------------------

    def _settle(self) -> None:
        """To be called before the state machine hears of anything but acknowledgements: what was submitted before
        leaves, and what was acknowledged before is delivered."""
        self._outbox.flush()
        self._deliver_due()

    def _carry_out(self, outcome: Outcome) -> None:
        for add, error in outcome.failed:
            self._fail(add, error)
        if self.state.failure is not None and self._on_failure is not None:
            told, self._on_failure = self._on_failure, None
            told(self.state.failure)
        if outcome.change is not None:
            self._spawn(self._run_change(outcome.change), "ensemble change")
        self._outbox.follow_ensemble()
        for add, position in outcome.resend:
            self._outbox.send_again(add, position)
        if outcome.deliver:
            self._deliver()
        if self.state.degraded and not self._mending and not self.state.over:
            self._mending = True
            self._spawn(self._mend(), "mending")
        if self.state.idle:
            self._idle.set()
        else:
            self._idle.clear()

    def _deliver_due(self) -> None:
        if self._delivery_due:
            self._delivery_due = False
            self._deliver()

    def _deliver(self) -> None:
        adds = self.state.deliver()
        if not adds:
            return
        nbytes = lingering = count = 0
        batch: AddBatch | None = None
        for add in adds:
            nbytes += add.nbytes
            if add.waiting:
                add.lingering = True
                lingering += add.nbytes
            waiter = add.waiter
            if waiter is batch:
                count += 1
                continue
            if batch is not None:
                batch.delivered(count)
                batch = None
            if isinstance(waiter, AddBatch):
                batch, count = waiter, 1
            elif not waiter.done():
                waiter.set_result(add.entry_id)
        if batch is not None:
            batch.delivered(count)
        self._window.release(len(adds), nbytes, lingering)
        if self.state.idle:
            self._idle.set()

    def _fail(self, add: PendingAdd, error: PodkeeperError) -> None:
        add.lingering = add.waiting > 0
        self._window.release(1, add.nbytes, add.nbytes if add.lingering else 0)
        waiter = add.waiter
        if isinstance(waiter, AddBatch):
            waiter.failed(error)
        elif not waiter.done():
            waiter.set_exception(error)
            # Whoever did not wait for this add learns it from `flush` or the end of the context.
            waiter.exception()

    async def _run_change(self, failed: Mapping[int, str]) -> None:
        try:
            ensemble = await self._changes.run(failed)
        except PodkeeperError as error:
            self.abandon(error)
            return
        if self.state.failure is not None:
            return
        self._settle()
        self._carry_out(self.state.ensemble_changed(ensemble))
        if self.state.degraded:
            bookies = sorted(self.state.degraded.values())
            _log.info("no spare bookie: writing goes on without", ledger=self.ledger_id, bookies=bookies)

    async def _mend(self) -> None:
        try:
            await mend(self._context, self.state, self._retry_degraded)
        finally:
            self._mending = False

    def _retry_degraded(self) -> None:
        self._settle()
        self._carry_out(self.state.retry_degraded())

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> None:
        task = self._loop.create_task(work, name=f"ledger {self.ledger_id}: {name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        fail_on_defect(task, self.ledger_id, name, self.abandon)
