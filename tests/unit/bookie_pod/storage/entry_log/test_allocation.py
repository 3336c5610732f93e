"""Ids, directories, preallocation, and what a full disk does."""

from __future__ import annotations

import errno
import threading

import pytest
from structlog.testing import capture_logs

from bookie_pod.storage import log_ids
from bookie_pod.storage.entry_log import DiskState, EntryLogger, LedgerDirStates, catalog, names
from bookie_pod.storage.entry_log.directories import JoinedLedgerDirs
from bookie_pod.storage.log_ids import MAX_LOG_ID, is_before
from bookie_protocol.errors import NoWritableDirectory, StorageFault
from tests.support.entry_logs import FOLDER, entry, make_folders, open_logger
from tests.support.memory_files import MemoryFiles
from tests.support.production import production

A, B, C = "/a/current", "/b/current", "/c/current"


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles()


def _touch(files: MemoryFiles, path: str, data: bytes = b"") -> None:
    file = files.create(path)
    file.write(data)
    file.close()


def _next_log(logger: EntryLogger) -> int:
    logger.rotate()
    return logger.append_run(7, [0], [entry(7, 0)])[0] >> 32


# --- ids ----------------------------------------------------------------------------------------------------------


def test_the_first_id_is_0_and_is_noted_in_every_directory(files: MemoryFiles) -> None:
    logger = open_logger(files, A, B)
    assert _next_log(logger) == 0
    assert files.read_bytes(f"{A}/lastId") == files.read_bytes(f"{B}/lastId") == b"0\n"
    for _ in range(10):
        last = _next_log(logger)
    assert last == 10
    assert files.read_bytes(f"{A}/lastId") == files.read_bytes(f"{B}/lastId") == b"a\n"
    logger.close()


def test_ids_go_on_after_a_restart_even_if_the_logs_are_gone(files: MemoryFiles) -> None:
    logger = open_logger(files)
    for _ in range(3):
        _next_log(logger)
    logger.close()
    for log_id in range(3):
        files.unlink(f"{FOLDER}/{log_id}.log")
    again = open_logger(files)
    assert _next_log(again) == 3
    again.close()


def test_ids_go_on_from_the_greatest_of_all_directories(files: MemoryFiles) -> None:
    make_folders(files, A, B)
    _touch(files, f"{A}/4.log")
    _touch(files, f"{B}/7.log")
    _touch(files, f"{B}/lastId", b"5\n")
    logger = open_logger(files, A, B)
    assert _next_log(logger) == 8
    logger.close()


def test_ids_wrap_after_the_last_and_skip_what_exists(files: MemoryFiles) -> None:
    make_folders(files, A, B)
    _touch(files, f"{A}/7fffffff.log")
    _touch(files, f"{A}/0.log", b"old")
    _touch(files, f"{B}/1.log", b"old")
    _touch(files, f"{B}/2.log.1.compacted")
    _touch(files, f"{A}/lastId", b"7fffffff\n")
    logger = open_logger(files, A, B)
    with capture_logs() as logs:
        assert _next_log(logger) == 3
    assert [line["file"] for line in logs if line["log_level"] == "warning"] == ["0.log", "1.log", "2.log"]
    assert files.read_bytes(f"{A}/0.log") == files.read_bytes(f"{B}/1.log") == b"old"
    logger.close()


def test_a_log_that_appeared_meanwhile_is_never_overwritten(files: MemoryFiles) -> None:
    logger = open_logger(files)
    _touch(files, f"{FOLDER}/0.log", b"somebody else's")
    assert _next_log(logger) == 1
    assert files.read_bytes(f"{FOLDER}/0.log") == b"somebody else's"
    logger.close()


def test_a_log_that_appears_while_it_is_made_is_never_overwritten(files: MemoryFiles) -> None:
    logger = open_logger(files)
    files.faults.fail("create", path="0.log", errno=errno.EEXIST)
    assert _next_log(logger) == 1
    assert logger.log_ids() == [1]
    logger.close()


