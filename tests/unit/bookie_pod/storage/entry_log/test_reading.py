"""Reading by location: every check names file, offset and what was found; handles are bounded."""

from __future__ import annotations

import struct
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_pod.storage.entry_log import EntryLogger, make_location
from bookie_pod.storage.entry_log.format import PAD_BYTE, split_location
from bookie_pod.storage.entry_log.interface import Row
from bookie_pod.storage.entry_log.reader import CHUNK_LIMIT
from bookie_pod.storage.entry_log.scan import SANE_ENTRY_BYTES
from bookie_pod.storage.files import File
from bookie_protocol.errors import EntryDamaged, NotThere, StorageFault
from tests.support.entry_logs import FOLDER, entry, make_folders, open_logger, run
from tests.support.memory_files import MemoryFiles

LOG = f"{FOLDER}/0.log"


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


def _with_entries(files: MemoryFiles, count: int = 5, size: int = 100) -> tuple[EntryLogger, list[int]]:
    logger = open_logger(files)
    ids, entries = run(7, count, size)
    locations = logger.append_run(7, ids, entries)
    logger.sync()
    return logger, locations


def test_reads_from_the_buffer_before_anything_was_written(files: MemoryFiles) -> None:
    logger = open_logger(files)
    ids, entries = run(7, 5)
    locations = [logger.append_run(7, [i], [body])[0] for i, body in zip(ids, entries, strict=True)]
    assert files.size(LOG) == 0
    assert [logger.read(loc, 7, i) for loc, i in zip(locations, ids, strict=True)] == entries
    assert [body for _, body, _ in logger.read_run(locations[0], 7, 0, 10, 1 << 20)] == entries
    logger.close()


def test_reads_from_the_buffer_whatever_the_size(files: MemoryFiles) -> None:
    logger = open_logger(files, write_buffer_size_bytes=1 << 22)
    sizes = [100, 40_000, 100, CHUNK_LIMIT + 5000, 100]
    entries = [entry(7, i, size) for i, size in enumerate(sizes)]
    locations = logger.append_run(7, range(5), entries)
    assert files.size(LOG) == 0
    assert [logger.read(location, 7, i) for i, location in enumerate(locations)] == entries
    assert [row[1] for row in logger.read_run(locations[0], 7, 0, 4, 1 << 22)] == entries
    logger.close()


def test_one_read_of_the_file_once_the_size_is_known(files: MemoryFiles) -> None:
    logger, locations = _with_entries(files, size=3000)
    assert logger.read(locations[0], 7, 0) == entry(7, 0, 3000)
    before = files.faults.counts["pread"]
    assert logger.read(locations[1], 7, 1) == entry(7, 1, 3000)
    assert files.faults.counts["pread"] == before + 1
    logger.close()


@pytest.mark.parametrize("size", [16, 508, 509, 5000, 40_000, 3_000_000])
def test_entries_of_every_size(files: MemoryFiles, size: int) -> None:
    logger, locations = _with_entries(files, count=3, size=size)
    for i in (2, 0, 1, 0):
        assert logger.read(locations[i], 7, i) == entry(7, i, size)
    logger.close()


@pytest.mark.parametrize(("ledger_id", "entry_id"), [(7, 2), (8, 1)])
def test_another_entry_than_asked_for_is_damage(files: MemoryFiles, ledger_id: int, entry_id: int) -> None:
    logger, locations = _with_entries(files)
    with pytest.raises(EntryDamaged, match=rf"at 1132 of {LOG}, .* 100, entry 1 of ledger 7") as caught:
        logger.read(locations[1], ledger_id, entry_id)
    assert not isinstance(caught.value, NotThere)
    assert logger.stats.damaged_reads == 1
    logger.close()


@pytest.mark.parametrize("size", [15, 0, -1, -(2**31)])
def test_a_size_below_16_is_damage(files: MemoryFiles, size: int) -> None:
    logger, locations = _with_entries(files)
    files.corrupt(LOG, 1024, struct.pack(">i", size))
    with pytest.raises(EntryDamaged, match=f"size {size}"):
        logger.read(locations[0], 7, 0)
    logger.close()


@pytest.mark.parametrize("size", [10_000, 2**31 - 1])
def test_a_size_beyond_the_file_is_a_fault_and_allocates_nothing(files: MemoryFiles, size: int) -> None:
    logger, locations = _with_entries(files)
    logger.rotate()
    logger.sync()
    files.corrupt(LOG, 1024, struct.pack(">i", size))
    with pytest.raises(EntryDamaged, match=LOG):
        logger.read(locations[0], 7, 0)
    logger.close()


