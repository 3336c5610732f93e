"""The add pipeline: carries out what `AddState` decides, over channels and the metadata.

Invariants
- Adds end in the order of their entry ids, each once.
- Acknowledgements of one turn of the event loop are delivered together, and before anything that the same turn
  brought against the ledger takes effect.
- What comes over a connection that is new is delivered once the ledger was seen open after that (`Doubt`).
- Metadata first: nothing is sent to a replacement bookie before `change` returned the ensemble that is
  stored.
- At most one ensemble change and one task that mends degraded positions run, and both end with the pipeline.
- A defect, in one of them or in what the event loop calls, fails all pending adds, in order: no caller waits for what
  can no longer happen.

The writer passes a `change` that stores a new segment; a recovery passes one that collects segments until it
closes the ledger. Event loop only.

Source: docs/internals/client-protocol.md, sections 6, 7 and 14.7.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from functools import partial
from typing import Final

from bookie_client.connection.dialect import AddEncoder
from bookie_client.connection.request import BookieRequest
from bookie_client.context import ClientContext
from bookie_client.reading.background import defect_found, fail_on_defect
from bookie_client.writing.add_state import AddState, Outcome
from bookie_client.writing.doubt import Doubt
from bookie_client.writing.ensemble_change import ChangeRunner, EnsembleChange, mend
from bookie_client.writing.intake import AddBatch, AddIntake, Outbox
from bookie_client.writing.pending_add import AddHandle, PendingAdd
from bookie_client.writing.traced_intake import TracedIntake
from bookie_client.writing.window import Window
from bookie_protocol.digest import DigestManager
from bookie_protocol.errors import PodkeeperError, QuorumLost
from bookie_protocol.logs import get_logger

_log = get_logger(__name__)
TICKS: Final = 4
"""Ticks in one time-out."""


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
        doubt: Doubt | None = None,
    ) -> None:
        """Build a pipeline. `on_failure` is called once, after the pending adds failed.

        A recovery has no `doubt`: what other clients do to the ledger meanwhile is decided when it is closed.
        """
        self.ledger_id = state.ledger_id
        self.state = state
        self.handle = AddHandle(
            state.ledger_id,
            encoder.tail,
            state.acknowledged,
            self._acknowledged_run,
            self._deliver_soon,
            self._answered,
            self._refused,
        )
        self._context = context
        self._on_failure = on_failure
        options = context.options
        self._window = Window.of(options)
        self._loop = asyncio.get_running_loop()
        self._idle = asyncio.Event()
        self._idle.set()
        self._outbox = Outbox(context, state, digest, encoder, self._idle, self._after_sending, self._broke)
        self._pool = context.pool
        self._doubt = doubt
        self._looking = False
        self._follow_ensemble()
        self._changes = ChangeRunner(state, change, options)
        self._tasks: set[asyncio.Task[None]] = set()
        self._mending = False
        self._delivery_due = False
        overhead = context.pool.dialect.add_overhead + digest.overhead
        make = AddIntake if context.traces is None else partial(TracedIntake, context.traces)
        self.intake = make(
            self.handle, state, self._outbox, self._window, overhead=overhead, max_frame=options.max_frame_size
        )

    # --- the handle -----------------------------------------------------------------------------------------

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

    def _after_sending(self) -> None:
        if self.state.late_failures:
            self._settle()
            self._carry_out(self.state.wanted_change())

    # --- answers ---------------------------------------------------------------------------------

    def _deliver_soon(self) -> None:
        """An add can be delivered: at the end of this turn."""
        if not self._delivery_due:
            self._delivery_due = True
            self._loop.call_soon(self._deliver_turn)

    def _acknowledged_run(self, add: PendingAdd, run: Sequence[BookieRequest], at: int, bookie: str) -> int:
        """Count that a bookie stored `add`, which is `run[at]`, and the adds of this ledger behind it.

        Returns the index of the first that was not counted.
        """
        state = self.state
        end = state.acknowledged_run(add, run, at, bookie)
        if state.is_deliverable:
            self._deliver_soon()
        if self._window.lingering:
            for each in run[at:end]:
                if isinstance(each, PendingAdd) and each.lingering:
                    self._answered(each)
        return end

    def _answered(self, add: PendingAdd) -> None:
        """A bookie answered an add that was delivered before."""
        if not add.waiting:
            add.lingering = False
            self._window.release_lingering(add.nbytes)

    def _refused(self, add: PendingAdd, bookie: str, error: PodkeeperError) -> None:
        """Take that a bookie did not store an add, or that this is unknown."""
        try:
            self._settle()
            outcome = self.state.refused(add, bookie, error)
            if add.lingering:
                self._answered(add)
            self._carry_out(outcome)
        except Exception as defect:  # the connection has other requests to tell
            self._broke("taking a refusal", defect)

    # --- what the state machine decided ---------------------------------------------------------------------

    def _settle(self) -> None:
        """Send what was submitted and deliver what was acknowledged; called before the state machine gets anything
        but acknowledgements."""
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
        if self._outbox.follow_ensemble():
            self._follow_ensemble()
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

    def _deliver_turn(self) -> None:
        try:
            self._deliver_due()
        except Exception as defect:  # only the event loop would get it
            self._broke("delivering", defect)

    def _deliver_due(self) -> None:
        if self._delivery_due:
            self._delivery_due = False
            self._deliver()

    def _deliver(self) -> None:
        doubt = self._doubt
        if doubt is not None and doubt.settled != self._pool.connections and doubt.arises():
            if not self._looking and self.state.is_deliverable:
                self._looking = True
                self._spawn(self._look(doubt), "look at the metadata")
            return
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

    def _follow_ensemble(self) -> None:
        if self._doubt is not None:
            self._doubt.follow(self._outbox.channels)

    async def _look(self, doubt: Doubt) -> None:
        try:
            await doubt.settle()
        except PodkeeperError as error:
            self.abandon(error)
            return
        finally:
            self._looking = False
        self._deliver_soon()

    def _fail(self, add: PendingAdd, error: PodkeeperError) -> None:
        add.lingering = add.waiting > 0
        self._window.release(1, add.nbytes, add.nbytes if add.lingering else 0)
        waiter = add.waiter
        if isinstance(waiter, AddBatch):
            waiter.failed(error)
        elif not waiter.done():
            waiter.set_exception(error)
            # A caller that did not wait for this add gets the error from `flush` or the end of the context.
            waiter.exception()

    def _broke(self, work: str, defect: Exception) -> None:
        """Fail the handle by a defect in what the event loop or a connection called.

        Nothing is settled any more, as that might meet the defect again. No caller waits after the handle has failed,
        so one log line stands for all later answers that meet it.
        """
        if self.state.failure is None:
            self._carry_out(self.state.abandon(defect_found(self.ledger_id, work, defect)))

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
            await mend(self._context, self.state, self._changes, self._retry_degraded, self._restored)
        finally:
            self._mending = False

    def _retry_degraded(self) -> None:
        self._settle()
        self._carry_out(self.state.retry_degraded())

    def _restored(self, position: int, bookie: str) -> None:
        self._settle()
        self._carry_out(self.state.restored(position, bookie))

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> None:
        task = self._loop.create_task(work, name=f"ledger {self.ledger_id}: {name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        fail_on_defect(task, self.ledger_id, name, self.abandon)


class AddAges:
    """Which add is older than `TICKS` ticks. Pure."""

    def __init__(self) -> None:
        self._pushed: deque[int] = deque(maxlen=TICKS + 1)

    def tick(self, last_pushed: int, last_delivered: int) -> int | None:
        """The oldest add that was given out at least `TICKS` ticks ago and is not delivered; None if there is
        none."""
        self._pushed.append(last_pushed)
        if len(self._pushed) <= TICKS or last_delivered >= self._pushed[0]:
            return None
        return last_delivered + 1


async def watch_quorum(pipeline: AddPipeline, timeout: float) -> None:
    """Watch the ages of adds until the handle cannot write any more; `timeout` in seconds."""
    state = pipeline.state
    ages = AddAges()
    while not state.over:
        await asyncio.sleep(timeout / TICKS)
        entry_id = ages.tick(state.last_pushed, state.delivered.entry_id)
        if entry_id is not None and not state.over:
            pipeline.abandon(
                QuorumLost(
                    f"entry {entry_id} did not reach its ack quorum of {state.quorums.ack} in {timeout:g} s"
                    " (add_quorum_timeout)"
                )
            )
