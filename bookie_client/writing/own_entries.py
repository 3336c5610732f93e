"""A writer's reads of its own confirmed entries.

Invariants
- Segments are those of the newer of two metadata: what the writer stored last, and what was read when entries could not
  be found where those said (re-replication moves copies, and tells no writer).
- What is read here serves reads alone: the writer goes on with what it stored itself, and learns what somebody else
  changed by its next compare-and-set.

Event loop only.

Source: reference client protocol, section 11.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

from bookie_client.context import ClientContext
from bookie_client.reading.entry import LedgerEntry
from bookie_client.reading.reader import EntryReader, batches_with_refresh, one_by_one, read_with_refresh, whole
from bookie_protocol.digest import DigestManager
from bookie_protocol.errors import MetadataError
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.interface import Versioned

Stored = Versioned[LedgerMetadata]


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
        if stored.version <= known.version:
            return False
        self._looked_up = stored
        return True
