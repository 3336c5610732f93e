"""This bookie: its mode, its space, its journals and files, its sanity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec import UNSET

from bookie_pod.audit import audited
from bookie_pod.roles import Role
from bookie_pod.server.http.api.call import Call, switch
from bookie_pod.server.http.api.context import Context
from bookie_pod.server.http.api.replies import Json, Reply, Text
from bookie_pod.server.http.api.table import Answer, Group, Kind, Operation, Parameter, Resource
from bookie_protocol.admin_api.bookie import BookieSpace, BookieState, ReadOnlyBody, ReadOnlyState, SanityResult
from bookie_protocol.errors import BadRequest

_BASE: Final = "/api/v1/bookie"
DRAIN_S: Final = 600.0
"""Longest flush before a stop, in seconds."""
SANITY_S: Final = 60.0
"""Longest sanity test, in seconds: a bookie that is slow is slow at every step."""


# --- mode -------------------------------------------------------------------------------------------------


async def _state(context: Context, call: Call) -> Reply:
    state = context.status.state()
    return Json(
        BookieState(state.running, state.read_only, state.shutting_down, state.available_for_high_priority_writes)
    )


async def _read_only(context: Context, call: Call) -> Reply:
    return Json(ReadOnlyState(context.admin.node.state().read_only))


async def _set_read_only(context: Context, call: Call) -> Reply:
    wanted = None if call.is_blank else switch(call.members(), "readOnly")
    if wanted is None:
        raise BadRequest('no mode is named: send {"readOnly": true} or {"readOnly": false}')
    audited(read_only=wanted)
    node = context.admin.node
    await node.set_read_only(wanted, call.parameters["decommission"])
    return Json(ReadOnlyState(node.state().read_only))


async def _drain_clients(context: Context, call: Call) -> Reply:
    node = context.admin.node
    await node.drain_clients()
    return Json(ReadOnlyState(node.state().read_only))


async def _sanity(context: Context, call: Call) -> Reply:
    node = context.admin.node
    if node.state().read_only:
        return Json(SanityResult(passed=False, read_only=True))
    passed = await node.check_sanity()
    return Json(SanityResult(passed, node.state().read_only))


# --- space, journals, files -------------------------------------------------------------------------------


async def _info(context: Context, call: Call) -> Reply:
    space = await context.workers.run(context.admin.node.space)
    fullest = round(space.fullest_used_percent, 2) if call.flag("fullest") else UNSET
    return Json(BookieSpace(space.free, space.total, fullest))


async def _last_log_mark(context: Context, call: Call) -> Reply:
    return Json(
        {
            f"LastLogMark: Journal Id - {mark.journal_id}({mark.journal_id:x}.txn)": f"Pos - {mark.offset}"
            for mark in context.admin.node.marks()
        }
    )


async def _files(context: Context, call: Call) -> Reply:
    kind = call.parameters["file_type"]
    found = await context.workers.run(context.admin.node.files)
    names = {"index": found.index, "journal": found.journal, "entrylog": found.entry_log}
    return Json({f"{each} files": _tabbed(names[each]) for each in names if kind in (None, each)})


def _tabbed(names: Sequence[str]) -> str:
    return "".join(f"{name}\t" for name in names)


async def _expand(context: Context, call: Call) -> Reply:
    await context.admin.node.expand_storage()
    return Text("Success expand storage")


# --- the table --------------------------------------------------------------------------------------------

_ONLY_GET: Final = Text("Not found method. Should be GET method", 404)
_ONLY_PUT: Final = Text("Not found method. Should be PUT method", 404)


def _get(path: str, operation: Operation, refusal: Text = _ONLY_GET) -> Resource:
    return Resource(f"{_BASE}/{path}", Group.ADMIN, (operation,), refusal, own=False)


STATE: Final = Resource(
    f"{_BASE}/state",
    Group.ADMIN,
    (Operation("GET", Role.VIEWER, "Flags of the bookie", _state, (Answer("The flags.", type=BookieState),)),),
    own=False,
    always=True,
)
"""Answered from the first moment on, unlike the rest."""

RESOURCES: Final = (
    Resource(
        f"{_BASE}/state/readonly",
        Group.ADMIN,
        (
            Operation(
                "GET", Role.VIEWER, "Whether it takes writes", _read_only, (Answer("The mode.", type=ReadOnlyState),)
            ),
            Operation(
                "PUT",
                Role.OPERATOR,
                "Change the mode",
                _set_read_only,
                (
                    Answer("The mode now; a bookie whose disks are full stays read-only.", type=ReadOnlyState),
                    Answer("The configuration forbids that mode.", 400),
                    Answer("The decommission that asks for it is over.", 409),
                ),
                parameters=(
                    Parameter(
                        "decommission",
                        Kind.NUMBER,
                        "The time in ms since 1970 at which the decommission began that asks for it: refused once that"
                        " is over.",
                    ),
                ),
                body=ReadOnlyBody,
            ),
        ),
        _ONLY_PUT,
        own=False,
    ),
    Resource(
        f"{_BASE}/drain_clients",
        Group.ADMIN,
        (
            Operation(
                "PUT",
                Role.OPERATOR,
                "Before a stop: take no more writes, so that writers go to other bookies, and flush. Unlike"
                " `state/readonly` it is forgotten by the next start, and goes with `state/readonly` too",
                _drain_clients,
                (
                    Answer("Everything acknowledged is flushed; the mode now.", type=ReadOnlyState),
                    Answer("The flush failed; the journal has everything.", 503),
                ),
                timeout_s=DRAIN_S,
            ),
        ),
        _ONLY_PUT,
    ),
    _get(
        "sanity",
        Operation(
            "GET",
            Role.OPERATOR,
            "Write a ledger on this bookie, read it back, delete it",
            _sanity,
            (Answer("The result.", type=SanityResult),),
            timeout_s=SANITY_S,
        ),
    ),
    _get(
        "info",
        Operation(
            "GET",
            Role.VIEWER,
            "Space of this bookie",
            _info,
            (Answer("The space.", type=BookieSpace),),
            (Parameter("fullest", Kind.FLAG, "Tell how full the fullest file system is, too.", False),),
        ),
    ),
    _get(
        "last_log_mark",
        Operation(
            "GET",
            Role.VIEWER,
            "How far each journal is synced",
            _last_log_mark,
            (Answer("One member per journal.", type=dict[str, str]),),
        ),
    ),
    _get(
        "list_disk_file",
        Operation(
            "GET",
            Role.VIEWER,
            "Names of the files of journals, entry logs and index",
            _files,
            (Answer("Names by kind, a tab behind each.", type=dict[str, str]),),
            parameters=(
                Parameter(
                    "file_type",
                    Kind.TEXT,
                    "One kind only.",
                    choices=("journal", "entrylog", "index"),
                ),
            ),
        ),
    ),
    _get(
        "expand_storage",
        Operation(
            "PUT",
            Role.ADMIN,
            "Accept new, empty ledger and index directories of the configuration; they are used from the next start on",
            _expand,
            (Answer("Done."), Answer("A cookie forbids it.", 409)),
        ),
        _ONLY_PUT,
    ),
)
