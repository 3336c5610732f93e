"""The handles of writers: their common base (state, own reads, force, close), and the one that assigns ids.

Invariants
- Appends are acknowledged, or fail, in the order of their entry ids.
- An append that failed, or that was cancelled after it was sent, may still be in the ledger: its outcome is unknown
  until the ledger is closed.
- After `close` returned the metadata names the end of the ledger.
- A read of its own confirmed entries goes by the segments of the newer of two metadata: what the writer stored last,
  and what was read when entries could not be found where those said (re-replication moves copies without notifying the
  writer).
- What was read for that serves reads alone: the writer goes on with what it stored itself, and learns what another
  client changed by its next compare-and-set.
- A force covers what was delivered before it began, and only when every bookie of the ensemble answered.
- A bookie that is restarted has lost what it had acknowledged and not synced, and knows nothing of it: it would
  answer a force all the same. So a handle that has entries of that kind ends with the connection (`UnsyncedWatch`).

Event loop only.

Source: docs/internals/client-protocol.md, sections 3 and 6 to 11.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Mapping
from functools import partial
from types import TracebackType
from typing import Self

from bookie_client.context import ClientContext
from bookie_client.distribution import Quorums
from bookie_client.metadata_update import update_metadata
from bookie_client.reading.background import fail_on_defect
from bookie_client.reading.entry import LedgerEntry
from bookie_client.reading.reader import EntryReader, batches_with_refresh, one_by_one, read_with_refresh, whole
from bookie_client.writing.add_state import AddState
from bookie_client.writing.doubt import Doubt
from bookie_client.writing.ensemble_change import (
    Refusals,
    change_needed,
    check_open,
    close_needed,
    find_spares,
    replace_bookies,
    with_new_ensemble,
)
from bookie_client.writing.explicit_lac import ExplicitLac
from bookie_client.writing.fault_domains import make_add_state
from bookie_client.writing.pipeline import AddPipeline, watch_quorum
from bookie_protocol.digest import Buffer, DigestManager
from bookie_protocol.errors import (
    LedgerClosed,
    MetadataError,
    MetadataNotFound,
    MetadataReplaced,
    MetadataUnavailable,
    PodkeeperError,
    QuorumLost,
    fresh,
)
from bookie_protocol.keys import life_of
from bookie_protocol.lasting import Ending
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.logs import get_logger
from bookie_protocol.metadata_service.interface import LedgerLife, Versioned

_log = get_logger(__name__)
Stored = Versioned[LedgerMetadata]


class WriteHandle:
    """Base of the writers' handles."""

    def __init__(
        self,
        context: ClientContext,
        metadata: Versioned[LedgerMetadata],
        digest: DigestManager,
        master_key: bytes,
        *,
        connections: int,
        deferred_sync: bool = False,
        restored: bool = False,
        may_be_used_again: bool = False,
    ) -> None:
        """`connections`: so many had the pool made before the ledger was created. `may_be_used_again`: True if the
        caller chose the id, so that bookies have to know the life. The cluster gives each id once."""
        value = metadata.value
        options = context.options
        self.ledger_id = value.ledger_id
        self._context = context
        self._metadata = metadata
        quorums = Quorums.of(value)
        self._state = make_add_state(
            context, value.ledger_id, quorums, value.last_ensemble, deferred_sync=deferred_sync
        )
        life = LedgerLife.of(metadata)
        if not may_be_used_again:
            life = life.unnamed()
        encoder = context.pool.dialect.add_encoder(life, master_key, restored=restored, deferred_sync=deferred_sync)
        self._doubt = Doubt(context.pool, self._look, connections, options.degraded_retry_interval)
        self._pipeline = AddPipeline(
            context,
            self._state,
            digest,
            encoder,
            self._change_ensemble,
            on_failure=self._appending_failed,
            doubt=self._doubt,
        )
        self._reader = OwnEntries(context, lambda: self._metadata, digest)
        # If it is unknown what is stored, the next call tries again: the end is decided by then, and the same
        # compare-and-set loses against whatever was stored meanwhile, and then finds it.
        self._ending = Ending(f"close {self.ledger_id}", again=lambda error: isinstance(error, MetadataUnavailable))
        self._forces: set[asyncio.Task[None]] = set()
        self._background: list[asyncio.Task[None]] = []
        if options.add_quorum_timeout is not None:
            self._run(watch_quorum(self._pipeline, options.add_quorum_timeout), "quorum time-out")
        if options.explicit_lac_interval is not None:
            announcer = ExplicitLac(context, self._state, digest, master_key, life_of(life.token))
            self._run(announcer.run(options.explicit_lac_interval), "explicit LAC")
        self._unsynced = UnsyncedWatch(context, self._state, self._may_have_lost) if deferred_sync else None
        context.open_handles.add(self._abandon)

    # --- what can be asked ----------------------------------------------------------------------------------

    @property
    def metadata(self) -> LedgerMetadata:
        """The metadata as this writer last stored it."""
        return self._metadata.value

    @property
    def stored(self) -> Versioned[LedgerMetadata]:
        """The metadata as this writer last stored it, with what they are in the metadata service."""
        return self._metadata

    @property
    def is_closed(self) -> bool:
        """Return True once this writer has stored the end of the ledger."""
        return self._metadata.value.is_closed

    @property
    def last_add_confirmed(self) -> int:
        """The highest entry id such that it and all before are acknowledged, and with deferred sync forced;
        -1 if none."""
        return self._state.lac

    @property
    def last_add_pushed(self) -> int:
        """The highest entry id that was sent."""
        return self._state.last_pushed

    @property
    def length(self) -> int:
        """Payload bytes of all entries up to `last_add_confirmed`."""
        return self._state.confirmed_length

    @property
    def pending(self) -> int:
        """Appends that are neither acknowledged nor failed."""
        return self._state.pending

    @property
    def ensemble_changes(self) -> int:
        """Return the number of times this writer began to replace failed bookies."""
        return self._state.ensemble_changes

    @property
    def degraded(self) -> Mapping[int, str]:
        """Positions that get no entries at present: their bookie failed and there is no spare."""
        return dict(self._state.degraded)

    @property
    def failure(self) -> PodkeeperError | None:
        """Return the error that ended appending before `close`; None if there was none."""
        return self._state.failure

    # --- what is sent ---------------------------------------------------------------------------------------

    async def flush(self) -> None:
        """Wait until everything submitted has ended. Raises what ended appending, if something did."""
        await self._pipeline.idle()
        if self._state.failure is not None:
            raise fresh(self._state.failure)

    async def force(self) -> None:
        """Make durable what was acknowledged before this call, and move `last_add_confirmed` there.

        Only with deferred sync there is something to do. Raises `LedgerClosed`, or the error of a bookie: every
        bookie of the ensemble has to answer, and the call may be repeated.
        """
        if self._state.failure is not None or self._state.closing:
            raise LedgerClosed(f"ledger {self.ledger_id}: this handle is closed, or failed: {self._state.failure}")
        task = asyncio.get_running_loop().create_task(
            force_ledger(self._context, self._state), name=f"ledger {self.ledger_id}: force"
        )
        self._forces.add(task)
        task.add_done_callback(self._forces.discard)
        try:
            await task
        finally:
            del task  # its error's frames, this one among them, would keep it

    # --- reading what is confirmed --------------------------------------------------------------------------

    async def read(self, first: int, last: int) -> list[LedgerEntry]:
        """Entries `first` to `last`, both included, up to `last_add_confirmed`. Raises as `LedgerReader.entries`."""
        return await self._reader.read(first, last, bound=self._state.lac)

    def entries(self, first: int = 0, last: int | None = None) -> AsyncIterator[LedgerEntry]:
        """Iterate over entries in order, by default up to `last_add_confirmed` as it is now. Raises as
        `LedgerReader.entries`."""
        end = self._state.lac if last is None else last
        return self._reader.entries(first, end, bound=self._state.lac)

    # --- closing --------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Wait for pending appends to end, then store the end of the ledger in its metadata.

        Calling it again, also at the same time, gives the first call's result; cancelling a call does not stop the
        closing. Raises `MetadataVersionConflict` when another client has closed the ledger at another end,
        `MetadataNotFound` when it was deleted, `MetadataReplaced` when it was deleted and a different ledger now has
        its id, which stays as it is, `MetadataUnavailable` when the outcome is unknown: then the next call tries again,
        also when the end was stored and only the answer got lost. An earlier failure of appends is not raised again:
        the ledger is closed behind the last confirmed entry. With deferred sync, entries that were not forced are cut
        off.
        """
        await self._ending.reach(self._close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close. Raises what ended appending, so that no append fails unseen; an error of the body goes
        first."""
        try:
            await self.close()
        except PodkeeperError as problem:
            if error is None:
                raise
            _log.warning("ledger could not be closed", ledger=self.ledger_id, error=str(problem))
        if error is None and self._state.failure is not None:
            raise fresh(self._state.failure)

    async def _close(self) -> None:
        state = self._state
        state.stop()
        self._refuse_held(LedgerClosed(f"ledger {self.ledger_id}: closed before all entries in front of it came"))
        await self._pipeline.idle()
        if self._forces:
            await asyncio.wait(self._forces)
        await self._end_background()
        if state.delivered.entry_id > state.lac:
            unforced = state.delivered.entry_id - state.lac
            _log.warning("closed without force: entries are cut off", ledger=self.ledger_id, entries=unforced)
        lac, length = state.lac, state.confirmed_length
        try:
            self._metadata = await update_metadata(
                self._context.ledgers,
                self._metadata,
                lambda metadata: close_needed(metadata, lac, length),
                lambda metadata: metadata.closed(lac, length),
            )
        except (MetadataNotFound, MetadataReplaced):
            self._pipeline.handle.is_retracted = True
            raise

    async def _abandon(self) -> None:
        """The client closes while this handle is open: nothing more can be sent, and the ledger is left as it
        is."""
        self._pipeline.abandon(LedgerClosed("the client was closed before this ledger"))
        await self._end_background()

    async def _end_background(self) -> None:
        self._context.open_handles.discard(self._abandon)
        if self._unsynced is not None:
            self._unsynced.close()
        for task in self._background:
            task.cancel()
        if self._background:
            await asyncio.wait(self._background)
        await self._pipeline.close()

    def _run(self, work: Coroutine[None, None, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work, name=f"ledger {self.ledger_id}: {name}")
        self._background.append(task)
        fail_on_defect(task, self.ledger_id, name, self._pipeline.abandon)

    def _may_have_lost(self, bookie: str) -> None:
        self._pipeline.abandon(
            QuorumLost(
                f"connection to bookie {bookie} lost: entries above {self._state.lac} were not forced, and a bookie "
                "that was restarted has lost them"
            )
        )

    def _appending_failed(self, error: PodkeeperError) -> None:
        self._refuse_held(error)

    def _refuse_held(self, error: PodkeeperError) -> None:
        """Fail what was given to this handle and not sent yet."""

    # --- the metadata ---------------------------------------------------------------------------------------

    async def _look(self) -> None:
        """Raises what ends the writing if the ledger is not this writer's any more."""
        stored = await self._context.ledgers.read(self.ledger_id, fresh=True)
        if LedgerLife.of(stored) != LedgerLife.of(self._metadata):
            raise LedgerClosed(f"ledger {self.ledger_id} was deleted, and another client made one of this id")
        check_open(stored.value)

    async def _change_ensemble(self, failed: Mapping[int, str], refusals: Refusals) -> tuple[str, ...]:
        context = self._context
        lac = self._state.lac
        quorums, may_acknowledge = self._state.quorums, self._state.may_acknowledge
        spares = await find_spares(context, quorums, self.metadata.last_ensemble, failed, refusals, may_acknowledge)
        connections, before = context.pool.connections, self._metadata

        def replaced(metadata: LedgerMetadata) -> tuple[str, ...]:
            return replace_bookies(
                metadata.last_ensemble, failed, quorums, spares, context.placement, context.random, may_acknowledge
            ).ensemble

        def needed(metadata: LedgerMetadata) -> bool:
            return change_needed(metadata, failed) and replaced(metadata) != metadata.last_ensemble

        self._metadata = await update_metadata(
            context.ledgers,
            self._metadata,
            needed,
            lambda metadata: with_new_ensemble(metadata, lac, replaced(metadata)),
        )
        if self._metadata is not before:  # stored, in a ledger that is open
            self._doubt.seen_open(connections)
        return self.metadata.last_ensemble


class LedgerWriter(WriteHandle):
    """Appends to one ledger. Made by `Client.create`; use it as an async context manager, or call `close`.

    Only the client that created a ledger writes it, and only through one handle.
    """

    async def append(self, payload: Buffer) -> int:
        """Append one entry and return its id once the ack quorum has it.

        Raises `QuorumLost` (too few bookies are left), `LedgerFenced` (another client is recovering the
        ledger), `Unauthorized` (another password), `LedgerClosed`, or a `MetadataError` of an ensemble
        change. The handle takes no more entries then, and whether this one survives is unknown. `BadRequest`:
        the entry does not fit a frame; nothing was sent.

        Cancelling, as `asyncio.timeout` does, takes back an entry that still waits for room in the window. One that was
        sent goes on, and may be acknowledged without a caller that learns it.
        """
        return await (self._pipeline.intake.try_submit(payload) or await self._pipeline.intake.submit(payload))

    async def submit(self, payload: Buffer) -> asyncio.Future[int]:
        """Send one entry; returns a future of its id that resolves as `append` does.

        Waits only while the window is full (`write_window_entries`, `write_window_bytes`), so a loop over
        `submit` keeps the pipeline full and memory bounded. Calls made one after the other get ascending ids.
        """
        return self._pipeline.intake.try_submit(payload) or await self._pipeline.intake.submit(payload)

    async def submit_many(self, payloads: Iterable[Buffer]) -> asyncio.Future[list[int]]:
        """Send entries in order, as `submit` does; one future for all of them, which costs much less.
        It resolves with their ids, in order, or with the first error. Raises `BadRequest` (an entry fits no frame) and
        `LedgerClosed`; what was sent before goes on."""
        return await self._pipeline.intake.submit_many(payloads)

    async def append_many(self, payloads: Iterable[Buffer]) -> list[int]:
        """Append entries in order, pipelined; returns their ids once all are acknowledged. Raises as
        `append`."""
        return await (await self._pipeline.intake.submit_many(payloads))


class OwnEntries:
    """Reads the entries of one writer's handle. `written` gives the metadata as the writer stored them last."""

    def __init__(self, context: ClientContext, written: Callable[[], Stored], digest: DigestManager) -> None:
        self._context = context
        self._written = written
        self._looked_up: Stored | None = None
        self._reader = EntryReader(context, lambda: self._newest().value, digest)

    async def read(self, first: int, last: int, *, bound: int) -> list[LedgerEntry]:
        """Raises as `EntryReader.batches`."""
        return await read_with_refresh(self._reader, first, last, whole, bound=bound, refresh=self._refresh)

    def entries(self, first: int, last: int, *, bound: int) -> AsyncIterator[LedgerEntry]:
        """Raises as `EntryReader.batches`."""
        return one_by_one(batches_with_refresh(self._reader, first, last, bound=bound, refresh=self._refresh))

    def _newest(self) -> Stored:
        written, looked_up = self._written(), self._looked_up
        return looked_up if looked_up is not None and looked_up.version > written.version else written

    async def _refresh(self) -> bool:
        known = self._newest()
        try:
            stored = await self._context.ledgers.read(known.value.ledger_id)
        except MetadataError:
            return False
        if LedgerLife.of(stored) != LedgerLife.of(known) or stored.version <= known.version:
            return False
        self._looked_up = stored
        return True


class UnsyncedWatch:
    """Tells `on_loss`, with the bookie's id, when a connection is lost to a bookie that holds entries which no force
    has made durable. `close` it."""

    def __init__(self, context: ClientContext, state: AddState, on_loss: Callable[[str], None]) -> None:
        self._state = state
        self._on_loss = on_loss
        # The ensemble of a handle with deferred sync stays.
        self._told = {
            context.pool.channel(bookie, state.ledger_id): partial(self._lost, bookie) for bookie in state.ensemble
        }
        for channel, told in self._told.items():
            channel.on_lost[told] = None

    def close(self) -> None:
        """Calling it again is fine."""
        told, self._told = self._told, {}
        for channel, callback in told.items():
            del channel.on_lost[callback]

    def _lost(self, bookie: str) -> None:
        if self._state.last_pushed > self._state.lac:
            self._on_loss(bookie)


async def force_ledger(context: ClientContext, state: AddState) -> None:
    """Move the LAC to the last entry delivered so far.

    Raises the error of the first bookie, in the order of the ensemble, that did not do it; the LAC stays then.
    """
    point = state.delivered
    if point.entry_id <= state.lac:
        return
    bookies = state.ensemble
    answers = await asyncio.gather(
        *(context.operations.force_ledger(bookie, state.ledger_id) for bookie in bookies), return_exceptions=True
    )
    for bookie, answer in zip(bookies, answers, strict=True):
        if isinstance(answer, PodkeeperError):
            raise type(answer)(
                f"ledger {state.ledger_id}: entries to {point.entry_id} could not be forced, bookie {bookie}: {answer}"
            ) from answer
        if isinstance(answer, BaseException):
            try:
                raise answer
            finally:
                del answer, answers  # its frames lead here
    state.forced(point)
