"""What is sound and what is damaged: the scrubber, its findings, and the check of what was lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from bookie_pod.roles import Role
from bookie_pod.server.http.api.call import Call
from bookie_pod.server.http.api.context import Context
from bookie_pod.server.http.api.replies import Json, Reply, Text
from bookie_pod.server.http.api.table import Answer, Group, Operation, Resource
from bookie_pod.storage.integrity.quarantine import Damage
from bookie_pod.storage.integrity.scrub_part import PartState

PhaseName = Literal["waiting", "entry logs", "index", "journals"]
KindName = Literal["entry", "entry log", "ledgers map", "index", "journal"]


# --- the scrubber -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ScrubProgress:
    """What the scrubber does in one directory."""

    directory: str
    """A ledger or journal directory; of an engine with one space of entry logs, the first one stands for all."""
    phase: PhaseName
    """`waiting` between passes; entry logs come before the index."""
    pass_number: int
    """Of the pass that runs, or that ran last; counts from 1."""
    done: int
    """Entry logs, ledgers or journals of this phase that are checked."""
    total: int
    """Of so many."""
    started_time: int
    """When this pass began, in ms since 1970; 0: never."""
    completed_time: int
    """When the last complete pass ended, in ms since 1970; 0: never."""
    entries: int
    """Entries that this pass has read since the bookie was started."""
    digests: int
    """Of these, entries whose digest was checked: others need a password, or their ledger is not known."""
    rows: int
    """Rows of the index that were followed."""
    restored_rows: int
    """Rows of the index that were missing and were put back."""
    entry_logs: int
    """Entry logs that were read."""
    journals: int
    """Journals that were read."""
    errors: list[str]
    """What could not be checked, one line each; the next pass tries again."""


@dataclass(frozen=True, slots=True)
class ScrubStatus:
    """The scrubber of this bookie."""

    enabled: bool
    """Passes come by themselves (`localScrubInterval`)."""
    running: bool
    """A pass goes on."""
    next_pass_time: int | None
    """When the next pass begins, in ms since 1970; null: one goes on, or none is planned."""
    damages: int
    """Findings that stand; `/api/v1/bookie/scrub/damages` lists them."""
    damages_not_kept: int
    """Findings beyond what is kept; the pass after a repair finds them again."""
    directories: list[ScrubProgress]
    """One each."""


async def _status(context: Context, call: Call) -> Reply:
    state = context.admin.integrity.scrub_state()
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
    phase: PhaseName = part.phase.value
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


@dataclass(frozen=True, slots=True)
class ScrubRequest:
    """What became of the request for a pass."""

    triggered: bool
    """false: a pass goes on already, or was asked for before."""


async def _scrub(context: Context, call: Call) -> Reply:
    return Json(ScrubRequest(context.admin.integrity.request_scrub()))


# --- findings -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DamageFound:
    """One finding: refused to readers, kept from garbage collection, until another copy is there."""

    kind: KindName
    """What is damaged."""
    detail: str
    """What was found, and where."""
    file_id: int | None
    """Id of the entry log or journal; null: it is neither."""
    ledger_id: int | None
    """The ledger; null: of several, or not known."""
    entry_id: int | None
    """The entry; null: of several, or not known."""
    found_time: int
    """When it was found first, in ms since 1970."""


async def _damages(context: Context, call: Call) -> Reply:
    return Json([_damage_of(damage) for damage in context.admin.integrity.scrub_state().damages])


def _damage_of(damage: Damage) -> DamageFound:
    kind: KindName = damage.kind.value
    return DamageFound(
        kind, damage.detail, _id(damage.file_id), _id(damage.ledger_id), _id(damage.entry_id), damage.found_ms
    )


def _id(number: int) -> int | None:
    return number if number >= 0 else None


# --- what was lost ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DataIntegrity:
    """The check after lost cookies or an unclean stop without journaled data (`dataIntegrityChecking`), and of a new
    bookie that ledgers name already."""

    enabled: bool
    """It is switched on, or needed; otherwise everything below is 0 or false."""
    needed: bool
    """Ledgers are in limbo until a check has ended without a failure."""
    running: bool
    """A check goes on."""
    ledgers_checked: int
    """In this check, or the last one."""
    ledgers_failed: int
    """Of these, ledgers that will be tried again."""
    ledgers_recovered: int
    """Ledgers that were open and were closed, since the bookie was started."""
    entries_copied: int
    """Entries fetched from other bookies, since the bookie was started."""
    last_error: str
    """Why the last failure was; empty: none."""


async def _data_check(context: Context, call: Call) -> Reply:
    state = context.admin.integrity.data_check()
    if state is None:
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
        )
    )


RESOURCES: Final = (
    Resource(
        "/api/v1/bookie/scrub",
        Group.ADMIN,
        (
            Operation("GET", Role.VIEWER, "What the scrubber does", _status, (Answer("State.", type=ScrubStatus),)),
            Operation(
                "PUT",
                Role.OPERATOR,
                "Read and check everything that is stored, now, at the scrubber's pace",
                _scrub,
                (Answer("What became of it.", type=ScrubRequest),),
            ),
        ),
        Text("Not allowed method. Should be PUT to begin a scrub, Or GET to get its state.", 405),
    ),
    Resource(
        "/api/v1/bookie/scrub/damages",
        Group.ADMIN,
        (
            Operation(
                "GET",
                Role.VIEWER,
                "What is known to be damaged, the oldest finding of each directory first",
                _damages,
                (Answer("All that is kept.", type=list[DamageFound]),),
            ),
        ),
    ),
    Resource(
        "/api/v1/bookie/data_integrity",
        Group.ADMIN,
        (
            Operation(
                "GET", Role.VIEWER, "The check of what was lost", _data_check, (Answer("State.", type=DataIntegrity),)
            ),
        ),
    ),
)
