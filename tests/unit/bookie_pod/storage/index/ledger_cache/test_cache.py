"""The ledger cache: slots, pages, limits, flushes and files."""

from __future__ import annotations

import shutil
import struct
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from bookie_pod.storage.entry_log import DiskState, LedgerDirStates
from bookie_pod.storage.files import Files
from bookie_pod.storage.files_posix import PosixFiles
from bookie_pod.storage.index.index_file import HEADER_BYTES, decode_header
from bookie_pod.storage.index.ledger_cache import LedgerCache
from bookie_pod.storage.index.ledger_cache.directories import IndexDirectories
from bookie_pod.storage.index.ledger_cache.flusher import TOGETHER
from bookie_pod.storage.index.ledger_cache.page_table import IndexPage
from bookie_pod.storage.index.ledger_cache.records import IndexRecords
from bookie_pod.storage.index.ledger_data import FirstLogs, LedgerRecord
from bookie_protocol.errors import BadRequest, NoLedgerIndex, StorageFault
from tests.support.production import changed, production
from tests.unit.bookie_pod.storage.index.ledger_cache.rig import KEY, Rig

GOLDEN = Path(__file__).parents[5] / "golden"


def _golden(name: str, folder: Path, files: Files | None = None) -> LedgerCache:
    shutil.copytree(GOLDEN / name, folder / name)
    return LedgerCache(files or PosixFiles(), LedgerDirStates([str(folder / name)]), production(), lambda: None)


def _without_check(path: Path) -> bytes:
    """As the reference writes the header."""
    data = path.read_bytes()
    return data[:504] + bytes(8) + data[512:]


@pytest.mark.parametrize("name", ["disk-sorted", "disk-interleaved"])
def test_files_of_the_reference_are_read_and_written_byte_for_byte(name: str, tmp_path: Path) -> None:
    cache = _golden(name, tmp_path)
    rebuilt = tmp_path / "rebuilt"
    rebuilt.mkdir()
    ours = LedgerCache(PosixFiles(), LedgerDirStates([str(rebuilt)]), production(), lambda: None)
    assert sorted(cache.records.ledger_ids()) == [0, 1, 7, 8, 9, 10, 17, 27]
    for ledger_id in cache.records.ledger_ids():
        record = cache.records.get(ledger_id)
        assert record is not None
        ours.records.put(ledger_id, record)
        for page in cache.scan(ledger_id):
            if page:
                ours.put(ledger_id, [entry_id for entry_id, _ in page], [location for _, location in page])
    ours.take_dirty_headers()
    ours.flush()
    written = {path.relative_to(rebuilt): _without_check(path) for path in rebuilt.rglob("*.idx")}
    golden = GOLDEN / name
    assert written == {path.relative_to(golden): path.read_bytes() for path in golden.rglob("*.idx")}
    assert [cache.last_entry_id(ledger_id) for ledger_id in (0, 7, 8)] == [31, 9, 3]
    assert cache.last_entry_id(27) is None
    cache.close()
    ours.close()


def test_a23_entry_5000_is_slot_904_of_the_page_that_begins_at_4096() -> None:
    rig = Rig(page_size_bytes=8192)
    rig.add(1)
    rig.cache.put(1, [5000], [0x5_0000_0404])
    page = rig.cache.pages.peek(1, 4096)
    assert page is not None
    assert page.get(904) == 0x5_0000_0404
    rig.cache.pages.unpin(page)
    rig.flush()
    data = rig.files.read_bytes(rig.path(1))
    assert len(data) == 1024 + 5 * 8192
    assert struct.unpack_from(">q", data, 1024 + 40_000) == (0x5_0000_0404,)
    assert rig.reopen().get(1, 5000) == 0x5_0000_0404
    assert rig.cache.last_entry_id(1) == 5000
    assert list(rig.cache.entry_ids(1)) == [5000]


