"""The auditor: one in a cluster finds what lost copies, and marks it for the replication workers.

    auditor = Auditor(service, client, config.auto_recovery, AuditorInstruments(registry, embedded=False),
                      bookie_id="bookie-0:3181")
    await auditor.run()        # until cancelled: a candidate, and the auditor whenever it is elected

Java's auditors and ours elect one among themselves, and their workers and ours read the same marks.

Every dashboard needs three things about auto-recovery (`Levels`): marked ledgers, whether it is disabled, who is
auditor. Every process that runs auto-recovery looks now and then; only the auditor counts marks, because that means
listing them, and the longer it takes the rarer it is done.

Invariants
- Everything that an auditor does ends before its vote is taken back, and at once when the vote is lost; two auditors
  that overlap for a moment do no harm, because marking twice is marking once.
- What must survive a change of auditor is stored: marks, the recovery delay, times of loss, cursors of checks.

Event loop only. `service` and `client` are open, and stay open. The values of `Levels` and `DecommissionLevels` may be
read on any thread.

Source: docs/internals/auto-recovery.md, sections 1 to 5; docs/internals/metadata-layout.md, section 10.7.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Final

import structlog

from bookie_client.client import Client
from bookie_pod.autorecovery.auditor.schedule import Clock
from bookie_pod.autorecovery.auditor.term import AuditorStatus, Sources, Term, sources_of
from bookie_pod.autorecovery.decommission.state import DecommissionRecord
from bookie_pod.autorecovery.decommission.store import DecommissionStore
from bookie_pod.config.sections.autorecovery import AutoRecoveryConfig
from bookie_pod.metrics.autorecovery import AuditorInstruments
from bookie_protocol.errors import MetadataDamaged, MetadataError
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.tree.under_replication.election import Auditorship

_log = structlog.get_logger(__name__)

RESIGN_SECONDS: Final = 2.0
STAND_AGAIN_SECONDS: Final = 1.0
LONGEST_PAUSE: Final = 30.0
LOOK_SECONDS: Final = 15.0
SHARE: Final = 20
"""A count that took a second is repeated after this many seconds at the earliest."""


class Auditor:
    """See the module. `bookie_id`: what the vote says. `random`, `clock`, `sources`: for tests and simulations."""

    def __init__(
        self,
        service: MetadataService,
        client: Client,
        config: AutoRecoveryConfig,
        metrics: AuditorInstruments,
        *,
        bookie_id: str,
        random: Random | None = None,
        clock: Callable[[], Clock] = Clock,
        sources: Sources | None = None,
    ) -> None:
        self._service = service
        self._client = client
        self._config = config
        self._metrics = metrics
        self.bookie_id = bookie_id
        self._random = random or Random()
        self._make_clock = clock
        self._sources = sources
        self._term: Term | None = None
        self._elected_ms: int | None = None
        self._levels = Levels(service, lambda: self.is_auditor)
        metrics.bind_levels(
            marked=lambda: self._levels.marked,
            disabled=lambda: self._levels.disabled,
            no_auditor=lambda: self._levels.no_auditor,
        )
        self._decommissions = decommissions = DecommissionLevels(service, lambda: self.is_auditor)
        metrics.bind_decommissions(
            under_way=lambda: decommissions.under_way,
            ledgers_left=lambda: decommissions.ledgers_left,
            bytes_left=lambda: decommissions.bytes_left,
            blocked=lambda: decommissions.blocked,
            updated_ms=lambda: decommissions.updated_ms,
        )

    @property
    def is_auditor(self) -> bool:
        """Elected, and at work."""
        return self._term is not None

    async def run(self) -> None:
        """Stand for election and do the work, again and again, until cancelled. A defect is raised."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._levels.run(), name="levels of auto-recovery")
            tasks.create_task(self._decommissions.run(), name="levels of decommissions")
            tasks.create_task(self._serve(), name="auditor")

    async def _serve(self) -> None:
        pause = STAND_AGAIN_SECONDS
        while True:
            self._metrics.stood_for_election()
            try:
                auditorship = await self._service.auditor_election.elect(self.bookie_id)
                pause = STAND_AGAIN_SECONDS
                await self._hold(auditorship)
                _log.warning("no longer the auditor", bookie_id=self.bookie_id)
            except MetadataError as error:
                _log.warning("cannot stand for auditor", reason=str(error), again_in_s=pause)
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _hold(self, auditorship: Auditorship) -> None:
        """Do the work until the vote is lost."""
        clock = self._make_clock()
        sources = self._sources or sources_of(self._client, self._config)
        term = Term(
            self._service,
            sources,
            self._config,
            self._metrics,
            clock,
            self._random,
            self.bookie_id,
            auditorship.term,
        )
        self._term, self._elected_ms = term, clock.now_ms()
        _log.info("elected auditor", bookie_id=self.bookie_id)
        loop = asyncio.get_running_loop()
        work = loop.create_task(term.run(), name="term of the auditor")
        end = loop.create_task(auditorship.lost(), name="vote of the auditor")
        try:
            await asyncio.wait({work, end}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._term = self._elected_ms = None
            for task in (work, end):
                task.cancel()
            await asyncio.wait({work, end})
            with suppress(MetadataError, TimeoutError):
                async with asyncio.timeout(RESIGN_SECONDS):
                    await auditorship.resign()
        for task in (work, end):
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error

    def status(self) -> AuditorStatus:
        """A snapshot."""
        levels, term = self._levels, self._term
        return AuditorStatus(
            bookie_id=self.bookie_id,
            is_auditor=term is not None,
            auditor_id=self.bookie_id if term is not None else levels.auditor_id,
            elected_ms=self._elected_ms,
            is_enabled=None if math.isnan(levels.disabled) else not levels.disabled,
            lost_bookie_recovery_delay_s=term.lost_bookies.membership.delay_s if term is not None else None,
            absent=term.absent() if term is not None else (),
            checks=term.check_statuses() if term is not None else (),
            marked_ledgers=None if math.isnan(levels.marked) else int(levels.marked),
            deferred_marks=term.marker.deferred if term is not None else 0,
            withdrawn_marks=term.withdrawals.withdrawn if term is not None else 0,
        )


class Levels:
    """Levels for the metrics. `run` works until it is cancelled. A level that is unknown is NaN."""

    def __init__(self, service: MetadataService, is_auditor: Callable[[], bool]) -> None:
        self._service = service
        self._is_auditor = is_auditor
        self._count_at = 0.0
        self.marked = math.nan
        """Ledgers marked now; NaN on everybody but the auditor."""
        self.disabled = math.nan
        """1 while auto-recovery is disabled, else 0."""
        self.no_auditor = math.nan
        """1 while there is no auditor, else 0."""
        self.auditor_id: str | None = None

    async def run(self) -> None:
        """Look again and again until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """One look."""
        try:
            self.disabled = float(not await self._service.under_replication.is_enabled())
            self.auditor_id = await self._service.auditor_election.current_auditor()
            self.no_auditor = float(self.auditor_id is None)
        except MetadataError:
            self.disabled = self.no_auditor = self.marked = math.nan
            return
        try:
            await self._count()
        except MetadataError:
            self.marked = math.nan

    async def _count(self) -> None:
        if not self._is_auditor():
            self.marked = math.nan
            return
        loop = asyncio.get_running_loop()
        began = loop.time()
        if began < self._count_at:
            return
        self.marked = float(await self._service.under_replication.count())
        self._count_at = loop.time() + SHARE * (loop.time() - began)


class DecommissionLevels:
    """The progress of the decommissions under way, from their records, which the auditor reads now and then.

    `run` works until it is cancelled. All levels are NaN where `is_auditor` is false, and while they are unknown.
    """

    def __init__(self, service: MetadataService, is_auditor: Callable[[], bool]) -> None:
        self._store = DecommissionStore(service)
        self._is_auditor = is_auditor
        self._damaged: frozenset[str] = frozenset()
        self._forget()

    def _forget(self) -> None:
        self.under_way = math.nan
        """Bookies that are being decommissioned."""
        self.ledgers_left = math.nan
        """Ledgers that still name them, as far as they have been listed."""
        self.bytes_left = math.nan
        """Bytes to be copied of these; an estimate."""
        self.blocked = math.nan
        """Ledgers that cannot be drained at present."""
        self.updated_ms = math.nan
        """Time at which the record that was not stored for longest was stored last, in ms since the epoch."""

    async def run(self) -> None:
        """Look again and again until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_SECONDS)

    async def look(self) -> None:
        """One look."""
        if not self._is_auditor():
            self._forget()
            return
        try:
            names = await self._store.bookies()
            records = [record for name in sorted(names) if (record := await self._read(name)) is not None]
        except MetadataError:
            self._forget()
            return
        self._damaged &= names
        progress = [record.progress for record in records]
        self.under_way = float(len(records) + len(self._damaged))
        self.ledgers_left = float(sum(each.ledgers_left for each in progress))
        self.bytes_left = float(sum(each.bytes_left for each in progress))
        self.blocked = float(sum(each.blocked for each in progress))
        self.updated_ms = min((float(record.updated_ms) for record in records), default=math.nan)

    async def _read(self, name: str) -> DecommissionRecord | None:
        try:
            found = await self._store.active(name)
        except MetadataDamaged as error:
            if name not in self._damaged:
                _log.warning("decommission record", reason=str(error))
            self._damaged |= {name}
            return None
        self._damaged -= {name}
        return found.value if found is not None else None
