"""What garbage collection does: the reference's `gc_details`, and progress with the result of the last pass."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from bookie_pod.roles import Role
from bookie_pod.server.http.api.call import Call
from bookie_pod.server.http.api.context import Context
from bookie_pod.server.http.api.replies import Json, Reply
from bookie_pod.server.http.api.table import Answer, Group, Operation, Resource
from bookie_pod.storage.gc.reports import GcState
from bookie_pod.storage.gc.schedule import Compaction


@dataclass(frozen=True, slots=True)
class GcDetails:
    """One storage, as the reference tells it."""

    force_compacting: bool
    """A forced pass waits or runs."""
    major_compacting: bool
    """A major compaction runs."""
    minor_compacting: bool
    """A minor compaction runs."""
    last_major_compaction_time: int
    """When the last one ended, in ms since 1970; before the first: when the bookie was new."""
    last_minor_compaction_time: int
    """As for the major one."""
    last_entry_location_compaction_time: int
    """When the location index was last compacted by itself, or when the bookie started; ms since 1970."""
    major_compaction_counter: int
    """Major compactions so far."""
    minor_compaction_counter: int
    """Minor compactions so far."""
    entry_location_compaction_counter: int
    """Compactions of the location index since the start."""


async def _details(context: Context, call: Call) -> Reply:
    return Json([_details_of(state) for _, state in context.admin.gc.states()])


def _details_of(state: GcState) -> GcDetails:
    return GcDetails(
        state.force_compacting,
        state.major_compacting,
        state.minor_compacting,
        state.last_major_ms,
        state.last_minor_ms,
        state.last_index_ms,
        state.major_count,
        state.minor_count,
        state.index_count,
    )


@dataclass(frozen=True, slots=True)
class GcPass:
    """What one pass did."""

    ledgers_deleted: int
    """Ledgers that were forgotten."""
    logs_deleted: int
    """Entry logs that were removed."""
    logs_compacted: int
    """Entry logs of which what lived was copied first."""
    reclaimed_bytes: int
    """Bytes given back, less what was copied."""
    compaction: Literal["major", "minor"] | None
    """Which compaction ran."""
    errors: list[str]
    """What went wrong, one line each; the next pass tries again."""


@dataclass(frozen=True, slots=True)
class GcProgress:
    """What one collector does now, and what its last pass did."""

    directory: str
    """Its ledger directory; of an engine with one collector: all of them."""
    phase: str
    """`waiting` between passes."""
    done: int
    """Entry logs of this phase that are done."""
    total: int
    """Of so many; 0 when the phase counts none."""
    force_compacting: bool
    """A forced pass waits or runs."""
    major_suspended: bool
    """Major compaction is held back."""
    minor_suspended: bool
    """Minor compaction is held back."""
    last_pass: GcPass | None
    """null: none has ended since the start."""


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
