"""Moving an index file out of a full directory, while others read, delete, and disks fail."""

from __future__ import annotations

import random
import threading
from dataclasses import replace

import pytest

from bookie_pod.storage.engines.memtable_storage import MemTableStorage
from bookie_pod.storage.entry_log.directories import DiskState
from bookie_protocol.errors import StorageFault
from tests.support.memory_faults import Gate
from tests.support.memory_files import MemoryFiles
from tests.support.memtable_engine import MemTableBookie, memtable_options
from tests.support.storage_engine import entry, put
from tests.unit.bookie_pod.storage.index.ledger_cache.rig import Rig

ENTRIES = 30


class Moving:
    """Ledger 1 lies in a directory that is full; the next flush moves its index file."""

    def __init__(self, engine: str = "sorted", homes: int = 2, files: MemoryFiles | None = None) -> None:
        directories = tuple(f"/ledgers{number}" for number in range(homes))
        options = memtable_options(page_bytes=64)
        self.bookie = MemTableBookie(engine, directories, options=options, files=files or MemoryFiles())
        self.storage = self.bookie.open()
        self.put(range(10))
        self.storage.flush()
        home = self.path[: len("/ledgers0")]
        self.old = self.path
        self.copies = [f"{each}{self.old[len(home) :]}.rloc" for each in directories]
        """What a move may write."""
        self.bookie.states[home].report(home, DiskState.FULL)
        self.put(range(10, 20))

    @property
    def path(self) -> str:
        path = self.storage.cache._directories.path(1)
        assert path is not None
        return path

    def put(self, entry_ids: range) -> None:
        put(self.storage, *(entry(1, entry_id) for entry_id in entry_ids))

    def fence(self) -> None:
        record = self.storage.ledger(1)
        assert record is not None
        self.storage.set_ledger(1, replace(record, fenced=True))

    def flush_held_at(self, operation: str, path: str) -> tuple[threading.Thread, Gate]:
        gate = self.bookie.faults.hold(operation, path=path)
        flush = threading.Thread(target=self.storage.flush)
        flush.start()
        gate.reached()
        return flush, gate

    def restarted(self) -> MemTableStorage:
        return self.bookie.on(self.bookie.files.restart()).open()


@pytest.mark.parametrize("engine", ["sorted", "interleaved"])
@pytest.mark.parametrize(
    ("operation", "path"),
    [("datasync", ".log"), ("overwrite", ".rloc"), ("sync", ".rloc"), ("unlink", ".idx"), ("rename", ".rloc")],
)
def test_a_read_in_the_middle_succeeds_and_leaves_no_handle_on_the_removed_file(
    engine: str, operation: str, path: str
) -> None:
    moving = Moving(engine)
    moving.fence()
    flush, gate = moving.flush_held_at(operation, path)
    assert list(moving.storage.entry_ids(1)) == list(range(20))
    assert moving.storage.last_entry_id(1) == 19
    assert moving.storage.read(1, 3) == entry(1, 3)
    gate.open()
    flush.join()
    moving.put(range(20, ENTRIES))
    moving.storage.flush()
    assert moving.path != moving.old
    after = moving.restarted()
    record = after.ledger(1)
    assert record is not None
    assert record.fenced
    assert [after.read(1, entry_id) for entry_id in range(ENTRIES)] == [entry(1, each) for each in range(ENTRIES)]
    after.close()
    moving.storage.close()


@pytest.mark.parametrize(("operation", "path"), [("sync", ".rloc"), ("unlink", ".idx"), ("rename", ".rloc")])
def test_a_ledger_that_is_deleted_in_the_middle_comes_back_empty(operation: str, path: str) -> None:
    moving = Moving()
    flush, gate = moving.flush_held_at(operation, path)
    moving.storage.delete_ledger(1)
    gate.open()
    flush.join()
    put(moving.storage, entry(1, 0, mark=b"2"))
    moving.storage.flush()
    for storage in (moving.storage, moving.restarted()):
        assert list(storage.entry_ids(1)) == [0]
        assert storage.read(1, 0) == entry(1, 0, mark=b"2")
        storage.close()


def test_a_ledger_that_is_deleted_before_its_turn_is_not_moved() -> None:
    moving = Moving()
    directories = moving.storage.cache._directories
    moving.storage.delete_ledger(1)
    moving.storage.flush()
    assert directories.path(1) is None
    directories.move(1)
    assert not any(map(moving.bookie.files.exists, [moving.old, *moving.copies]))
    moving.storage.close()


@pytest.mark.parametrize(
    ("operation", "path"),
    [
        ("overwrite", ".rloc"),
        ("pwrite", ".rloc"),
        ("sync", ".rloc"),
        ("unlink", ".idx"),
        ("sync_directory", "/ledgers"),
        ("rename", ".rloc"),
        ("pwrite", "1.idx"),
    ],
)
@pytest.mark.parametrize("after", [0, 1])
def test_a_move_that_fails_is_finished_by_the_next_flush(operation: str, path: str, after: int) -> None:
    moving = Moving()
    moving.bookie.faults.fail(operation, path=path, after=after, times=1)
    try:
        moving.storage.flush()
    except StorageFault:
        assert list(moving.storage.entry_ids(1)) == list(range(20))
    moving.put(range(20, ENTRIES))
    moving.storage.flush()
    assert moving.path != moving.old
    assert not moving.bookie.files.exists(moving.old)
    after_all = moving.restarted()
    assert list(after_all.entry_ids(1)) == list(range(ENTRIES))
    after_all.close()
    moving.storage.close()