def test_a_file_that_ends_in_the_head(files: MemoryFiles) -> None:
    logger, _ = _with_entries(files)
    with pytest.raises(StorageFault, match="entry 5 of ledger 7 at 1548"):
        logger.read(make_location(0, 1028 + 5 * 104), 7, 5)
    logger.close()


@pytest.mark.parametrize("location", [0, 1, 1027, make_location(0, 1027)])
def test_a_location_within_the_header(files: MemoryFiles, location: int) -> None:
    logger, _ = _with_entries(files)
    with pytest.raises(EntryDamaged, match="at 1028"):
        logger.read_run(location, 7, 0, 10, 1000)
    logger.close()


def test_a_missing_log_is_a_fault_that_names_the_directories(files: MemoryFiles) -> None:
    logger, _ = _with_entries(files)
    with pytest.raises(StorageFault, match=rf"ff\.log is .*none .*{FOLDER}") as caught:
        logger.read_run(make_location(0xFF, 1028), 7, 0, 10, 1000)
    assert not isinstance(caught.value, NotThere)
    logger.close()


def test_a_failing_disk_is_a_fault(files: MemoryFiles) -> None:
    logger, locations = _with_entries(files)
    files.faults.fail("pread")
    with pytest.raises(StorageFault, match="entry 0 of ledger 7"):
        logger.read(locations[0], 7, 0)
    with pytest.raises(StorageFault, match="entry 0 of ledger 7"):
        logger.read_run(locations[0], 7, 0, 10, 1000)
    files.faults.clear()
    assert logger.read(locations[0], 7, 0) == entry(7, 0)
    logger.close()


def test_an_oversized_entry_is_read_all_the_same(files: MemoryFiles) -> None:
    logger = open_logger(files, max_frame_size_bytes=50)
    locations = logger.append_run(7, [0], [entry(7, 0)])
    assert logger.read(locations[0], 7, 0) == entry(7, 0)
    logger.close()


def test_a_damaged_size_does_not_choose_how_much_is_read(files: MemoryFiles) -> None:
    logger, locations = _with_entries(files)
    logger.close()
    position = split_location(locations[2])[1]
    files.corrupt(LOG, position - 4, struct.pack(">i", SANE_ENTRY_BYTES + 1))
    files.truncate_to(LOG, position + SANE_ENTRY_BYTES + 1)
    logger = open_logger(files)
    before = files.faults.counts["pread"]
    with pytest.raises(EntryDamaged):
        logger.read(locations[2], 7, 2)
    assert files.faults.counts["pread"] - before == 1  # with the head
    logger.close()


# --- runs ---------------------------------------------------------------------------------------------------------


def test_a_run_is_the_entry_and_those_behind_it(files: MemoryFiles) -> None:
    logger, locations = _with_entries(files, count=50)
    logger.append_run(8, [50], [entry(8, 50)])
    logger.sync()
    found = logger.read_run(locations[10], 7, 10, 1000, 1 << 20)
    assert found == [(i, entry(7, i), locations[i]) for i in range(10, 50)]
    logger.close()


def test_a_run_goes_on_behind_a_gap_in_the_ids_and_ends_where_they_begin_anew(files: MemoryFiles) -> None:
    logger = open_logger(files)
    locations = logger.append_run(7, [0, 1, 3], [entry(7, 0), entry(7, 1), entry(7, 3)])
    logger.append_run(7, [2, 4], [entry(7, 2), entry(7, 4)])
    assert [i for i, _, _ in logger.read_run(locations[0], 7, 0, 10, 1000)] == [0, 1, 3]
    logger.close()


@pytest.mark.parametrize(("more", "max_bytes", "count"), [(3, 10_000, 3), (100, 350, 3), (100, 99, 0), (0, 9, 0)])
def test_a_run_is_bounded(files: MemoryFiles, more: int, max_bytes: int, count: int) -> None:
    logger, locations = _with_entries(files, count=20)
    assert len(logger.read_run(locations[0], 7, 0, more, max_bytes)) == 1 + count
    logger.close()


def test_a_run_takes_few_reads(files: MemoryFiles) -> None:
    logger, locations = _with_entries(files, count=1000, size=1000)
    logger.read(locations[0], 7, 0)
    before = files.faults.counts["pread"]
    assert len(logger.read_run(locations[1], 7, 1, 4, 1 << 20)) == 5
    assert files.faults.counts["pread"] - before == 1
    assert len(logger.read_run(locations[6], 7, 6, 500, 1 << 20)) == 501
    assert files.faults.counts["pread"] - before == 2
    logger.close()


