"""A bookie of each engine with a few entries, and the rebuild of its index that this engine has."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from bookie_pod.storage.entry_log.format import HEADER, HEADER_SIZE, MAGIC, VERSION
from bookie_pod.storage.files import Files
from bookie_pod.storage.index.store import StoreKind
from bookie_pod.storage.index_rebuild.index_files import IndexFilesRebuild
from bookie_pod.storage.index_rebuild.offline import OfflineLocations
from bookie_pod.storage.index_rebuild.state import RebuildState
from bookie_pod.storage.inspect.index import FileIndex
from bookie_pod.storage.inspect.logs import StoredLogs
from tests.support.gc_rig import GcRig
from tests.support.memory_tool_stores import MemoryToolStores
from tests.support.rebuild_rig import RebuildRig
from tests.support.scrub_rig import signed
from tests.support.storage_engine import MemoryBookie, put

LEDGER, ENTRIES = 3, 5
FOREIGN_HEADER = HEADER.pack(MAGIC, VERSION, 0, 0).ljust(HEADER_SIZE, b"\0")
"""The header of a log that Apache BookKeeper has begun."""
KINDS = pytest.mark.parametrize("kind", ["db", "online", "sorted", "interleaved"])


@dataclass(frozen=True, slots=True)
class Rebuilt:
    """The parts of a report that all rebuilds have."""

    damages: int
    """Damaged logs."""
    dangling: int
    """Rows that were kept and whose entries are not there."""


def filled_rig(kind: str) -> GcRig:
    rig = RebuildRig() if kind in ("db", "online") else GcRig(engine=kind)
    write_entries(rig, 0)
    return rig


def write_entries(rig: GcRig, first: int) -> None:
    """Put `ENTRIES` entries of `LEDGER` into a log of their own, which is closed."""
    store_entries(rig, *(signed(LEDGER, entry_id) for entry_id in range(first, first + ENTRIES)))


def store_entries(rig: GcRig, *entries: bytes) -> None:
    """Put them into a log of their own, which is closed."""
    put(rig.storage, *entries)
    rig.storage.flush()
    rig.logs.rotate()
    rig.logs.sync()
    rig.storage.flush()


def rebuild(rig: GcRig, kind: str, *, lost: bool = False, ledger_id: int = LEDGER) -> Rebuilt:
    """Rebuild the index of a stopped bookie, whose rows of the ledger are `lost` or not, and open the bookie."""
    if kind == "online":
        return _rebuild_online(rig, lost=lost)
    files, folder = rig.bookie.files, rig.bookie.directories[0]
    logs = StoredLogs(files, [folder])
    if kind == "db":
        rebuilt = _rebuild_locations(rig, folder, logs, lost=lost)
    else:
        rebuilt = _rebuild_index_files(rig, folder, logs, ledger_id, lost=lost)
    logs.close()
    rig.open()
    return rebuilt


def _rebuild_online(rig: GcRig, *, lost: bool) -> Rebuilt:
    assert isinstance(rig, RebuildRig)
    rig.open()
    if lost:
        rig.spoil((place, 0) for place in rig.rows())
    state: RebuildState = rig.rebuild(ledgers=False, accept_damage=True)
    return Rebuilt(len(state.damages), state.rows_dangling)


def _rebuild_locations(rig: GcRig, folder: str, logs: StoredLogs, *, lost: bool) -> Rebuilt:
    assert isinstance(rig.bookie, MemoryBookie)
    assert rig.bookie.stores is not None
    stores = MemoryToolStores(rig.bookie.files, rig.bookie.stores)
    if lost:
        stores.remove(f"{folder}/{StoreKind.LOCATIONS.value}")
    rebuilding = OfflineLocations(rig.bookie.files, stores, stores.stores, folder, logs)
    while rebuilding.step():
        pass
    rebuilding.commit()
    return Rebuilt(rebuilding.report.damaged_logs, rebuilding.report.lost)


def _rebuild_index_files(rig: GcRig, folder: str, logs: StoredLogs, ledger_id: int, *, lost: bool) -> Rebuilt:
    files = rig.bookie.files
    old = FileIndex(files, [folder])
    path = old.path(ledger_id)
    assert path is not None
    if lost:
        files.unlink(path)
    rebuilding = IndexFilesRebuild(files, logs, old, folder, {ledger_id}, {})
    rebuilding.run()
    rebuilding.commit(".BACKUP-1")
    old.close()
    return Rebuilt(len(rebuilding.report.damages), rebuilding.report.lost)


def leave_foreign_log(files: Files, folder: str, log_id: int, *entries: bytes) -> None:
    """Another program has used the directory, and leaves a log with these entries."""
    framed = b"".join(len(entry).to_bytes(4, "big") + entry for entry in entries)
    files.write_bytes_synced(f"{folder}/{log_id:x}.log", FOREIGN_HEADER + framed)
