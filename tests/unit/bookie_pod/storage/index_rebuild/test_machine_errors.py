"""A lack of descriptors or memory ends a rebuild, and a read that failed proves nothing: neither is damage."""

from __future__ import annotations

import errno
from typing import NoReturn

import pytest

from bookie_pod.storage.entry_log.format import split_location
from bookie_pod.storage.index.store import StoreKind
from bookie_pod.storage.index_rebuild.index_files import IndexFilesRebuild
from bookie_pod.storage.inspect.index import FileIndex
from bookie_pod.storage.inspect.logs import StoredLogs
from bookie_protocol.errors import ResourcesShort, StorageFault
from tests.support.gc_rig import GcRig
from tests.support.index_rebuilds import store_entries
from tests.support.rebuild_rig import RebuildRig
from tests.support.scrub_rig import signed

LEDGER = 3
ONLINE = {"ledgers": False, "accept_damage": True}


@pytest.mark.parametrize("engine", ["sorted", "interleaved"])
@pytest.mark.parametrize("nth", range(3))
@pytest.mark.parametrize(
    ("number", "kind"), [(errno.EMFILE, ResourcesShort), (errno.ENOMEM, ResourcesShort), (errno.EIO, StorageFault)]
)
def test_an_index_file_that_cannot_be_read_once_forgets_no_record(
    engine: str, nth: int, number: int, kind: type[StorageFault]
) -> None:
    rig = GcRig(engine=engine)
    store_entries(rig, *(signed(LEDGER, entry_id) for entry_id in range(8)))
    rig.storage.delete_ledger(LEDGER)
    rig.storage.flush()
    store_entries(rig, *(signed(LEDGER, entry_id, 140) for entry_id in range(3)))
    files, folder = rig.bookie.files, rig.bookie.directories[0]
    rig.storage.close()
    logs, old = StoredLogs(files, [folder]), FileIndex(files, [folder])
    before = old.record(LEDGER)
    files.faults.fail("pread", path="/3.idx", errno=number, after=nth, times=1)
    rebuilding = IndexFilesRebuild(files, logs, old, folder, {LEDGER}, {})
    error = _failure(rebuilding)
    if error is None:
        rebuilding.commit(".BACKUP-1")
    else:
        assert type(error) is kind
        rebuilding.discard()
    files.faults.clear()
    assert FileIndex(files, [folder]).record(LEDGER) == before
    rig.open()
    assert set(rig.readable(LEDGER)) == {0, 1, 2}
    rig.storage.close()


def _failure(rebuilding: IndexFilesRebuild) -> StorageFault | None:
    try:
        rebuilding.run()
    except StorageFault as error:
        return error
    return None


def test_a_kept_row_that_cannot_be_read_for_want_of_descriptors_is_not_dangling(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = RebuildRig()
    store_entries(rig, *(signed(LEDGER, entry_id) for entry_id in range(5)))
    rows = rig.rows()
    log_id, position = split_location(rows[LEDGER, 1])
    path = rig.path(log_id)
    rig.storage.close()
    rig.forget_map(log_id)
    rig.files.corrupt(path, position - 4, b"\x01")  # the scan reaches nothing behind
    rig.open()
    monkeypatch.setattr(rig.logs, "read", _no_descriptors)
    with pytest.raises(ResourcesShort):
        rig.rebuild(**ONLINE)
    assert rig.rows() == rows
    rig.storage.close()


def test_a_confirmed_row_that_cannot_be_looked_up_yields_to_no_orphan(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = RebuildRig()
    store_entries(rig, signed(LEDGER, 0))
    rows, index = rig.rows(), rig.locations
    twin = index.attach(rig.tool_stores.open(f"{rig.folder}/twin/locations", StoreKind.LOCATIONS))
    index.offer(twin, LEDGER, [(0, rows[LEDGER, 0])], lambda ledger_id: True)
    monkeypatch.setattr(index, "get", _no_descriptors)
    with pytest.raises(ResourcesShort):
        index.offer(twin, LEDGER, [(0, 99 << 32 | 1028)], lambda ledger_id: True)
    assert twin.get(LEDGER, 0) == rows[LEDGER, 0]
    rig.storage.close()


def _no_descriptors(*_: int) -> NoReturn:
    raise ResourcesShort("too many open files")
