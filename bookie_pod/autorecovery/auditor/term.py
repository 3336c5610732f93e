"""One term of office: everything that the auditor does between its election and the end of it.

| task | does |
|---|---|
| lost bookies | registrations, delays, audits |
| marker | what was locked when it was to be marked |
| withdrawals | marks of bookies that are back |
| three checks | all ledgers, placement, replicas; they take turns |

Each is a task of its own, so that no check holds up the reaction to a lost bookie. A defect in one ends the term, with
the defect; faults of the metadata service end nothing.

Event loop only. What an auditor, or a candidate, shows of itself are snapshots, with times in ms since the epoch, which
any thread may read.

Source: reference auto-recovery, section 2, whose tasks share one thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Final

import structlog

from bookie_client.client import Client
from bookie_client.placement.policy import ClusterView, PlacementPolicy
from bookie_client.replication.check import CheckOptions, LedgerChecker
from bookie_client.replication.throttle import ReplicationThrottle
from bookie_pod.autorecovery.auditor.bookie_audit import AuditResult, BookieAudit
from bookie_pod.autorecovery.auditor.ledgers_check import Checker, LedgersCheck
from bookie_pod.autorecovery.auditor.lost_bookies import LostBookies
from bookie_pod.autorecovery.auditor.marking import Marker
from bookie_pod.autorecovery.auditor.periodic import CheckParts, PeriodicCheck
from bookie_pod.autorecovery.auditor.placement_check import PlacementCheck, count_overdue
from bookie_pod.autorecovery.auditor.replicas_check import AskStored, ReplicasCheck
from bookie_pod.autorecovery.auditor.runs import AuditRecords, Check, Runs
from bookie_pod.autorecovery.auditor.schedule import Clock
from bookie_pod.autorecovery.auditor.withdrawals import Withdrawals
from bookie_pod.config.sections.autorecovery import AutoRecoveryConfig
from bookie_pod.metrics.autorecovery import AuditorInstruments
from bookie_protocol.errors import MetadataError
from bookie_protocol.metadata_service.interface import MetadataService


@dataclass(frozen=True, slots=True)
class AbsentBookie:
    """A bookie that is registered nowhere."""

    bookie_id: str
    since_ms: int
    lost_at_ms: int
    """When its copies count, or counted, as missing."""
    is_lost: bool
    is_audited: bool
    """The ledgers that name it are marked."""


@dataclass(frozen=True, slots=True)
class CheckStatus:
    """A periodic check, or the audit of bookies. `runs`: what is recorded of it."""

    check: Check
    interval_s: int
    """0 or less: only when somebody asks."""
    is_running: bool
    next_ms: int | None
    """When it is due; None: not known yet, or only when somebody asks."""
    runs: Runs
    next_ledger: int | None = None
    """Of the pass that runs: every ledger below is done."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Of the pass that runs."""


@dataclass(frozen=True, slots=True)
class AuditorStatus:
    """This process as a candidate, and as the auditor if it is elected."""

    bookie_id: str
    is_auditor: bool
    auditor_id: str | None
    """Who is auditor, as last seen."""
    elected_ms: int | None
    """Since when this one is."""
    is_enabled: bool | None
    """Whether auto-recovery is enabled; None: not known."""
    lost_bookie_recovery_delay_s: int | None
    absent: tuple[AbsentBookie, ...] = ()
    checks: tuple[CheckStatus, ...] = ()
    marked_ledgers: int | None = None
    """As last counted; None on everybody but the auditor."""
    deferred_marks: int = 0
    """Ledgers that are to be marked once their lock is gone."""
    withdrawn_marks: int = 0
    """Marks taken back since this auditor was elected."""


_log = structlog.get_logger(__name__)

PAUSE_SECONDS: Final = 5.0
_METADATA_WINDOW: Final = 64


@dataclass(frozen=True, slots=True)
class Sources:
    """What a term asks of bookies; tests pass their own."""

    checker: Checker
    """For the check of all ledgers."""
    first_and_last: Checker
    """For marks that may be taken back."""
    ask_stored: AskStored
    policy: PlacementPolicy
    view: Callable[[], Awaitable[ClusterView]]


