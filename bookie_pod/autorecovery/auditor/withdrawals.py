"""Taking marks back when the bookies that they name are there again with their copies.

A bookie that restarts for longer than the delay leaves thousands of marks; without this every one of them is work for a
replication worker.

Invariants
- Only marks that came from absences are looked at: their findings say nothing else, and every bookie that they name is
  registered again. What a check found is never taken back here, nor is a mark without a recorded reason.
- It is done under the ledger's lock: what a worker has begun is left to it, and no worker begins meanwhile.
- A mark is taken back by the rule by which a worker takes one away (`bookie_client.healing.rule`): each finding was
  answered, and no bookie says that a copy is missing or damaged; and only if the mark was not renewed.

Event loop only.

Sources: docs/internals/metadata-layout.md, sections 10.3 and 10.4; docs/internals/auto-recovery.md, section 17.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing
from typing import Final

import structlog

from bookie_client.healing.settling import settle
from bookie_client.replication.check import LedgerChecker
from bookie_pod.autorecovery.auditor.marking import Known
from bookie_protocol.errors import MetadataDamaged, MetadataError, MetadataUnavailable, PodkeeperError
from bookie_protocol.metadata_service.findings import Reason
from bookie_protocol.metadata_service.ledger_guard import LedgerGuard
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.under_replication import UnderreplicatedLedger
from bookie_protocol.together import read_ahead

_log = structlog.get_logger(__name__)

WINDOW: Final = 16
PAUSE_SECONDS: Final = 10.0


class Withdrawals:
    """`run` until cancelled; `request` whenever bookies came back."""

    def __init__(self, service: MetadataService, checker: LedgerChecker, known: Known) -> None:
        self._service = service
        self._guard = LedgerGuard(service)
        self._checker = checker
        self._known = known
        self._wake = asyncio.Event()
        self.withdrawn = 0
        """Marks taken back so far."""
        self.is_running = False

    def request(self) -> None:
        """Bookies are back."""
        self._wake.set()

    async def run(self) -> None:
        """Take marks back until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            self.is_running = True
            try:
                await self.withdraw()
            except MetadataDamaged as error:
                _log.error("marks of bookies that are back are left to the workers", reason=str(error))
            except MetadataError as error:
                _log.warning("marks could not be looked at", reason=str(error), again_in_s=PAUSE_SECONDS)
                await asyncio.sleep(PAUSE_SECONDS)
                self._wake.set()
            finally:
                self.is_running = False

    async def withdraw(self) -> int:
        """One pass over the marks; returns how many were taken back."""
        before = self.withdrawn
        async with aclosing(read_ahead(self._candidates(), self._look, WINDOW)) as looks:
            async for _ in looks:
                pass
        if self.withdrawn > before:
            _log.info("marks were taken back: the copies are there again", marks=self.withdrawn - before)
        return self.withdrawn - before

    async def _candidates(self) -> AsyncGenerator[UnderreplicatedLedger, None]:
        async for mark in self._service.under_replication.list(self._are_back):
            if self._is_over(mark):
                yield mark

    def _is_over(self, mark: UnderreplicatedLedger) -> bool:
        """Return whether the mark names absences alone, and none that lasts."""
        absent = all(finding.reason is Reason.ABSENT for finding in mark.doubts)
        return absent and bool(mark.replicas) and self._are_back(mark.replicas)

    def _are_back(self, replicas: Collection[str]) -> bool:
        return all(self._known.is_available(bookie) for bookie in replicas)

    async def _look(self, mark: UnderreplicatedLedger) -> None:
        lock = await self._guard.lock(mark.ledger_id)
        if lock is None:
            return  # a worker is at it
        async with self._guard.holding(lock):
            try:
                gone = await settle(self._service, lock, self._checker, self._is_over)
            except MetadataUnavailable:
                raise
            except PodkeeperError:
                return  # a worker sees to deleted ledgers, and to those whose state is unknown
            self.withdrawn += gone