def test_no_index_is_an_error_of_its_own_and_no_location_is_an_answer() -> None:
    rig = Rig()
    for look in (lambda: rig.cache.get(1, 0), lambda: rig.cache.last_entry_id(1), lambda: rig.cache.entry_ids(1)):
        with pytest.raises(NoLedgerIndex, match="ledger 1"):
            look()
    with pytest.raises(NoLedgerIndex):
        rig.cache.put(1, [0], [1])
    rig.add(1)
    assert rig.cache.get(1, 0) == 0
    assert rig.cache.last_entry_id(1) is None
    rig.cache.put(1, [3], [77])
    assert [rig.cache.get(1, entry_id) for entry_id in (2, 3, 4, -1, 1 << 50)] == [0, 77, 0, 0, 0]


def test_clean_pages_make_room_and_dirty_ones_are_flushed_for_it() -> None:
    rig = Rig(page_limit=2)
    rig.add(1, 2, 3)
    rig.cache.put(1, range(24), range(100, 124))  # three pages of eight
    assert len(rig.cache.pages) <= 2
    assert rig.cache._directories.path(1) is not None  # its pages had to go to the file
    rig.cache.put(2, [0], [200])
    rig.cache.put(3, [0], [300])
    assert len(rig.cache.pages) <= 2
    assert [rig.cache.get(1, entry_id) for entry_id in range(24)] == list(range(100, 124))
    assert (rig.cache.get(2, 0), rig.cache.get(3, 0)) == (200, 300)
    assert len(rig.cache.pages) <= 2
    assert set(rig.cache.pages._ledgers) == {2, 3}, "of a ledger without a page nothing is kept"
    assert rig.counts.reads > 0


def test_the_least_recently_used_clean_page_goes_first() -> None:
    rig = Rig(page_limit=3)
    rig.add(1)
    rig.cache.put(1, range(24), range(1, 25))
    rig.flush()
    for entry_id in (0, 8, 16, 0):
        rig.cache.get(1, entry_id)
    rig.cache.get(1, 24)  # takes the place of the page of 8
    assert sorted(rig.cache.pages.first_entries(1)) == [0, 16, 24]


def test_a_page_changed_during_its_flush_stays_dirty() -> None:
    rig = Rig()
    rig.add(1)
    rig.cache.put(1, [0], [11])
    with rig.cache.pages.lock:
        dirty = rig.cache.pages.pin_dirty(1)
    rig.cache.put(1, [1], [22])
    rig.cache.pages.written(dirty)
    rig.cache.pages.unpin_all(dirty)
    assert rig.cache.pages.dirty_ledgers() == [1]
    rig.flush()
    assert rig.cache.pages.dirty_ledgers() == []
    assert [rig.reopen().get(1, entry_id) for entry_id in (0, 1)] == [11, 22]


def test_adjacent_pages_are_one_write_behind_the_header() -> None:
    rig = Rig()
    rig.add(1)
    rig.cache.put(1, [*range(16), 40], range(1, 18))
    operations = rig.files.faults.record()
    rig.flush()
    writes = [(op.name, op.nbytes) for op in operations if op.path.endswith(".idx") and op.name != "create"]
    assert writes == [("pwrite", HEADER_BYTES), ("pwrite", 128), ("pwrite", 64), ("datasync", 0)]


def test_locations_go_to_disk_only_behind_their_logs_which_are_synced_once_for_many() -> None:
    rig = Rig()
    for ledger_id in range(1, TOGETHER + 2):
        rig.add(ledger_id)
        rig.cache.put(ledger_id, [0], [11])
    rig.files.faults.fail("pwrite", times=1)
    with pytest.raises(StorageFault):
        rig.flush()
    assert rig.syncs == 1, "before the first write"
    rig.flush()
    assert rig.syncs == 1 + 2
    rig.cache.records.put(1, replace(_record(rig, 1), fenced=True))
    rig.flush()
    assert rig.syncs == 3, "no page is written"


