"""One term of office: everything that the auditor does between its election and the end of it.

| task | does |
|---|---|
| lost bookies | registrations, delays, audits |
| marker | what was locked when it was to be marked |
| withdrawals | marks of bookies that are back |
| returns | copies of bookies that were away |
| three checks | all ledgers, placement, replicas; they take turns |

Each is a task of its own, so that no check holds up the reaction to a lost bookie. A defect in one ends the term, with
the defect; faults of the metadata service end nothing.

Event loop only. What an auditor, or a candidate, shows of itself are snapshots, with times in ms since the epoch, which
any thread may read.

Source: docs/internals/auto-recovery.md, section 2, whose tasks share one thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Final

import structlog

from bookie_client.access import replica_access
from bookie_client.client import Client
from bookie_client.placement.policy import ClusterView, PlacementPolicy
from bookie_client.replication.check import CheckOptions, LedgerChecker, known_end
from bookie_client.replication.lists import AskStored
from bookie_client.replication.throttle import ReplicationThrottle
from bookie_pod.autorecovery.auditor.bookie_audit import BookieAudit
from bookie_pod.autorecovery.auditor.ledgers_check import LedgersCheck
from bookie_pod.autorecovery.auditor.lost_bookies import LostBookies
from bookie_pod.autorecovery.auditor.marking import Marker
from bookie_pod.autorecovery.auditor.periodic import CheckMetrics, CheckParts, PeriodicCheck
from bookie_pod.autorecovery.auditor.placement_check import PlacementCheck, count_overdue
from bookie_pod.autorecovery.auditor.replicas_check import AskEnd, ReplicasCheck
from bookie_pod.autorecovery.auditor.returns import Returns
from bookie_pod.autorecovery.auditor.runs import AuditRecords, Check, Runs
from bookie_pod.autorecovery.auditor.schedule import Clock
from bookie_pod.autorecovery.auditor.withdrawals import Withdrawals
from bookie_pod.config.sections.autorecovery import AutoRecoveryConfig
from bookie_pod.metrics.autorecovery import AuditorInstruments
from bookie_protocol.errors import MetadataError, PodkeeperError
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.tree.service import MetadataService

_log = structlog.get_logger(__name__)
PAUSE_SECONDS: Final = 5.0
_METADATA_WINDOW: Final = 64


@dataclass(frozen=True, slots=True)
class AbsentBookie:
    """A bookie that is registered nowhere."""

    bookie_id: str
    since_ms: int
    lost_at_ms: int
    """Time at which its copies count, or counted, as missing, in ms."""
    is_lost: bool
    is_audited: bool
    """The ledgers that name it are marked."""


@dataclass(frozen=True, slots=True)
class CheckStatus:
    """A periodic check, or the audit of bookies. `runs`: what is recorded of it."""

    check: Check
    interval_s: int
    """Seconds between two runs; 0 or less: only on request."""
    is_running: bool
    next_ms: int | None
    """Time at which it is due, in ms; None: not known yet, or only on request."""
    runs: Runs
    next_ledger: int | None = None
    """The pass that runs has done every ledger below this one."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Counts of the pass that runs."""


@dataclass(frozen=True, slots=True)
class AuditorStatus:
    """This process as a candidate, and as the auditor if it is elected."""

    bookie_id: str
    is_auditor: bool
    auditor_id: str | None
    """Id of the auditor, as last seen."""
    elected_ms: int | None
    """Time since which this process is the auditor, in ms."""
    is_enabled: bool | None
    """True if auto-recovery is enabled; None: not known."""
    lost_bookie_recovery_delay_s: int | None
    absent: tuple[AbsentBookie, ...] = ()
    checks: tuple[CheckStatus, ...] = ()
    marked_ledgers: int | None = None
    """Marked ledgers as last counted; None on every process but the auditor."""
    deferred_marks: int = 0
    """Ledgers that are to be marked once their lock is gone."""
    withdrawn_marks: int = 0
    """Marks taken back since this auditor was elected."""


@dataclass(frozen=True, slots=True)
class Sources:
    """The questions that a term asks of bookies; tests pass their own."""

    checker: LedgerChecker
    """Checker of the check of all ledgers."""
    first_and_last: LedgerChecker
    """Checker for marks that may be taken back."""
    ask_stored: AskStored
    ask_end: AskEnd
    policy: PlacementPolicy
    view: Callable[[], Awaitable[ClusterView]]


def sources_of(client: Client, config: AutoRecoveryConfig) -> Sources:
    """Return the sources that an open client is."""
    reads = config.auditor_reads_per_second or None
    nbytes = config.auditor_read_bytes_per_second or None
    in_flight = config.checker_reads_in_flight
    options = CheckOptions(
        verification_percentage=config.auditor_verification_percentage,
        max_reads=in_flight if in_flight > 0 else config.auditor_max_concurrent_opens,
        throttle=ReplicationThrottle(nbytes, reads),
    )
    short = CheckOptions(throttle=ReplicationThrottle(nbytes, reads))

    async def ask_end(metadata: LedgerMetadata) -> tuple[int, PodkeeperError | None]:
        return await known_end(client, metadata, replica_access(metadata, None, b"").digest)

    return Sources(
        LedgerChecker(client, options),
        LedgerChecker(client, short),
        client.operations.entries_of_ledger,
        ask_end,
        client.placement,
        client.cluster_view,
    )


