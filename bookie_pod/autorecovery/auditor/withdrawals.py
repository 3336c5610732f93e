"""Taking marks back when the bookies that they name are there again with their copies.

A bookie that restarts for longer than the delay leaves thousands of marks; without this every one of them is work for a
replication worker.

Invariants
- Only marks that came from an absence are looked at: every bookie that the mark names was absent and is registered
  again, and the mark is not older than any of these absences. What a check found is never taken back here.
- It is done under the ledger's lock: what a worker has begun is left to it, and no worker begins meanwhile.
- A mark is taken back only when a check of the ledger (first and last entry of each segment, digests verified, and of
  the named bookies what they list) finds every copy of the named bookies, and nothing that is missing or damaged
  elsewhere; and only if nobody renewed it. Lists, because a worker may have died while it filled one of them again.

Event loop only.

Sources: reference metadata layout, sections 10.3 and 10.4; reference auto-recovery, section 17.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing
from typing import Final

import structlog

from bookie_client.replication.check import LedgerReport, ReplicaVerdict
from bookie_pod.autorecovery.auditor.ledgers_check import MISSING, Checker
from bookie_pod.autorecovery.auditor.marking import Known
from bookie_protocol.errors import MetadataDamaged, MetadataError, MetadataExists, PodkeeperError
from bookie_protocol.metadata_service.interface import MetadataService
from bookie_protocol.metadata_service.under_replication import UnderreplicatedLedger
from bookie_protocol.together import read_ahead

_log = structlog.get_logger(__name__)

WINDOW: Final = 16
PAUSE_SECONDS: Final = 10.0
_SOUND: Final = frozenset({ReplicaVerdict.GOOD, ReplicaVerdict.EMPTY})


class Withdrawals:
    """`run` until cancelled; `request` whenever bookies came back."""

    def __init__(self, service: MetadataService, checker: Checker, known: Known) -> None:
        self._marks = service.under_replication
        self._checker = checker
        self._known = known
        self._since_ms: dict[str, int] = {}  # who came back, and when it had left; bounded by the number of bookies
        self._wake = asyncio.Event()
        self.withdrawn = 0
        """Marks taken back so far."""
        self.is_running = False

    def request(self, since_ms: Mapping[str, int]) -> None:
        """These are back; `since_ms`: when each had left."""
        self._since_ms.update(since_ms)
        self._wake.set()

    async def run(self) -> None:
        """Until cancelled."""
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
        async for mark in self._marks.list(self._are_back):
            left = max(self._since_ms[bookie] for bookie in mark.replicas)
            if mark.ctime_ms is None or mark.ctime_ms >= left:
                yield mark

    def _are_back(self, replicas: Collection[str]) -> bool:
        return bool(replicas) and all(
            bookie in self._since_ms and self._known.is_available(bookie) for bookie in replicas
        )

    async def _look(self, mark: UnderreplicatedLedger) -> None:
        try:
            lock = await self._marks.lock(mark.ledger_id)
        except MetadataExists:
            return  # a worker is at it
        done = False
        try:
            if lock.mark_version is not None and await self._is_sound(mark):
                await self._marks.mark_replicated(lock)
                done = True
                self.withdrawn += 1
        finally:
            if not done:
                await self._marks.release(lock)

    async def _is_sound(self, mark: UnderreplicatedLedger) -> bool:
        try:
            report = await self._checker.check(mark.ledger_id, complete=mark.replicas)
        except PodkeeperError:
            return False  # a worker sees to deleted ledgers, and to those that cannot be told
        now = await self._marks.read(mark.ledger_id)
        if now is None or not set(now.replicas) <= set(mark.replicas):
            return False
        return self._are_back(mark.replicas) and has_copies(report, mark.replicas)


def has_copies(report: LedgerReport, bookies: Collection[str]) -> bool:
    """Whether these bookies have all their copies, and nobody says that one is missing or damaged."""
    findings = [finding for each in report.fragments for finding in each.findings]
    if any(finding.verdict in MISSING for finding in findings):
        return False
    return all(finding.verdict in _SOUND for finding in findings if finding.bookie in bookies)