@pytest.mark.parametrize("operation", ["pwrite", "datasync", "create", "sync_directory"])
def test_a_failed_flush_is_repeated_whole(operation: str) -> None:
    rig = Rig()
    rig.add(1)
    rig.cache.put(1, [0], [11])
    rig.files.faults.fail(operation, times=1)
    with pytest.raises(StorageFault, match="ledger 1"):
        rig.flush()
    assert rig.cache.get(1, 0) == 11
    rig.flush()
    rig.files.faults.fail("datasync", times=1)
    rig.cache.records.put(1, replace(_record(rig, 1), fenced=True))
    rig.cache.put(1, [1], [12])
    with pytest.raises(StorageFault):
        rig.flush()
    rig.cache.flush()
    assert [rig.reopen().get(1, entry_id) for entry_id in (0, 1)] == [11, 12]
    assert _record(rig, 1).fenced


def _record(rig: Rig, ledger_id: int):  # type: ignore[no-untyped-def]
    record = rig.cache.records.get(ledger_id)
    assert record is not None
    return record


def test_open_files_are_bounded_and_those_in_use_stay() -> None:
    rig = Rig(open_file_limit=2)
    rig.add(*range(6))
    for ledger_id in range(6):
        rig.cache.put(ledger_id, [0], [ledger_id + 1])
    rig.flush()
    cache = rig.reopen()
    held = cache.handles.acquire(0)
    assert held is not None
    for ledger_id in range(1, 6):
        assert cache.get(ledger_id, 0) == ledger_id + 1
    assert len(cache.handles) == 2
    assert rig.counts.evicted == 4
    assert held.file.pread(4, 0) == b"BKLE"
    cache.handles.release(held)
    cache.close()
    assert rig.files.open_files == 0


def test_a_deleted_ledger_is_gone_at_once_and_its_file_with_the_flush() -> None:
    rig = Rig()
    rig.add(1)
    rig.cache.put(1, range(16), range(1, 17))
    rig.flush()
    path = rig.path(1)
    rig.cache.delete(1)
    with pytest.raises(NoLedgerIndex):
        rig.cache.get(1, 0)
    assert rig.files.exists(path)
    rig.add(1)
    rig.cache.put(1, [3], [33])
    assert list(rig.cache.entry_ids(1)) == [3]
    rig.flush()
    assert list(rig.reopen().entry_ids(1)) == [3]
    rig.cache.delete(1)
    rig.flush()
    assert not rig.files.exists(path)
    assert rig.reopen().records.ledger_ids() == []


def test_entries_of_a_life_that_is_over_are_not_put() -> None:
    rig = Rig()
    rig.add(1)
    with pytest.raises(NoLedgerIndex):
        rig.cache.put(1, [0], [1], lambda: True)
    assert rig.cache.get(1, 0) == 0


def test_a_move_takes_the_place_only_of_what_it_copied() -> None:
    rig = Rig()
    rig.add(1)
    rig.cache.put(1, [0], [11])
    assert rig.cache.move(1, 0, 11, 22)
    assert not rig.cache.move(1, 0, 11, 33)
    assert not rig.cache.move(2, 0, 11, 33)
    assert rig.cache.get(1, 0) == 22


def test_a_file_in_a_full_directory_moves_to_another() -> None:
    rig = Rig()
    rig.add(1)
    rig.cache.put(1, [0], [11])
    rig.flush()
    old = rig.path(1)[:2]
    rig.states.report(old, DiskState.FULL)
    rig.cache.put(1, [1], [12])
    rig.flush()
    assert rig.path(1)[:2] != old
    assert not rig.files.exists(f"{old}/0/1/1.idx")
    assert not rig.files.exists(f"{rig.path(1)}.rloc")
    assert [rig.reopen().get(1, entry_id) for entry_id in (0, 1)] == [11, 12]


def test_leftovers_of_a_move_are_finished_or_removed() -> None:
    rig = Rig()
    rig.add(1, 2)
    rig.flush()
    kept, moved = rig.path(1), rig.path(2)
    rig.files.write_bytes_synced(f"{kept}.rloc", b"half a copy")
    rig.files.rename(moved, f"{moved}.rloc")  # the old file was removed, the copy not renamed yet
    rig.reopen()
    assert sorted(rig.cache.records.ledger_ids()) == [1, 2]
    assert rig.path(2) == moved
    assert not rig.files.exists(f"{kept}.rloc")


