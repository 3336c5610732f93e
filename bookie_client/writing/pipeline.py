"""The add pipeline: carries out what `AddState` decides, over channels and the metadata.

Invariants
- Adds end in the order of their entry ids, each once.
- Metadata first: nothing is sent to a replacement bookie before `change` returned the ensemble that is
  stored.
- At most one ensemble change and one task that mends degraded positions run, and both end with the pipeline.

The writer passes a `change` that stores a new segment; a recovery passes one that collects segments until it
closes the ledger. Event loop only.

Source: reference client protocol, sections 6, 7 and 14.7.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence

import structlog

from bookie_client.connection.dialect import AddEncoder
from bookie_client.connection.pool import Channel
from bookie_client.context import ClientContext
from bookie_client.writing.add_request import AddRequest
from bookie_client.writing.add_state import AddState, Outcome
from bookie_client.writing.pending_add import PendingAdd
from bookie_client.writing.spares import find_spares
from bookie_client.writing.window import Window
from bookie_protocol.digest import Buffer, DigestManager
from bookie_protocol.errors import BadRequest, BookieUnavailable, PodkeeperError

EnsembleChange = Callable[[Mapping[int, str]], Awaitable[tuple[str, ...]]]
"""Replace these failed bookies (position -> bookie) from LAC + 1 on; returns the ensemble that holds from
there on, which is the old one when there is no spare bookie. Raises when the ledger cannot be written any
more."""

_log = structlog.get_logger(__name__)


class AddPipeline:
    """All adds of one handle, with their window. `close` it."""

    def __init__(
        self,
        context: ClientContext,
        state: AddState,
        digest: DigestManager,
        encode: AddEncoder,
        change: EnsembleChange,
    ) -> None:
        self.ledger_id = state.ledger_id
        self.state = state
        self._context = context
        self._digest = digest
        self._encode = encode
        self._change = change
        options = context.options
        self._window = Window(options.write_window_entries, options.write_window_bytes, options.write_linger_bytes)
        self._overhead = context.pool.dialect.add_overhead + digest.overhead
        self._max_payload = options.max_frame_size - self._overhead
        self._loop = asyncio.get_running_loop()
        self._ensemble: tuple[str, ...] = ()
        self._channels: list[Channel] = []
        self._follow_ensemble()
        self._tasks: set[asyncio.Task[None]] = set()
        self._mending = False
        self._idle = asyncio.Event()
        self._idle.set()

    # --- adding ---------------------------------------------------------------------------------------------

    async def submit(self, payload: Buffer) -> asyncio.Future[int]:
        """Send one entry as soon as the window has room; the future resolves with its id, or its error."""
        size = payload.nbytes if isinstance(payload, memoryview) else len(payload)
        if size > self._max_payload:
            raise BadRequest(
                f"ledger {self.ledger_id}: an entry of {size} bytes is larger than the {self._max_payload} that fit a"
                " frame (max_frame_size): split it"
            )
        nbytes = size + self._overhead
        if not self._window.try_acquire(nbytes):
            await self._window.acquire(nbytes)
        state = self.state
        waiter: asyncio.Future[int] = self._loop.create_future()
        try:
            add = state.begin(size, waiter)
        except PodkeeperError:
            self._window.release(nbytes, lingers=False)
            raise
        add.nbytes = nbytes
        entry = self._digest.encode(self.ledger_id, add.entry_id, state.lac, add.length, payload)
        add.key, add.frame = self._encode(next(self._context.transactions), add.entry_id, entry)
        self._idle.clear()
        for position in state.targets(add):
            self._send(add, position)
        if state.late_failures:
            self._carry_out(state.wanted_change())
        return waiter

    async def idle(self) -> None:
        """Wait until every add has ended and no ensemble change runs."""
        await self._idle.wait()

    def abandon(self, error: PodkeeperError) -> None:
        """Fail everything that is pending."""
        self._carry_out(self.state.abandon(error))

    async def close(self) -> None:
        """End the background tasks; call it when idle, or after `abandon`."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _send(self, add: PendingAdd, position: int) -> None:
        add.outstanding += 1
        channel = self._channels[position]
        channel.send_add(add.frame, add.key, AddRequest(self, add, position, channel.bookie_id))

    # --- answers (called by AddRequest) ---------------------------------------------------------------------

    def add_acknowledged(self, add: PendingAdd, position: int, bookie: str) -> None:
        """A bookie stored an add."""
        add.outstanding -= 1
        if add.lingering:
            self._end_lingering(add)
            return
        delivered = self.state.acknowledged(add, position, bookie)
        if delivered:
            self._deliver(delivered)

    def add_refused(self, add: PendingAdd, position: int, bookie: str, error: PodkeeperError) -> None:
        """A bookie did not store an add, or nobody can tell."""
        add.outstanding -= 1
        if add.lingering:
            self._end_lingering(add)
        self._carry_out(self.state.refused(add, position, bookie, error))

    def _end_lingering(self, add: PendingAdd) -> None:
        if add.outstanding == 0:
            add.lingering = False
            self._window.release_lingering(add.nbytes)

    # --- what the state machine decided ---------------------------------------------------------------------

    def _carry_out(self, outcome: Outcome) -> None:
        for add, error in outcome.failed:
            self._end(add)
            if not add.waiter.done():
                add.waiter.set_exception(error)
                # Whoever did not wait for this add learns it from `flush` or the end of the context.
                add.waiter.exception()
        if outcome.change is not None:
            self._spawn(self._run_change(outcome.change), "ensemble change")
        self._follow_ensemble()
        for add, position in outcome.resend:
            self._send(add, position)
        self._deliver(outcome.delivered)
        if self.state.degraded and not self._mending and not self._over:
            self._mending = True
            self._spawn(self._mend(), "mending")
        if not self.state.idle:
            self._idle.clear()

    def _deliver(self, adds: Sequence[PendingAdd]) -> None:
        for add in adds:
            self._end(add)
            if not add.waiter.done():
                add.waiter.set_result(add.entry_id)
        if self.state.idle:
            self._idle.set()

    def _end(self, add: PendingAdd) -> None:
        add.lingering = add.outstanding > 0
        self._window.release(add.nbytes, lingers=add.lingering)

    def _follow_ensemble(self) -> None:
        if self._ensemble != self.state.ensemble:
            self._ensemble = self.state.ensemble
            self._channels = [self._context.pool.channel(bookie) for bookie in self._ensemble]

    async def _run_change(self, failed: Mapping[int, str]) -> None:
        _log.info("ensemble change", ledger=self.ledger_id, failed=sorted(failed.values()), after=self.state.lac)
        try:
            ensemble = await self._change(failed)
        except PodkeeperError as error:
            _log.warning("ledger cannot be written any more", ledger=self.ledger_id, error=str(error))
            self._carry_out(self.state.change_failed(error))
        else:
            self._carry_out(self.state.ensemble_changed(ensemble))
            if self.state.degraded:
                bookies = sorted(self.state.degraded.values())
                _log.info("no spare bookie: writing goes on without", ledger=self.ledger_id, bookies=bookies)

    # --- degraded positions ---------------------------------------------------------------------------------

    async def _mend(self) -> None:
        """While positions are degraded: replace them when a spare appears, use their bookies again when they
        return."""
        try:
            while self.state.degraded and not self._over:
                await self._context.bookies.changed(self._context.options.degraded_retry_interval)
                await self._mend_once()
        finally:
            self._mending = False

    async def _mend_once(self) -> None:
        try:
            writable = await self._context.bookies.writable()
            spare_exists = await self._spare_exists()
        except PodkeeperError:
            return  # nobody can tell; the next round asks again
        if spare_exists:
            self._carry_out(self.state.retry_degraded())
            return
        for position, bookie in list(self.state.degraded.items()):
            if bookie not in writable:
                continue
            try:
                await self._channels[position].connect()
            except BookieUnavailable:
                continue
            self.state.restored(position, bookie)

    async def _spare_exists(self) -> bool:
        # Looked for before the change begins, because nothing is acknowledged while one runs.
        degraded = dict(self.state.degraded)
        spares = await find_spares(self._context, self.state.quorums, self.state.ensemble, degraded)
        return bool(spares.writable)

    @property
    def _over(self) -> bool:
        return self.state.failure is not None or (self.state.closing and self.state.idle)

    def _spawn(self, work: Coroutine[None, None, None], name: str) -> None:
        task = self._loop.create_task(work, name=f"ledger {self.ledger_id}: {name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
