"""Rebuilding the databases of a bookie that serves: begun, watched and stopped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from bookie_pod.audit import audited
from bookie_pod.roles import Role
from bookie_pod.server.http.api.call import Call, switch
from bookie_pod.server.http.api.context import Context
from bookie_pod.server.http.api.replies import Json, Reply, Text
from bookie_pod.server.http.api.table import Answer, Group, Operation, Resource
from bookie_pod.storage.index_rebuild.state import RebuildRequest, RebuildState
from bookie_protocol.errors import BadRequest

PhaseName = Literal[
    "waiting", "waiting for garbage collection", "ledgers", "entry logs", "old rows", "putting in place"
]
OutcomeName = Literal["none", "running", "done", "stopped", "damaged", "failed"]
_CURRENT: Final = "/current"
_SWITCHES: Final = ("locations", "ledgers", "acceptDamage")


@dataclass(frozen=True, slots=True)
class RebuildProgress:
    """The rebuild that runs, or ran last, in one ledger directory. Counts of rows are of the location index."""

    directory: str
    """The ledger directory."""
    phase: PhaseName
    """What goes on; `waiting` before and after, and while another directory is done."""
    outcome: OutcomeName
    """`stopped`, `damaged` (entry logs are damaged, and that was not accepted) and `failed`: the old index is used."""
    detail: str
    """Why it ended like that; empty: it runs, or all went well."""
    started_time: int
    """In ms since 1970; 0: it has not begun."""
    ended_time: int
    """In ms since 1970; 0: it has not ended."""
    bytes_done: int
    """Bytes of entry logs that were read."""
    bytes_total: int
    """Of so many, as of when reading began."""
    entry_logs: int
    """Entry logs that were read."""
    entries: int
    """Entries of known ledgers in them, copies included."""
    entries_of_unknown_ledgers: int
    """Entries of ledgers that were deleted."""
    changed_rows: int
    """Rows that the old index lacked or had otherwise."""
    salvaged_rows: int
    """Rows that only the old index had, and whose entries are there."""
    dangling_rows: int
    """Rows whose entries are not there: they are kept, so that reads fail and deny nothing."""
    ledgers: int
    """Ledgers in the new ledger index."""
    restored_ledgers: int
    """Of these, ledgers that the old one lacked; they are fenced."""
    ledgers_without_key: int
    """Of these, ledgers whose master key nobody knows: the next client that presents one sets it."""
    damages: list[str]
    """Damaged entry logs and journals, the first ones."""
    old_index_unreadable: str
    """Why the old location index could not be read to its end; empty: it could."""
    backups: list[str]
    """Where the old databases are now; nothing needs them any more."""


async def _status(context: Context, call: Call) -> Reply:
    return Json([_progress_of(state) for state in context.admin.integrity.rebuild_states()])


def _progress_of(state: RebuildState) -> RebuildProgress:
    phase: PhaseName = state.phase.value
    outcome: OutcomeName = state.outcome.value
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


@dataclass(frozen=True, slots=True)
class RebuildBody:
    """What to rebuild. Everything may be left out."""

    directories: list[str]
    """Ledger directories as they are configured; left out: all."""
    locations: bool
    """false: not the location index."""
    ledgers: bool
    """false: not the ledger index."""
    accept_damage: bool
    """true: use the new location index although entry logs are damaged; what lies behind the damage may be missing."""


@dataclass(frozen=True, slots=True)
class RebuildBegun:
    """What became of the request."""

    triggered: bool
    """false: a rebuild runs already."""


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


@dataclass(frozen=True, slots=True)
class RebuildStop:
    """What became of the request."""

    stopping: bool
    """false: none runs."""


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
