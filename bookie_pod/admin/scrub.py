"""The integrity of a bookie's data: the scrubber, its findings, and the check of what was lost.

Event loop only.
"""

from __future__ import annotations

from typing import Final

from bookie_pod.node.integrity.service import Integrity
from bookie_pod.roles import Role
from bookie_pod.server.http.api.call import Call, Json, Reply, Text
from bookie_pod.server.http.api.context import Context
from bookie_pod.server.http.api.table import Operation, Resource
from bookie_pod.storage.integrity.quarantine import Damage
from bookie_pod.storage.integrity.scrub_part import PartState
from bookie_protocol.admin_api import integrity as integrity_api
from bookie_protocol.admin_api.integrity import (
    DamageFound,
    DamageKind,
    DataIntegrity,
    ScrubPhase,
    ScrubProgress,
    ScrubRequest,
    ScrubStatus,
)

# --- the scrubber -------------------------------------------------------------------------------------------


async def _status(context: Context, call: Call) -> Reply:
    state = context.room(Integrity).scrubber.state()
    return Json(
        ScrubStatus(
            state.enabled,
            state.running,
            state.next_pass_ms,
            len(state.damages),
            state.overflowed,
            [_progress_of(part) for part in state.parts],
        )
    )


def _progress_of(part: PartState) -> ScrubProgress:
    counts = part.counts
    phase: ScrubPhase = part.phase.value
    return ScrubProgress(
        part.folder.removesuffix("/current"),
        phase,
        part.number,
        part.done,
        part.total,
        part.started_ms,
        part.completed_ms,
        counts.entries,
        counts.digests,
        counts.rows,
        counts.restored,
        counts.logs,
        counts.journals,
        list(part.errors),
    )


async def _scrub(context: Context, call: Call) -> Reply:
    return Json(ScrubRequest(context.room(Integrity).scrubber.request()))


# --- findings -----------------------------------------------------------------------------------------------


async def _damages(context: Context, call: Call) -> Reply:
    return Json([_damage_of(damage) for damage in context.room(Integrity).scrubber.state().damages])


def _damage_of(damage: Damage) -> DamageFound:
    kind: DamageKind = damage.kind.value
    return DamageFound(
        kind, damage.detail, _id(damage.file_id), _id(damage.ledger_id), _id(damage.entry_id), damage.found_ms
    )


def _id(number: int) -> int | None:
    return number if number >= 0 else None


# --- what was lost ------------------------------------------------------------------------------------------


async def _data_check(context: Context, call: Call) -> Reply:
    integrity = context.room(Integrity)
    state = integrity.data_check.state
    if not (integrity.checks_data or state.needed):
        return Json(DataIntegrity(False, False, False, 0, 0, 0, 0, ""))
    return Json(
        DataIntegrity(
            True,
            state.needed,
            state.running,
            state.ledgers_checked,
            state.ledgers_failed,
            state.ledgers_recovered,
            state.entries_copied,
            state.last_error,
            state.in_limbo,
        )
    )


RESOURCES: Final = (
    Resource(
        (
            Operation(integrity_api.SCRUB_STATUS, Role.VIEWER, "What the scrubber does", _status, "State."),
            Operation(
                integrity_api.SCRUB,
                Role.OPERATOR,
                "Read and check everything that is stored, now, at the scrubber's pace",
                _scrub,
                "What became of it.",
            ),
        ),
        Text("Not allowed method. Should be PUT to begin a scrub, Or GET to get its state.", 405),
    ),
    Resource(
        (
            Operation(
                integrity_api.DAMAGES,
                Role.VIEWER,
                "What is known to be damaged, the oldest finding of each directory first",
                _damages,
                "All that is kept.",
            ),
        ),
    ),
    Resource(
        (Operation(integrity_api.DATA_INTEGRITY, Role.VIEWER, "The check of what was lost", _data_check, "State."),),
    ),
)
