"""Logs of transactional compaction: the four names, each step durable, recovery after a crash."""

from __future__ import annotations

import random

import pytest

from bookie_pod.storage.entry_log import EntryLogger
from bookie_protocol.errors import StorageFault
from tests.support.entry_logs import FOLDER, entry, open_logger, run
from tests.support.memory_faults import quiet_death
from tests.support.memory_files import Died, MemoryFiles


def _logger_with_source(files: MemoryFiles) -> EntryLogger:
    logger = open_logger(files)
    for ledger_id in (7, 8):
        ids, entries = run(ledger_id, 5)
        logger.append_run(ledger_id, ids, entries)
    logger.rotate()
    logger.sync()
    return logger


def _logs(files: MemoryFiles) -> list[str]:
    return [name for name in files.listdir(FOLDER) if "log" in name]


def test_names_on_disk_at_each_step() -> None:
    files = MemoryFiles()
    logger = _logger_with_source(files)
    log = logger.begin_compaction(0, 0)
    assert (log.log_id, log.source_id) == (1, 0)
    assert files.read_bytes(f"{FOLDER}/lastId") == b"1\n"
    ids, entries = run(8, 5)
    locations = log.append_run(8, entries)
    assert _logs(files) == ["0.log", "1.log.compacting"]
    log.mark_compacted()
    assert _logs(files) == ["0.log", "1.log.0.compacted"]
    assert logger.log_ids() == [0]
    log.make_available()
    assert _logs(files) == ["0.log", "1.log", "1.log.0.compacted"]
    assert [logger.read(location, 8, i) for location, i in zip(locations, ids, strict=True)] == entries
    assert logger.ledgers_map(1).end is None
    assert logger.is_flushed(1)
    log.finish()
    assert logger.delete(0)
    assert _logs(files) == ["1.log"]
    assert logger.append_run(9, [0], [entry(9, 0)])[0] >> 32 == 2
    logger.close()
    assert files.open_files == 0


def test_names_are_hexadecimal() -> None:
    files = MemoryFiles()
    logger = open_logger(files)
    for _ in range(30):
        logger.append_run(7, [0], [entry(7, 0)])
        logger.rotate()
    logger.sync()
    log = logger.begin_compaction(0x1D, 0)
    log.append_run(7, [entry(7, 0)])
    log.mark_compacted()
    log.make_available()
    assert files.exists(f"{FOLDER}/1e.log")
    assert files.exists(f"{FOLDER}/1e.log.1d.compacted")
    log.finish()
    logger.close()


def test_giving_up_removes_the_file() -> None:
    files = MemoryFiles()
    logger = _logger_with_source(files)
    log = logger.begin_compaction(0, 0)
    log.append_run(7, [entry(7, 0)])
    log.abort()
    assert _logs(files) == ["0.log"]
    with pytest.raises(StorageFault, match="takes no more entries"):
        log.append_run(7, [entry(7, 1)])
    logger.close()
    assert files.open_files == 0


def test_recovery_removes_what_is_incomplete_or_misnamed() -> None:
    files = MemoryFiles()
    logger = _logger_with_source(files)
    for name in ("5.log.compacting", "x.log.3.compacted", "3.compacted"):
        files.create(f"{FOLDER}/{name}").close()
    assert logger.recover_compactions() == []
    assert _logs(files) == ["0.log"]
    logger.close()


def test_a_failing_disk_while_copying_is_a_fault() -> None:
    files = MemoryFiles()
    logger = _logger_with_source(files)
    log = logger.begin_compaction(0, 0)
    files.faults.fail("pwrite", "datasync")
    log.append_run(7, [entry(7, 0)])
    with pytest.raises(StorageFault, match="cannot complete compaction log"):
        log.mark_compacted()
    log.abort()
    files.faults.clear()
    assert _logs(files) == ["0.log"]
    logger.close()


@pytest.mark.parametrize("strict_names", [False, True])
def test_a_crash_at_every_step_leaves_the_entries_readable(strict_names: bool) -> None:
    step = 0
    while _crash_and_recover(step, strict_names):
        step += 1
    assert step >= 10


def _crash_and_recover(step: int, strict_names: bool) -> bool:
    files = MemoryFiles(strict_names=strict_names)
    logger = _logger_with_source(files)
    files.faults.die_at(files.faults.mutations + step)
    indexed: dict[int, int] = {}
    died = False
    with quiet_death():
        try:
            log = logger.begin_compaction(0, 0)
            _, entries = run(8, 5)
            locations = log.append_run(8, entries)
            log.mark_compacted()
            log.make_available()
            indexed = dict(enumerate(locations))
            log.finish()
            logger.delete(0)
        except Died:
            died = True
    for seed in range(4):
        _recover(files.crash(random.Random(step * 10 + seed)), dict(indexed))
    return died


def _recover(files: MemoryFiles, indexed: dict[int, int]) -> None:
    """`indexed`: what the (durable) index of ledger 8 said at the crash; empty: it still points to log 0."""
    logger = open_logger(files)
    for log in logger.recover_compactions():
        log.make_available()
        scan = logger.scan(log.log_id)
        indexed = {entry_id: location for location, _, entry_id, _ in scan}
        assert scan.end.clean
        log.finish()
        logger.delete(log.source_id)
    if not indexed:
        indexed = {entry_id: location for location, ledger, entry_id, _ in logger.scan(0) if ledger == 8}
    assert len(indexed) == 5
    for entry_id, location in indexed.items():
        assert logger.read(location, 8, entry_id) == entry(8, entry_id)
    assert all("compact" not in name for name in _logs(files))
    logger.close()