def test_what_a_try_has_left_in_one_directory_is_no_copy_beside_that_in_another() -> None:
    moving = Moving(homes=4)
    for _ in range(8):  # each goes to a directory at random
        moving.bookie.faults.fail("sync", path=".rloc", times=1)
        with pytest.raises(StorageFault):
            moving.storage.flush()
    moving.bookie.faults.fail("rename", path=".rloc", times=1)
    with pytest.raises(StorageFault):
        moving.storage.flush()  # the old file has gone
    assert list(moving.storage.entry_ids(1)) == list(range(20))
    moving.storage.close()
    assert len([path for path in moving.copies if moving.bookie.files.exists(path)]) == 1
    after = moving.restarted()
    assert list(after.entry_ids(1)) == list(range(10))  # the others are the journal's
    after.close()


def test_a_start_does_not_guess_which_of_two_copies_is_whole() -> None:
    moving = Moving()
    moving.bookie.faults.fail("rename", path=".rloc", times=1)
    with pytest.raises(StorageFault):
        moving.storage.flush()
    moving.storage.close()
    (other,) = [path for path in moving.copies if not moving.bookie.files.exists(path)]
    moving.bookie.files.makedirs(other.rpartition("/")[0])
    moving.bookie.files.overwrite(other).close()
    with pytest.raises(StorageFault, match="away"):
        moving.restarted()


@pytest.mark.parametrize("directories", [2, 3])
def test_a_start_removes_every_copy_beside_the_file(directories: int) -> None:
    moving = Moving(homes=directories)
    moving.storage.close()
    for path in moving.copies:
        moving.bookie.files.makedirs(path.rpartition("/")[0])
        moving.bookie.files.overwrite(path).close()
    after = moving.restarted()
    assert list(after.entry_ids(1)) == list(range(10))
    assert not any(map(after.cache._files.exists, moving.copies))
    after.close()


@pytest.mark.parametrize("operation", ["rename", "sync"])
def test_a_ledger_that_is_deleted_after_half_a_move_leaves_nothing(operation: str) -> None:
    """With a copy that is finished, and with one that is not."""
    moving = Moving()
    moving.bookie.faults.fail(operation, path=".rloc", times=1)
    with pytest.raises(StorageFault):
        moving.storage.flush()
    moving.storage.delete_ledger(1)
    moving.storage.flush()
    moving.storage.close()
    storage = moving.restarted()
    assert storage.ledger_ids() == []
    storage.close()


def test_a_copy_whose_removal_was_not_synced_is_removed_by_the_next_flush() -> None:
    """After a power cut it would be taken for the file of the ledger."""
    moving = Moving(files=MemoryFiles(strict_names=True))
    moving.bookie.faults.fail("sync", path=".rloc", times=1)
    with pytest.raises(StorageFault):
        moving.storage.flush()
    (copy,) = [path for path in moving.copies if moving.bookie.files.exists(path)]
    moving.storage.delete_ledger(1)
    moving.bookie.faults.fail("sync_directory", path=copy.rpartition("/")[0], times=1)
    with pytest.raises(StorageFault):
        moving.storage.flush()
    moving.storage.flush()
    moving.storage.close()
    assert not any(moving.bookie.files.crash(random.Random(seed)).exists(copy) for seed in range(64))


@pytest.mark.parametrize("old_too", [False, True])
def test_half_a_move_to_a_disk_that_is_given_up_ends_there(old_too: bool) -> None:
    """The copy may be gone with its disk, and what the old file lacks is in the journals."""
    moving = Moving(homes=3)
    moving.bookie.faults.fail("unlink", path=".idx", times=1)
    with pytest.raises(StorageFault):
        moving.storage.flush()
    copy = moving.path
    size = moving.bookie.files.size(copy)
    cache = moving.storage.cache
    for path in (copy, moving.old) if old_too else (copy,):
        cache.give_up(path[: len("/ledgers0")])
    moving.put(range(20, ENTRIES))
    moving.storage.flush()
    assert moving.bookie.files.exists(moving.old)
    assert moving.bookie.files.size(copy) == size
    with pytest.raises(StorageFault, match="failed"):
        cache.get(1, 3)
    moving.storage.close()


def test_a_file_that_moves_is_gone_from_the_full_disk_before_its_copy_gets_its_name() -> None:
    """Each step durably: a start finds the file, its copy, or both, and never two files."""
    rig = Rig()
    rig.add(1)
    rig.cache.put(1, [0], [7])
    rig.flush()
    old = rig.path(1)
    rig.states.report(old[:2], DiskState.FULL)
    rig.cache.put(1, [1], [8])
    changes = rig.files.faults.record()
    rig.flush()
    new = rig.path(1)
    assert new[:2] != old[:2]
    folders = [path.rpartition("/")[0] for path in (old, new)]
    steps = [(one.name, one.path) for one in changes if one.name in ("unlink", "sync_directory", "rename")]
    assert steps[-4:] == [
        ("unlink", old),
        ("sync_directory", folders[0]),
        ("rename", new.replace(".idx", ".idx.rloc")),
        ("sync_directory", folders[1]),
    ]
    assert ("sync_directory", folders[1]) in steps[:-4], "the copy was durable before"
    assert [rig.cache.get(1, entry_id) for entry_id in (0, 1)] == [7, 8]
    rig.cache.close()
    assert rig.files.open_files == 0, "nor is the old one kept open"
