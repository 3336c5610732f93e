"""What the old index says is never denied by the new one, and stays where the logs confirm it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bookie_pod.storage.entry_log.format import encode_header, split_location
from bookie_pod.storage.files_posix import PosixFiles
from bookie_pod.storage.index.locations import LocationIndex, LocationRun
from bookie_pod.storage.index.rocksdb_store import RocksStores
from bookie_pod.storage.index.store import OrderedStore, StoreKind
from bookie_pod.storage.index_rebuild.index_files import IndexFilesRebuild
from bookie_pod.storage.index_rebuild.offline import _OldLocations
from bookie_pod.storage.inspect.index import FileIndex
from bookie_pod.storage.inspect.logs import StoredLogs
from bookie_pod.storage.journal.marks import LogMark
from bookie_protocol.errors import LedgerStateUnknown, StorageFault
from tests.support.gc_rig import GcRig
from tests.support.index_rebuilds import ENTRIES, KINDS, LEDGER, filled_rig, rebuild, write_entries
from tests.support.scrub_rig import signed
from tests.support.storage_engine import put

OTHER = 4


@KINDS
def test_an_entry_whose_log_is_gone_is_lost_and_not_absent(kind: str) -> None:
    rig = filled_rig(kind)
    write_entries(rig, ENTRIES)
    path = rig.path(split_location(rig.parts.location_of(LEDGER, ENTRIES))[0])
    rig.storage.close()
    rig.bookie.files.unlink(path)
    assert rebuild(rig, kind).dangling == ENTRIES
    for entry_id in range(ENTRIES, 2 * ENTRIES):
        with pytest.raises(StorageFault, match=r"1\.log"):
            rig.storage.read(LEDGER, entry_id)
    assert rig.storage.last_entry_id(LEDGER) == 2 * ENTRIES - 1
    rig.storage.close()


@KINDS
def test_an_entry_with_a_broken_size_in_a_log_that_was_never_closed_is_lost_and_not_absent(kind: str) -> None:
    rig = filled_rig(kind)
    log_id, position = split_location(rig.parts.location_of(LEDGER, 2))
    path = rig.path(log_id)
    rig.storage.close()
    rig.forget_map(log_id)
    rig.bookie.files.corrupt(path, position - 4, b"\x01")
    assert rebuild(rig, kind).dangling == 1
    with pytest.raises(StorageFault):
        rig.storage.read(LEDGER, 2)
    assert rig.storage.read(LEDGER, 3) == signed(LEDGER, 3)
    rig.storage.close()


@KINDS
@pytest.mark.parametrize("times", [1, 2])
def test_a_copy_that_its_log_confirms_stays_where_newer_ones_are_not_named(kind: str, times: int) -> None:
    """A compaction that died has left them in closed logs, and one is rotten."""
    rig = filled_rig(kind)
    log_id, position = split_location(rig.parts.location_of(LEDGER, 2))
    data = bytearray(rig.bookie.files.read_bytes(rig.path(log_id)))
    data[position + 50 : position + 53] = b"rot"
    rig.storage.close()
    for newer in range(log_id + 1, log_id + 1 + times):
        rig.bookie.files.write_bytes_synced(f"{rig.bookie.directories[0]}/{newer:x}.log", bytes(data))
    rebuild(rig, kind)
    assert split_location(rig.parts.location_of(LEDGER, 2)) == (log_id, position)
    assert rig.storage.read(LEDGER, 2) == signed(LEDGER, 2)
    rig.storage.close()


@KINDS
def test_of_two_copies_in_one_log_the_named_one_stays(kind: str) -> None:
    rig = filled_rig(kind)
    named = rig.parts.location_of(LEDGER, 2)
    log_id, position = split_location(named)
    path = rig.path(log_id)
    rig.storage.close()
    rig.forget_map(log_id)
    data = rig.bookie.files.read_bytes(path)
    end = position + len(signed(LEDGER, 2))
    again = signed(LEDGER, 2, 120)
    rig.bookie.files.write_bytes_synced(path, data[:end] + len(again).to_bytes(4, "big") + again)
    rebuild(rig, kind)
    assert rig.parts.location_of(LEDGER, 2) == named
    rig.storage.close()


def _sealed_rig() -> GcRig:
    rig = GcRig(engine="sorted")
    put(rig.storage, *(signed(ledger_id, entry_id) for entry_id in range(ENTRIES) for ledger_id in (LEDGER, OTHER)))
    rig.storage.flush()
    rig.storage.checkpoint([LogMark()])
    rig.storage.close()
    return rig


def _rebuild_file(rig: GcRig, ledger_id: int) -> None:
    files, folder = rig.bookie.files, rig.bookie.directories[0]
    logs, old = StoredLogs(files, [folder]), FileIndex(files, [folder])
    rebuilding = IndexFilesRebuild(files, logs, old, folder, {ledger_id}, {})
    rebuilding.run()
    rebuilding.commit(".BACKUP-1")
    logs.close()
    old.close()
    rig.open()


def _path(rig: GcRig, ledger_id: int) -> str:
    path = FileIndex(rig.bookie.files, rig.bookie.directories).path(ledger_id)
    assert path is not None
    return path


def test_what_files_of_other_ledgers_have_lost_is_not_denied_afterwards() -> None:
    rig = _sealed_rig()
    rig.bookie.files.corrupt(_path(rig, OTHER), 1024 + 8, bytes(16))
    _rebuild_file(rig, LEDGER)
    with pytest.raises(StorageFault, match="lost"):
        rig.storage.read(OTHER, 1)
    assert rig.storage.read(LEDGER, 1) == signed(LEDGER, 1)
    rig.storage.close()


@pytest.mark.parametrize("gone", [True, False])
def test_a_file_of_another_ledger_that_was_cut_or_lost_is_in_limbo_afterwards(gone: bool) -> None:
    rig = _sealed_rig()
    if gone:
        rig.bookie.files.unlink(_path(rig, OTHER))
    else:
        rig.bookie.files.truncate_to(_path(rig, OTHER), 1024)
    _rebuild_file(rig, LEDGER)
    with pytest.raises(LedgerStateUnknown):
        rig.storage.read(OTHER, 1)
    rig.storage.close()


def test_what_the_rebuilt_file_had_lost_and_no_log_has_is_not_denied() -> None:
    rig = _sealed_rig()
    files, folder = rig.bookie.files, rig.bookie.directories[0]
    files.corrupt(_path(rig, LEDGER), 1024 + 8, bytes(8))
    entry = signed(LEDGER, 0)
    files.write_bytes_synced(f"{folder}/0.log", encode_header() + len(entry).to_bytes(4, "big") + entry)
    _rebuild_file(rig, LEDGER)
    with pytest.raises(StorageFault):
        rig.storage.read(LEDGER, 1)
    rig.storage.close()


class _CountingStore:
    """Counts the scans of a store, and the rows that they give."""

    def __init__(self, store: OrderedStore) -> None:
        self._store = store
        self.path = store.path
        self.scans = self.rows = 0

    def scan(self, begin: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        self.scans += 1
        for row in self._store.scan(begin, end):
            self.rows += 1
            yield row


@pytest.mark.parametrize("ledgers", [dict.fromkeys(range(2000), 1), {1: 9000, 2: 1, 3: 9000, (1 << 63) - 1: 5000}])
def test_the_ledgers_of_an_old_index_are_listed_with_few_reads(ledgers: dict[int, int], tmp_path: Path) -> None:
    store = RocksStores(PosixFiles()).open(str(tmp_path / "locations"), StoreKind.LOCATIONS)
    index = LocationIndex(store)
    for ledger_id, count in ledgers.items():
        index.write([LocationRun(ledger_id, list(range(count)), [1 << 32 | 1028] * count)])
    counting = _CountingStore(store)
    assert list(_OldLocations(counting).ledger_ids()) == list(ledgers)  # type: ignore[arg-type]
    assert counting.scans <= sum(count > 1000 for count in ledgers.values()) + 1
    assert counting.rows <= sum(min(count, 1025) for count in ledgers.values())
    index.close()