class Term:
    """`run` until cancelled, when the vote is gone. `name`: tells it apart from other terms of this auditor."""

    def __init__(
        self,
        service: MetadataService,
        sources: Sources,
        config: AutoRecoveryConfig,
        metrics: AuditorInstruments,
        clock: Clock,
        random: Random,
        auditor_id: str,
        name: str,
    ) -> None:
        self._service = service
        self._sources = sources
        self._config = config
        self._clock = clock
        self._random = random
        self._metrics = metrics
        self._checked = CheckMetrics(metrics, clock)
        self._records = AuditRecords(service)
        self.enabled = asyncio.Event()
        self.lost_bookies = LostBookies(
            service,
            self._records,
            clock,
            self.enabled,
            self._checked,
            auditor_id=auditor_id,
            interval_s=config.auditor_bookie_check_interval_s,
            initial_delay_s=config.lost_bookie_recovery_delay_s,
            on_return=self._came_back,
        )
        self.marker = Marker(service, clock, store_time=config.store_mark_time, known=self.lost_bookies)
        self.lost_bookies.audit = BookieAudit(service, self.marker, self.lost_bookies, self.enabled)
        self.withdrawals = Withdrawals(service, sources.first_and_last, self.lost_bookies)
        self._metadata_pace = ReplicationThrottle(None, config.auditor_metadata_ops_per_second or None)
        self._lists_pace = ReplicationThrottle(None, config.auditor_reads_per_second or None)
        self.returns = Returns(
            service,
            self._records,
            self._replicas,
            self.lost_bookies,
            clock,
            self.enabled,
            auditor_id=auditor_id,
            term=name,
            window=config.auditor_max_concurrent_opens,
            second_look_s=config.auditor_second_look_s,
        )
        self.checks = self._make_checks(auditor_id)

    async def run(self) -> None:
        """Work until cancelled."""
        await self._prepare()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_enabled(), name="auto-recovery enabled")
            tasks.create_task(self.lost_bookies.run(), name="lost bookies")
            tasks.create_task(self.marker.run(), name="deferred marks")
            tasks.create_task(self.withdrawals.run(), name="withdrawals")
            tasks.create_task(self.returns.run(), name="returns")
            for check in self.checks:
                tasks.create_task(check.run(), name=f"check of {check.kind.value}")

    def absent(self) -> tuple[AbsentBookie, ...]:
        """Return the bookies that are registered nowhere."""
        membership, now = self.lost_bookies.membership, self._clock.now_ms()
        return tuple(
            AbsentBookie(
                bookie,
                absence.since_ms,
                membership.deadline_ms(bookie) or absence.since_ms,
                membership.is_lost(bookie, now),
                absence.audited,
            )
            for bookie, absence in sorted(membership.absences.items())
        )

    def check_statuses(self) -> tuple[CheckStatus, ...]:
        """Return the audit of bookies first, then the checks."""
        audit, running = self.lost_bookies, self.lost_bookies.running
        counts = running.counts() if running is not None else {}
        interval = self._config.auditor_bookie_check_interval_s
        first = CheckStatus(Check.BOOKIES, interval, running is not None, audit.next_ms, audit.runs, counts=counts)
        return (first, *(_status(check) for check in self.checks))

    # --- inside -------------------------------------------------------------------------------------------------

    async def _prepare(self) -> None:
        while True:
            try:
                await self.lost_bookies.prepare()
                return
            except MetadataError as error:
                _log.warning("the auditor cannot begin", reason=str(error), again_in_s=PAUSE_SECONDS)
                await asyncio.sleep(PAUSE_SECONDS)

    async def _follow_enabled(self) -> None:
        while True:
            with suppress(MetadataError):
                async with self._service.under_replication.watch_enabled() as values:
                    async for enabled in values:
                        (self.enabled.set if enabled else self.enabled.clear)()
            await asyncio.sleep(PAUSE_SECONDS)

    def _came_back(self, since_ms: Mapping[str, int]) -> None:
        self.withdrawals.request()
        self.returns.request(since_ms)

    def _make_checks(self, auditor_id: str) -> tuple[PeriodicCheck, ...]:
        config, service, sources = self._config, self._service, self._sources
        parts = CheckParts(
            service,
            self._records,
            self._clock,
            self.enabled,
            asyncio.Lock(),
            self._checked,
            auditor_id,
            config.auditor_second_look_s,
        )
        metadata_pace = self._metadata_pace
        window = config.auditor_max_concurrent_opens

        def ledgers() -> LedgersCheck:
            return LedgersCheck(sources.checker, self.marker, self.lost_bookies, self._metrics, metadata_pace)

        def placement() -> PlacementCheck:
            return PlacementCheck(
                service.ledgers,
                sources.policy,
                sources.view,
                metadata_pace,
                self.marker if config.repair_placement else None,
                asyncio.get_running_loop().time,
                self._random,
                self._count_overdue,
            )

        return (
            PeriodicCheck(Check.LEDGERS, config.auditor_check_interval_s, window, ledgers, parts),
            PeriodicCheck(
                Check.PLACEMENT, config.auditor_placement_check_interval_s, _METADATA_WINDOW, placement, parts
            ),
            PeriodicCheck(Check.REPLICAS, config.auditor_replicas_check_interval_s, window, self._replicas, parts),
        )

    def _replicas(self, only: frozenset[str] | None = None) -> ReplicasCheck:
        return ReplicasCheck(
            self._service,
            self._sources.ask_stored,
            self._sources.ask_end,
            self.marker,
            self.lost_bookies,
            metadata_pace=self._metadata_pace,
            pace=self._lists_pace,
            marks=self._config.auditor_replicas_check_marks,
            only=only,
        )

    async def _count_overdue(self) -> int:
        marks = self._service.under_replication.list()
        return await count_overdue(marks, self._clock.now_ms(), self._config.underreplicated_grace_period_s)


def _status(check: PeriodicCheck) -> CheckStatus:
    progress = check.progress
    next_ledger = progress.next_ledger if check.is_running else None
    return CheckStatus(
        check.kind, check.interval_s, check.is_running, check.next_ms, check.runs, next_ledger, progress.counts
    )
