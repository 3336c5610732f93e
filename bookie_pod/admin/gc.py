"""Control of garbage collection: force a pass, hold compaction back, compact the location index."""

from __future__ import annotations

from typing import Final, Literal

from bookie_pod.roles import Role
from bookie_pod.server.http.api.call import Call, switch
from bookie_pod.server.http.api.context import Context
from bookie_pod.server.http.api.replies import Json, Reply, Text
from bookie_pod.server.http.api.table import Answer, Group, Operation, Resource
from bookie_protocol.admin_api.gc import (
    CompactIndexBody,
    ForceBody,
    ForceState,
    ResumeBody,
    SuspendBody,
    Suspensions,
    YesNo,
)

_EMPTY: Final = Text("Empty request body", 400)


def _yes_no(value: bool) -> YesNo:
    return "true" if value else "false"


# --- force ------------------------------------------------------------------------------------------------


async def _force(context: Context, call: Call) -> Reply:
    gc = context.admin.gc
    if call.is_blank:
        gc.force()
    else:
        members = call.members()
        gc.force(
            _chosen(members.get("forceMajor"), not gc.major_suspended),
            _chosen(members.get("forceMinor"), not gc.minor_suspended),
        )
    return Json(f"Triggered GC on BookieServer: {context.admin.node.bookie_id}")


def _chosen(value: object, default: bool) -> bool:
    """As the reference reads it: the word true in any case, or the JSON boolean."""
    return default if value is None else str(value).lower() == "true"


async def _force_state(context: Context, call: Call) -> Reply:
    return Json(ForceState(_yes_no(context.admin.gc.force_pending)))


# --- suspend, resume --------------------------------------------------------------------------------------


async def _suspensions(context: Context, call: Call) -> Reply:
    gc = context.admin.gc
    return Json(Suspensions(_yes_no(gc.minor_suspended), _yes_no(gc.major_suspended)))


async def _suspend(context: Context, call: Call) -> Reply:
    return _switch(context, call, "suspend")


async def _resume(context: Context, call: Call) -> Reply:
    return _switch(context, call, "resume")


def _switch(context: Context, call: Call, verb: Literal["suspend", "resume"]) -> Reply:
    if call.is_blank:
        return _EMPTY
    members = call.members()
    major, minor = switch(members, f"{verb}Major"), switch(members, f"{verb}Minor")
    if major is None and minor is None:
        return Text(f"No {verb}Major or {verb}Minor params found", 400)
    gc, node = context.admin.gc, context.admin.node
    change = gc.suspend if verb == "suspend" else gc.resume
    change(major=bool(major), minor=bool(minor))
    server = f"Bookie Server listening on {node.address} with id {node.bookie_id}"
    kinds = [name for name, meant in (("major", major), ("minor", minor)) if meant]
    return Json(", ".join(f"{verb.capitalize()} {kind}GC on BookieServer: {server}" for kind in kinds))


# --- index ------------------------------------------------------------------------------------------------


async def _index_state(context: Context, call: Call) -> Reply:
    return Json(context.admin.node.index_compactions())


async def _compact_index(context: Context, call: Call) -> Reply:
    if call.is_blank:
        return _EMPTY
    members, node = call.members(), context.admin.node
    if not _chosen(members.get("entryLocationRocksDBCompact"), False):
        return Text("Not trigger Entry Location RocksDB compact.")
    locations = str(members.get("entryLocations") or "")
    paths = [part.strip() for part in locations.split(",") if part.strip()]
    node.compact_indexes(paths or None)
    named_paths = f" {','.join(paths)}" if paths else ""
    return Json(f"Triggered entry Location RocksDB{named_paths} compact on bookie:{node.bookie_id}")


# --- the table ------------------------------------------------------------------------------------------


_BASE: Final = "/api/v1/bookie"
_DONE: Final = Answer("What was done.", type=str)


def _switches(verb: str, put: Operation) -> Resource:
    state = Operation(
        "GET", Role.VIEWER, "Which compactions are held back", _suspensions, (Answer("State.", type=Suspensions),)
    )
    refusal = f"Not found method. Should be PUT to {verb} major or minor compaction, Or GET to get compaction state."
    operations = (state, put) if verb == "suspend" else (put,)
    return Resource(f"{_BASE}/gc/{verb}_compaction", Group.ADMIN, operations, Text(refusal, 404), own=False)


RESOURCES: Final = (
    Resource(
        f"{_BASE}/gc",
        Group.ADMIN,
        (
            Operation(
                "GET", Role.VIEWER, "Whether a forced pass goes on", _force_state, (Answer("State.", type=ForceState),)
            ),
            Operation(
                "PUT", Role.OPERATOR, "Collect garbage now", _force, (_DONE,), body=ForceBody, body_required=False
            ),
        ),
        Text("Not allowed method. Should be PUT to trigger GC, Or GET to get Force GC state.", 405),
        own=False,
    ),
    _switches("suspend", Operation("PUT", Role.OPERATOR, "Hold back compaction", _suspend, (_DONE,), body=SuspendBody)),
    _switches("resume", Operation("PUT", Role.OPERATOR, "Allow compaction again", _resume, (_DONE,), body=ResumeBody)),
    Resource(
        f"{_BASE}/entry_location_compact",
        Group.ADMIN,
        (
            Operation(
                "GET",
                Role.VIEWER,
                "Which location indexes are being compacted",
                _index_state,
                (Answer("Path of each index; true: it is.", type=dict[str, bool]),),
            ),
            Operation(
                "PUT",
                Role.OPERATOR,
                "Compact location indexes in the background",
                _compact_index,
                (_DONE, Answer("Nothing was triggered.")),
                body=CompactIndexBody,
            ),
        ),
        Text("Not allowed method. Should be PUT to trigger compact, Or GET to get compact state.", 405),
        own=False,
    ),
)