def test_when_every_id_is_taken_no_log_is_made(files: MemoryFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (catalog, names, log_ids):
        monkeypatch.setattr(module, "MAX_LOG_ID", 3)
    make_folders(files, A)
    for log_id in range(4):
        _touch(files, f"{A}/{log_id}.log")
    logger = open_logger(files, A)
    with pytest.raises(StorageFault, match="taken"):
        _next_log(logger)
    assert logger.delete(2)
    assert _next_log(logger) == 2
    logger.close()


def test_no_log_goes_before_its_id_is_durable(files: MemoryFiles) -> None:
    logger = open_logger(files, A, B)
    for _ in range(4):
        _next_log(logger)
    logger.rotate()
    logger.sync()
    files.faults.fail("datasync", path="lastId")
    with pytest.raises(StorageFault, match="durable"):
        logger.delete(0)
    assert logger.log_ids() == [0, 1, 2, 3]
    files.faults.clear()
    files.faults.fail("datasync", "sync", path=f"{B}/lastId")
    assert logger.delete(0), "one directory tells it"
    changes = files.faults.record()
    assert logger.delete(1)
    assert [one.name for one in changes] == ["unlink"], "nothing was allocated since"
    _next_log(logger)
    files.faults.clear()
    changes.clear()
    assert logger.delete(2)
    assert [one.path for one in changes if one.name in ("datasync", "sync")] == [f"{A}/lastId", f"{B}/lastId.tmp"]
    logger.close()


def test_ids_of_compacted_logs_count_as_used(files: MemoryFiles) -> None:
    make_folders(files)
    _touch(files, f"{FOLDER}/2.log")
    _touch(files, f"{FOLDER}/3.log.2.compacted")
    logger = open_logger(files)
    assert _next_log(logger) == 4
    logger.close()


def test_a_last_id_that_cannot_be_written_is_only_logged(files: MemoryFiles) -> None:
    logger = open_logger(files)
    files.faults.fail("overwrite", path="lastId")
    with capture_logs() as logs:
        assert _next_log(logger) == 0
    assert [line["path"] for line in logs if line["log_level"] == "warning"] == [f"{FOLDER}/lastId"]
    logger.close()


def test_the_same_log_in_two_directories_is_refused(files: MemoryFiles) -> None:
    make_folders(files, A, B)
    _touch(files, f"{A}/3.log")
    _touch(files, f"{B}/3.log")
    with pytest.raises(StorageFault, match=rf"3\.log .*{A} .*{B}"):
        open_logger(files, A, B)


def test_a_directory_that_cannot_be_listed_is_a_fault(files: MemoryFiles) -> None:
    make_folders(files, A)
    with pytest.raises(StorageFault, match=r"list .* in /missing"):
        EntryLogger(files, LedgerDirStates([A, "/missing"]), production())


def test_other_files_are_no_logs(files: MemoryFiles) -> None:
    make_folders(files)
    for name in ("lastMark", "VERSION", "1.log.compacting", "x.log"):
        _touch(files, f"{FOLDER}/{name}")
    logger = open_logger(files)
    assert logger.log_ids() == []
    logger.close()


# --- preallocation ------------------------------------------------------------------------------------------------


def test_the_next_log_is_made_ahead_as_an_empty_file(files: MemoryFiles) -> None:
    logger = open_logger(files, entry_log_preallocation=True)
    assert _next_log(logger) == 0
    assert _next_log(logger) == 1
    logger.force_close()
    assert files.listdir(FOLDER) == ["0.log", "1.log", "lastId"]


def test_a_crash_leaves_the_empty_file_and_its_id_is_not_used_again(files: MemoryFiles) -> None:
    logger = open_logger(files, entry_log_preallocation=True)
    _next_log(logger)
    logger.sync()
    logger._allocator._next.result()  # type: ignore[union-attr]
    after = files.restart()
    assert after.size(f"{FOLDER}/1.log") == 0
    again = open_logger(after)
    assert _next_log(again) == 2
    assert again.ledgers_map(1).complete
    assert again.is_flushed(1)
    assert again.delete(1)
    again.close()
    logger.close()


def test_closing_removes_the_log_made_ahead(files: MemoryFiles) -> None:
    logger = open_logger(files, entry_log_preallocation=True)
    _next_log(logger)
    assert [thread for thread in threading.enumerate() if thread.name.startswith("entry-log-allocator")]
    logger.close()
    assert files.listdir(FOLDER) == ["0.log", "lastId"]
    assert files.open_files == 0
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("entry-log-allocator")]


def test_a_log_made_ahead_that_cannot_be_removed_is_no_reason_not_to_close(files: MemoryFiles) -> None:
    logger = open_logger(files, entry_log_preallocation=True)
    _next_log(logger)
    files.faults.fail("unlink")
    logger.close()
    assert files.listdir(FOLDER) == ["0.log", "1.log", "lastId"]
    assert files.open_files == 0


def test_a_failed_preallocation_is_tried_again(files: MemoryFiles) -> None:
    logger = open_logger(files, entry_log_preallocation=True)
    files.faults.fail("create", after=1, times=1)
    _next_log(logger)
    assert _next_log(logger) == 2
    logger.close()


def test_a_log_made_ahead_on_a_disk_that_became_full_is_not_used(files: MemoryFiles) -> None:
    make_folders(files, A, B)
    dirs = LedgerDirStates([A, B])
    dirs.report(B, DiskState.FULL)
    logger = open_logger(files, A, B, dirs=dirs, entry_log_preallocation=True)
    _next_log(logger)
    logger._allocator._next.result()  # type: ignore[union-attr]
    dirs.report(B, DiskState.WRITABLE)
    dirs.report(A, DiskState.FULL)
    assert _next_log(logger) == 2
    assert files.exists(f"{B}/2.log")
    assert not files.exists(f"{A}/1.log")
    logger.close()


