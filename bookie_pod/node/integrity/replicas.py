"""Copies of entries on other bookies, through a client of our own.

Invariants
- Nothing is handed out whose digest was not verified with the ledger's recorded password.
- This bookie is never asked: it is the one that lacks the entry.
- A bookie that could not be reached is not asked again for `FIRST_AVOID_S`, then for twice as long each time, at most
  `AVOID_S`. Meanwhile the answer is why it could not be reached, never that it lacks an entry.

Threads: event loop.

Source: docs/internals/bookie-behaviour.md, section 8.1.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple

from bookie_client import Client, ClientOptions
from bookie_client.reading.maintenance import ReplicaReader, replicas
from bookie_client.replication.check import LedgerChecker
from bookie_client.replication.closing import close_checked
from bookie_protocol.errors import BookieUnavailable, LedgerStateUnknown, PodkeeperError
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.interface import LedgerLife
from bookie_protocol.metadata_service.tree.service import MetadataService

FIRST_AVOID_S: Final = 1.0
AVOID_S: Final = 60.0
AT_ONCE: Final = 64
"""Entries that are fetched at the same time."""


class FetchedEntry(NamedTuple):
    """One entry as another bookie stores it, or why no bookie gave it."""

    entry_id: int
    entry: bytes | None
    error: PodkeeperError | None


@dataclass(frozen=True, slots=True)
class _Avoided:
    """A bookie that could not be reached."""

    until: float
    """The end of the time, on the loop's clock."""
    pause: float
    reason: BookieUnavailable


class Replicas:
    """The other copies of the cluster. `start` before use, `close` at the end."""

    def __init__(self, metadata: MetadataService, bookie_id: str, options: ClientOptions | None = None) -> None:
        self._client = Client(metadata, options or ClientOptions())
        self._bookie_id = bookie_id
        self._avoided: dict[str, _Avoided] = {}

    async def start(self) -> None:
        """Raises MetadataUnavailable."""
        await self._client.start()

    async def close(self) -> None:
        await self._client.close()

    async def metadata(self, ledger_id: int) -> LedgerMetadata:
        """Raises LedgerDeleted, MetadataUnavailable."""
        return await self._client.metadata(ledger_id)

    async def recover(self, life: LedgerLife) -> LedgerMetadata:
        """Fence the ledger, find its end without the word of this bookie, or of another that lost data, and close it.

        Raises RecoveryFailed, LedgerDeleted, MetadataError.
        """
        return await close_checked(self._client, LedgerChecker(self._client), life)

    async def fetch(self, of: LedgerMetadata, entry_ids: Iterable[int]) -> AsyncIterator[FetchedEntry]:
        """Yield each of these entries from whichever bookie has it, in order.

        Raises LedgerDeleted, LedgerStateUnknown (another ledger has the id now), or the errors of opening the ledger.
        """
        wanted = iter(entry_ids)
        async with self._client.open(of.ledger_id, password=None) as ledger:
            reader, metadata = replicas(ledger), ledger.metadata
            if metadata.creation_token != of.creation_token:
                raise LedgerStateUnknown(f"ledger {of.ledger_id}: another ledger has this id now")
            while some := list(islice(wanted, AT_ONCE)):
                for found in await asyncio.gather(*(self._fetch_one(reader, metadata, each) for each in some)):
                    yield found

    async def _fetch_one(self, reader: ReplicaReader, metadata: LedgerMetadata, entry_id: int) -> FetchedEntry:
        others = [bookie for bookie in metadata.bookies_for(entry_id) if bookie != self._bookie_id]
        error: PodkeeperError = BookieUnavailable(f"no other bookie holds entry {entry_id} of this ledger")
        for bookie in others:
            avoided = self._avoided.get(bookie)
            if avoided is not None and asyncio.get_running_loop().time() < avoided.until:
                error = avoided.reason
                continue
            try:
                stored = await reader.read_stored(bookie, entry_id)
            except PodkeeperError as failure:
                error = failure
                if isinstance(failure, BookieUnavailable):
                    self._avoid(bookie, failure)
            else:
                self._avoided.pop(bookie, None)
                return FetchedEntry(entry_id, stored, None)
        return FetchedEntry(entry_id, None, error)

    def _avoid(self, bookie: str, reason: BookieUnavailable) -> None:
        now, known = asyncio.get_running_loop().time(), self._avoided.get(bookie)
        if known is not None and now < known.until:
            return  # a read beside this one has said so
        pause = FIRST_AVOID_S if known is None else min(2 * known.pause, AVOID_S)
        self._avoided[bookie] = _Avoided(now + pause, pause, reason)