def test_a_name_that_is_no_ledger_and_a_second_file_are_refused() -> None:
    rig = Rig()
    rig.add(1)
    rig.flush()
    rig.files.write_bytes_synced(rig.path(1).replace("1.idx", "x.idx"), b"")
    with pytest.raises(StorageFault, match=r"x\.idx is"):
        rig.reopen()
    rig.files.unlink(rig.path(1).replace("1.idx", "x.idx"))
    other = "/b" if rig.path(1).startswith("/a") else "/a"
    rig.files.makedirs(f"{other}/0/1")
    rig.files.write_bytes_synced(f"{other}/0/1/1.idx", rig.files.read_bytes(rig.path(1)))
    with pytest.raises(StorageFault, match=r"ledger 1 .*two"):
        rig.reopen()


def test_a_file_without_a_header_waits_for_its_key_and_stays_in_limbo_without() -> None:
    rig = Rig()
    rig.files.makedirs("/a/0/1")
    rig.files.makedirs("/a/0/2")
    rig.files.write_bytes_synced("/a/0/1/1.idx", b"")
    rig.files.write_bytes_synced("/a/0/2/2.idx", bytes(2000))
    rig.reopen()
    assert _record(rig, 1).limbo
    rig.add(1)  # the replay brings it
    rig.cache.end_replay()
    rig.flush()
    rig.reopen()
    assert (_record(rig, 1).key, _record(rig, 1).limbo) == (KEY, False)
    assert _record(rig, 2).limbo


def test_a_file_without_a_header_that_no_seal_knows_goes_behind_the_replay() -> None:
    """Its key record was not durable either, so nothing of it was ever acknowledged."""
    rig = Rig()
    rig.add(1)
    rig.flush()
    rig.cache.seal()
    for ledger_id in (2, 3):
        rig.files.makedirs(f"/a/0/{ledger_id}")
        rig.files.write_bytes_synced(f"/a/0/{ledger_id}/{ledger_id}.idx", b"")
    rig.reopen()
    assert _record(rig, 2).limbo
    rig.add(3)
    rig.cache.end_replay()
    assert rig.cache.records.get(2) is None
    rig.flush()
    rig.cache.seal()
    rig.reopen()
    assert sorted(rig.cache.records.ledger_ids()) == [1, 3]
    assert not _record(rig, 3).limbo


@pytest.mark.parametrize("key", [b"", bytes(20)], ids=["empty", "zeros"])
def test_one_that_was_begun_without_a_key_stays_though_its_header_was_lost(key: bytes) -> None:
    """The journal has its key record, and behind it entries that were acknowledged."""
    rig = Rig()
    rig.add(1)
    rig.flush()
    rig.cache.seal()
    rig.files.makedirs("/a/0/2")
    rig.files.write_bytes_synced("/a/0/2/2.idx", b"")
    rig.reopen()
    rig.cache.records.set_master_key(2, key)
    rig.cache.put(2, [0], [11])
    rig.cache.end_replay()
    assert rig.cache.get(2, 0) == 11
    assert _record(rig, 2).limbo


def test_entries_of_one_of_which_nobody_knows_the_header_may_lie_in_any_log() -> None:
    rig = Rig()
    rig.files.makedirs("/a/0/2")
    rig.files.write_bytes_synced("/a/0/2/2.idx", b"")  # and there is no seal
    rig.reopen()
    rig.cache.records.name_logs(FirstLogs(lambda: 7, lambda: 7, lambda log_id: None))
    rig.cache.end_replay()
    assert (_record(rig, 2).limbo, rig.cache.records.first_log(2)) == (True, 0)


def test_a_damaged_header_leaves_limbo_and_a_newer_one_is_refused() -> None:
    rig = Rig()
    rig.add(1)
    rig.cache.put(1, [0], [11])
    rig.flush()
    path = rig.path(1)
    for damage in (b"XXXX", b"BKLE\0\0\0\7"):
        rig.files.corrupt(path, 0, damage)
        rig.reopen()
        assert _record(rig, 1).limbo
        assert _record(rig, 1).fenced  # nobody knows
        assert rig.cache.get(1, 0) == 11
    rig.files.corrupt(path, 504, bytes(8))
    with pytest.raises(StorageFault, match="newer"):
        rig.reopen()


