"""The reader of a stream: ranges and tails over its ledgers.

Invariants
- Entries come in the order of the manifest, without gaps, each once. A ledger or an entry that is gone ends the
  iteration with an error; nothing is passed over.
- Nothing is fenced: of an open ledger only confirmed entries are read.
- A ledger that the list says is closed is read as long as it is listed, or it is an error.

Event loop only.

Source: docs/internals/client-protocol.md, sections 12 and 25.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Literal, cast

from bookie_client.reading.entry import LedgerEntry
from bookie_client.reading.handle import LedgerReader
from bookie_client.streams.ledgers import StreamLedgers
from bookie_client.streams.manifest import LedgerSpan, Manifest
from bookie_client.streams.model import StreamLedger, StreamPosition
from bookie_client.streams.store import ManifestStore
from bookie_client.streams.tail_cache import TailCache, position_after
from bookie_protocol.errors import BadRequest, LedgerNotClosed, NoSuchLedger, StreamPositionGone

From = StreamPosition | Literal["earliest", "latest"]
"""Start of a range: a position, the first one that can be read, or behind the last one that can be read now."""


class StreamReader:
    """Reads one stream. Made by `Streams.reader`; it holds nothing between calls."""

    def __init__(self, name: str, store: ManifestStore, ledgers: StreamLedgers, cache: TailCache | None = None) -> None:
        """`cache`: shares what tails read with other readers."""
        self._cache = cache
        self.name = name
        self._store = store
        self._ledgers = ledgers

    async def end(self) -> StreamPosition:
        """Return the end of the stream: see `Streams.end`."""
        return await self._end((await self._store.read(self.name)).manifest)

    async def batches(
        self, start: From = "earliest", to: StreamPosition | None = None
    ) -> AsyncGenerator[Sequence[LedgerEntry], None]:
        """Entries from `start` up to, not including, `to`; by default up to what can be read when the iteration begins.

        A batch is of one ledger and never empty; `position_after(batch[-1])` is where to go on. Iterating raises
        `NoSuchStream`, `StreamPositionGone` (a position, or a ledger under the reader's hands), `BadRequest` (`to` lies
        before `start`, or behind the end), and what reading a ledger raises.
        """
        manifest = (await self._store.read(self.name)).manifest
        first = await self._start(manifest, start)
        end = await self._end(manifest) if to is None else to
        for span in manifest.spans(first, end):
            async with aclosing(self._span(manifest, span)) as batches:
                async for batch in batches:
                    yield batch

    async def entries(
        self, start: From = "earliest", to: StreamPosition | None = None
    ) -> AsyncGenerator[LedgerEntry, None]:
        """The same entries one by one."""
        async with aclosing(self.batches(start, to)) as batches:
            async for batch in batches:
                for entry in batch:
                    yield entry

    async def tail(self, start: From = "latest") -> AsyncGenerator[LedgerEntry, None]:
        """Yield entries from `start` on as they become confirmed, across roll-overs and take-overs, without an end.

        The newest entry comes when the next one is written, when its writer sends it to the bookies (client option
        `explicit_lac_interval`), or when the ledger is closed. Raises as `batches`, and `NoSuchStream` when the stream
        is deleted. A caller that ends it early closes it (`contextlib.aclosing`).
        """
        if self._cache is None:
            source = self._tail(start)
        else:
            manifest = (await self._store.read(self.name)).manifest
            latest = await self._end(manifest)
            begin = latest if start == "latest" else await self._start(manifest, start)
            source = self._cache.entries(self.name, begin, latest, self._tail)
        async with aclosing(source) as entries:
            async for entry in entries:
                yield entry

    # --- inside ---------------------------------------------------------------------------------------------

    async def _tail(self, start: From) -> AsyncGenerator[LedgerEntry, None]:
        position: StreamPosition | None = None
        async with aclosing(self._store.watch(self.name)) as manifests:
            async for manifest in manifests:
                if position is None:
                    position = await self._start(manifest, start)
                for span in manifest.spans(position):
                    async with aclosing(self._follow(manifest, span)) as entries:
                        async for entry in entries:
                            position = position_after(entry)
                            yield entry
                # What the open ledger gave ends with its close; the manifest that tells of the next one comes now.

    async def _start(self, manifest: Manifest, start: From) -> StreamPosition:
        if isinstance(start, StreamPosition):
            return start
        if start == "earliest":
            return manifest.earliest
        if start == "latest":
            return await self._end(manifest)
        raise BadRequest(f"a stream is read from a position, 'earliest' or 'latest', not {start!r}")

    async def _end(self, manifest: Manifest) -> StreamPosition:
        current = manifest.open_ledger
        if current is None:
            return manifest.closed_end
        try:
            async with await self._open(manifest, current) as ledger:
                confirmed = ledger.last_add_confirmed
        except StreamPositionGone:
            # Its writer has dropped it, empty, since the manifest was read.
            return manifest.closed_end
        return StreamPosition(current.ledger_id, confirmed + 1) if confirmed >= 0 else manifest.closed_end

    async def _span(self, manifest: Manifest, span: LedgerSpan) -> AsyncGenerator[Sequence[LedgerEntry], None]:
        async with await self._open(manifest, span.ledger) as ledger:
            try:
                async with aclosing(ledger.batches(span.first, span.last)) as batches:
                    async for batch in batches:
                        yield batch
            except NoSuchLedger as error:
                raise self._gone(span.ledger) from error

    async def _follow(self, manifest: Manifest, span: LedgerSpan) -> AsyncGenerator[LedgerEntry, None]:
        """A closed ledger to its end, an open one until it is closed."""
        try:
            ledger = await self._open(manifest, span.ledger)
        except StreamPositionGone:
            if span.last is None and span.first == 0 and not await self._is_listed(span.ledger):
                return  # dropped, empty, since the manifest was read; the next one tells
            raise
        async with ledger:
            try:
                async with aclosing(cast("AsyncGenerator[LedgerEntry, None]", ledger.tail(span.first))) as entries:
                    async for entry in entries:
                        yield entry
            except NoSuchLedger as error:
                empty = span.last is None and ledger.last_add_confirmed < span.first
                if empty and not await self._is_listed(span.ledger):
                    return
                raise self._gone(span.ledger) from error

    async def _is_listed(self, ledger: StreamLedger) -> bool:
        """Now. A stream drops a ledger from its list before it deletes it: one that is listed was deleted by others."""
        return ledger.ledger_id in (await self._store.read(self.name)).manifest

    async def _open(self, manifest: Manifest, ledger: StreamLedger) -> LedgerReader:
        try:
            opened = await self._ledgers.open(ledger.ledger_id, manifest.settings)
        except NoSuchLedger as error:
            raise self._gone(ledger) from error
        if ledger.entries is None or (opened.is_closed and opened.metadata.last_entry_id + 1 == ledger.entries):
            return opened
        await opened.close()
        if not opened.is_closed:
            raise LedgerNotClosed(
                f"ledger {ledger.ledger_id} is not closed, and stream {self.name} lists it with {ledger.entries}"
                " entries: it is being restored; wait for the job `restore`, or run it again if it was interrupted"
            )
        raise StreamPositionGone(
            f"ledger {ledger.ledger_id} has {opened.metadata.last_entry_id + 1} entries, and stream {self.name} lists"
            f" one with {ledger.entries}: it was deleted, and another one has its number"
        )

    def _gone(self, ledger: StreamLedger) -> StreamPositionGone:
        return StreamPositionGone(
            f"ledger {ledger.ledger_id} of stream {self.name} was deleted while the stream was read: it was truncated"
            " or overwritten, or a client deleted the ledger alone"
        )
