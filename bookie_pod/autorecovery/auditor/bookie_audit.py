"""The audit of bookies: mark every ledger that names a bookie that is lost.

Invariants
- It reads metadata only, all of it, and asks no bookie.
- A bookie that comes back while it goes on is marked no further.
- Memory is bounded: ledgers are marked as they are read, `WINDOW` at a time, in place of a map of the whole cluster.
- While auto-recovery is disabled it stands still.
- Ledgers without any entry are marked too, so that dead bookies disappear from all metadata.

Event loop only.

Source: docs/internals/auto-recovery.md, section 3.2.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Final

import structlog

from bookie_pod.autorecovery.auditor.marking import Known, Marked, Marker
from bookie_protocol.errors import MetadataDamaged, MetadataNotFound
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.tree.ledgers import LedgerStore
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.together import read_ahead

_log = structlog.get_logger(__name__)

WINDOW: Final = 256
"""Four requests to ZooKeeper, so that it reads for some while the answers of others are looked at."""


@dataclass(slots=True)
class AuditResult:
    """The result of an audit. Sizes are in bytes, times in ms."""

    ledgers: int = 0
    marked: int = 0
    marked_before: int = 0
    locked: int = 0
    damaged: int = 0
    """Ledgers whose metadata, mark or lock cannot be read."""
    marked_bytes: int = 0
    publish_ms: float = 0.0
    """Time spent on marking, all ledgers together."""
    skipped: set[str] = field(default_factory=set)
    """Bookies that were not registered, and for which a ledger was left as it is: their copies did not count as missing
    at that moment. A bookie among them does not count as audited."""
    named: Counter[str] = field(default_factory=Counter)
    """Ledgers that name each bookie that is not registered, lost or not."""

    def counts(self) -> dict[str, int]:
        """Return the counts for the record."""
        return {
            "ledgers": self.ledgers,
            "marked": self.marked,
            "marked_before": self.marked_before,
            "locked": self.locked,
            "damaged": self.damaged,
        }


class BookieAudit:
    """One pass over the metadata of all ledgers for each `run`. Raises `MetadataError`."""

    def __init__(self, service: MetadataService, marker: Marker, known: Known, enabled: asyncio.Event) -> None:
        self._service = service
        self._marker = marker
        self._known = known
        self._enabled = enabled

    async def run(self, progress: Callable[[AuditResult], None] = lambda result: None) -> AuditResult:
        """Mark what names lost bookies; `progress` sees the result grow."""
        result = AuditResult()

        async def look(ledger_id: int) -> None:
            metadata = await self._read(ledger_id, result)
            if metadata is not None:
                await self._judge(metadata, result)

        progress(result)
        async with aclosing(read_ahead(ledger_ids(self._service.ledgers), look, WINDOW)) as looks:
            async for _ in looks:
                result.ledgers += 1
        return result

    async def _read(self, ledger_id: int, result: AuditResult) -> LedgerMetadata | None:
        try:
            return (await self._service.ledgers.read(ledger_id)).value
        except MetadataNotFound:
            return None  # deleted since it was listed
        except MetadataDamaged as error:
            result.damaged += 1
            _log.error("metadata of a ledger cannot be read: the bookies that it needs are unknown", reason=str(error))
            return None

    async def _judge(self, metadata: LedgerMetadata, result: AuditResult) -> None:
        gone = [bookie for bookie in metadata.all_bookies() if not self._known.is_available(bookie)]
        if not gone:
            return
        result.named.update(gone)
        await self._enabled.wait()
        lost = [bookie for bookie in gone if self._known.is_lost(bookie)]
        result.skipped.update(set(gone) - set(lost))
        if not lost:
            return
        loop = asyncio.get_running_loop()
        began = loop.time()
        outcome = await self._marker.mark_lost(metadata.ledger_id, lost)
        result.publish_ms += (loop.time() - began) * 1000
        if outcome is Marked.NEW:
            result.marked += 1
            result.marked_bytes += metadata.length
        elif outcome is Marked.ALREADY:
            result.marked_before += 1
        elif outcome is Marked.LOCKED:
            result.locked += 1
        else:
            result.damaged += 1


async def ledger_ids(ledgers: LedgerStore, first: int = 0) -> AsyncGenerator[int, None]:
    """Ids of all ledgers from `first` on, ascending; complete, or it raises."""
    async for span in ledgers.ranges():
        if span.end < first:
            continue
        for ledger_id in span.ids:
            if ledger_id >= first:
                yield ledger_id