# --- directories --------------------------------------------------------------------------------------------------


def test_new_logs_spread_over_the_writable_directories(files: MemoryFiles) -> None:
    make_folders(files, A, B, C)
    dirs = LedgerDirStates([A, B, C])
    dirs.report(C, DiskState.FULL)
    logger = open_logger(files, A, B, C, dirs=dirs)
    for _ in range(40):
        _next_log(logger)
    counts = {folder: len([n for n in files.listdir(folder) if n.endswith(".log")]) for folder in (A, B, C)}
    assert counts[A] > 0
    assert counts[B] > 0
    assert counts[C] == 0
    logger.close()


def test_a_directory_that_refuses_is_passed_over(files: MemoryFiles) -> None:
    logger = open_logger(files, A, B)
    files.faults.fail("create", path=A, errno=errno.EIO)
    for _ in range(10):
        assert files.exists(f"{B}/{_next_log(logger):x}.log")
    logger.close()


@pytest.mark.parametrize("state", [DiskState.ALMOST_FULL, DiskState.FULL])
def test_a_log_on_a_disk_that_got_worse_is_rotated_at_the_next_append(files: MemoryFiles, state: DiskState) -> None:
    make_folders(files, A, B)
    dirs = LedgerDirStates([A, B])
    dirs.report(B, DiskState.FULL)
    logger = open_logger(files, A, B, dirs=dirs)
    _next_log(logger)
    dirs.report(B, DiskState.WRITABLE)
    dirs.report(A, state)
    assert logger.current_log_id() == 0
    assert logger.append_run(7, [1], [entry(7, 1)])[0] >> 32 == 1
    assert logger.stats.logs_rotated == 1
    logger.sync()
    assert logger.ledgers_map(0).end is None
    logger.close()


def test_a_log_in_which_nothing_is_stays_where_it_is(files: MemoryFiles) -> None:
    """Rotated it would be a file of nothing but a header."""
    dirs = LedgerDirStates([FOLDER])
    logger = open_logger(files, dirs=dirs, write_buffer_size_bytes=1)
    files.faults.fail("pwrite", times=1)
    with pytest.raises(StorageFault):
        logger.append_run(7, [0], [entry(7, 0)])
    dirs.report(FOLDER, DiskState.ALMOST_FULL)
    logger.append_run(7, [0], [entry(7, 0)])
    assert logger.log_ids() == [0]
    logger.close()


def test_repeated_reports_of_the_same_state_do_not_rotate_again(files: MemoryFiles) -> None:
    dirs = LedgerDirStates([FOLDER])
    logger = open_logger(files, dirs=dirs)
    _next_log(logger)
    for _ in range(5):
        dirs.report(FOLDER, DiskState.ALMOST_FULL)
        logger.append_run(7, [1], [entry(7, 1)])
    assert logger.log_ids() == [0, 1]
    dirs.report(FOLDER, DiskState.WRITABLE)
    logger.append_run(7, [1], [entry(7, 1)])
    assert logger.log_ids() == [0, 1]
    logger.close()


def test_no_writable_directory_and_too_little_space() -> None:
    files = MemoryFiles(volumes={"/a": 1 << 20})
    dirs = LedgerDirStates([A])
    logger = open_logger(files, A, dirs=dirs, log_size_limit_bytes=1 << 21)
    dirs.report(A, DiskState.FULL)
    with pytest.raises(NoWritableDirectory, match="minUsableSizeForEntryLogCreation"):
        _next_log(logger)
    dirs.report(A, DiskState.WRITABLE)
    assert _next_log(logger) == 0
    logger.close()


def test_no_writable_directory_but_enough_space() -> None:
    files = MemoryFiles(volumes={"/a": 1 << 20, "/b": 1 << 30})
    dirs = LedgerDirStates([A, B])
    logger = open_logger(files, A, B, dirs=dirs, log_size_limit_bytes=1 << 21)
    dirs.report(A, DiskState.FULL)
    dirs.report(B, DiskState.FULL)
    for _ in range(5):
        assert files.exists(f"{B}/{_next_log(logger):x}.log")
    files.faults.fail("usage", path="/b")
    with pytest.raises(NoWritableDirectory):
        _next_log(logger)
    logger.close()