def test_a_run_goes_on_behind_an_entry_larger_than_what_is_read_at_once(files: MemoryFiles) -> None:
    logger = open_logger(files)
    sizes = [100, CHUNK_LIMIT + 5000, 100, 3000]
    entries = [entry(7, i, size) for i, size in enumerate(sizes)]
    locations = logger.append_run(7, range(4), entries)
    logger.rotate()
    logger.sync()
    rows = [(i, body, location) for i, (body, location) in enumerate(zip(entries, locations, strict=True))]
    assert logger.read_run(locations[0], 7, 0, 10, 1 << 22) == rows
    assert logger.read_run(locations[0], 7, 0, 10, sizes[1] - 1) == rows[:1]
    files.truncate_to(LOG, 1024 + 104 + 4 + sizes[1] - 1)
    assert logger.read_run(locations[0], 7, 0, 10, 1 << 22) == rows[:1]
    logger.close()


def test_a_long_run_is_read_in_chunks(files: MemoryFiles) -> None:
    logger, locations = _with_entries(files, count=3000, size=1000)
    before = files.faults.counts["pread"]
    assert len(logger.read_run(locations[0], 7, 0, 2999, 1 << 23)) == 3000
    assert files.faults.counts["pread"] - before <= 5
    files.faults.fail("pread", after=2)
    found = logger.read_run(locations[0], 7, 0, 2999, 1 << 23)
    assert [row[0] for row in found] == list(range(len(found)))
    assert 1000 < len(found) < 3000, "what was read counts"
    logger.close()


class _Check:
    """An `EntryCheck` that refuses some entries, and notes what it is asked."""

    def __init__(self, *refused: int) -> None:
        self._refused = refused

    def problem(self, ledger_id: int, entry_id: int, entry: bytes) -> str | None:
        return self.served(0, ledger_id, entry_id, entry)

    def served(self, location: int, ledger_id: int, entry_id: int, entry: bytes) -> str | None:
        return "its digest is wrong" if entry_id in self._refused else None

    def sound(self, ledger_id: int, rows: list[Row]) -> list[Row]:
        return [row for row in rows if row[0] not in self._refused]


def test_what_a_check_refuses_is_not_served(files: MemoryFiles) -> None:
    logger, locations = _with_entries(files)
    assert len(logger.read_run(locations[0], 7, 0, 10, 1000)) == 5
    logger.check_with(_Check(1, 3))
    assert [row[0] for row in logger.read_run(locations[0], 7, 0, 10, 1000)] == [0, 2, 4]
    assert logger.stats.damaged_reads == 0
    with pytest.raises(EntryDamaged, match=f"at {locations[1]} .*digest"):
        logger.read_run(locations[1], 7, 1, 10, 1000)
    assert logger.stats.damaged_reads == 1
    assert logger.read(locations[1], 7, 1) == entry(7, 1), "whoever repairs it may look"
    logger.close()


def test_behind_an_entry_that_cannot_be_read_the_run_ends_without_a_fault(files: MemoryFiles) -> None:
    logger, locations = _with_entries(files, count=20, size=1000)
    logger.read(locations[0], 7, 0)
    files.faults.fail("pread", after=1)
    assert [row[0] for row in logger.read_run(locations[0], 7, 0, 100, 1 << 20)] == list(range(20))
    logger.close()


def test_a_run_steps_over_padding(files: MemoryFiles) -> None:
    make_folders(files)
    file = files.create(LOG)
    first, second = entry(7, 0), entry(7, 1)
    body = bytes(1024) + struct.pack(">i", 100) + first
    file.write(body.ljust(4096, PAD_BYTE) + struct.pack(">i", 100) + second)
    file.close()
    logger = open_logger(files)
    assert [(i, body) for i, body, _ in logger.read_run(make_location(0, 1028), 7, 0, 10, 1000)] == [
        (0, first),
        (1, second),
    ]
    logger.close()


@pytest.mark.parametrize(
    "between",
    [
        struct.pack(">i", 4096 - 1024 - 104 - 4) + entry(8, 0, 4096 - 1024 - 104 - 4),
        PAD_BYTE * (4096 - 1024 - 104) + PAD_BYTE * 4096,
        bytes(4096 - 1024 - 104),
    ],
)
def test_a_run_ends_at_what_is_neither_its_own_nor_padding(files: MemoryFiles, between: bytes) -> None:
    """Though its next entry would lie at the next block."""
    make_folders(files)
    framed = [struct.pack(">i", 100) + entry(7, i) for i in range(2)]
    files.write_bytes(LOG, bytes(1024) + framed[0] + between + framed[1])
    logger = open_logger(files)
    assert [row[0] for row in logger.read_run(make_location(0, 1028), 7, 0, 10, 1000)] == [0]
    logger.close()


