"""What garbage collection does: the reference's `gc_details`, and progress with the result of the last pass."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from bookie_pod.roles import Role
from bookie_pod.server.http.api.call import Call
from bookie_pod.server.http.api.context import Context
from bookie_pod.server.http.api.replies import Json, Reply
from bookie_pod.server.http.api.table import Answer, Group, Operation, Resource
from bookie_pod.storage.gc.reports import GcState
from bookie_pod.storage.gc.schedule import Compaction
from bookie_protocol.admin_api.gc import GcDetails, GcPass, GcProgress


async def _details(context: Context, call: Call) -> Reply:
    return Json([_details_of(state) for _, state in context.admin.gc.states()])


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
    return Json([_progress_of(directory, state) for directory, state in context.admin.gc.states()])


_KINDS: Final[Mapping[Compaction, Literal["major", "minor"]]] = {Compaction.MAJOR: "major", Compaction.MINOR: "minor"}


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
    )


RESOURCES: Final = (
    Resource(
        "/api/v1/bookie/gc_details",
        Group.ADMIN,
        (
            Operation(
                "GET",
                Role.VIEWER,
                "Garbage collection of each storage",
                _details,
                (Answer("States.", type=list[GcDetails]),),
            ),
        ),
        own=False,
    ),
    Resource(
        "/api/v1/bookie/gc/progress",
        Group.ADMIN,
        (
            Operation(
                "GET",
                Role.VIEWER,
                "What the collectors do now, and what their last pass did",
                _progress,
                (Answer("One per storage.", type=list[GcProgress]),),
            ),
        ),
    ),
)
