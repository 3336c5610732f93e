"""What garbage collection remembers across restarts, and what it does with files that it cannot understand."""

from __future__ import annotations

import random
import struct

import google_crc32c
import numpy as np
import pytest

from bookie_pod.storage.gc.deleted_ledgers import NAME as DELETED
from bookie_pod.storage.gc.deleted_ledgers import DeletedLedgers
from bookie_pod.storage.gc.packed_ids import PackedIds
from bookie_pod.storage.gc.schedule import GcTimes
from bookie_pod.storage.gc.state_file import NAME, GcMemory, GcStateFile
from bookie_protocol.errors import StorageFault
from tests.support.memory_files import MemoryFiles

FOLDER = "/l/current"


@pytest.fixture
def files() -> MemoryFiles:
    files = MemoryFiles()
    files.makedirs(FOLDER)
    return files


def test_round_trip(files: MemoryFiles) -> None:
    memory = GcMemory(GcTimes(10, 20, 3, 4, 50, 60), {17: "at 4711: a size of -1"})
    GcStateFile(files, FOLDER).write(memory)
    assert GcStateFile(files, FOLDER).read(99) == memory


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"lastMinorMs": "x"}',
        b"\xff\xfe",
        b'{"lastMinorMs": 1, "quarantined": []}',
        b"null",
        b"[" * 100_000,
    ],
)
def test_what_cannot_be_understood_is_an_empty_one(files: MemoryFiles, content: bytes) -> None:
    files.write_bytes(f"{FOLDER}/{NAME}", content)
    assert GcStateFile(files, FOLDER).read(99) == GcMemory(GcTimes(99, 99, 0, 0, 99, 99))


def test_no_file_begins_now_and_an_unreadable_one_too(files: MemoryFiles) -> None:
    file = GcStateFile(files, FOLDER)
    assert file.read(5) == GcMemory(GcTimes.beginning(5))
    file.write(GcMemory(GcTimes(1, 2)))
    files.faults.fail("open", "pread", "read")
    assert file.read(5) == GcMemory(GcTimes.beginning(5))


def test_times_in_the_future_are_now(files: MemoryFiles) -> None:
    """The clock was set back: compaction must not wait for years."""
    GcStateFile(files, FOLDER).write(GcMemory(GcTimes(10_000, 20_000, 1, 2, 30_000, 40_000)))
    assert GcStateFile(files, FOLDER).read(500).times == GcTimes(500, 500, 1, 2, 500, 500)


def test_a_file_of_an_older_release_lacks_times_which_begin_now_and_are_written_by_the_first_pass(
    files: MemoryFiles,
) -> None:
    content = b'{"lastMinorMs": 7, "lastMajorMs": 8, "minorCount": 1, "majorCount": 2, "quarantined": {"3": "torn"}}'
    files.write_bytes(f"{FOLDER}/{NAME}", content)
    file = GcStateFile(files, FOLDER)
    memory = file.read(99)
    assert memory == GcMemory(GcTimes(7, 8, 1, 2, 99, 99), {3: "torn"})
    assert not memory.stored
    file.write(memory)
    again = file.read(500)
    assert (again.times, again.stored) == (memory.times, True)


def test_a_full_disk_is_a_fault_and_leaves_the_old_file(files: MemoryFiles) -> None:
    file = GcStateFile(files, FOLDER)
    file.write(GcMemory(GcTimes(1, 2)))
    files.faults.fail("write", errno=28)
    with pytest.raises(StorageFault, match=NAME):
        file.write(GcMemory(GcTimes(3, 4)))
    files.faults.clear()
    assert file.read(99).times == GcTimes(1, 2)


# --- deleted ledgers ----------------------------------------------------------------------------------------


def test_deleted_ledgers_survive_with_what_is_known_of_them(files: MemoryFiles) -> None:
    deleted = DeletedLedgers(files, FOLDER)
    deleted.add(5)
    deleted.add(2**62)
    deleted.seal(7)
    deleted.add(6)
    deleted.seal(9)
    deleted.came_back(6)
    deleted.write()
    again = DeletedLedgers(files, FOLDER)
    assert len(again) == 3
    assert (again.is_gone(5), again.is_gone(6), again.is_gone(1)) == (True, False, False)
    again.came_back(5)
    again.write()
    assert not DeletedLedgers(files, FOLDER).is_gone(5)
    again.add(6)  # deleted once more
    again.seal(12)
    assert again.is_gone(6)


def test_ledgers_that_no_log_holds_are_forgotten(files: MemoryFiles) -> None:
    deleted = DeletedLedgers(files, FOLDER)
    for ledger_id in (1, 2):
        deleted.add(ledger_id)
    deleted.seal(3)
    deleted.add(4)
    deleted.seal(8)
    deleted.retain(np.array([2]), first_unseen_log=5)
    # 4 may lie in log 5 to 8, which nobody has looked at.
    assert (1 in deleted, 2 in deleted, 4 in deleted) == (False, True, True)
    deleted.write()
    assert len(DeletedLedgers(files, FOLDER)) == 2


