"""Appending and rotation: what lies where."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_pod.storage.entry_log import appender, make_location, split_location
from bookie_pod.storage.entry_log.format import HARD_LOG_SIZE
from bookie_pod.storage.entry_log.writer import SLICE_ENTRIES
from bookie_pod.storage.files_posix import PosixFiles
from bookie_protocol.errors import StorageFault
from tests.support.entry_logs import FOLDER, PER_LEDGER, entry, open_logger, run
from tests.support.memory_files import MemoryFiles


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


def test_no_log_before_the_first_append(files: MemoryFiles) -> None:
    logger = open_logger(files, entry_log_preallocation=True)
    assert logger.current_log_id() is None
    assert files.listdir(FOLDER) == []
    logger.append_run(1, [0], [entry(1, 0)])
    assert logger.current_log_id() == 0
    logger.close()


def test_locations_are_those_of_the_first_byte_behind_the_size(files: MemoryFiles) -> None:
    logger = open_logger(files)
    ids, entries = run(7, 3, size=41)
    assert logger.append_run(7, ids, entries) == [make_location(0, 1028 + 45 * i) for i in range(3)]
    assert logger.append_run(8, [0], [entry(8, 0, 20)]) == [make_location(0, 1028 + 135)]
    logger.flush()
    data = files.read_bytes(f"{FOLDER}/0.log")
    assert data[1024:1069] == bytes.fromhex("00000029") + entries[0]
    assert len(data) == 1024 + 135 + 24
    logger.close()


def test_an_empty_run_appends_nothing(files: MemoryFiles) -> None:
    logger = open_logger(files)
    assert logger.append_run(7, [], []) == []
    assert logger.current_log_id() is None
    logger.close()


def test_ids_and_entries_must_match(files: MemoryFiles) -> None:
    logger = open_logger(files)
    with pytest.raises(ValueError, match=r"2 .* 1 .* ledger 7"):
        logger.append_run(7, [0, 1], [entry(7, 0)])
    logger.close()


def test_entries_of_many_ledgers_share_a_log(files: MemoryFiles) -> None:
    logger = open_logger(files)
    for ledger_id in range(50):
        logger.append_run(ledger_id, [0], [entry(ledger_id, 0)])
    assert logger.log_ids() == [0]
    logger.close()


def test_bytes_stay_in_the_buffer_until_it_is_full(files: MemoryFiles) -> None:
    logger = open_logger(files, write_buffer_size_bytes=4096)
    logger.append_run(7, [0], [entry(7, 0, 1000)])
    assert files.size(f"{FOLDER}/0.log") == 0
    logger.append_run(7, [1, 2], [entry(7, 1, 1000), entry(7, 2, 1100)])
    assert files.size(f"{FOLDER}/0.log") == 1024 + 2 * 1004 + 1104
    logger.append_run(7, [3], [entry(7, 3, 1000)])
    assert files.size(f"{FOLDER}/0.log") == 1024 + 2 * 1004 + 1104
    logger.flush()
    assert files.size(f"{FOLDER}/0.log") == 1024 + 3 * 1004 + 1104
    logger.close()


@pytest.mark.parametrize(("slack", "logs"), [(0, [0]), (-1, [0, 1])])
def test_a_log_is_filled_to_the_limit_exactly(files: MemoryFiles, slack: int, logs: list[int]) -> None:
    logger = open_logger(files, log_size_limit_bytes=1024 + 10 * 104 + slack)
    ids, entries = run(7, 10)
    locations = logger.append_run(7, ids, entries)
    assert logger.log_ids() == logs
    assert split_location(locations[-1]) == ((0, 1028 + 9 * 104) if slack == 0 else (1, 1028))
    logger.append_run(7, [10], [entry(7, 10)])
    assert logger.log_ids() == [0, 1]
    logger.close()


def test_a_run_is_cut_at_each_rotation_and_no_entry_is_split(files: MemoryFiles) -> None:
    logger = open_logger(files, log_size_limit_bytes=1024 + 10 * 104 + 50)
    ids, entries = run(7, 35)
    locations = logger.append_run(7, ids, entries)
    assert [split_location(location) for location in locations] == [(i // 10, 1028 + 104 * (i % 10)) for i in range(35)]
    logger.sync()
    for location, entry_id, body in zip(locations, ids, entries, strict=True):
        assert logger.read(location, 7, entry_id) == body
    logger.close()


def test_an_entry_larger_than_the_limit_gets_a_log_of_its_own(files: MemoryFiles) -> None:
    logger = open_logger(files, log_size_limit_bytes=2000)
    sizes = [100, 5000, 6000, 100]
    entries = [entry(7, i, size) for i, size in enumerate(sizes)]
    locations = logger.append_run(7, range(4), entries)
    assert [split_location(location) for location in locations] == [(0, 1028), (1, 1028), (2, 1028), (3, 1028)]
    logger.sync()
    assert [logger.read(location, 7, i) for i, location in enumerate(locations)] == entries
    logger.close()


def test_an_entry_that_fits_in_no_log_is_refused(files: MemoryFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(appender, "HARD_LOG_SIZE", 5000)
    logger = open_logger(files, log_size_limit_bytes=2000)
    largest = 5000 - 1024 - 4
    for first in (True, False):
        with pytest.raises(StorageFault, match=f"{largest + 1} bytes .* 7 "):
            logger.append_run(7, [0], [entry(7, 0, largest + 1)])
        (location,) = logger.append_run(7, [0], [entry(7, 0, largest)])
        assert logger.read(location, 7, 0) == entry(7, 0, largest)
        assert logger.current_log_id() == (0 if first else 1)
    logger.close()


def test_an_empty_log_does_not_stay(files: MemoryFiles) -> None:
    """It was begun for an entry that could not be written."""
    logger = open_logger(files, write_buffer_size_bytes=1)
    files.faults.fail("pwrite")
    with pytest.raises(StorageFault):
        logger.append_run(7, [0], [entry(7, 0)])
    assert logger.log_ids() == [0]
    assert logger.current_sizes() == {}
    logger.close()
    assert files.listdir(FOLDER) == ["lastId"]
    assert files.open_files == 0


def test_sizes_of_current_logs(files: MemoryFiles) -> None:
    logger = open_logger(files)
    assert logger.current_sizes() == {}
    for ledger_id in (7, 8, 7):
        logger.append_run(ledger_id, [0], [entry(ledger_id, 0)])
    assert logger.current_sizes() == {0: {7: 208, 8: 104}}
    logger.rotate()
    assert logger.current_sizes() == {}
    logger.close()


def test_only_the_logs_named_are_rotated(files: MemoryFiles) -> None:
    logger = open_logger(files, **PER_LEDGER)
    for ledger_id in (7, 8, 9):
        logger.append_run(ledger_id, [0], [entry(ledger_id, 0)])
    logger.rotate({1, 5})
    assert sorted(logger.current_sizes()) == [0, 2]
    logger.rotate(())
    assert sorted(logger.current_sizes()) == [0, 2]
    logger.rotate()
    assert logger.current_sizes() == {}
    logger.close()


def test_without_rolling_only_the_hard_limit_counts(files: MemoryFiles) -> None:
    logger = open_logger(files, log_size_limit_bytes=3000)
    logger.prepare_memtable_flush()
    ids, entries = run(7, 100)
    locations = logger.append_run(7, ids, entries, roll=False)
    assert {split_location(location)[0] for location in locations} == {0}
    assert logger.commit_memtable_flush()
    assert logger.current_log_id() is None
    assert logger.ledgers_map(0).ledgers == {7: 100 * 104}
    logger.close()


def test_commit_of_a_memtable_flush_that_stayed_in_its_log(files: MemoryFiles) -> None:
    logger = open_logger(files)
    logger.append_run(7, [0], [entry(7, 0)])
    logger.prepare_memtable_flush()
    logger.append_run(7, [1], [entry(7, 1)], roll=False)
    assert not logger.commit_memtable_flush()
    assert logger.current_log_id() == 0
    logger.close()


def test_commit_of_a_memtable_flush_that_moved_on_rotates(files: MemoryFiles) -> None:
    logger = open_logger(files)
    logger.append_run(7, [0], [entry(7, 0)])
    logger.prepare_memtable_flush()
    logger.rotate()
    logger.append_run(7, [1], [entry(7, 1)], roll=False)
    assert logger.commit_memtable_flush()
    assert logger.current_log_id() is None
    logger.close()


def test_hard_limit_is_31_bits() -> None:
    assert HARD_LOG_SIZE == 2**31 - 1


def test_rotation_writes_map_and_header_and_tells_listeners(files: MemoryFiles) -> None:
    logger = open_logger(files)
    told: list[int] = []
    logger.add_listener(told.append)
    logger.append_run(7, [3], [entry(7, 3, 41)])
    logger.rotate()
    assert told == [0]
    logger.sync()
    data = files.read_bytes(f"{FOLDER}/0.log")
    assert data[:20] == bytes.fromhex("424b4c4f00000001000000000000042d00000001")
    assert data[1069:] == bytes.fromhex(
        "00000024 ffffffffffffffff fffffffffffffffe 00000001 0000000000000007 000000000000002d"
    )
    assert logger.current_log_id() is None
    logger.rotate()
    assert told == [0]
    logger.close()


def test_ledger_sizes_in_the_map_include_the_size_word(files: MemoryFiles) -> None:
    logger = open_logger(files)
    for ledger_id, count in ((7, 3), (8, 1), (7, 2)):
        ids, entries = run(ledger_id, count, size=50)
        logger.append_run(ledger_id, ids, entries)
    logger.rotate()
    logger.sync()
    found = logger.ledgers_map(0)
    assert found.end is None
    assert found.ledgers == {7: 5 * 54, 8: 54}
    logger.close()


def test_stats_count_what_was_appended(files: MemoryFiles) -> None:
    logger = open_logger(files, log_size_limit_bytes=1024 + 104 * 4)
    ids, entries = run(7, 10)
    logger.append_run(7, ids, entries)
    logger.sync()
    stats = logger.stats
    assert (stats.entries_appended, stats.logs_rotated, stats.syncs, stats.written) == (10, 2, 3, 13)
    logger.close()


@given(
    runs=st.lists(
        st.tuples(st.integers(0, 5), st.lists(st.integers(16, 700), min_size=1, max_size=12)), min_size=1, max_size=8
    ),
    limit=st.integers(1024 + 16, 9000),
    buffer=st.sampled_from([1, 300, 2000, 65536]),
)
def test_what_was_appended_reads_back(runs: list[tuple[int, list[int]]], limit: int, buffer: int) -> None:
    files = MemoryFiles()
    logger = open_logger(files, log_size_limit_bytes=limit, write_buffer_size_bytes=buffer)
    expected: dict[int, tuple[int, int, bytes]] = {}
    next_id = dict.fromkeys(range(6), 0)
    for ledger_id, sizes in runs:
        ids = list(range(next_id[ledger_id], next_id[ledger_id] + len(sizes)))
        next_id[ledger_id] += len(sizes)
        entries = [entry(ledger_id, i, size) for i, size in zip(ids, sizes, strict=True)]
        locations = logger.append_run(ledger_id, ids, entries)
        assert len(locations) == len(entries)
        expected.update({loc: (ledger_id, i, e) for loc, i, e in zip(locations, ids, entries, strict=True)})
    for location, (ledger_id, entry_id, body) in expected.items():
        assert logger.read(location, ledger_id, entry_id) == body
    logger.close()
    again = open_logger(files)
    scanned = {}
    for log_id in again.log_ids():
        size = again.size(log_id)
        map_size = size - 24 - 16 * len(again.ledgers_map(log_id).ledgers)
        assert map_size <= limit or len([1 for loc in expected if loc >> 32 == log_id]) == 1
        scan = again.scan(log_id)
        scanned.update({location: (ledger, i, body) for location, ledger, i, body in scan})
        assert scan.end.clean
        assert again.ledgers_map(log_id).end is None
    assert scanned == expected
    again.close()


def test_a_run_longer_than_a_slice(tmp_path: object) -> None:
    files = PosixFiles()
    folder = f"{tmp_path}/current"
    logger = open_logger(files, folder)
    count = 2 * SLICE_ENTRIES + 100
    ids, entries = run(7, count, size=300)
    locations = logger.append_run(7, ids, entries)
    assert locations == [make_location(0, 1028 + 304 * i) for i in range(count)]
    mixed = [entry(8, i, 16 + i % 97) for i in range(count)]
    more = logger.append_run(8, range(count), mixed)
    logger.sync()
    for i in range(0, count, 77):
        assert logger.read(locations[i], 7, i) == entries[i]
        assert logger.read(more[i], 8, i) == mixed[i]
    assert logger.read(more[-1], 8, count - 1) == mixed[-1]
    logger.close()


def test_a_closed_logger_says_so(files: MemoryFiles) -> None:
    logger = open_logger(files)
    logger.close()
    with pytest.raises(StorageFault, match="closed"):
        logger.append_run(7, [0], [entry(7, 0)])
    logger.close()
    assert files.open_files == 0
