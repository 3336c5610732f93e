"""`AutoRecoveryPort`: the cluster's auto-recovery through the metadata service, and this process's own.

Event loop only.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from typing import TYPE_CHECKING

from bookie_pod.admin.autorecovery_port import CheckName
from bookie_protocol.admin_api.autorecovery import (
    AbsentBookieState,
    AutoRecoveryProcessState,
    CheckRun,
    CheckSummary,
    LedgerRepairState,
    WorkerState,
)
from bookie_protocol.metadata_service.interface import MetadataService

if TYPE_CHECKING:
    from bookie_pod.autorecovery.auditor.control import Recorded
    from bookie_pod.autorecovery.auditor.runs import Finished, Running
    from bookie_pod.autorecovery.start import RunningAutoRecovery
    from bookie_pod.autorecovery.worker.progress import WorkerStatus


class AutoRecoveryView:
    """`find`: auto-recovery of this process, if it runs any."""

    def __init__(self, metadata: MetadataService, find: Callable[[], RunningAutoRecovery | None]) -> None:
        self._metadata = metadata
        self._marks = metadata.under_replication
        self._find = find

    async def is_enabled(self) -> bool:
        return await self._marks.is_enabled()

    async def set_enabled(self, enabled: bool) -> None:
        from bookie_pod.autorecovery.auditor.control import set_enabled

        await set_enabled(self._metadata, enabled)

    async def auditor(self) -> str | None:
        return await self._metadata.auditor_election.current_auditor()

    async def marks(
        self, missing: str | None, excluding: str | None
    ) -> AsyncGenerator[tuple[int, Sequence[str]], None]:
        def has_both(replicas: Collection[str]) -> bool:
            return (missing is None or missing in replicas) and (excluding is None or excluding not in replicas)

        async for mark in self._marks.list(None if missing is None and excluding is None else has_both):
            yield mark.ledger_id, mark.replicas

    async def delay(self) -> int | None:
        return await self._marks.lost_bookie_recovery_delay()

    async def set_delay(self, seconds: int) -> None:
        await self._marks.set_lost_bookie_recovery_delay(seconds)

    async def trigger_audit(self) -> None:
        from bookie_pod.autorecovery.auditor.control import trigger_audit

        await trigger_audit(self._metadata)

    async def checks(self) -> Sequence[CheckSummary]:
        from bookie_pod.autorecovery.auditor.control import recorded_checks

        return [_summary(recorded) for recorded in await recorded_checks(self._metadata)]

    async def force_checks(self, checks: Sequence[CheckName]) -> None:
        from bookie_pod.autorecovery.auditor.control import force_checks
        from bookie_pod.autorecovery.auditor.runs import Check

        await force_checks(self._metadata, [Check(name) for name in checks])

    def here(self) -> AutoRecoveryProcessState | None:
        running = self._find()
        return None if running is None else _process(running)


def _summary(recorded: Recorded) -> CheckSummary:
    runs = recorded.runs
    return CheckSummary(
        check=recorded.check.value,
        auditor=runs.auditor,
        running=_run(runs.running) if runs.running is not None else None,
        last=_run(runs.last) if runs.last is not None else None,
        last_complete_time=recorded.last_complete_ms,
        requested_time=recorded.requested_ms,
        failure=runs.failure.reason if runs.failure is not None else None,
        failure_time=runs.failure.at_ms if runs.failure is not None else None,
    )


def _run(run: Running | Finished) -> CheckRun:
    finished: int | None = getattr(run, "finished_ms", None)
    next_ledger: int | None = getattr(run, "next_ledger", None)
    return CheckRun(run.started_ms, finished, run.active_ms, next_ledger, run.counts)


def _process(running: RunningAutoRecovery) -> AutoRecoveryProcessState:
    status = running.auditor_status()
    return AutoRecoveryProcessState(
        auditor_id=status.auditor_id,
        is_auditor=status.is_auditor,
        elected_time=status.elected_ms,
        enabled=status.is_enabled,
        complaint=running.complaint(),
        lost_bookie_recovery_delay_seconds=status.lost_bookie_recovery_delay_s,
        marked_ledgers=status.marked_ledgers,
        deferred_marks=status.deferred_marks,
        withdrawn_marks=status.withdrawn_marks,
        absent_bookies=[
            AbsentBookieState(each.bookie_id, each.since_ms, each.lost_at_ms, each.is_lost, each.is_audited)
            for each in status.absent
        ],
        running_checks=[each.check.value for each in status.checks if each.is_running],
        next_checks={each.check.value: each.next_ms for each in status.checks},
        worker=_worker(running.status().worker),
    )


def _worker(status: WorkerStatus) -> WorkerState:
    return WorkerState(
        running=status.is_running,
        ledgers=[
            LedgerRepairState(
                ledger_id=each.ledger_id,
                phase=each.phase.value,
                seconds=round(each.seconds, 1),
                bad_fragments=each.bad_fragments,
                done_fragments=each.done_fragments,
                entries_copied=each.entries_copied,
                entries_to_copy=each.entries_to_copy,
                bytes_copied=each.bytes_copied,
                attempts=each.attempts,
                reason=each.reason,
                lost_entries=list(each.lost_entries),
                retry_in_seconds=None if each.retry_in is None else round(each.retry_in, 1),
            )
            for each in status.ledgers
        ],
        ledgers_repaired=status.ledgers_repaired,
        ledgers_failed=status.ledgers_failed,
        ledgers_recovered=status.ledgers_recovered,
        entries_copied=status.entries_copied,
        bytes_copied=status.bytes_copied,
        bytes_per_second=round(status.bytes_per_second, 1),
    )
