"""One periodic check: waits until it is due, runs a pass, records what came of it.

Invariants
- The time of a complete run is written when it is complete, and never for one that was broken off.
- A pass that its auditor did not end is taken up where it was, unless it is older than `MAX_AGE_MS` or a run was
  requested since it began.
- A failure ends nothing but the attempt: it is recorded and tried again after a pause that doubles.
- Checks take turns: one pass at a time. The audit of lost bookies does not wait for any of them.

Event loop only.

Source: docs/internals/auto-recovery.md, section 4.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import structlog

from bookie_pod.autorecovery.auditor.bookie_audit import AuditResult, ledger_ids
from bookie_pod.autorecovery.auditor.runs import AuditRecords, Check, Failure, Finished, Running, Runs
from bookie_pod.autorecovery.auditor.schedule import SKEW_MS, Clock, Due
from bookie_pod.autorecovery.auditor.sweep import Cursor, LedgerCheck, Sweep
from bookie_pod.metrics.autorecovery import AuditorInstruments
from bookie_protocol.errors import MetadataDamaged, MetadataError, PodkeeperError
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.shown import one_line

_log = structlog.get_logger(__name__)

POLL_SECONDS: Final = 60.0
"""Seconds between two looks at the time of the last run, which Apache's shell may reset."""
MAX_AGE_MS: Final = 7 * 86_400_000
FIRST_PAUSE: Final = 5.0
LONGEST_PAUSE: Final = 300.0


class CheckMetrics:
    """Counts what the checks and the audit of lost bookies did."""

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


@dataclass(frozen=True, slots=True)
class CheckParts:
    """The parts that all checks of an auditor share."""

    service: MetadataService
    records: AuditRecords
    clock: Clock
    enabled: asyncio.Event
    turn: asyncio.Lock
    metrics: CheckMetrics
    auditor_id: str
    second_look_s: float