def test_who_lost_pages_keeps_what_his_header_says_and_who_is_gone_says_nothing() -> None:
    rig = Rig()
    rig.add(1)
    rig.flush()
    directories = IndexDirectories(rig.files, rig.states, 0)
    records = IndexRecords(rig.files, directories, lambda lengths, headless: [*lengths, 2])
    assert (records.get(1), records.get(2)) == (
        LedgerRecord(KEY, limbo=True),
        LedgerRecord(b"", fenced=True, limbo=True),
    )


def test_a_file_of_version_0_keeps_it() -> None:
    rig = Rig(file_info_format_version=0)
    rig.add(1)
    rig.flush()
    rig.options = changed(rig.options, file_info_format_version=1)
    rig.reopen()
    rig.cache.records.put(1, replace(_record(rig, 1), fenced=True, explicit_lac=bytes(20)))
    rig.add(2)
    rig.flush()
    versions = []
    for ledger_id in (1, 2):
        decoded = decode_header(rig.files.read_bytes(rig.path(ledger_id))[:HEADER_BYTES])
        assert decoded is not None
        versions.append(decoded[0])
    assert versions == [0, 1]
    rig.reopen()
    assert _record(rig, 1).fenced
    assert _record(rig, 1).explicit_lac is None


def test_a_trailing_part_of_a_slot_counts_as_zero() -> None:
    rig = Rig()
    rig.add(1)
    rig.cache.put(1, [0], [11])
    rig.flush()
    file = rig.files.open(rig.path(1), writable=True)
    file.truncate(HEADER_BYTES + 8)
    file.pwrite(b"\xff\xff\xff", HEADER_BYTES + 8)
    file.close()
    rig.reopen()
    assert rig.cache.last_entry_id(1) == 0
    assert list(rig.cache.entry_ids(1)) == [0]
    assert rig.cache.get(1, 1) == 0


def test_keys_that_no_header_holds_are_refused() -> None:
    rig = Rig()
    with pytest.raises(BadRequest, match="600 bytes"):
        rig.cache.records.set_master_key(1, b"k" * 600)
    assert rig.cache.records.get(1) is None


def test_idle_files_are_closed() -> None:
    rig = Rig()
    clock = [0.0]
    rig.cache.handles._idle_seconds = 10
    rig.cache.handles._clock = lambda: clock[0]
    rig.add(1, 2)
    rig.cache.put(1, [0], [11])
    rig.cache.put(2, [0], [22])
    rig.flush()
    assert rig.cache.handles.counts() == (0, 0)
    rig.cache.put(1, [1], [12])
    rig.flush()
    assert list(rig.cache.entry_ids(2)) == [0]
    assert rig.cache.handles.counts() == (1, 1)
    clock[0] = 11
    rig.cache.flush()
    assert rig.cache.handles.counts() == (0, 0)


# --- what a large entry id costs ----------------------------------------------------------------------------


def test_a_listing_costs_what_is_stored_not_what_the_highest_id_is() -> None:
    rig = Rig()
    rig.add(1)
    rig.cache.put(1, [0, 1 << 20], [5, 6])
    rig.flush()
    cache = rig.reopen()
    assert [row for page in cache.scan(1) for row in page] == [(0, 5), (1 << 20, 6)]
    assert rig.counts.scanned_pages < 200
    rig.files.truncate_to(rig.path(1), 16 << 20)  # what a power cut may leave: a length without what was written
    before = rig.files.faults.counts["pread"]
    assert cache.last_entry_id(1) == 1 << 20
    assert rig.files.faults.counts["pread"] < before + 200


def test_a_move_out_of_a_full_directory_leaves_the_holes() -> None:
    rig = Rig()
    rig.add(1)
    rig.cache.put(1, [0, 1 << 20], [5, 6])
    rig.flush()
    old = rig.path(1)
    rig.states.report(old[:2], DiskState.FULL)
    rig.cache.put(1, [1], [7])
    rig.flush()
    assert rig.path(1) != old
    assert rig.files.allocated(rig.path(1)) < 40_000
    assert list(rig.reopen().entry_ids(1)) == [0, 1, 1 << 20]


