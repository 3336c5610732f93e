"""Single entry logs: why one is still there, what compaction would give back, which are damaged."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, Literal

from bookie_pod.admin.ports import GcPort
from bookie_pod.roles import Role
from bookie_pod.server.http.api.call import Call
from bookie_pod.server.http.api.context import Context
from bookie_pod.server.http.api.replies import Json, Reply, Text
from bookie_pod.server.http.api.table import Answer, Group, Kind, Operation, Parameter, Resource
from bookie_pod.storage.gc.reports import CompactionForecast, Forecast, LogReport
from bookie_protocol.admin_api.gc import CompactionOutlook, GcForecast, LedgerShare, LogWhy, QuarantinedLog, UsageTenth
from bookie_protocol.errors import BadRequest

_HEX: Final = re.compile(r"[0-9a-fA-F]{1,16}")


def read_log_id(text: str) -> int:
    """The id of an entry log from its name (`1f.log`), from hexadecimal (`0x1f`, `1f`) or decimal (`31`) digits.
    `BadRequest` for anything else."""
    stem = text.removesuffix(".log").removeprefix("0x")
    if _HEX.fullmatch(stem) is None:
        raise BadRequest(
            f"entryLog={text[:100]}: must be a file's name (1f.log), hexadecimal (0x1f) or decimal (31) digits"
        )
    return int(stem, 10 if stem == text and stem.isdecimal() else 16)


async def _why(context: Context, call: Call) -> Reply:
    log_id = read_log_id(call.parameters["entryLog"])
    gc = context.admin.gc
    found = await context.workers.run(lambda: gc.reports(log_id))
    if not found:
        return Text(f"there is no entry log {log_id:x}.log (id {log_id}) here", 404)
    return Json([_why_of(directory, report) for directory, report in found])


def _why_of(directory: str, report: LogReport) -> LogWhy:
    usage, owners = report.usage, report.owners
    return LogWhy(
        directory,
        f"{report.log_id:x}.log",
        report.log_id,
        report.path,
        report.size,
        usage.usage() if usage is not None else None,
        usage.remaining if usage is not None else None,
        usage.in_doubt if usage is not None else None,
        [LedgerShare(*each) for each in owners] if owners is not None else None,
        report.reason,
        report.age_s,
    )


async def _forecast(context: Context, call: Call) -> Reply:
    gc = context.admin.gc
    return Json([_forecast_of(*each) for each in await context.workers.run(gc.forecasts)])


def _forecast_of(directory: str, forecast: Forecast) -> GcForecast:
    width = 100 // len(forecast.buckets)
    usage = [
        UsageTenth(at * width, (at + 1) * width, each.logs, each.total_bytes, each.reclaimable_bytes, each.oldest_age_s)
        for at, each in enumerate(forecast.buckets)
    ]
    return GcForecast(directory, usage, _outlook(forecast.minor), _outlook(forecast.major), forecast.unmeasured)


def _outlook(of: CompactionForecast) -> CompactionOutlook:
    return CompactionOutlook(of.threshold, of.logs, of.rewritten_bytes, of.reclaimable_bytes, of.due_in_s)


async def _quarantine(context: Context, call: Call) -> Reply:
    return Json(_quarantined(context.admin.gc))


def _quarantined(gc: GcPort) -> Sequence[QuarantinedLog]:
    found: list[QuarantinedLog] = []
    for directory, state in gc.states():
        by_scrub = {log_id: detail for log_id, detail in state.held.items() if log_id not in state.quarantined}
        for log_id, detail in sorted([*state.quarantined.items(), *by_scrub.items()]):
            by: Literal["gc", "scrub"] = "scrub" if log_id in by_scrub else "gc"
            found.append(QuarantinedLog(directory, f"{log_id:x}.log", log_id, detail, by))
    return found


_ENTRY_LOG: Final = Parameter(
    "entryLog",
    Kind.TEXT,
    "Name or id of an entry log: `1f.log`, `0x1f`, `1f`, or 31 in decimal.",
    pattern=r"^(0x)?[0-9a-fA-F]{1,16}(\.log)?$",
    missing=Text("entryLog is missing: name an entry log, such as entryLog=1f.log", 400),
)


def _resource(name: str, operation: Operation) -> Resource:
    return Resource(f"/api/v1/bookie/gc/{name}", Group.ADMIN, (operation,))


RESOURCES: Final = (
    _resource(
        "why",
        Operation(
            "GET",
            Role.VIEWER,
            "Why an entry log is still there, and when it will go",
            _why,
            (
                Answer("One per storage that has such a log.", type=list[LogWhy]),
                Answer("There is no such log.", 404),
            ),
            parameters=(_ENTRY_LOG,),
        ),
    ),
    _resource(
        "forecast",
        Operation(
            "GET",
            Role.VIEWER,
            "What compaction would give back",
            _forecast,
            (Answer("One per storage.", type=list[GcForecast]),),
        ),
    ),
    _resource(
        "quarantine",
        Operation(
            "GET",
            Role.VIEWER,
            "Damaged entry logs that are left alone",
            _quarantine,
            (Answer("All of them.", type=list[QuarantinedLog]),),
        ),
    ),
)