def test_a_directory_whose_disk_failed_gets_nothing_any_more(files: MemoryFiles) -> None:
    """Neither its open logs nor what is rotated and not synced; reads go on, from file and buffer."""
    logger = open_logger(files, A, B, write_buffer_size_bytes=150)
    where: dict[str, list[tuple[int, int]]] = {A: [], B: []}
    entry_id = 0
    while not all(where.values()) or logger.path(logger.current_log_id() or 0).startswith(B):
        logger.rotate()
        for _ in range(2):
            (location,) = logger.append_run(7, [entry_id], [entry(7, entry_id)])
            where[logger.path(location >> 32).rpartition("/")[0]].append((entry_id, location))
            entry_id += 1
    changes = files.faults.record()
    logger.give_up(A)
    assert logger.generation == 1, "whoever appended beside its owner may have lost its places"
    for _ in range(8):
        log_id = _next_log(logger)
        assert logger.path(log_id) == f"{B}/{log_id:x}.log"
    logger.sync()
    logger.checkpoint()
    assert all(logger.is_flushed(location >> 32) for _, location in where[B])
    assert not any(logger.is_flushed(location >> 32) for _, location in where[A])
    for each, location in (*where[A], *where[B]):
        assert logger.read(location, 7, each) == entry(7, each)
    logger.close()
    assert not [change for change in changes if change.path.startswith(A)]
    assert files.open_files == 0


def test_ids_are_secured_again_when_the_directory_that_had_them_has_failed(files: MemoryFiles) -> None:
    """The other one may not have taken the last id: a later process reads it alone."""
    logger = open_logger(files, A, B)
    _next_log(logger)
    logger._catalog.secure_ids()
    logger._catalog.secure_ids()
    logger.give_up(A)
    changes = files.faults.record()
    logger._catalog.secure_ids()
    assert {change.path for change in changes} == {f"{B}/lastId"}
    logger.close()


def test_new_ledgers_begin_behind_the_logs_from_before_the_ids_wrapped(files: MemoryFiles) -> None:
    """The first log of a ledger cannot be 0, which says that any log may hold its entries."""
    make_folders(files, A, B)
    _touch(files, f"{A}/lastId", f"{MAX_LOG_ID - 2:x}\n".encode())
    logger = open_logger(files, A, B)
    assert [_next_log(logger), _next_log(logger)] == [MAX_LOG_ID - 1, MAX_LOG_ID]
    logger.rotate()
    logger.checkpoint()
    before = logger.first_log_of_new_ledgers()
    assert _next_log(logger) == 0
    for first_log in (before, logger.first_log_of_new_ledgers()):
        assert is_before(MAX_LOG_ID - 1, first_log)
        assert not is_before(0, first_log)
    logger.close()


def test_ledgers_of_a_new_bookie_may_begin_in_any_log(files: MemoryFiles) -> None:
    logger = open_logger(files, A, B)
    assert logger.first_log_of_new_ledgers() == 0
    assert _next_log(logger) == 0
    assert logger.first_log_of_new_ledgers() == 0
    logger.close()


def test_a_failed_directory_takes_no_log_even_if_no_other_is_writable() -> None:
    files = MemoryFiles(volumes={"/a": 1 << 30, "/b": 1 << 30})
    make_folders(files, A, B)
    dirs = LedgerDirStates([A, B])
    logger = open_logger(files, A, B, dirs=dirs, log_size_limit_bytes=1 << 21)
    logger.give_up(A)
    dirs.report(B, DiskState.FULL)
    for _ in range(5):
        assert files.exists(f"{B}/{_next_log(logger):x}.log")
    logger.give_up(B)
    with pytest.raises(NoWritableDirectory):
        _next_log(logger)
    logger.close()


def test_directories_of_several_engines_are_one_set() -> None:
    parts = [LedgerDirStates([A, B]), LedgerDirStates([C])]
    joined = JoinedLedgerDirs(parts)
    told: list[tuple[str, DiskState]] = []

    joined.add_listener(lambda directory, state: told.append((directory, state)))
    parts[0].report(B, DiskState.FULL)
    parts[1].report(C, DiskState.ALMOST_FULL)
    assert told == [(B, DiskState.FULL), (C, DiskState.ALMOST_FULL)]
    assert (joined.all(), joined.writable()) == ([A, B, C], [A, C])


def test_logs_suit_the_smallest_of_the_disks() -> None:
    files = MemoryFiles(volumes={"/a": 1 << 30, "/b": 1 << 26, "/c": 1 << 29})
    make_folders(files, A, B, C)
    with capture_logs() as logs:
        assert open_logger(files, A, B, C, usage_threshold=0.75).log_size_limit == 1 << 23
    assert [line["bytes"] for line in logs] == [1 << 23]
    assert open_logger(files, A, usage_threshold=0.75, log_size_limit_bytes=1 << 27).log_size_limit == 1 << 27
    files.faults.fail("usage", path="/b")
    assert open_logger(files, A, B, usage_threshold=0.75).log_size_limit == 1 << 30


def test_an_unknown_directory_cannot_be_reported() -> None:
    with pytest.raises(KeyError, match="/x is"):
        LedgerDirStates([A]).report("/x", DiskState.FULL)
