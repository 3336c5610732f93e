"""The reader's handle of a closed ledger.

Invariants
- A closed ledger is immutable: no bookie is asked for its end, and reading never changes anything.

Event loop only.

Source: reference client protocol, sections 11 and 13.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from types import TracebackType

from bookie_client.context import ClientContext
from bookie_client.reading.entry import LedgerEntry
from bookie_client.reading.reader import EntryReader
from bookie_protocol.digest import DigestManager
from bookie_protocol.ledger_metadata.model import LedgerMetadata


class LedgerReader:
    """Reads one ledger. Made by `Client.open`; also an async context manager."""

    def __init__(self, context: ClientContext, metadata: LedgerMetadata, digest: DigestManager) -> None:
        self.ledger_id = metadata.ledger_id
        self.metadata = metadata
        self._reader = EntryReader(context, lambda: self.metadata, digest)

    @property
    def is_closed(self) -> bool:
        return self.metadata.is_closed

    @property
    def last_add_confirmed(self) -> int:
        """The last entry; -1 when the ledger is empty."""
        return self.metadata.last_entry_id

    @property
    def length(self) -> int:
        """Payload bytes of all entries."""
        return self.metadata.length

    @property
    def served_by(self) -> Mapping[str, int]:
        """How many entries each bookie served through this handle."""
        return dict(self._reader.served_by)

    @property
    def damaged_at(self) -> Mapping[str, int]:
        """How many replicas with a wrong digest each bookie gave."""
        return dict(self._reader.damaged_at)

    async def read(self, first: int, last: int) -> list[LedgerEntry]:
        """Entries `first` to `last`, both included. Raises as `entries` does; one bad entry fails the whole
        range."""
        return [entry async for entry in self.entries(first, last)]

    def entries(self, first: int = 0, last: int | None = None) -> AsyncIterator[LedgerEntry]:
        """Iterate over entries in order, by default to the end, with reads pipelined in a bounded window.

        Raises `BadRequest` for a range outside the ledger. Iterating raises when no replica can serve an
        entry: `NoSuchEntry` only when all of them say so, else what went wrong.
        """
        end = self.last_add_confirmed if last is None else last
        return self._reader.entries(first, end, bound=self.last_add_confirmed)

    async def close(self) -> None:
        """Nothing to give back: connections belong to the client."""

    async def __aenter__(self) -> LedgerReader:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