class PeriodicCheck:
    """`run` until cancelled."""

    def __init__(
        self, kind: Check, interval_s: int, window: int, make: Callable[[], LedgerCheck], parts: CheckParts
    ) -> None:
        """`make`: a fresh check for each pass. `window`: ledgers looked at at a time."""
        self.kind = kind
        self.interval_s = interval_s
        self._window = window
        self._make = make
        self._parts = parts
        self._requested = asyncio.Event()
        self._sweep: Sweep | None = None
        self.runs = Runs()
        self.next_ms: int | None = None
        """Time at which it is due, in ms; None: only on request."""

    @property
    def is_running(self) -> bool:
        return self._sweep is not None

    @property
    def progress(self) -> Cursor:
        """The cursor of the pass that runs."""
        return self._sweep.cursor if self._sweep is not None else Cursor()

    async def run(self) -> None:
        """Run the check when it is due, until cancelled."""
        pause = FIRST_PAUSE
        watcher = asyncio.create_task(self._watch_requests())
        try:
            while True:
                try:
                    await self._until_due()
                    async with self._parts.turn:
                        await self._pass()
                    pause = FIRST_PAUSE
                except PodkeeperError as error:
                    _log.warning("a check was broken off", check=self.kind.value, reason=str(error), again_in_s=pause)
                    await self._record_failure(error)
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, LONGEST_PAUSE)
        finally:
            watcher.cancel()
            await asyncio.wait([watcher])

    # --- waiting ------------------------------------------------------------------------------------------------

    async def _until_due(self) -> None:
        while True:
            self._requested.clear()
            due = await self._due()
            now = self._parts.clock.now_ms()
            self.next_ms = due.at_ms(now)
            if due.is_in_the_future(now):
                _log.warning(
                    "the last run of a check lies in the future and counts as never: compare the auditors' clocks",
                    check=self.kind.value,
                    last_run_ms=due.last_complete_ms,
                    now_ms=now,
                )
            if self.next_ms is not None and (self.next_ms <= now or self._unfinished(due) is not None):
                if self._parts.enabled.is_set():
                    return
                self._parts.metrics.check_skipped()
                await self._parts.enabled.wait()
                continue
            seconds = self._parts.clock.seconds_until(self.next_ms)
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS if seconds is None else min(seconds, POLL_SECONDS)):
                    await self._requested.wait()

    async def _due(self) -> Due:
        self.runs = await self._parts.records.read(self.kind)
        requested = await self._parts.records.requested_ms(self.kind)
        if self.runs.last is not None and self.runs.last.request_ms == requested:
            requested = None
        return Due(self.interval_s, await self._last_complete_ms(), requested)

    async def _last_complete_ms(self) -> int | None:
        assert self.kind.node is not None
        try:
            return await self._parts.service.under_replication.check_time(self.kind.node)
        except MetadataDamaged as error:
            _log.warning("the time of the last run cannot be read: it counts as never", reason=str(error))
            return None

    def _unfinished(self, due: Due) -> Running | None:
        """A pass to be taken up."""
        running, now = self.runs.running, self._parts.clock.now_ms()
        if running is None or due.at_ms(now) is None:
            return None
        if due.requested_ms is not None and due.requested_ms != running.request_ms:
            return None
        return running if -SKEW_MS <= now - running.started_ms < MAX_AGE_MS else None

    async def _watch_requests(self) -> None:
        while True:
            with suppress(MetadataError):  # the poll looks too
                async with self._parts.records.watch_request(self.kind) as changes:
                    async for _ in changes:
                        self._requested.set()
            await asyncio.sleep(POLL_SECONDS)

    # --- a pass -------------------------------------------------------------------------------------------------

    async def _pass(self) -> None:
        parts = self._parts
        began = parts.clock.now_ms()
        due = await self._due()  # another auditor may have done it while this one waited for its turn
        earlier = self._unfinished(due)
        started_ms = earlier.started_ms if earlier is not None else began
        active_before = earlier.active_ms if earlier is not None else 0
        answers = earlier.request_ms if earlier is not None else due.requested_ms or self._answered()
        start = Cursor(earlier.next_ledger, earlier.counts) if earlier is not None else Cursor()

        async def save(cursor: Cursor) -> None:
            active = active_before + parts.clock.now_ms() - began
            await self._record(Running(started_ms, cursor.next_ledger, active, cursor.counts, answers))

        def ids(first: int) -> AsyncGenerator[int, None]:
            return ledger_ids(parts.service.ledgers, first)

        _log.info("a check begins", check=self.kind.value, from_ledger=start.next_ledger)
        sweep = Sweep(ids, self._make(), save, parts.enabled, window=self._window, second_look_s=parts.second_look_s)
        success = False
        self._sweep = sweep
        try:
            await save(start)
            counts = await sweep.run(start)
            now = parts.clock.now_ms()
            await self._finish(Finished(started_ms, now, active_before + now - began, counts, answers))
            success = True
        except PodkeeperError:
            with suppress(MetadataError):
                await save(sweep.cursor)
            raise
        finally:
            self._sweep = None
            parts.metrics.check_ran(self.kind, parts.clock.now_ms() - began, success)

    async def _finish(self, finished: Finished) -> None:
        parts = self._parts
        assert self.kind.node is not None
        await parts.service.under_replication.set_check_time(self.kind.node, finished.finished_ms)
        parts.metrics.check_finished(self.kind, finished.counts)
        self.runs = Runs(parts.auditor_id, None, finished, None)
        await parts.records.write(self.kind, self.runs)
        seconds = round(finished.active_ms / 1000, 1)
        _log.info("a check is complete", check=self.kind.value, seconds=seconds, **finished.counts)

    def _answered(self) -> int | None:
        return self.runs.last.request_ms if self.runs.last is not None else None

    async def _record(self, running: Running) -> None:
        self.runs = Runs(self._parts.auditor_id, running, self.runs.last, self.runs.failure)
        await self._parts.records.write(self.kind, self.runs)

    async def _record_failure(self, error: PodkeeperError) -> None:
        failure = Failure(self._parts.clock.now_ms(), one_line(error, 500))
        self.runs = Runs(self._parts.auditor_id, self.runs.running, self.runs.last, failure)
        with suppress(MetadataError):
            await self._parts.records.write(self.kind, self.runs)