@given(
    sizes=st.lists(st.integers(16, 3000), min_size=1, max_size=20),
    start=st.integers(0, 19),
    more=st.integers(0, 25),
    max_bytes=st.integers(0, 25_000),
    buffer=st.sampled_from([1, 5000, 1 << 20]),
)
def test_a_run_agrees_with_single_reads(sizes: list[int], start: int, more: int, max_bytes: int, buffer: int) -> None:
    files = MemoryFiles()
    logger = open_logger(files, write_buffer_size_bytes=buffer)
    start %= len(sizes)
    entries = [entry(7, i, size) for i, size in enumerate(sizes)]
    locations = [logger.append_run(7, [i], [body])[0] for i, body in enumerate(entries)]
    expected, left = [(start, entries[start], locations[start])], max_bytes
    for i in range(start + 1, min(len(sizes), start + 1 + more)):
        left -= sizes[i]
        if left < 0:
            break
        expected.append((i, entries[i], locations[i]))
    assert logger.read_run(locations[start], 7, start, more, max_bytes) == expected
    logger.close()


# --- handles ------------------------------------------------------------------------------------------------------


def test_open_files_are_bounded(files: MemoryFiles) -> None:
    logger = open_logger(files, log_size_limit_bytes=1024 + 104, max_open_files=4)
    ids, entries = run(7, 20)
    locations = logger.append_run(7, ids, entries)
    logger.sync()
    for i in (*range(20), *range(20)):
        assert logger.read(locations[i], 7, i) == entries[i]
        assert files.open_files <= 4 + 1
    logger.close()
    assert files.open_files == 0


def test_the_least_recently_read_log_is_closed_first(files: MemoryFiles) -> None:
    logger = open_logger(files, log_size_limit_bytes=1024 + 104, max_open_files=2)
    ids, entries = run(7, 4)
    locations = logger.append_run(7, ids, entries)
    logger.sync()
    for i in (0, 1, 0, 2):
        logger.read(locations[i], 7, i)
    before = files.faults.counts["open"]
    logger.read(locations[0], 7, 0)
    assert files.faults.counts["open"] == before
    logger.read(locations[1], 7, 1)
    assert files.faults.counts["open"] == before + 1
    logger.close()


def test_many_readers_at_once(files: MemoryFiles) -> None:
    logger = open_logger(files, log_size_limit_bytes=1024 + 104 * 5, max_open_files=3)
    ids, entries = run(7, 100)
    locations = logger.append_run(7, ids, entries)
    logger.sync()

    def read_all(step: int) -> bool:
        return all(logger.read(locations[i * step % 100], 7, i * step % 100) == entries[i * step % 100] for i in ids)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read_all, (1, 3, 7, 9, 11, 13, 17, 19)))
    logger.close()
    assert files.open_files == 0


def test_readers_beside_an_appender_see_every_location_at_once(files: MemoryFiles) -> None:
    logger = open_logger(files, log_size_limit_bytes=20_000, write_buffer_size_bytes=1500)
    published: list[int] = []
    done = threading.Event()

    def follow() -> int:
        checked = 0
        while not done.is_set() or checked < len(published):
            if checked < len(published):
                assert logger.read(published[checked], 7, checked) == entry(7, checked)
                checked += 1
        return checked

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(follow) for _ in range(2)]
        try:
            for i in range(1500):
                published += logger.append_run(7, [i], [entry(7, i)])
        finally:
            done.set()
        assert [reader.result(60) for reader in readers] == [1500, 1500]
    logger.close()


# --- deletion -----------------------------------------------------------------------------------------------------


def test_deleting_a_flushed_log(files: MemoryFiles) -> None:
    logger = open_logger(files, log_size_limit_bytes=1024 + 104)
    locations = logger.append_run(7, [0, 1], [entry(7, 0), entry(7, 1)])
    logger.sync()
    logger.read(locations[0], 7, 0)
    assert logger.exists(0)
    assert logger.delete(0)
    assert not logger.exists(0)
    assert logger.log_ids() == [1]
    assert not files.exists(LOG)
    assert not logger.delete(0)
    assert logger.stats.logs_deleted == 1
    with pytest.raises(StorageFault, match="deleted"):
        logger.read(locations[0], 7, 0)
    logger.close()
    assert files.open_files == 0


