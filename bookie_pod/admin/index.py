"""Rebuilding the databases of a bookie that serves: begun, watched and stopped."""

from __future__ import annotations

from typing import Any, Final

from bookie_pod.audit import audited
from bookie_pod.roles import Role
from bookie_pod.server.http.api.call import Call, switch
from bookie_pod.server.http.api.context import Context
from bookie_pod.server.http.api.replies import Json, Reply, Text
from bookie_pod.server.http.api.table import Answer, Group, Operation, Resource
from bookie_pod.storage.rebuild.state import RebuildRequest, RebuildState
from bookie_protocol.admin_api.integrity import (
    RebuildBegun,
    RebuildBody,
    RebuildOutcome,
    RebuildPhase,
    RebuildProgress,
    RebuildStop,
)
from bookie_protocol.errors import BadRequest

_CURRENT: Final = "/current"
_SWITCHES: Final = ("locations", "ledgers", "acceptDamage")


async def _status(context: Context, call: Call) -> Reply:
    return Json([_progress_of(state) for state in context.admin.integrity.rebuild_states()])


def _progress_of(state: RebuildState) -> RebuildProgress:
    phase: RebuildPhase = state.phase.value
    outcome: RebuildOutcome = state.outcome.value
    return RebuildProgress(
        directory=state.folder.removesuffix(_CURRENT),
        phase=phase,
        outcome=outcome,
        detail=state.detail,
        started_time=state.started_ms,
        ended_time=state.ended_ms,
        bytes_done=state.bytes_done,
        bytes_total=state.bytes_total,
        entry_logs=state.logs,
        entries=state.entries,
        entries_of_unknown_ledgers=state.unknown_ledger_entries,
        changed_rows=state.rows_changed,
        salvaged_rows=state.rows_salvaged,
        dangling_rows=state.rows_dangling,
        ledgers=state.ledgers,
        restored_ledgers=state.ledgers_restored,
        ledgers_without_key=state.ledgers_without_key,
        damages=[*state.damages, *state.journal_damages],
        old_index_unreadable=state.unreadable,
        backups=list(state.backups),
    )


# --- begin and stop -----------------------------------------------------------------------------------------


async def _begin(context: Context, call: Call) -> Reply:
    request = _request(call)
    audited(accept_damage=request.accept_damage)
    if request.accept_damage:
        call.caller.demand(Role.ADMIN, "a rebuild with accept_damage")
    return Json(RebuildBegun(context.admin.integrity.request_rebuild(request)))


def _request(call: Call) -> RebuildRequest:
    members = {} if call.is_blank else call.members()
    unknown = sorted(members.keys() - {"directories", *_SWITCHES})
    if unknown:
        raise BadRequest(f"{unknown[0][:100]} is no member of the body: use directories, {', '.join(_SWITCHES)}")
    locations, ledgers, accept_damage = (switch(members, name) for name in _SWITCHES)
    request = RebuildRequest(
        _folders(members.get("directories")), locations is not False, ledgers is not False, accept_damage is True
    )
    if not (request.locations or request.ledgers):
        raise BadRequest("neither locations nor ledgers is to be rebuilt: leave one of them true")
    return request


def _folders(found: Any) -> tuple[str, ...]:
    if found is None:
        return ()
    if not isinstance(found, list) or not found or not all(isinstance(each, str) for each in found):
        raise BadRequest("directories must be a list of ledger directories, with at least one of them")
    return tuple(f"{each.rstrip('/')}{_CURRENT}" for each in found)


async def _stop(context: Context, call: Call) -> Reply:
    return Json(RebuildStop(context.admin.integrity.cancel_rebuild()))


RESOURCES: Final = (
    Resource(
        "/api/v1/bookie/index_rebuild",
        Group.ADMIN,
        (
            Operation(
                "GET",
                Role.VIEWER,
                "What the rebuild of indexes does or did, by ledger directory",
                _status,
                (Answer("State; empty where the engine has no databases.", type=list[RebuildProgress]),),
            ),
            Operation(
                "PUT",
                Role.OPERATOR,
                "Rebuild location index and ledger index from the entry logs while the bookie serves",
                _begin,
                (
                    Answer("What became of it.", type=RebuildBegun),
                    Answer("The body is wrong, or names a directory that is none of this bookie.", 400),
                    Answer("The engine has no databases.", 409),
                ),
                body=RebuildBody,
                body_required=False,
            ),
            Operation(
                "DELETE",
                Role.OPERATOR,
                "Stop the rebuild that runs; the old index is used",
                _stop,
                (Answer("What became of it.", type=RebuildStop),),
            ),
        ),
        Text("Not allowed method. Should be PUT to begin, DELETE to stop, Or GET to get the state.", 405),
    ),
)