def sources_of(client: Client, config: AutoRecoveryConfig) -> Sources:
    """The sources that an open client is."""
    reads = config.auditor_reads_per_second or None
    nbytes = config.auditor_read_bytes_per_second or None
    in_flight = config.checker_reads_in_flight
    options = CheckOptions(
        verification_percentage=config.auditor_verification_percentage,
        max_reads=in_flight if in_flight > 0 else config.auditor_max_concurrent_opens,
        throttle=ReplicationThrottle(nbytes, reads),
    )
    short = CheckOptions(throttle=ReplicationThrottle(nbytes, reads))
    return Sources(
        LedgerChecker(client, options),
        LedgerChecker(client, short),
        client.operations.entries_of_ledger,
        client.placement,
        client.cluster_view,
    )


class Term:
    """`run` until cancelled, when the vote is gone."""

    def __init__(
        self,
        service: MetadataService,
        sources: Sources,
        config: AutoRecoveryConfig,
        metrics: AuditorInstruments,
        clock: Clock,
        random: Random,
        auditor_id: str,
    ) -> None:
        self._service = service
        self._sources = sources
        self._config = config
        self._clock = clock
        self._random = random
        self._metrics = metrics
        self._checked = TermMetrics(metrics, clock)
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
        self.checks = self._make_checks(auditor_id)

    async def run(self) -> None:
        """Until cancelled."""
        await self._prepare()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_enabled(), name="auto-recovery enabled")
            tasks.create_task(self.lost_bookies.run(), name="lost bookies")
            tasks.create_task(self.marker.run(), name="deferred marks")
            tasks.create_task(self.withdrawals.run(), name="withdrawals")
            for check in self.checks:
                tasks.create_task(check.run(), name=f"check of {check.kind.value}")

    def absent(self) -> tuple[AbsentBookie, ...]:
        """Who is registered nowhere."""
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
        """The audit of bookies first, then the checks."""
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
        self.withdrawals.request(since_ms)

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
        metadata_pace = ReplicationThrottle(None, config.auditor_metadata_ops_per_second or None)
        lists_pace = ReplicationThrottle(None, config.auditor_reads_per_second or None)
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

        def replicas() -> ReplicasCheck:
            return ReplicasCheck(
                service,
                sources.ask_stored,
                self.marker,
                self.lost_bookies,
                metadata_pace=metadata_pace,
                pace=lists_pace,
                marks=config.auditor_replicas_check_marks,
            )

        return (
            PeriodicCheck(Check.LEDGERS, config.auditor_check_interval_s, window, ledgers, parts),
            PeriodicCheck(
                Check.PLACEMENT, config.auditor_placement_check_interval_s, _METADATA_WINDOW, placement, parts
            ),
            PeriodicCheck(Check.REPLICAS, config.auditor_replicas_check_interval_s, window, replicas, parts),
        )

    async def _count_overdue(self) -> int:
        marks = self._service.under_replication.list()
        return await count_overdue(marks, self._clock.now_ms(), self._config.underreplicated_grace_period_s)


class TermMetrics:
    """Hands on what is counted, in the words of the parts that count."""

    def __init__(self, metrics: AuditorInstruments, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock
        self.audit_delayed = metrics.audit_delayed
        self.audit_cancelled = metrics.audit_cancelled
        self.check_skipped = metrics.check_skipped

    def audit_ran(self, milliseconds: float, result: AuditResult | None) -> None:
        if result is None:
            self._metrics.audited(milliseconds, success=False)
            return
        self._metrics.audited(
            milliseconds,
            success=True,
            marked=result.marked,
            nbytes=result.marked_bytes,
            publish_ms=result.publish_ms,
        )
        self._metrics.check_finished(Check.BOOKIES.value, self._clock.now_ms(), {})

    def check_ran(self, check: Check, milliseconds: float, success: bool) -> None:
        self._metrics.check_ran(check.value, milliseconds, success=success)

    def check_finished(self, check: Check, counts: Mapping[str, int]) -> None:
        self._metrics.check_finished(check.value, self._clock.now_ms(), counts)


def _status(check: PeriodicCheck) -> CheckStatus:
    progress = check.progress
    next_ledger = progress.next_ledger if check.is_running else None
    return CheckStatus(
        check.kind, check.interval_s, check.is_running, check.next_ms, check.runs, next_ledger, progress.counts
    )