def test_logs_that_are_not_flushed_cannot_be_deleted(files: MemoryFiles) -> None:
    logger = open_logger(files, log_size_limit_bytes=1024 + 104)
    logger.append_run(7, [0, 1], [entry(7, 0), entry(7, 1)])
    for log_id in (0, 1):
        with pytest.raises(StorageFault, match="rotated"):
            logger.delete(log_id)
    logger.close()


def test_a_failed_unlink_keeps_the_log_readable(files: MemoryFiles) -> None:
    logger = open_logger(files)
    locations = logger.append_run(7, [0], [entry(7, 0)])
    logger.rotate()
    logger.sync()
    files.faults.fail("unlink", times=1)
    with pytest.raises(StorageFault, match="delete"):
        logger.delete(0)
    assert logger.read(locations[0], 7, 0) == entry(7, 0)
    assert logger.delete(0)
    logger.close()


def test_a_reader_in_the_middle_of_a_deleted_log_finishes(files: MemoryFiles) -> None:
    logger = open_logger(files)
    locations = logger.append_run(7, [0], [entry(7, 0)])
    logger.rotate()
    logger.sync()
    gate = files.faults.hold("pread", path="0.log")
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(logger.read, locations[0], 7, 0)
        gate.reached()
        assert logger.delete(0)
        gate.open()
        assert reading.result(10) == entry(7, 0)
    assert files.open_files == 0
    logger.close()


def test_a_log_deleted_while_it_is_being_opened_leaves_no_handle(files: MemoryFiles) -> None:
    logger = open_logger(files)
    locations = logger.append_run(7, [0], [entry(7, 0)])
    logger.rotate()
    logger.sync()
    gate = files.faults.hold("open", path="0.log")
    with ThreadPoolExecutor(1) as pool:
        reading = pool.submit(logger.read, locations[0], 7, 0)
        gate.reached()
        assert logger.delete(0)
        gate.open()
        with pytest.raises(StorageFault):
            reading.result(10)
    assert files.open_files == 0
    logger.close()


def test_a_log_deleted_just_after_it_was_opened_leaves_no_handle(
    files: MemoryFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    logger, locations = _with_entries(files)
    logger.rotate()
    logger.sync()
    handles = logger._reader.handles
    open_file = handles._open_file

    def opened_then_deleted(log_id: int) -> File:
        file = open_file(log_id)
        assert logger.delete(log_id)
        return file

    monkeypatch.setattr(handles, "_open_file", opened_then_deleted)
    with pytest.raises(StorageFault, match=r"0\.log .*deleted"):
        logger.read(locations[0], 7, 0)
    assert len(handles) == 0
    assert files.open_files == 0
    logger.close()


def test_of_two_who_open_a_log_at_once_one_closes_its_file(files: MemoryFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    logger, _ = _with_entries(files)
    logger.close()
    handles = open_logger(files)._reader.handles
    open_file = handles._open_file
    others = []

    def opened_by_two(log_id: int) -> File:
        monkeypatch.setattr(handles, "_open_file", open_file)
        others.append(handles.acquire(log_id))
        return open_file(log_id)

    monkeypatch.setattr(handles, "_open_file", opened_by_two)
    handle = handles.acquire(0)
    assert others == [handle]
    assert (handle.users, files.open_files, len(handles)) == (2, 1, 1)


def test_what_became_of_a_log_whose_file_is_gone(files: MemoryFiles) -> None:
    logger, _ = _with_entries(files)
    logger.rotate()
    logger.sync()
    assert (logger.size(0), logger.written_ms(0)) == (files.size(LOG), files.modified_ms(LOG))
    files.unlink(LOG)
    for asked, message in ((logger.size, "size"), (logger.written_ms, "age")):
        with pytest.raises(StorageFault, match=f"{message} of .* {LOG}"):
            asked(0)
    assert not logger.delete(0)
    assert not logger.exists(0)
    assert logger.stats.logs_deleted == 0
    logger.close()


def test_a_log_that_is_dropped_stays_open_until_its_last_reader_is_done(files: MemoryFiles) -> None:
    logger, _ = _with_entries(files)
    logger.close()
    handles = open_logger(files)._reader.handles
    first, second = handles.acquire(0), handles.acquire(0)
    assert first is second
    handles.drop(0)
    handles.release(first)
    assert second.file.pread(4, 0) == b"BKLO"
    handles.release(second)
    with pytest.raises(OSError, match="descriptor"):
        second.file.pread(4, 0)
