"""One active log per ledger."""

from __future__ import annotations

import pytest

from bookie_pod.storage.entry_log import EntryLogger, LedgerDirStates
from tests.support.clock import Clock
from tests.support.entry_logs import FOLDER, PER_LEDGER, entry, make_folders, open_logger, run
from tests.support.memory_files import MemoryFiles
from tests.support.production import production


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


def _logger(files: MemoryFiles, clock: Clock, **options: int) -> EntryLogger:
    make_folders(files)
    settings = production(entry_log_preallocation=False, **PER_LEDGER, **options)
    return EntryLogger(files, LedgerDirStates([FOLDER]), settings, clock=clock)


def _add(logger: EntryLogger, ledger_id: int, entry_id: int = 0) -> int:
    return logger.append_run(ledger_id, [entry_id], [entry(ledger_id, entry_id)])[0]


def test_each_ledger_has_its_own_log(files: MemoryFiles) -> None:
    logger = _logger(files, Clock(0.0))
    locations = {(ledger, i): _add(logger, ledger, i) for i in range(3) for ledger in (7, 8, 9)}
    assert {(ledger, location >> 32) for (ledger, _), location in locations.items()} == {(7, 0), (8, 1), (9, 2)}
    assert [logger.current_log_id(ledger) for ledger in (7, 8, 9, 10)] == [0, 1, 2, None]
    for (ledger, i), location in locations.items():
        assert logger.read(location, ledger, i) == entry(ledger, i)
    logger.close()
    again = open_logger(files)
    assert [again.ledgers_map(log_id).ledgers for log_id in range(3)] == [{7: 312}, {8: 312}, {9: 312}]
    again.close()


def test_rotation_concerns_one_ledger_only(files: MemoryFiles) -> None:
    logger = _logger(files, Clock(0.0), log_size_limit_bytes=1024 + 104 * 2)
    _add(logger, 8)
    ids, entries = run(7, 5)
    assert [location >> 32 for location in logger.append_run(7, ids, entries)] == [1, 1, 2, 2, 3]
    assert logger.current_log_id(8) == 0
    logger.close()


def test_the_least_recently_used_log_is_rotated_beyond_the_maximum(files: MemoryFiles) -> None:
    logger = _logger(files, Clock(0.0), max_active_entry_logs=3)
    for ledger_id in (1, 2, 3, 1, 4):
        _add(logger, ledger_id)
    assert [logger.current_log_id(ledger) is not None for ledger in (1, 2, 3, 4)] == [True, False, True, True]
    assert logger.stats.logs_rotated == 1
    logger.sync()
    assert logger.ledgers_map(1).end is None
    logger.close()


def test_idle_logs_are_rotated_at_the_next_flush(files: MemoryFiles) -> None:
    clock = Clock(0.0)
    logger = _logger(files, clock, entry_log_map_expiry_seconds=300)
    _add(logger, 1)
    clock.now = 200
    _add(logger, 2)
    clock.now = 299
    logger.flush()
    assert logger.stats.logs_rotated == 0
    clock.now = 300
    logger.flush()
    assert (logger.current_log_id(1), logger.current_log_id(2)) == (None, 1)
    logger.close()


def test_a_checkpoint_syncs_active_and_rotated_logs(files: MemoryFiles) -> None:
    logger = _logger(files, Clock(0.0), max_active_entry_logs=2)
    for ledger_id in (1, 2, 3):
        _add(logger, ledger_id)
    operations = files.faults.record()
    logger.checkpoint()
    assert {op.path for op in operations if op.name == "datasync"} == {f"{FOLDER}/{i}.log" for i in range(3)}
    assert [logger.is_flushed(i) for i in range(3)] == [True, False, False]
    logger.close()


def test_new_logs_go_where_the_fewest_are_active(files: MemoryFiles) -> None:
    logger = open_logger(files, "/a", "/b", "/c", **PER_LEDGER)
    for ledger_id in range(30):
        _add(logger, ledger_id)
    assert [len(files.listdir(folder)) - 1 for folder in ("/a", "/b", "/c")] == [10, 10, 10]
    logger.close()


def test_a_log_that_was_replaced_is_not_active(files: MemoryFiles) -> None:
    logger = open_logger(files, "/a", "/b", **PER_LEDGER, log_size_limit_bytes=1024 + 104)
    paths = [logger.path(_add(logger, 7, entry_id) >> 32)[:2] for entry_id in range(20)]
    assert paths in (["/a", "/b"] * 10, ["/b", "/a"] * 10)
    logger.close()


def test_a_memtable_flush_rotates_full_logs_but_asks_for_no_checkpoint(files: MemoryFiles) -> None:
    logger = _logger(files, Clock(0.0), log_size_limit_bytes=1024 + 104 * 2)
    logger.prepare_memtable_flush()
    for ledger_id, count in ((7, 5), (8, 1)):
        ids, entries = run(ledger_id, count)
        logger.append_run(ledger_id, ids, entries, roll=False)
    assert not logger.commit_memtable_flush()
    assert (logger.current_log_id(7), logger.current_log_id(8)) == (None, 1)
    logger.close()


def test_closing_closes_every_log(files: MemoryFiles) -> None:
    logger = _logger(files, Clock(0.0))
    for ledger_id in range(20):
        _add(logger, ledger_id)
    logger.close()
    assert files.open_files == 0
    again = open_logger(files)
    assert all(again.ledgers_map(log_id).end is None for log_id in range(20))
    again.close()
