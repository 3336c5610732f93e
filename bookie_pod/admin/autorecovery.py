"""Auto-recovery over HTTP: on and off, what is marked, who is auditor, the delay, audits and checks, this process."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any, Final, get_args

from bookie_pod.admin.autorecovery_port import CheckName
from bookie_pod.audit import audited
from bookie_pod.roles import Role
from bookie_pod.server.http.api.call import Call
from bookie_pod.server.http.api.context import Context
from bookie_pod.server.http.api.replies import Json, JsonMembers, Reply, Text
from bookie_pod.server.http.api.table import Answer, Group, Kind, Operation, Parameter, Resource
from bookie_protocol.admin_api.autorecovery import (
    DELAY_MAX,
    AutoRecoveryProcessState,
    ChecksBody,
    CheckSummary,
    DelayBody,
    Enabled,
    Forcible,
)
from bookie_protocol.errors import BadRequest, Refused

_BASE: Final = "/api/v1/autorecovery"
FORCIBLE: Final[tuple[Forcible, ...]] = get_args(Forcible)


# --- on and off -------------------------------------------------------------------------------------------


async def _status(context: Context, call: Call) -> Reply:
    return Json(Enabled(await context.admin.auto_recovery.is_enabled()))


async def _set_status(context: Context, call: Call) -> Reply:
    enabled = call.flag("enabled")
    await context.admin.auto_recovery.set_enabled(enabled)
    return Json(Enabled(enabled))


# --- what is marked ---------------------------------------------------------------------------------------


async def _list_marks(context: Context, call: Call) -> Reply:
    parameters = call.parameters
    marks = context.admin.auto_recovery.marks(parameters["missingreplica"], parameters["excludingmissingreplica"])
    if parameters["printmissingreplica"] is None:
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
    auditor = await context.admin.auto_recovery.auditor()
    return Text("No auditor elected", 404) if auditor is None else Text(f"Auditor: {auditor}")


async def _trigger_audit(context: Context, call: Call) -> Reply:
    try:
        await context.admin.auto_recovery.trigger_audit()
    except Refused as error:
        return Text(str(error), 404)  # the reference's status for an audit that could not be asked for
    return Text("Success trigger audit.")


async def _delay(context: Context, call: Call) -> Reply:
    delay = await context.admin.auto_recovery.delay()
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
    await context.admin.auto_recovery.set_delay(seconds)
    return Text(f"Success set lostBookieRecoveryDelay to {seconds}")


# --- checks and this process ------------------------------------------------------------------------------


async def _checks(context: Context, call: Call) -> Reply:
    return Json(await context.admin.auto_recovery.checks())


async def _force_checks(context: Context, call: Call) -> Reply:
    wanted = call.members().get("checks") if not call.is_blank else None
    if not isinstance(wanted, list) or not wanted or not set(map(str, wanted)) <= set(FORCIBLE):
        raise BadRequest(f'the body must be {{"checks": [...]}} with some of {", ".join(FORCIBLE)}')
    checks = [name for name in FORCIBLE if name in wanted]
    audited(checks=checks)
    await context.admin.auto_recovery.force_checks(checks)
    return Json(checks)


async def _here(context: Context, call: Call) -> Reply:
    state = context.admin.auto_recovery.here()
    if state is None:
        return Text("auto-recovery does not run in this process: autoRecoveryDaemonEnabled=false", 404)
    return Json(state)


# --- the table --------------------------------------------------------------------------------------------


_NONE_MARKED: Final = Text("No under replicated ledgers found", 404)
_REFUSED: Final = Answer("It cannot be asked for: auto-recovery is disabled, or there is no auditor.", 404)


def _resource(path: str, *operations: Operation, own: bool = False) -> Resource:
    methods = " or ".join(operation.method for operation in operations)
    refusal = Text(f"Not found method. Should be {methods} method", 404)
    return Resource(f"{_BASE}/{path}", Group.ADMIN, operations, refusal, own=own)


RESOURCES: Final = (
    _resource(
        "status",
        Operation(
            "GET",
            Role.VIEWER,
            "Whether auto-recovery is enabled in this cluster",
            _status,
            (Answer("It.", type=Enabled),),
        ),
        Operation(
            "PUT",
            Role.OPERATOR,
            "Enable or disable auto-recovery in this cluster",
            _set_status,
            (Answer("What is so now.", type=Enabled), Answer("The parameter is missing.", 400)),
            parameters=(
                Parameter("enabled", Kind.FLAG, "true or false.", missing=Text("Param 'enabled' not found in {}", 400)),
            ),
        ),
    ),
    _resource(
        "list_under_replicated_ledger",
        Operation(
            "GET",
            Role.VIEWER,
            "Ledgers that are marked as under-replicated",
            _list_marks,
            (
                Answer(
                    "Ids; with `printmissingreplica` bookie ids by ledger id.", type=list[int] | dict[str, list[str]]
                ),
                Answer("None is marked.", 404),
            ),
            parameters=(
                Parameter("missingreplica", Kind.TEXT, "Only those that miss this bookie's copies."),
                Parameter("excludingmissingreplica", Kind.TEXT, "Only those that do not miss this bookie's copies."),
                Parameter("printmissingreplica", Kind.TEXT, "With any value: tell which bookies' copies are missing."),
            ),
        ),
    ),
    _resource(
        "who_is_auditor",
        Operation(
            "GET", Role.VIEWER, "Who is auditor", _who_is_auditor, (Answer("Its bookie id."), Answer("Nobody is.", 404))
        ),
    ),
    _resource(
        "trigger_audit",
        Operation(
            "PUT",
            Role.OPERATOR,
            "Have the auditor audit bookies now, whatever the delay",
            _trigger_audit,
            (Answer("Done."), _REFUSED),
        ),
    ),
    _resource(
        "lost_bookie_recovery_delay",
        Operation(
            "GET",
            Role.VIEWER,
            "How long a bookie may be absent before its copies count as missing",
            _delay,
            (Answer("Seconds."), Answer("Nobody set it.", 404)),
        ),
        Operation(
            "PUT",
            Role.OPERATOR,
            "Set it",
            _set_delay,
            (Answer("Done."), Answer("No body, or no number in it.", 404)),
            body=DelayBody,
        ),
    ),
    _resource(
        "checks",
        Operation(
            "GET",
            Role.VIEWER,
            "What is recorded of the auditor's checks, wherever the auditor runs",
            _checks,
            (Answer("All checks.", type=list[CheckSummary]),),
        ),
        Operation(
            "PUT",
            Role.OPERATOR,
            "Run checks now",
            _force_checks,
            (Answer("Those that were asked for.", type=list[CheckName]), Answer("An unknown check.", 400)),
            body=ChecksBody,
        ),
        own=True,
    ),
    _resource(
        "process",
        Operation(
            "GET",
            Role.VIEWER,
            "Auditor and replication worker of this process",
            _here,
            (
                Answer("What they do.", type=AutoRecoveryProcessState),
                Answer("This process does not run auto-recovery.", 404),
            ),
        ),
        own=True,
    ),
)
