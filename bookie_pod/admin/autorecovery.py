"""Auto-recovery: on and off, what is marked, who is auditor, the delay, audits and checks, this process.

Event loop only.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Final, get_args

from bookie_pod.admin.bookie_ids import checked_id
from bookie_pod.audit import audited
from bookie_pod.roles import Role
from bookie_pod.server.http.api.call import Call, Json, JsonMembers, Reply, Text
from bookie_pod.server.http.api.context import Context
from bookie_pod.server.http.api.table import Answer, Operation, Resource, should_be
from bookie_protocol.admin_api import autorecovery as autorecovery_api
from bookie_protocol.admin_api.autorecovery import (
    DELAY_MAX,
    AbsentBookieState,
    AutoRecoveryProcessState,
    CheckName,
    CheckRun,
    ChecksBody,
    CheckSummary,
    Enabled,
    EnabledQuery,
    Forcible,
    LedgerRepairState,
    MarksQuery,
    ReturnedBody,
    WorkerState,
)
from bookie_protocol.errors import BadRequest, Refused
from bookie_protocol.metadata_service.tree.service import MetadataService

if TYPE_CHECKING:
    from bookie_pod.autorecovery.auditor.runs import Finished, Recorded, Running
    from bookie_pod.autorecovery.start import RunningAutoRecovery
    from bookie_pod.autorecovery.worker.progress import WorkerStatus

FORCIBLE: Final[tuple[Forcible, ...]] = get_args(Forcible)
_NONE_MARKED: Final = Text("No under replicated ledgers found", 404)
_REFUSED: Final = Answer("It cannot be asked for: auto-recovery is disabled, or no auditor has begun its work.", 404)


class AutoRecoveryView:
    """`find`: auto-recovery of this process, if it runs any."""

    def __init__(self, metadata: MetadataService, find: Callable[[], RunningAutoRecovery | None]) -> None:
        self._metadata = metadata
        self._marks = metadata.under_replication
        self._find = find

    async def is_enabled(self) -> bool:
        return await self._marks.is_enabled()

    async def set_enabled(self, enabled: bool) -> None:
        from bookie_pod.autorecovery.auditor.runs import set_enabled

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
        from bookie_pod.autorecovery.auditor.runs import trigger_audit

        await trigger_audit(self._metadata)

    async def checks(self) -> Sequence[CheckSummary]:
        from bookie_pod.autorecovery.auditor.runs import recorded_checks

        return [_summary(recorded) for recorded in await recorded_checks(self._metadata)]

    async def force_checks(self, checks: Sequence[CheckName]) -> None:
        from bookie_pod.autorecovery.auditor.runs import Check, force_checks

        await force_checks(self._metadata, [Check(name) for name in checks])

    async def look_at_returned(self, bookies: Sequence[str]) -> None:
        from bookie_pod.autorecovery.auditor.runs import look_at_returned

        await look_at_returned(self._metadata, bookies)

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


# --- on and off -------------------------------------------------------------------------------------------


async def _status(context: Context, call: Call) -> Reply:
    return Json(Enabled(await context.room(AutoRecoveryView).is_enabled()))


async def _set_status(context: Context, call: Call) -> Reply:
    enabled = call.asked(EnabledQuery).enabled
    await context.room(AutoRecoveryView).set_enabled(enabled)
    return Json(Enabled(enabled))


# --- what is marked ---------------------------------------------------------------------------------------


async def _list_marks(context: Context, call: Call) -> Reply:
    asked = call.asked(MarksQuery)
    marks = context.room(AutoRecoveryView).marks(asked.missingreplica, asked.excludingmissingreplica)
    if asked.printmissingreplica is None:
        async with aclosing(marks):
            ids = [ledger_id async for ledger_id, _ in marks]
        return Json(ids) if ids else _NONE_MARKED
    first = await anext(marks, None)
    if first is None:
        return _NONE_MARKED
    return JsonMembers(_with_replicas(first, marks))


async def _with_replicas(
    first: tuple[int, Sequence[str]], others: AsyncGenerator[tuple[int, Sequence[str]], None]
) -> AsyncGenerator[tuple[str, Any], None]:
    async with aclosing(others):
        yield str(first[0]), list(first[1])
        async for ledger_id, replicas in others:
            yield str(ledger_id), list(replicas)


# --- the auditor ------------------------------------------------------------------------------------------


async def _who_is_auditor(context: Context, call: Call) -> Reply:
    auditor = await context.room(AutoRecoveryView).auditor()
    return Text("No auditor elected", 404) if auditor is None else Text(f"Auditor: {auditor}")


async def _trigger_audit(context: Context, call: Call) -> Reply:
    try:
        await context.room(AutoRecoveryView).trigger_audit()
    except Refused as error:
        return Text(str(error), 404)  # the reference's status for an audit that could not be asked for
    return Text("Success trigger audit.")


async def _delay(context: Context, call: Call) -> Reply:
    delay = await context.room(AutoRecoveryView).delay()
    if delay is None:
        return Text("lostBookieRecoveryDelay is not set: no auditor has run in this cluster yet", 404)
    return Text(f"lostBookieRecoveryDelay value: {delay}")


async def _set_delay(context: Context, call: Call) -> Reply:
    if call.is_blank:
        return Text("Null request body for lostBookieRecoveryDelay.", 404)
    seconds = call.members().get("delay_seconds")
    if seconds is None:
        return Text("Request body not contains lostBookieRecoveryDelay.", 404)
    if isinstance(seconds, float) and seconds.is_integer():
        seconds = int(seconds)  # JSON knows no difference between 5 and 5.0
    if isinstance(seconds, bool) or not isinstance(seconds, int) or not 0 <= seconds <= DELAY_MAX:
        raise BadRequest(f"delay_seconds must be a whole number of seconds between 0 and {DELAY_MAX}")
    audited(delay_seconds=seconds)
    await context.room(AutoRecoveryView).set_delay(seconds)
    return Text(f"Success set lostBookieRecoveryDelay to {seconds}")


# --- checks and this process ------------------------------------------------------------------------------


async def _checks(context: Context, call: Call) -> Reply:
    return Json(await context.room(AutoRecoveryView).checks())


async def _force_checks(context: Context, call: Call) -> Reply:
    wanted = call.read(ChecksBody).checks
    checks = [name for name in FORCIBLE if name in wanted]
    audited(checks=checks)
    await context.room(AutoRecoveryView).force_checks(checks)
    return Json(checks)


async def _look_at_returned(context: Context, call: Call) -> Reply:
    bookies = [checked_id(each, "bookies") for each in call.read(ReturnedBody).bookies]
    audited(bookies=bookies)
    await context.room(AutoRecoveryView).look_at_returned(bookies)
    return Text("Success")


async def _here(context: Context, call: Call) -> Reply:
    state = context.room(AutoRecoveryView).here()
    if state is None:
        return Text("auto-recovery does not run in this process: autoRecoveryDaemonEnabled=false", 404)
    return Json(state)


# --- the table --------------------------------------------------------------------------------------------


def _resource(*operations: Operation, own: bool = False) -> Resource:
    return Resource(operations, should_be(" or ".join(each.route.method for each in operations)), own=own)


RESOURCES: Final = (
    _resource(
        Operation(
            autorecovery_api.STATUS, Role.VIEWER, "Whether auto-recovery is enabled in this cluster", _status, "It."
        ),
        Operation(
            autorecovery_api.SET_STATUS,
            Role.OPERATOR,
            "Enable or disable auto-recovery in this cluster",
            _set_status,
            "What is so now.",
            (Answer("The parameter is missing.", 400),),
            missing=Text("Param 'enabled' not found in {}", 400),
        ),
    ),
    _resource(
        Operation(
            autorecovery_api.MARKS,
            Role.VIEWER,
            "Ledgers that are marked as under-replicated",
            _list_marks,
            "Ids; with `printmissingreplica` bookie ids by ledger id.",
            (Answer("None is marked.", 404),),
        ),
    ),
    _resource(
        Operation(
            autorecovery_api.AUDITOR,
            Role.VIEWER,
            "Who is auditor",
            _who_is_auditor,
            "Its bookie id.",
            (Answer("There is no auditor.", 404),),
        ),
    ),
    _resource(
        Operation(
            autorecovery_api.TRIGGER_AUDIT,
            Role.OPERATOR,
            "Have the auditor audit bookies now, whatever the delay",
            _trigger_audit,
            "Done.",
            (_REFUSED,),
        ),
    ),
    _resource(
        Operation(
            autorecovery_api.DELAY,
            Role.VIEWER,
            "How long a bookie may be absent before its copies count as missing",
            _delay,
            "Seconds.",
            (Answer("It is not set.", 404),),
        ),
        Operation(
            autorecovery_api.SET_DELAY,
            Role.OPERATOR,
            "Set it",
            _set_delay,
            "Done.",
            (Answer("No body, or no number in it.", 404),),
        ),
    ),
    _resource(
        Operation(
            autorecovery_api.CHECKS,
            Role.VIEWER,
            "What is recorded of the auditor's checks, wherever the auditor runs",
            _checks,
            "All checks.",
        ),
        Operation(
            autorecovery_api.FORCE_CHECKS,
            Role.OPERATOR,
            "Run checks now",
            _force_checks,
            "Those that were asked for.",
            (Answer("An unknown check.", 400),),
        ),
        own=True,
    ),
    _resource(
        Operation(
            autorecovery_api.LOOK_AT_RETURNED,
            Role.OPERATOR,
            "Have the auditor look whether bookies that were away store what ledgers name them for",
            _look_at_returned,
            "The auditor will look.",
            (Answer("No body, or no id in it.", 400), Answer("Too many bookies wait.", 409)),
        ),
        own=True,
    ),
    _resource(
        Operation(
            autorecovery_api.PROCESS,
            Role.VIEWER,
            "Auditor and replication worker of this process",
            _here,
            "What they do.",
            (Answer("This process does not run auto-recovery.", 404),),
        ),
        own=True,
    ),
)
