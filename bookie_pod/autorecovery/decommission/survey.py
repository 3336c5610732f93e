"""What names a bookie: a full listing of the cluster's ledgers and marks, read anew.

Invariants
- Complete, or it raises: a ledger whose metadata cannot be read is an error that names it, never left out.
- Nothing comes from a cache: the listing is in step with everything written before it began.
- Memory: a few numbers for each ledger that names the bookie; `WINDOW` ledgers are being read at once.

Threads: event loop.

Source: reference auto-recovery, section 8.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection
from contextlib import aclosing
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

from bookie_protocol.errors import MetadataNotFound
from bookie_protocol.ledger_metadata.model import LedgerMetadata, LedgerState
from bookie_protocol.metadata_service.interface import MetadataService
from bookie_protocol.together import read_ahead

WINDOW: Final = 64


@dataclass(frozen=True, slots=True)
class NamingLedger:
    """A ledger that names the bookie. `nbytes`: an estimate of what is to be copied; 0 for one that is not closed."""

    ledger_id: int
    nbytes: int
    is_closed: bool


@dataclass(slots=True)
class Survey:
    """The answer. `ledgers_seen` and `marks_seen` count everything that was looked at."""

    ledgers: dict[int, NamingLedger] = field(default_factory=dict)
    marks: set[int] = field(default_factory=set)
    """Ledgers whose mark names the bookie as missing."""
    in_recovery: set[int] = field(default_factory=set)
    """Ledgers that are being recovered, whoever they name: the end of a recovery may name others."""
    ledgers_seen: int = 0
    marks_seen: int = 0
    largest_ensemble: int = 0

    @property
    def nbytes(self) -> int:
        return sum(ledger.nbytes for ledger in self.ledgers.values())

    @property
    def open_ledgers(self) -> int:
        return sum(not ledger.is_closed for ledger in self.ledgers.values())

    def left(self, accepted: Collection[int] = ()) -> set[int]:
        """Ledgers that name the bookie themselves or by their mark, without those that were given up."""
        return (self.ledgers.keys() | self.marks) - set(accepted)


async def survey(
    service: MetadataService,
    bookie_id: str,
    *,
    look: Callable[[LedgerMetadata], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Survey:
    """List what names the bookie. `look` gets the metadata of every ledger that does; `progress` how many ledgers were
    read so far. Raises `MetadataError`."""
    found = Survey()
    async with aclosing(all_ledgers(service)) as ledgers:
        async for metadata in ledgers:
            found.ledgers_seen += 1
            found.largest_ensemble = max(found.largest_ensemble, metadata.ensemble_size)
            if metadata.state is LedgerState.IN_RECOVERY:
                found.in_recovery.add(metadata.ledger_id)
            if bookie_id in metadata.all_bookies():
                nbytes = bytes_held(metadata, bookie_id)
                found.ledgers[metadata.ledger_id] = NamingLedger(metadata.ledger_id, nbytes, metadata.is_closed)
                if look is not None:
                    look(metadata)
            if progress is not None:
                progress(found.ledgers_seen)
    async for mark in service.under_replication.list():
        found.marks_seen += 1
        if bookie_id in mark.replicas or mark.damage is not None:
            found.marks.add(mark.ledger_id)
    return found


async def all_ledgers(service: MetadataService) -> AsyncGenerator[LedgerMetadata, None]:
    """The metadata of every ledger, ascending; one that is deleted meanwhile is left out. Raises `MetadataError`."""

    async def ids() -> AsyncGenerator[int, None]:
        async for span in service.ledgers.ranges():
            for ledger_id in span.ids:
                yield ledger_id

    async def read(ledger_id: int) -> LedgerMetadata | None:
        try:
            return (await service.ledgers.read(ledger_id)).value
        except MetadataNotFound:
            return None

    async with aclosing(read_ahead(ids(), read, WINDOW)) as found:
        async for metadata in found:
            if metadata is not None:
                yield metadata


def bytes_held(metadata: LedgerMetadata, bookie_id: str) -> int:
    """An estimate of the payload bytes that a bookie holds of a closed ledger, from its length and striping; 0 for one
    that is not closed, whose length nobody knows."""
    if not metadata.is_closed or metadata.last_entry_id < 0:
        return 0
    starts = (*metadata.first_entry_ids, metadata.last_entry_id + 1)
    held = 0.0
    for first, after in pairwise(starts):
        after = min(after, metadata.last_entry_id + 1)  # segments may begin behind the last entry
        if after > first and bookie_id in metadata.ensembles[first]:
            held += (after - first) * metadata.write_quorum_size / metadata.ensemble_size
    return round(metadata.length * held / (metadata.last_entry_id + 1))
