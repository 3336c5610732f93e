"""Marks ledgers as under-replicated without disturbing the work on them.

Invariants
- A mark keeps why it was set. A ledger whose mark says already what was found is left as it is, and so is one that is
  locked: a worker is at it. Where both are true the worker may have looked before the bookie left (again): the mark is
  renewed, so that it outlives the worker's round.
- A mark or lock that cannot be read stops only the work on its own ledger: the log reports it.
- What an audit finds on a locked ledger is not forgotten: it is looked at again when the lock is gone, against the
  metadata of that moment, until it is marked, its bookie is back, or no metadata name it. At most `MAX_DEFERRED` wait;
  beyond that a ledger is marked at once, which costs a worker a second look and nothing else.

Event loop only. Raises `MetadataError`.

Sources: docs/internals/metadata-layout.md, section 10.2; docs/internals/auto-recovery.md, section 17 (marks that are
made again while a worker repairs).
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from enum import Enum
from typing import Final, Protocol

import structlog

from bookie_pod.autorecovery.auditor.schedule import Clock
from bookie_protocol.errors import MetadataDamaged, MetadataError, MetadataNotFound
from bookie_protocol.metadata_service.findings import Finding, absences, covers
from bookie_protocol.metadata_service.tree.service import MetadataService

_log = structlog.get_logger(__name__)

MAX_DEFERRED: Final = 100_000
RETRY_SECONDS: Final = 5.0


class Marked(Enum):
    """The outcome of setting a mark."""

    NEW = "marked"
    ALREADY = "marked before"
    LOCKED = "locked"
    UNREADABLE = "unreadable"
    """The mark or the lock of the ledger cannot be read; nothing was done."""


class Known(Protocol):
    """The present knowledge of bookies: `LostBookies`, whose audits mark through this module."""

    def is_lost(self, bookie: str) -> bool:
        """Its copies count as missing now."""
        ...

    def is_available(self, bookie: str) -> bool:
        """It is registered now."""
        ...


class Marker:
    """Marks; `run` sees to what was deferred. `store_time`: note when a ledger was marked.

    `known` says which bookies' copies still count as missing, and which bookies are back. A ledger of a bookie that is
    neither now, because its delay became longer or no bookie at all can be seen, waits on.
    """

    def __init__(self, service: MetadataService, clock: Clock, *, store_time: bool, known: Known) -> None:
        self._service = service
        self._marks = service.under_replication
        self._clock = clock
        self._store_time = store_time
        self._known = known
        self._deferred: dict[int, set[str]] = {}

    @property
    def deferred(self) -> int:
        """Ledgers that wait for their lock to go."""
        return len(self._deferred)

    async def mark(self, ledger_id: int, findings: Collection[Finding]) -> Marked:
        """Mark a ledger for what was found; without findings: it breaks the placement policy."""
        try:
            # The lock first: a worker that takes it from now on looks after the bookie has left. A mark that goes
            # between two of these questions goes with a look from before.
            is_locked = await self._marks.locked_by(ledger_id) is not None
            found = await self._marks.read(ledger_id)
            if found is not None and covers(found.doubts, findings):
                is_kept = not is_locked or await self._marks.renew(ledger_id)
                return Marked.ALREADY if is_kept else Marked.LOCKED
            if is_locked:
                return Marked.LOCKED
            await self._mark(ledger_id, findings)
        except MetadataDamaged as error:
            bookies = sorted({finding.bookie for finding in findings})
            _log.error("a ledger cannot be marked", ledger=ledger_id, bookies=bookies, reason=str(error))
            return Marked.UNREADABLE
        return Marked.NEW

    async def mark_lost(self, ledger_id: int, bookies: Collection[str]) -> Marked:
        """Mark the copies of lost bookies; later, if the ledger is locked."""
        findings = absences(sorted(bookies))
        result = await self.mark(ledger_id, findings)
        if result is not Marked.LOCKED:
            return result
        if ledger_id in self._deferred or len(self._deferred) < MAX_DEFERRED:
            self._deferred.setdefault(ledger_id, set()).update(bookies)
            return Marked.LOCKED
        await self._mark(ledger_id, findings)
        return Marked.NEW

    async def run(self) -> None:
        """Look again at deferred ledgers until cancelled."""
        while True:
            await asyncio.sleep(RETRY_SECONDS)
            try:
                await self.retry()
            except MetadataError as error:
                _log.info("deferred marks wait", reason=str(error), ledgers=len(self._deferred))

    async def retry(self) -> None:
        """Look once at each ledger that waits."""
        for ledger_id in list(self._deferred):
            asked = frozenset(bookie for bookie in self._deferred[ledger_id] if not self._known.is_available(bookie))
            lost = frozenset(bookie for bookie in asked if self._known.is_lost(bookie))
            waiting = asked - lost
            if lost:
                named = await self._named(ledger_id, lost)
                if named and await self.mark(ledger_id, absences(sorted(named))) is Marked.LOCKED:
                    waiting |= named
            # During the awaits others may have been added.
            left = (self._deferred[ledger_id] - asked) | waiting
            left = {bookie for bookie in left if not self._known.is_available(bookie)}
            if left:
                self._deferred[ledger_id] = left
            else:
                del self._deferred[ledger_id]

    async def _named(self, ledger_id: int, bookies: frozenset[str]) -> frozenset[str]:
        try:
            return bookies & (await self._service.ledgers.read(ledger_id)).value.all_bookies()
        except (MetadataNotFound, MetadataDamaged):
            return frozenset()  # deleted, or of no use to any worker

    async def _mark(self, ledger_id: int, findings: Collection[Finding]) -> None:
        ctime_ms = self._clock.now_ms() if self._store_time else None
        await self._marks.mark(ledger_id, ctime_ms=ctime_ms, findings=findings)
