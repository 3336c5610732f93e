"""Logs of transactional compaction: the four names, each step durable, recovery after a crash."""

from __future__ import annotations

import random

import pytest

from bookie_pod.storage.entry_log import DiskState, EntryLogger, LedgerDirStates, compaction
from bookie_pod.storage.entry_log.compaction import CompactionLog
from bookie_protocol.errors import NoWritableDirectory, StorageFault
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
    with pytest.raises(StorageFault, match="no more"):
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
    with pytest.raises(StorageFault, match="complete"):
        log.mark_compacted()
    log.abort()
    files.faults.clear()
    assert _logs(files) == ["0.log"]
    logger.close()


@pytest.mark.parametrize(
    ("operation", "path", "step", "message"),
    [
        ("create", "1.log.compacting", 0, "create"),
        ("pwrite", "1.log.compacting", 1, "write"),
        ("link", "1.log.0.compacted", 3, "make .*1.log"),
        ("sync_directory", FOLDER, 3, "make .*1.log"),
        ("unlink", "1.log.0.compacted", 4, "remove .*1.log.0.compacted"),
        ("sync_directory", FOLDER, 4, "remove .*1.log.0.compacted"),
    ],
)
def test_each_step_that_fails_says_so_and_may_be_repeated(operation: str, path: str, step: int, message: str) -> None:
    files = MemoryFiles()
    logger = _logger_with_source(files)
    log: CompactionLog | None = None
    large = [entry(8, i, 40_000) for i in range(2)]

    def take(step: int) -> None:
        nonlocal log
        if step == 0:
            log = logger.begin_compaction(0, 0)
        assert log is not None
        if step:
            (lambda: log.append_run(8, large), log.mark_compacted, log.make_available, log.finish)[step - 1]()

    for before in range(step):
        take(before)
    files.faults.fail(operation, path=path, times=1)
    with pytest.raises(StorageFault, match=message):
        take(step)
    for again in range(step, 5):
        take(again)
    assert log is not None
    assert _logs(files) == ["0.log", f"{log.log_id}.log"]
    assert [body for _, _, _, body in logger.scan(log.log_id)] == large
    log.finish()
    logger.close()
    assert files.open_files == 0


def test_a_compaction_log_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compaction, "HARD_LOG_SIZE", 1024 + 3 * 104)
    files = MemoryFiles()
    logger = _logger_with_source(files)
    log = logger.begin_compaction(0, 0)
    assert len(log.append_run(8, [entry(8, i) for i in range(3)])) == 3
    with pytest.raises(StorageFault, match=f"exceed {1024 + 3 * 104} bytes"):
        log.append_run(8, [entry(8, 3)])
    log.abort()
    logger.close()


def test_a_compaction_goes_where_what_lives_has_room() -> None:
    files = MemoryFiles(volumes={"/a": 1 << 20, "/b": 1 << 22})
    dirs = LedgerDirStates(["/a", "/b"])
    logger = open_logger(
        files, "/a", "/b", dirs=dirs, log_size_limit_bytes=1 << 20, min_usable_after_compaction_bytes=1 << 20
    )
    for directory in ("/a", "/b"):
        dirs.report(directory, DiskState.FULL)
    usable = files.usage("/b").usable
    with pytest.raises(NoWritableDirectory, match="minUsableSizeAfterCompaction"):
        logger.begin_compaction(0, usable - (1 << 20))
    log = logger.begin_compaction(0, usable - (1 << 20) - 4096)
    assert files.listdir("/b") == ["0.log.compacting", "lastId"]
    log.abort()
    logger.close()


def test_what_a_step_did_is_durable_when_it_returns() -> None:
    files = MemoryFiles(strict_names=True)
    logger = _logger_with_source(files)
    log = logger.begin_compaction(0, 0)
    log.append_run(8, [entry(8, 0)])

    def names() -> set[tuple[str, ...]]:
        return {tuple(_logs(files.crash(random.Random(seed)))) for seed in range(10)}

    log.mark_compacted()
    assert names() == {("0.log", "1.log.0.compacted")}
    log.make_available()
    assert names() == {("0.log", "1.log", "1.log.0.compacted")}
    log.finish()
    assert names() == {("0.log", "1.log")}
    logger.close()


def test_an_incomplete_log_that_cannot_be_removed_goes_at_recovery() -> None:
    files = MemoryFiles()
    logger = _logger_with_source(files)
    log = logger.begin_compaction(0, 0)
    files.faults.fail("unlink", times=1)
    log.abort()
    assert _logs(files) == ["0.log", "1.log.compacting"]
    assert logger.recover_compactions() == []
    assert _logs(files) == ["0.log"]
    log.abort()
    logger.close()
    assert files.open_files == 0


def test_recovery_that_cannot_list_or_remove() -> None:
    files = MemoryFiles()
    logger = _logger_with_source(files)
    files.create(f"{FOLDER}/5.log.compacting").close()
    files.create(f"{FOLDER}/6.log.4.compacted").close()
    files.faults.fail("unlink")
    assert [(log.log_id, log.source_id) for log in logger.recover_compactions()] == [(6, 4)]
    assert files.exists(f"{FOLDER}/5.log.compacting"), "the next recovery tries again"
    files.faults.fail("listdir")
    with pytest.raises(StorageFault, match=f"list {FOLDER}"):
        logger.recover_compactions()
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
