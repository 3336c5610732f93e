"""Garbage collection: what it does, why a log is still there, what compaction would give back; forced and held back.

Threads: event loop; `reports` and `forecasts` read files and belong on other threads.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal

from bookie_pod.admin.bookie import ThisBookie
from bookie_pod.audit import audited
from bookie_pod.node.garbage_collection import GarbageCollection
from bookie_pod.node.metadata_witness import MetadataWitness
from bookie_pod.roles import Role
from bookie_pod.server.http.api.call import Call, Json, Reply, Text, switch
from bookie_pod.server.http.api.context import Context
from bookie_pod.server.http.api.table import Answer, Operation, Resource
from bookie_pod.storage.gc.collector import GarbageCollector
from bookie_pod.storage.gc.reports import CompactionForecast, Forecast, GcState, LogReport, LogSummary
from bookie_pod.storage.gc.schedule import Compaction
from bookie_protocol.admin_api import gc as gc_api
from bookie_protocol.admin_api.gc import (
    AllowDeletionsBody,
    CompactionOutlook,
    EntryLogQuery,
    ForceState,
    GcDetails,
    GcForecast,
    GcPass,
    GcProgress,
    LedgerShare,
    LogEntry,
    LogsQuery,
    LogWhy,
    QuarantinedLog,
    StorageLogs,
    Suspensions,
    UsageTenth,
    YesNo,
)
from bookie_protocol.errors import BadRequest, StorageFault

EMPTY: Final = Text("Empty request body", 400)
_KINDS: Final[Mapping[Compaction, Literal["major", "minor"]]] = {Compaction.MAJOR: "major", Compaction.MINOR: "minor"}
_HEX: Final = re.compile(r"[0-9a-fA-F]{1,16}")


class Collectors:
    """A running collection, each collector with the directory that it collects."""

    def __init__(self, collection: GarbageCollection, witness: MetadataWitness) -> None:
        self._collection = collection
        self._witness = witness
        self._named = [(self._name(each), each) for each in collection.collectors]

    def _name(self, collector: GarbageCollector) -> str:
        return ",".join(folder.removesuffix("/current") for folder in self._collection.folders_of(collector))

    @property
    def force_pending(self) -> bool:
        return self._collection.force_pending

    @property
    def major_suspended(self) -> bool:
        return self._collection.major_suspended

    @property
    def minor_suspended(self) -> bool:
        return self._collection.minor_suspended

    def force(self, major: bool | None = None, minor: bool | None = None) -> None:
        self._collection.force(major, minor)

    async def allow_deletions(self, ledgers: int, *, older_metadata: bool) -> None:
        """Let the next pass of each collector, which begins now, delete up to so many ledgers. `older_metadata`: the
        state of the metadata service counts although it was put back. Raises `MetadataError`, `StorageFault`."""
        if older_metadata:
            await self._witness.accept()
        self._collection.allow_deletions(ledgers)

    def suspend(self, *, major: bool = False, minor: bool = False) -> None:
        self._collection.suspend(major=major, minor=minor)

    def resume(self, *, major: bool = False, minor: bool = False) -> None:
        self._collection.resume(major=major, minor=minor)

    def states(self) -> Sequence[tuple[str, GcState]]:
        return [(name, collector.state()) for name, collector in self._named]

    def reports(self, log_id: int) -> Sequence[tuple[str, LogReport]]:
        found = []
        for name, collector in self._named:
            if not collector.has_log(log_id):
                continue
            try:
                found.append((name, collector.report(log_id)))
            except StorageFault:
                if collector.has_log(log_id):
                    raise
                # removed while it was looked at
        return found

    def forecasts(self) -> Sequence[tuple[str, Forecast]]:
        return [(name, collector.forecast()) for name, collector in self._named]

    def logs(self, limit: int) -> Sequence[StorageLogs]:
        """The oldest logs of each storage."""
        listed = [(name, collector.logs()) for name, collector in self._named]
        return [
            StorageLogs(name, [_log_of(each) for each in logs[:limit]], max(0, len(logs) - limit))
            for name, logs in listed
        ]


def _yes_no(value: bool) -> YesNo:
    return "true" if value else "false"


# --- force ------------------------------------------------------------------------------------------------


async def _force(context: Context, call: Call) -> Reply:
    gc = context.room(Collectors)
    if call.is_blank:
        gc.force()
    else:
        members = call.members()
        gc.force(
            chosen(members.get("forceMajor"), not gc.major_suspended),
            chosen(members.get("forceMinor"), not gc.minor_suspended),
        )
    return Json(f"Triggered GC on BookieServer: {context.room(ThisBookie).bookie_id}")


def chosen(value: object, default: bool) -> bool:
    """Read a flag as the reference does: the word true in any case, or the JSON boolean."""
    return default if value is None else str(value).lower() == "true"


async def _force_state(context: Context, call: Call) -> Reply:
    return Json(ForceState(_yes_no(context.room(Collectors).force_pending)))


async def _allow_deletions(context: Context, call: Call) -> Reply:
    wanted = call.read(AllowDeletionsBody)
    if not wanted.ledgers and not wanted.older_metadata:
        raise BadRequest(
            'nothing is allowed: send {"ledgers": N} with the largest number of ledgers that may be deleted, or'
            ' {"olderMetadata": true}'
        )
    audited(ledgers=wanted.ledgers, older_metadata=wanted.older_metadata)
    await context.room(Collectors).allow_deletions(wanted.ledgers, older_metadata=wanted.older_metadata)
    return await _progress(context, call)


# --- suspend, resume --------------------------------------------------------------------------------------


async def _suspensions(context: Context, call: Call) -> Reply:
    gc = context.room(Collectors)
    return Json(Suspensions(_yes_no(gc.minor_suspended), _yes_no(gc.major_suspended)))


async def _suspend(context: Context, call: Call) -> Reply:
    return _switch(context, call, "suspend")


async def _resume(context: Context, call: Call) -> Reply:
    return _switch(context, call, "resume")


def _switch(context: Context, call: Call, verb: Literal["suspend", "resume"]) -> Reply:
    if call.is_blank:
        return EMPTY
    members = call.members()
    major, minor = switch(members, f"{verb}Major"), switch(members, f"{verb}Minor")
    if major is None and minor is None:
        return Text(f"No {verb}Major or {verb}Minor params found", 400)
    gc, node = context.room(Collectors), context.room(ThisBookie)
    change = gc.suspend if verb == "suspend" else gc.resume
    change(major=bool(major), minor=bool(minor))
    server = f"Bookie Server listening on {node.address} with id {node.bookie_id}"
    kinds = [name for name, meant in (("major", major), ("minor", minor)) if meant]
    return Json(", ".join(f"{verb.capitalize()} {kind}GC on BookieServer: {server}" for kind in kinds))


# --- the table ------------------------------------------------------------------------------------------


def _switches(verb: str, *operations: Operation) -> Resource:
    refusal = f"Not found method. Should be PUT to {verb} major or minor compaction, Or GET to get compaction state."
    return Resource(operations, Text(refusal, 404), own=False)


_CONTROL: Final = (
    Resource(
        (
            Operation(gc_api.FORCE_STATE, Role.VIEWER, "Whether a forced pass goes on", _force_state, "State."),
            Operation(
                gc_api.FORCE, Role.OPERATOR, "Collect garbage now", _force, "What was done.", body_required=False
            ),
        ),
        Text("Not allowed method. Should be PUT to trigger GC, Or GET to get Force GC state.", 405),
        own=False,
    ),
    _switches(
        "suspend",
        Operation(gc_api.SUSPENSIONS, Role.VIEWER, "Which compactions are held back", _suspensions, "State."),
        Operation(gc_api.SUSPEND, Role.OPERATOR, "Hold back compaction", _suspend, "What was done."),
    ),
    _switches("resume", Operation(gc_api.RESUME, Role.OPERATOR, "Allow compaction again", _resume, "What was done.")),
)


async def _details(context: Context, call: Call) -> Reply:
    return Json([_details_of(state) for _, state in context.room(Collectors).states()])


def _details_of(state: GcState) -> GcDetails:
    return GcDetails(
        force_compacting=state.force_compacting,
        major_compacting=state.major_compacting,
        minor_compacting=state.minor_compacting,
        last_major_compaction_time=state.last_major_ms,
        last_minor_compaction_time=state.last_minor_ms,
        last_entry_location_compaction_time=state.last_index_ms,
        major_compaction_counter=state.major_count,
        minor_compaction_counter=state.minor_count,
        entry_location_compaction_counter=state.index_count,
    )


async def _progress(context: Context, call: Call) -> Reply:
    return Json([_progress_of(directory, state) for directory, state in context.room(Collectors).states()])


def _progress_of(directory: str, state: GcState) -> GcProgress:
    last, made = state.last_pass, None
    if last is not None:
        kind = _KINDS[last.compaction] if last.compaction is not None else None
        made = GcPass(
            last.ledgers_deleted,
            last.logs_deleted,
            last.logs_compacted,
            last.reclaimed_bytes,
            kind,
            list(last.errors),
        )
    return GcProgress(
        directory,
        state.phase,
        state.done,
        state.total,
        state.force_compacting,
        state.major_suspended,
        state.minor_suspended,
        made,
        state.deletions_held,
        state.ledgers_waiting,
    )


_STATE: Final = (
    Resource(
        (
            Operation(
                gc_api.ALLOW_DELETIONS,
                Role.OPERATOR,
                "Let the next pass delete ledgers although that is unusual",
                _allow_deletions,
                "What the collectors do.",
            ),
        ),
    ),
    Resource(
        (Operation(gc_api.DETAILS, Role.VIEWER, "Garbage collection of each storage", _details, "States."),),
        own=False,
    ),
    Resource(
        (
            Operation(
                gc_api.PROGRESS,
                Role.VIEWER,
                "What the collectors do now, and what their last pass did",
                _progress,
                "One per storage.",
            ),
        ),
    ),
)


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
    log_id = read_log_id(call.asked(EntryLogQuery).entry_log)
    gc = context.room(Collectors)
    found = await context.workers.run(lambda: gc.reports(log_id), call.caller)
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
        usage.live_bytes if usage is not None else None,
        usage.in_doubt if usage is not None else None,
        [LedgerShare(*each) for each in owners] if owners is not None else None,
        report.reason,
        report.age_s,
    )


def _log_of(log: LogSummary) -> LogEntry:
    return LogEntry(f"{log.log_id:x}.log", log.log_id, log.size, log.age_s, log.share, log.state)


async def _logs(context: Context, call: Call) -> Reply:
    limit, gc = call.asked(LogsQuery).limit, context.room(Collectors)
    return Json(await context.workers.run(lambda: gc.logs(limit), call.caller))


async def _forecast(context: Context, call: Call) -> Reply:
    gc = context.room(Collectors)
    return Json([_forecast_of(*each) for each in await context.workers.run(gc.forecasts, call.caller)])


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
    return Json(_quarantined(context.room(Collectors)))


def _quarantined(gc: Collectors) -> Sequence[QuarantinedLog]:
    found: list[QuarantinedLog] = []
    for directory, state in gc.states():
        by_scrub = {log_id: detail for log_id, detail in state.held.items() if log_id not in state.quarantined}
        for log_id, detail in sorted([*state.quarantined.items(), *by_scrub.items()]):
            by: Literal["gc", "scrub"] = "scrub" if log_id in by_scrub else "gc"
            found.append(QuarantinedLog(directory, f"{log_id:x}.log", log_id, detail, by))
    return found


_LOGS: Final = (
    Resource(
        (
            Operation(
                gc_api.WHY,
                Role.VIEWER,
                "Why an entry log is still there, and when it will go",
                _why,
                "One per storage that has such a log.",
                (Answer("There is no such log.", 404),),
            ),
        ),
    ),
    Resource(
        (Operation(gc_api.LOGS, Role.VIEWER, "Entry logs, by age", _logs, "One per storage."),),
    ),
    Resource(
        (Operation(gc_api.FORECAST, Role.VIEWER, "What compaction would give back", _forecast, "One per storage."),),
    ),
    Resource(
        (
            Operation(
                gc_api.QUARANTINE, Role.VIEWER, "Damaged entry logs that are left alone", _quarantine, "All of them."
            ),
        ),
    ),
)

RESOURCES: Final = (*_CONTROL, *_STATE, *_LOGS)