def test_a_page_whose_reading_fails_is_let_go_by_everybody_who_waited_for_it() -> None:
    rig = Rig(page_limit=1)
    rig.add(1)
    rig.cache.put(1, [0, 8], [5, 6])
    rig.flush()
    cache = rig.reopen()
    gate = rig.files.faults.hold("pread", path=".idx")
    rig.files.faults.fail("pread", path=".idx", times=1)
    page = None
    failures: list[BaseException] = []

    def look() -> None:
        try:
            cache.get(1, 0)
        except StorageFault as error:
            failures.append(error)

    first = threading.Thread(target=look)
    first.start()
    gate.reached()  # the page is being read
    (page,) = cache.pages._ledgers[1].values()
    second = threading.Thread(target=look)
    second.start()
    while page.pins < 2:
        second.join(0.001)
    gate.open()
    first.join()
    second.join()
    assert len(failures) == 2
    assert page.pins == 0
    assert [cache.get(1, entry_id) for entry_id in (0, 8)] == [5, 6]
    assert len(cache.pages) == 1


def test_a_listing_can_begin_anywhere_and_reads_nothing_before() -> None:
    rig = Rig()
    rig.add(1)
    rig.cache.put(1, list(range(100)), list(range(1, 101)))
    rig.flush()
    rig.cache.put(1, [100], [101])
    for first in (0, 50, 56, 99, 100, 101, 1000):
        rig.counts.scanned_pages = 0
        rows = [row for page in rig.cache.scan(1, first) for row in page if row[0] >= first]
        assert rows == [(entry_id, entry_id + 1) for entry_id in range(first, 101)]
        assert rig.counts.scanned_pages == max(0, 13 - first // 8)


@pytest.mark.parametrize("entry_id", [2, 9])
def test_what_was_lost_in_the_middle_of_a_look_is_not_denied(entry_id: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its location was in memory, and the disk of its index file fails before the page is looked for."""
    rig = Rig()
    rig.add(1)
    rig.cache.put(1, [0], [100])
    rig.flush()
    rig.cache.put(1, [entry_id], [300])
    home = rig.path(1)[: len("/a")]
    peek = rig.cache.pages.peek

    def peek_behind_the_failure(ledger_id: int, first_entry: int) -> IndexPage | None:
        monkeypatch.undo()
        rig.cache.give_up(home)
        rig.files.faults.fail("open", "pread", "data_from", path=home)
        rig.flush()
        rig.files.faults.clear()
        return peek(ledger_id, first_entry)

    monkeypatch.setattr(rig.cache.pages, "peek", peek_behind_the_failure)
    with pytest.raises(StorageFault, match="failed") as caught:
        rig.cache.get(1, entry_id)
    assert not isinstance(caught.value, NoLedgerIndex)


def test_files_in_use_beyond_the_limit_are_closed_when_they_are_let_go() -> None:
    rig = Rig(open_file_limit=1)
    rig.add(1, 2, 3)
    for ledger_id in (1, 2, 3):
        rig.cache.put(ledger_id, [0], [7])
    rig.flush()
    rig.cache.close()
    handles = [rig.cache.handles.acquire(ledger_id) for ledger_id in (1, 2, 3)]
    assert rig.files.open_files == 3
    for left, handle in enumerate(handles):
        assert handle is not None
        rig.cache.handles.release(handle)
        assert rig.files.open_files == max(1, 2 - left)


def test_a_file_of_today_keeps_its_version_and_the_lac_in_its_header() -> None:
    rig = Rig()
    rig.add(1)
    rig.cache.put(1, [0], [7])
    rig.flush()
    cache = rig.reopen()
    assert cache.records.version_0 == set()
    cache.records.put(1, LedgerRecord(KEY, explicit_lac=bytes(range(20))))
    rig.flush()
    assert rig.reopen().records.get(1) == LedgerRecord(KEY, explicit_lac=bytes(range(20)))