def test_the_number_of_deleted_ledgers_is_bounded(files: MemoryFiles) -> None:
    deleted = DeletedLedgers(files, FOLDER, limit=3)
    for ledger_id in range(5):
        deleted.add(ledger_id)
    deleted.seal(1)
    assert [ledger_id for ledger_id in range(5) if ledger_id in deleted] == [2, 3, 4]


@pytest.mark.parametrize("seed", range(10))
def test_packing_changes_nothing(files: MemoryFiles, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Against a plain dict, with arrays that are packed every few ledgers."""
    monkeypatch.setattr("bookie_pod.storage.gc.deleted_ledgers.CHUNK", 4)
    monkeypatch.setattr("bookie_pod.storage.gc.packed_ids.CHUNK", 3)
    rng = random.Random(seed)
    deleted = DeletedLedgers(files, FOLDER)
    upto: dict[int, int] = {}
    returned: set[int] = set()
    last_log = 0
    for _ in range(100):
        ledger_id, step = rng.choice([*range(20), 2**62]), rng.random()
        if step < 0.6:
            deleted.add(ledger_id)
            upto[ledger_id] = 2**61
            returned.discard(ledger_id)
        elif step < 0.75:
            deleted.came_back(ledger_id)
            returned |= {ledger_id} & upto.keys()
        elif step < 0.85:
            last_log += 1
            deleted.seal(last_log)
            upto = {each: min(log_id, last_log) for each, log_id in upto.items()}
        elif step < 0.95:
            found = PackedIds()
            in_logs = rng.choices(range(20), k=10)
            for each in in_logs:
                found.add(each)
            deleted.retain(found.ascending(), last_log)
            upto = {each: log_id for each, log_id in upto.items() if each in in_logs or log_id >= last_log}
            returned &= upto.keys()
        else:
            deleted.seal(last_log)
            upto = {each: min(log_id, last_log) for each, log_id in upto.items()}
            deleted.write()
            deleted = DeletedLedgers(files, FOLDER)
        for each in (*range(21), 2**62):
            assert (each in deleted) == (each in upto)
            assert deleted.is_gone(each) == (each in upto and each not in returned)
        assert rng.random() > 0.1 or len(deleted) == len(upto)


def test_the_rows_of_the_file_come_in_any_order(files: MemoryFiles) -> None:
    body = b"PKGCDEL1" + struct.pack(">6q", 9, 4, 2, 5, 5, 6)
    files.makedirs(FOLDER)
    files.write_bytes(f"{FOLDER}/{DELETED}", body + struct.pack(">I", google_crc32c.value(body)))
    deleted = DeletedLedgers(files, FOLDER)
    deleted.retain(np.array([], np.int64), first_unseen_log=5)
    assert [each in deleted for each in (9, 2, 5)] == [False, True, True]


def test_what_was_deleted_longest_ago_is_forgotten_first(files: MemoryFiles) -> None:
    deleted = DeletedLedgers(files, FOLDER, limit=3)
    for log_id, ledger_id in enumerate([7, 3, 9, 1, 8]):
        deleted.add(ledger_id)
        deleted.seal(log_id)
    assert [ledger_id for ledger_id in range(10) if ledger_id in deleted] == [1, 8, 9]


def test_every_flipped_bit_of_the_file_is_noticed(files: MemoryFiles) -> None:
    deleted = DeletedLedgers(files, FOLDER)
    deleted.add(5)
    deleted.seal(7)
    deleted.write()
    path = f"{FOLDER}/{DELETED}"
    whole = files.read_bytes(path)
    for at in range(len(whole)):
        for bit in range(8):
            files.write_bytes(path, whole[:at] + bytes([whole[at] ^ 1 << bit]) + whole[at + 1 :])
            assert len(DeletedLedgers(files, FOLDER)) == 0
    for length in range(len(whole)):
        files.write_bytes(path, whole[:length])
        assert len(DeletedLedgers(files, FOLDER)) == 0


def test_nothing_new_writes_nothing(files: MemoryFiles) -> None:
    deleted = DeletedLedgers(files, FOLDER)
    deleted.write()
    assert not files.exists(f"{FOLDER}/{DELETED}")
    deleted.add(1)
    deleted.seal(0)
    deleted.write()
    files.faults.fail("write", "create", "overwrite")
    deleted.write()
    deleted.add(2)
    with pytest.raises(StorageFault, match=DELETED):
        deleted.write()


def test_an_unreadable_list_of_deleted_ledgers_is_an_empty_one() -> None:
    files = MemoryFiles()
    files.makedirs(FOLDER)
    deleted = DeletedLedgers(files, FOLDER)
    deleted.add(5)
    deleted.write()
    files.faults.fail("open", path=FOLDER)
    assert len(DeletedLedgers(files, FOLDER)) == 0
