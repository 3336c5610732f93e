"""The writer's handle: pipelined appends, reads of what is confirmed, close.

Invariants
- Appends are acknowledged, or fail, in the order of their entry ids.
- An append that failed may still be in the ledger: its outcome is unknown until the ledger is closed.
- After `close` returned the metadata names the end of the ledger.

Event loop only.

Source: reference client protocol, sections 3, 6, 7 and 8.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from types import TracebackType

import structlog

from bookie_client.context import ClientContext
from bookie_client.distribution import Quorums
from bookie_client.metadata_update import update_metadata
from bookie_client.reading.entry import LedgerEntry
from bookie_client.reading.reader import EntryReader
from bookie_client.writing.add_state import AddState
from bookie_client.writing.ensemble_change import (
    change_needed,
    close_needed,
    replace_bookies,
    with_new_ensemble,
)
from bookie_client.writing.pipeline import AddPipeline
from bookie_client.writing.spares import find_spares
from bookie_protocol.digest import Buffer, DigestManager
from bookie_protocol.errors import LedgerClosed, PodkeeperError
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.interface import Versioned

_log = structlog.get_logger(__name__)


class LedgerWriter:
    """Appends to one ledger. Made by `Client.create`; use it as an async context manager, or call `close`.

    Only the client that created a ledger writes it, and only through one handle.
    """

    def __init__(
        self,
        context: ClientContext,
        metadata: Versioned[LedgerMetadata],
        digest: DigestManager,
        master_key: bytes,
    ) -> None:
        value = metadata.value
        options = context.options
        self.ledger_id = value.ledger_id
        self._context = context
        self._metadata = metadata
        quorums = Quorums(value.ensemble_size, value.write_quorum_size, value.ack_quorum_size)
        self._state = AddState(
            value.ledger_id,
            quorums,
            value.last_ensemble,
            delay_ensemble_change=options.delay_ensemble_change,
            max_ensemble_changes=options.max_ensemble_changes,
        )
        encoder = context.pool.dialect.add_encoder(self.ledger_id, master_key)
        self._pipeline = AddPipeline(context, self._state, digest, encoder, self._change_ensemble)
        self._reader = EntryReader(context, lambda: self.metadata, digest)
        self._closing: asyncio.Task[None] | None = None
        context.open_handles.add(self._abandon)

    # --- what can be asked ----------------------------------------------------------------------------------

    @property
    def metadata(self) -> LedgerMetadata:
        """The metadata as this writer last stored it."""
        return self._metadata.value

    @property
    def is_closed(self) -> bool:
        return self._metadata.value.is_closed

    @property
    def last_add_confirmed(self) -> int:
        """The highest entry id such that it and all before are acknowledged; -1 if none."""
        return self._state.lac

    @property
    def last_add_pushed(self) -> int:
        """The highest entry id given out."""
        return self._state.last_pushed

    @property
    def length(self) -> int:
        """Payload bytes of all acknowledged entries."""
        return self._state.confirmed_length

    @property
    def pending(self) -> int:
        """Appends that are neither acknowledged nor failed."""
        return self._state.pending

    @property
    def ensemble_changes(self) -> int:
        """How often this writer set out to replace failed bookies."""
        return self._state.ensemble_changes

    @property
    def degraded(self) -> Mapping[int, str]:
        """Positions that get no entries at present: their bookie failed and there is no spare."""
        return dict(self._state.degraded)

    @property
    def failure(self) -> PodkeeperError | None:
        """What ended appending before `close` did; None if nothing."""
        return self._state.failure

    # --- appending ------------------------------------------------------------------------------------------

    async def append(self, payload: Buffer) -> int:
        """Append one entry and return its id once the ack quorum has it.

        Raises `QuorumLost` (too few bookies are left), `LedgerFenced` (another client is recovering the
        ledger), `Unauthorized` (another password), `LedgerClosed`, or a `MetadataError` of an ensemble
        change. The handle takes no more entries then, and whether this one survives is unknown. `BadRequest`:
        the entry does not fit a frame; nothing was sent. Cancelling does not take an entry back.
        """
        return await (await self._pipeline.submit(payload))

    async def submit(self, payload: Buffer) -> asyncio.Future[int]:
        """Send one entry; returns a future of its id that resolves as `append` does.

        Waits only while the window is full (`write_window_entries`, `write_window_bytes`), so a loop over
        `submit` keeps the pipeline full and memory bounded. Calls made one after the other get ascending ids.
        """
        return await self._pipeline.submit(payload)

    async def append_many(self, payloads: Iterable[Buffer]) -> list[int]:
        """Append entries in order, pipelined; returns their ids once all are acknowledged."""
        futures = [await self._pipeline.submit(payload) for payload in payloads]
        return [await future for future in futures]

    async def flush(self) -> None:
        """Wait until everything submitted has ended. Raises what ended appending, if something did."""
        await self._pipeline.idle()
        if self._state.failure is not None:
            raise self._state.failure

    # --- reading what is confirmed --------------------------------------------------------------------------

    async def read(self, first: int, last: int) -> list[LedgerEntry]:
        """Entries `first` to `last`, both included, up to `last_add_confirmed`."""
        return [entry async for entry in self.entries(first, last)]

    def entries(self, first: int = 0, last: int | None = None) -> AsyncIterator[LedgerEntry]:
        """Iterate over entries in order, by default up to `last_add_confirmed` as it is now."""
        end = self._state.lac if last is None else last
        return self._reader.entries(first, end, bound=self._state.lac)

    # --- closing --------------------------------------------------------------------------------------------

    async def close(self) -> None:
        """Wait for pending appends to end, then store the end of the ledger in its metadata.

        Calling it again waits for the same result. Raises `MetadataVersionConflict` when another client has
        closed the ledger at another end, `MetadataNotFound` when it was deleted, `MetadataUnavailable` when
        nobody can tell. An earlier failure of appends is not raised again: the ledger is closed behind the
        last confirmed entry.
        """
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close(), name=f"close {self.ledger_id}")
        await asyncio.shield(self._closing)

    async def __aenter__(self) -> LedgerWriter:
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
            raise self._state.failure

    async def _close(self) -> None:
        self._state.stop()
        await self._pipeline.idle()
        self._context.open_handles.discard(self._abandon)
        lac, length = self._state.lac, self._state.confirmed_length
        await self._pipeline.close()
        self._metadata = await update_metadata(
            self._context.ledgers,
            self._metadata,
            lambda metadata: close_needed(metadata, lac, length),
            lambda metadata: metadata.closed(lac, length),
        )

    async def _abandon(self) -> None:
        """The client closes while this handle is open: nothing more can be sent, and the ledger is left as it
        is."""
        self._context.open_handles.discard(self._abandon)
        self._pipeline.abandon(LedgerClosed("the client was closed before this ledger"))
        await self._pipeline.close()

    # --- ensemble change ------------------------------------------------------------------------------------

    async def _change_ensemble(self, failed: Mapping[int, str]) -> tuple[str, ...]:
        context = self._context
        lac = self._state.lac
        quorums = self._state.quorums
        spares = await find_spares(context, quorums, self.metadata.last_ensemble, failed)

        def replaced(metadata: LedgerMetadata) -> tuple[str, ...]:
            return replace_bookies(
                metadata.last_ensemble, failed, quorums, spares, context.placement, context.random
            ).ensemble

        def needed(metadata: LedgerMetadata) -> bool:
            return change_needed(metadata, failed) and replaced(metadata) != metadata.last_ensemble

        self._metadata = await update_metadata(
            context.ledgers,
            self._metadata,
            needed,
            lambda metadata: with_new_ensemble(metadata, lac, replaced(metadata)),
        )
        return self.metadata.last_ensemble
