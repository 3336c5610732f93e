"""The indexes of a bookie that serves: rebuilt and compacted on request.

Invariants
- A location index that waits or is being compacted is not queued again; they are compacted one after the other.
- `IndexCompactions.stop` waits for the one that runs: RocksDB is not closed under its feet.

Threads: event loop, `stop` on another thread after the last `start`; `index-compaction` compacts.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import structlog
from msgspec import UNSET

from bookie_pod.admin.bookie import ThisBookie
from bookie_pod.admin.gc import EMPTY, chosen
from bookie_pod.audit import audited
from bookie_pod.node.integrity.service import Integrity
from bookie_pod.roles import Role
from bookie_pod.server.http.api.call import Call, Json, Reply, Text
from bookie_pod.server.http.api.context import Context
from bookie_pod.server.http.api.table import Answer, Operation, Resource
from bookie_pod.storage.index_rebuild.state import RebuildRequest, RebuildState
from bookie_protocol.admin_api import gc as gc_api
from bookie_protocol.admin_api import integrity as integrity_api
from bookie_protocol.admin_api.integrity import (
    RebuildBegun,
    RebuildBody,
    RebuildOutcome,
    RebuildPhase,
    RebuildProgress,
    RebuildStop,
)
from bookie_protocol.errors import BadRequest, StorageFault

_log = structlog.get_logger(__name__)
_CURRENT: Final = "/current"


class IndexCompactions:
    """`indexes`: path of each, and what compacts it."""

    def __init__(self, indexes: Mapping[str, Callable[[], None]]) -> None:
        self._indexes = dict(indexes)
        self._wanted: set[str] = set()
        self._stopped = False
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="index-compaction")

    def running(self) -> dict[str, bool]:
        """Return, by path, True if the index waits for a compaction or is being compacted."""
        return {path: path in self._wanted for path in self._indexes}

    def start(self, paths: Sequence[str] | None = None) -> None:
        """Compact these, None: all. `BadRequest` for an unknown path, and then none."""
        chosen = self._indexes if paths is None else paths
        for path in chosen:
            if path not in self._indexes:
                known = ", ".join(self._indexes) or "none"
                raise BadRequest(f"{path[:200]} is not a location index of this bookie; its indexes: {known}")
        for path in chosen:
            if path not in self._wanted and not self._stopped:
                self._wanted.add(path)
                self._executor.submit(self._compact, path)

    def _compact(self, path: str) -> None:
        began = time.monotonic()
        try:
            self._indexes[path]()
        except StorageFault as error:
            _log.error("location index not compacted", path=path, reason=str(error))
        except Exception as error:
            _log.exception("location index not compacted", path=path, reason=str(error))
        else:
            _log.info("location index compacted", path=path, seconds=round(time.monotonic() - began, 3))
        finally:
            self._wanted.discard(path)

    def stop(self) -> None:
        """Blocks while one runs; the others are forgotten."""
        self._stopped = True
        self._executor.shutdown(wait=True, cancel_futures=True)


async def _status(context: Context, call: Call) -> Reply:
    return Json([_progress_of(state) for state in context.room(Integrity).rebuilder.states()])


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
    return Json(RebuildBegun(context.room(Integrity).rebuilder.request(request)))


def _request(call: Call) -> RebuildRequest:
    wanted = call.read(RebuildBody)
    if not (wanted.locations or wanted.ledgers):
        raise BadRequest("neither locations nor ledgers is to be rebuilt: leave one of them true")
    folders = () if wanted.directories is UNSET else (f"{each.rstrip('/')}{_CURRENT}" for each in wanted.directories)
    return RebuildRequest(tuple(folders), wanted.locations, wanted.ledgers, wanted.accept_damage)


async def _stop(context: Context, call: Call) -> Reply:
    return Json(RebuildStop(context.room(Integrity).rebuilder.cancel()))


# --- compaction -------------------------------------------------------------------------------------------


async def _index_state(context: Context, call: Call) -> Reply:
    return Json(context.room(IndexCompactions).running())


async def _compact_index(context: Context, call: Call) -> Reply:
    if call.is_blank:
        return EMPTY
    members, node = call.members(), context.room(ThisBookie)
    if not chosen(members.get("entryLocationRocksDBCompact"), False):
        return Text("Not trigger Entry Location RocksDB compact.")
    locations = str(members.get("entryLocations") or "")
    paths = [part.strip() for part in locations.split(",") if part.strip()]
    context.room(IndexCompactions).start(paths or None)
    named_paths = f" {','.join(paths)}" if paths else ""
    return Json(f"Triggered entry Location RocksDB{named_paths} compact on bookie:{node.bookie_id}")


RESOURCES: Final = (
    Resource(
        (
            Operation(
                gc_api.INDEX_COMPACTIONS,
                Role.VIEWER,
                "Which location indexes are being compacted",
                _index_state,
                "Path of each index; true: it is.",
            ),
            Operation(
                gc_api.COMPACT_INDEXES,
                Role.OPERATOR,
                "Compact location indexes in the background",
                _compact_index,
                "What was done.",
                (Answer("Nothing was triggered."),),
            ),
        ),
        Text("Not allowed method. Should be PUT to trigger compact, Or GET to get compact state.", 405),
        own=False,
    ),
    Resource(
        (
            Operation(
                integrity_api.REBUILD_STATUS,
                Role.VIEWER,
                "What the rebuild of indexes does or did, by ledger directory",
                _status,
                "State; empty where the engine has no databases.",
            ),
            Operation(
                integrity_api.REBUILD,
                Role.OPERATOR,
                "Rebuild location index and ledger index from the entry logs while the bookie serves",
                _begin,
                "What became of it.",
                (
                    Answer("The body is wrong, or names a directory that this bookie does not have.", 400),
                    Answer("The engine has no databases.", 409),
                ),
                body_required=False,
            ),
            Operation(
                integrity_api.STOP_REBUILD,
                Role.OPERATOR,
                "Stop the rebuild that runs; the old index is used",
                _stop,
                "What became of it.",
            ),
        ),
        Text("Not allowed method. Should be PUT to begin, DELETE to stop, Or GET to get the state.", 405),
    ),
)
