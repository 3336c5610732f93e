"""Die at every file operation and every index commit of a conversion or a rebuild of an index.

After each death the disks are re-opened from what was synced. Either nothing was begun that counts, and the engine that
wrote the disk serves everything as before; or the change was written down, every engine refuses the disk, and finishing
it gives a disk that serves everything; or it was done.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from bookie_pod.storage.engines.detection import SWAP_FILE
from bookie_pod.storage.engines.interface import LedgerStorage
from bookie_pod.storage.index.index_file import relative_folder
from bookie_pod.storage.index.store import StoreKind
from bookie_pod.storage.index_rebuild.convert import conversion
from bookie_pod.storage.index_rebuild.index_files import IndexFilesRebuild
from bookie_pod.storage.index_rebuild.offline import OfflineLedgers, OfflineLocations, OfflineRebuild
from bookie_pod.storage.index_rebuild.swap import finish
from bookie_pod.storage.inspect.index import FileIndex
from bookie_pod.storage.inspect.layout import DiskLayout, IndexKind
from bookie_pod.storage.inspect.logs import StoredLogs
from bookie_pod.storage.inspect.space import StoredSpaces
from bookie_pod.storage.journal.directory import journal_path
from bookie_pod.storage.journal.format import header_bytes, key_record
from bookie_protocol.errors import WrongStorageEngine
from tests.support.memory_files import Died, MemoryFiles
from tests.support.memory_store import MemoryStores
from tests.support.memory_tool_stores import MemoryToolStores
from tests.support.memtable_engine import memtable_options, open_memtable_engine
from tests.support.storage_engine import KEY, entry, open_engine, put, small_options

FOLDER, JOURNAL = "/ledgers", "/journal"
LAYOUT = DiskLayout((JOURNAL,), (FOLDER,))
LEDGERS = {2: 5, 3: 40, 0x1234: 3, 5: 0}
FENCED = 3

Contents = dict[int, tuple[object, list[bytes]]]


def _open(disk: MemoryToolStores, engine: str) -> LedgerStorage:
    if engine == "db":
        return open_engine(disk.files, [FOLDER], small_options(log_size=3000), stores=disk.stores)
    return open_memtable_engine(engine, disk.files, [FOLDER], memtable_options(log_size=3000))


def _written(engine: str) -> MemoryToolStores:
    files = MemoryFiles()
    disk = MemoryToolStores(files, MemoryStores(files.faults))
    files.makedirs(FOLDER)
    files.makedirs(JOURNAL)
    records = b"".join(piece for ledger_id in LEDGERS for piece in key_record(ledger_id, KEY))
    files.write_bytes_synced(journal_path(JOURNAL, 1), header_bytes(6) + records)
    storage = _open(disk, engine)
    for ledger_id, count in LEDGERS.items():
        record = storage.set_master_key(ledger_id, KEY)
        storage.set_ledger(ledger_id, replace(record, fenced=ledger_id == FENCED))
        for entry_id in range(count):
            put(storage, entry(ledger_id, entry_id, 90))
        storage.flush()
    storage.close()
    return disk


def _contents(disk: MemoryToolStores, engine: str) -> Contents:
    storage = _open(disk, engine)
    try:
        return {
            ledger_id: (
                storage.ledger(ledger_id),
                [storage.read(ledger_id, entry_id) for entry_id in storage.entry_ids(ledger_id)],
            )
            for ledger_id in storage.ledger_ids()
        }
    finally:
        storage.close()


def _convert(target: IndexKind) -> Callable[[MemoryToolStores], None]:
    def run(disk: MemoryToolStores) -> None:
        with StoredSpaces(disk.files, disk.stores, LAYOUT) as spaces:
            space = spaces.spaces[0]
            converting = conversion(disk.files, disk, LAYOUT, space.index, space.logs, target)
            try:
                converting.run()
                converting.commit()
            finally:
                converting.close()

    return run


def _rebuild(kind: StoreKind) -> Callable[[MemoryToolStores], None]:
    def run(disk: MemoryToolStores) -> None:
        logs = StoredLogs(disk.files, [FOLDER])
        rebuilding: OfflineRebuild
        if kind is StoreKind.LOCATIONS:
            rebuilding = OfflineLocations(disk.files, disk, disk.stores, FOLDER, logs)
        else:
            rebuilding = OfflineLedgers(disk.files, disk, disk.stores, FOLDER, logs, [JOURNAL], number=0, count=1)
        assert isinstance(rebuilding, OfflineLocations | OfflineLedgers)
        while rebuilding.step():
            pass
        rebuilding.commit()
        logs.close()

    return run


def _rebuild_index_files(disk: MemoryToolStores) -> None:
    logs = StoredLogs(disk.files, [FOLDER])
    rebuilding = IndexFilesRebuild(disk.files, logs, FileIndex(disk.files, [FOLDER]), FOLDER, set(LEDGERS), {})
    rebuilding.run()
    rebuilding.commit(".BACKUP-test")
    logs.close()


CASES = {
    "db-to-sorted": ("db", "sorted", _convert(IndexKind.FILES)),
    "db-begun-as-sorted-to-sorted": ("db", "sorted", _convert(IndexKind.FILES)),
    "interleaved-to-db": ("interleaved", "db", _convert(IndexKind.DATABASES)),
    "rebuild-locations": ("db", "db", _rebuild(StoreKind.LOCATIONS)),
    "rebuild-ledgers": ("db", "db", _rebuild(StoreKind.LEDGERS)),
    "rebuild-index-files": ("sorted", "sorted", _rebuild_index_files),
}


def _serving(disk: MemoryToolStores, source: str, target: str) -> Contents:
    """What is served after a death, once what was begun is finished."""
    if disk.files.exists(f"{FOLDER}/{SWAP_FILE}"):
        for engine in {source, target}:
            with pytest.raises(WrongStorageEngine, match="finish"):
                _open(disk, engine)
        finish(disk.files, disk, FOLDER)
        return _contents(disk, target)
    try:
        return _contents(disk, source)
    except WrongStorageEngine:
        return _contents(disk, target)


@pytest.mark.parametrize("case", CASES)
def test_a_death_at_any_operation_loses_nothing(case: str) -> None:
    source, target, run = CASES[case]
    disk = _written(source)
    if "begun-as" in case:
        disk.files.makedirs(f"{FOLDER}/{relative_folder(0)}")  # the stamp of the engine that the bookie began with
    expected = _contents(disk, source)
    assert [len(entries) for _, entries in (expected[ledger_id] for ledger_id in LEDGERS)] == list(LEDGERS.values())
    whole = disk.copy()
    run(whole)
    operations = whole.files.operations
    assert _contents(whole, target) == expected
    assert operations > 10
    refused = 0
    for at in range(operations):
        dying = disk.copy()
        dying.files.faults.die_at(at)
        with pytest.raises(Died):
            run(dying)
        for seed in range(2):
            after = dying.crash(random.Random(1000 * at + seed))
            refused += after.files.exists(f"{FOLDER}/{SWAP_FILE}")
            again = after.copy()
            assert _serving(after, source, target) == expected, (at, seed)
            if not again.files.exists(f"{FOLDER}/{SWAP_FILE}") and _is_still(again, source):
                run(again)  # what the first try left is in nobody's way
                assert _contents(again, target) == expected, (at, seed)
    assert refused > 0 or case == "rebuild-index-files"


def _is_still(disk: MemoryToolStores, source: str) -> bool:
    try:
        _open(disk.copy(), source).close()
    except WrongStorageEngine:
        return False
    return True


@pytest.mark.parametrize("case", [name for name in CASES if name != "rebuild-index-files"])
def test_a_death_while_finishing_can_be_finished(case: str) -> None:
    source, target, run = CASES[case]
    disk = _written(source)
    expected = _contents(disk, source)
    whole = disk.copy()
    log = whole.files.faults.record()
    run(whole)
    committed = next(at for at, done in enumerate(log) if done.name == "rename" and SWAP_FILE in done.path) + 2
    interrupted = disk.copy()
    interrupted.files.faults.die_at(committed)
    with pytest.raises(Died):
        run(interrupted)
    interrupted = interrupted.crash(random.Random(1))
    assert interrupted.files.exists(f"{FOLDER}/{SWAP_FILE}")
    for at in range(100):
        dying = interrupted.copy()
        dying.files.faults.die_at(at)
        try:
            finish(dying.files, dying, FOLDER)
        except Died:
            after = dying.crash(random.Random(at))
            assert _serving(after, source, target) == expected, at
        else:
            assert at > 2
            return
    raise AssertionError("finishing did not end")
