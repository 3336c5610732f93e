"""flush, sync, checkpoint, faults on the way, and which logs may be collected."""

from __future__ import annotations

import errno
import random
import threading
from contextlib import nullcontext

import pytest

from bookie_pod.storage.entry_log.format import decode_header
from bookie_pod.storage.entry_log.writer import LogWriter
from bookie_protocol.errors import StorageFault
from tests.support.entry_logs import FOLDER, entry, open_logger, run
from tests.support.memory_files import MemoryFiles


@pytest.fixture
def files() -> MemoryFiles:
    return MemoryFiles(strict_names=True)


def _surviving(files: MemoryFiles) -> list[MemoryFiles]:
    return [files.crash(random.Random(seed)) for seed in range(20)]


def test_synced_entries_survive_every_crash(files: MemoryFiles) -> None:
    logger = open_logger(files, log_size_limit_bytes=3000)
    ids, entries = run(7, 40)
    locations = logger.append_run(7, ids, entries)
    logger.sync()
    logger.append_run(7, [40], [entry(7, 40)])
    for after in _surviving(files):
        again = open_logger(after)
        assert [again.read(loc, 7, i) for loc, i in zip(locations, ids, strict=True)] == entries
        again.close()
    logger.close()


def test_flush_alone_makes_nothing_durable_but_the_name(files: MemoryFiles) -> None:
    logger = open_logger(files)
    logger.append_run(7, [0], [entry(7, 0)])
    logger.flush()
    assert files.size(f"{FOLDER}/0.log") == 1024 + 104
    assert files.faults.counts["datasync"] == 0
    sizes = {after.size(f"{FOLDER}/0.log") for after in _surviving(files)}
    assert min(sizes) < 1024
    logger.close()


def test_a_log_whose_name_cannot_be_made_durable_is_none(files: MemoryFiles) -> None:
    logger = open_logger(files)
    files.faults.fail("sync_directory")
    with pytest.raises(StorageFault):
        logger.append_run(7, [0], [entry(7, 0)])
    assert not files.exists(f"{FOLDER}/0.log")
    files.faults.clear()
    (location,) = logger.append_run(7, [0], [entry(7, 0)])
    assert logger.read(location, 7, 0) == entry(7, 0)
    logger.close()


def test_checkpoint_syncs_rotated_logs_only(files: MemoryFiles) -> None:
    logger = open_logger(files, log_size_limit_bytes=1024 + 104 * 10)
    ids, entries = run(7, 25)
    logger.append_run(7, ids, entries)
    operations = files.faults.record()
    logger.checkpoint()
    assert {op.path for op in operations if op.name == "datasync"} == {f"{FOLDER}/0.log", f"{FOLDER}/1.log"}
    assert logger.is_flushed(0)
    assert logger.is_flushed(1)
    assert not logger.is_flushed(2)
    assert logger.least_unflushed_log_id() == 2
    logger.close()


def test_sync_syncs_the_current_log_once(files: MemoryFiles) -> None:
    logger = open_logger(files)
    logger.append_run(7, [0], [entry(7, 0)])
    logger.sync()
    count = files.faults.counts["datasync"]
    logger.sync()
    assert files.faults.counts["datasync"] == count
    assert not logger.is_flushed(0)
    logger.close()


def test_rotated_files_are_closed_after_their_sync(files: MemoryFiles) -> None:
    logger = open_logger(files, log_size_limit_bytes=1024 + 104)
    ids, entries = run(7, 30)
    logger.append_run(7, ids, entries)
    assert files.open_files == 30
    logger.sync()
    assert files.open_files == 1
    logger.close()
    assert files.open_files == 0


def test_flush_entrylog_bytes_forces_as_the_log_grows(files: MemoryFiles) -> None:
    logger = open_logger(files, flush_entry_log_bytes=10_000)
    for i in range(300):
        logger.append_run(7, [i], [entry(7, i)])
    assert files.faults.counts["datasync"] == 3
    logger.close()


def test_least_unflushed_log_id_of_an_untouched_logger(files: MemoryFiles) -> None:
    logger = open_logger(files)
    assert logger.least_unflushed_log_id() == 0
    logger.append_run(7, [0], [entry(7, 0)])
    assert logger.least_unflushed_log_id() == 0
    logger.rotate()
    assert logger.least_unflushed_log_id() == 0
    logger.checkpoint()
    assert logger.least_unflushed_log_id() == 1
    logger.close()


def test_logs_of_an_earlier_process_count_as_flushed(files: MemoryFiles) -> None:
    logger = open_logger(files)
    logger.append_run(7, [0], [entry(7, 0)])
    logger.close()
    again = open_logger(files)
    assert again.is_flushed(0)
    assert again.least_unflushed_log_id() == 1
    again.close()


def test_preallocated_logs_are_not_flushed(files: MemoryFiles) -> None:
    logger = open_logger(files, entry_log_preallocation=True)
    logger.append_run(7, [0], [entry(7, 0)])
    logger.rotate()
    logger.append_run(7, [1], [entry(7, 1)])
    assert not logger.is_flushed(1)
    logger.close()


@pytest.mark.parametrize("buffer", [1, 65536])
def test_a_failed_write_is_repeated_and_nothing_is_lost(files: MemoryFiles, buffer: int) -> None:
    logger = open_logger(files, write_buffer_size_bytes=buffer)
    first = logger.append_run(7, [0], [entry(7, 0)])
    files.faults.fail("pwrite", errno=errno.ENOSPC)
    ids, entries = run(7, 1000, first=1)
    with pytest.raises(StorageFault, match=r"0\.log at .*space"):
        logger.append_run(7, ids, entries)
    with pytest.raises(StorageFault) if buffer > 1 else nullcontext():
        logger.flush()
    files.faults.clear()
    locations = logger.append_run(7, ids, entries)
    logger.sync()
    assert logger.read(first[0], 7, 0) == entry(7, 0)
    assert [logger.read(loc, 7, i) for loc, i in zip(locations, ids, strict=True)] == entries
    scan = logger.scan(0)
    assert [entry_id for _, _, entry_id, _ in scan] == [0, *ids]
    assert scan.end.clean
    logger.close()


def test_after_a_failed_sync_nothing_goes_on_until_it_is_abandoned(files: MemoryFiles) -> None:
    logger = open_logger(files)
    kept = logger.append_run(7, [0], [entry(7, 0)])
    logger.sync()
    logger.append_run(7, [1], [entry(7, 1)])
    files.faults.fail("datasync", times=1)
    with pytest.raises(StorageFault, match=r"sync .*/ledgers/current/0\.log"):
        logger.sync()
    assert logger.sync_failed
    for blocked in (logger.sync, logger.checkpoint, logger.flush, logger.rotate):
        with pytest.raises(StorageFault, match="again"):
            blocked()
    with pytest.raises(StorageFault, match="again"):
        logger.append_run(7, [1], [entry(7, 1)])
    assert logger.read(kept[0], 7, 0) == entry(7, 0)
    logger.abandon_unsynced()
    assert not logger.sync_failed
    again = logger.append_run(7, [1], [entry(7, 1)])
    assert again[0] >> 32 == 1
    logger.sync()
    for after in _surviving(files):
        reopened = open_logger(after)
        assert reopened.read(kept[0], 7, 0) == entry(7, 0)
        assert reopened.read(again[0], 7, 1) == entry(7, 1)
        reopened.close()
    logger.close()
    assert files.open_files == 0


@pytest.mark.parametrize("direct_io", [False, True])
def test_what_is_appended_again_is_taken_back_in_every_log(files: MemoryFiles, direct_io: bool) -> None:
    """Of several logs the last one fails: those before it are synced, and hold what comes again all the same."""
    logger = open_logger(files, log_size_limit_bytes=10_000, direct_io_entry_logger=direct_io)
    kept = logger.append_run(7, [0], [entry(7, 0)])
    logger.sync()
    ids, entries = run(7, 250, first=1)
    logger.append_run(7, ids, entries)
    last = logger.log_ids()[-1]
    assert last > 1
    files.faults.fail("datasync", path=f"{last:x}.log", times=1)
    with pytest.raises(StorageFault):
        logger.sync()
    logger.abandon_unsynced()
    assert logger.log_ids() == [0]
    assert logger.is_flushed(0)
    again = logger.append_run(7, ids, entries)
    logger.sync()
    for after in _surviving(files):
        reopened = open_logger(after, direct_io_entry_logger=direct_io)
        assert min(reopened.log_ids()[1:]) == last + 1
        assert reopened.read(kept[0], 7, 0) == entry(7, 0)
        assert [reopened.read(at, 7, i) for at, i in zip(again, ids, strict=True)] == entries
        assert reopened.ledgers_map(0).complete
        reopened.close()
    logger.close()
    assert files.open_files == 0


def test_of_a_log_that_goes_on_what_a_sync_has_seen_stays(files: MemoryFiles) -> None:
    logger = open_logger(files)
    kept = logger.append_run(7, [0], [entry(7, 0)])
    logger.sync()
    logger.append_run(7, [1], [entry(7, 1)])
    files.faults.fail("datasync", times=1)
    with pytest.raises(StorageFault):
        logger.sync()
    logger.abandon_unsynced()
    assert files.size(f"{FOLDER}/0.log") == 1024 + 104
    found = logger.ledgers_map(0)
    assert (found.closed, found.complete, found.ledgers) == (False, True, {7: 104})
    assert logger.read(kept[0], 7, 0) == entry(7, 0)
    logger.close()


def test_others_see_that_locations_became_void(files: MemoryFiles) -> None:
    """Compaction appends; the flush fails, gives the log up and succeeds later; so does compaction's sync."""
    logger = open_logger(files)
    generation = logger.generation
    compacted = logger.append_run(7, [0], [entry(7, 0)])
    files.faults.fail("datasync", times=1)
    with pytest.raises(StorageFault):
        logger.sync()
    logger.abandon_unsynced()
    logger.append_run(8, [0], [entry(8, 0)])
    logger.sync()
    assert logger.generation != generation
    assert compacted[0] >> 32 != logger.current_log_id()
    logger.close()


def test_abandoning_without_a_failure_gives_nothing_up(files: MemoryFiles) -> None:
    logger = open_logger(files)
    locations = logger.append_run(7, [0], [entry(7, 0)])
    logger.abandon_unsynced()
    assert logger.generation == 0
    logger.sync()
    for after in _surviving(files):
        again = open_logger(after)
        assert again.read(locations[0], 7, 0) == entry(7, 0)
        again.close()
    logger.close()


def test_abandoning_after_a_failed_write_leaves_a_log_that_scans_clean(files: MemoryFiles) -> None:
    logger = open_logger(files, write_buffer_size_bytes=1)
    kept = logger.append_run(7, [0], [entry(7, 0)])
    logger.sync()
    files.faults.fail("pwrite", errno=errno.ENOSPC, times=1)
    with pytest.raises(StorageFault):
        logger.append_run(7, [1], [entry(7, 1)])
    logger.abandon_unsynced()
    assert logger.generation == 1
    assert logger.append_run(7, [1], [entry(7, 1)])[0] >> 32 == 1
    assert logger.read(kept[0], 7, 0) == entry(7, 0)
    found = logger.ledgers_map(0)
    assert found.complete
    assert found.ledgers == {7: 104}
    logger.close()


def test_a_write_that_succeeded_when_repeated_is_no_failure(files: MemoryFiles) -> None:
    logger = open_logger(files, write_buffer_size_bytes=1)
    files.faults.fail("pwrite", errno=errno.ENOSPC, times=1)
    with pytest.raises(StorageFault):
        logger.append_run(7, [0], [entry(7, 0)])
    logger.append_run(7, [0], [entry(7, 0)])
    logger.abandon_unsynced()
    assert (logger.generation, logger.current_log_id()) == (0, 0)
    logger.close()


def test_a_full_disk_at_rotation_costs_the_map_not_the_entries(files: MemoryFiles) -> None:
    logger = open_logger(files)
    locations = logger.append_run(7, [0], [entry(7, 0)])
    logger.flush()
    files.faults.fail("pwrite", errno=errno.ENOSPC, times=1)
    logger.rotate()
    logger.checkpoint()
    found = logger.ledgers_map(0)
    assert found.end is not None
    assert found.complete
    assert found.ledgers == {7: 104}
    assert logger.read(locations[0], 7, 0) == entry(7, 0)
    logger.close()


def test_a_torn_map_is_cut_off(files: MemoryFiles) -> None:
    logger = open_logger(files)
    logger.append_run(7, [0], [entry(7, 0)])
    logger.flush()
    files.faults.fail("pwrite", times=1)
    logger.rotate()
    assert files.size(f"{FOLDER}/0.log") == 1024 + 104
    logger.close()


@pytest.mark.parametrize("fails", ["pwrite", "datasync"])
def test_a_header_that_cannot_be_written_costs_the_map_not_the_entries(files: MemoryFiles, fails: str) -> None:
    logger = open_logger(files)
    locations = logger.append_run(7, [0], [entry(7, 0)])
    logger.rotate()
    files.faults.fail(fails, after=fails == "datasync", times=1)
    logger.sync()
    assert logger.is_flushed(0)
    assert logger.read(locations[0], 7, 0) == entry(7, 0)
    logger.close()


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_a_power_cut_leaves_no_log_that_seems_closed_and_lacks_bytes(seed: int, direct: bool) -> None:
    files = MemoryFiles()
    logger = open_logger(files, direct_io_entry_logger=direct, direct_buffer_bytes=8192)
    logger.append_run(7, *run(7, 100, size=300))
    logger.rotate()
    logger.force_close()
    found = open_logger(files.crash(random.Random(seed))).ledgers_map(0)
    assert not found.closed


def test_a_log_that_cannot_be_cut_or_closed_goes_on_to_be_collected(files: MemoryFiles) -> None:
    logger = open_logger(files)
    locations = logger.append_run(7, [0], [entry(7, 0)])
    logger.flush()
    files.faults.fail("pwrite", times=1)
    files.faults.fail("truncate", "close", times=2)
    logger.rotate()
    logger.checkpoint()
    assert logger.is_flushed(0)
    assert logger.read(locations[0], 7, 0) == entry(7, 0)
    logger.close()


def test_a_failed_rotation_leaves_the_current_log_in_use(files: MemoryFiles) -> None:
    logger = open_logger(files, log_size_limit_bytes=1024 + 104)
    logger.append_run(7, [0], [entry(7, 0)])
    files.faults.fail("create", errno=errno.ENOSPC)
    with pytest.raises(StorageFault, match="create"):
        logger.append_run(7, [1], [entry(7, 1)])
    assert logger.current_log_id() == 0
    files.faults.clear()
    assert logger.append_run(7, [1], [entry(7, 1)])[0] >> 32 > 0
    logger.sync()
    assert logger.ledgers_map(0).end is None
    logger.close()


def test_appends_go_on_while_a_checkpoint_syncs(files: MemoryFiles) -> None:
    logger = open_logger(files, log_size_limit_bytes=1024 + 104)
    logger.append_run(7, [0, 1], [entry(7, 0), entry(7, 1)])
    gate = files.faults.hold("datasync", path="0.log")
    checkpoint = threading.Thread(target=logger.checkpoint)
    checkpoint.start()
    gate.reached()
    locations = logger.append_run(7, [2], [entry(7, 2)])
    assert locations[0] >> 32 == 2
    assert not logger.is_flushed(0)
    gate.open()
    checkpoint.join(10)
    assert logger.is_flushed(0)
    assert not logger.is_flushed(1)
    logger.close()


def test_closing_rotates_and_syncs_the_current_log(files: MemoryFiles) -> None:
    logger = open_logger(files)
    locations = logger.append_run(7, [0], [entry(7, 0)])
    logger.close()
    for after in _surviving(files):
        again = open_logger(after)
        assert again.read(locations[0], 7, 0) == entry(7, 0)
        assert again.ledgers_map(0).end is None
        again.close()


def test_closing_with_a_failing_disk_reports_and_closes_every_file(files: MemoryFiles) -> None:
    logger = open_logger(files)
    logger.append_run(7, [0], [entry(7, 0)])
    files.faults.fail("datasync")
    with pytest.raises(StorageFault, match="sync"):
        logger.close()
    assert files.open_files == 0


def test_a_failing_close_of_a_synced_file_is_only_logged(files: MemoryFiles) -> None:
    logger = open_logger(files)
    locations = logger.append_run(7, [0], [entry(7, 0)])
    logger.rotate()
    files.faults.fail("close", times=1)
    logger.sync()
    assert logger.is_flushed(0)
    assert logger.read(locations[0], 7, 0) == entry(7, 0)
    logger.close()


def test_force_close_writes_nothing(files: MemoryFiles) -> None:
    logger = open_logger(files, entry_log_preallocation=True)
    logger.append_run(7, [0], [entry(7, 0)])
    logger.force_close()
    assert files.size(f"{FOLDER}/0.log") == 0
    assert files.open_files == 0


def test_of_two_syncs_at_once_none_says_durable_after_the_other_has_failed(files: MemoryFiles) -> None:
    """The kernel tells a lost write to one of them only: they take turns, and the second hears of the first."""
    files.makedirs(FOLDER)
    log = LogWriter(0, FOLDER, files.create(f"{FOLDER}/0.log"), 4096)
    log.append(7, [entry(7, 0)], 0, 1 << 20, [])
    log.flush()
    gate = files.faults.hold("datasync")
    files.faults.fail("datasync", times=1)
    outcomes: list[bool] = []

    def sync() -> None:
        try:
            log.sync()
        except OSError:
            outcomes.append(False)
        else:
            outcomes.append(True)

    threads = [threading.Thread(target=sync) for _ in range(2)]
    for thread in threads:
        thread.start()
    gate.reached()
    with pytest.raises(AssertionError):
        gate.reached(0.1)  # the other waits its turn
    gate.open()
    for thread in threads:
        thread.join()
    assert outcomes == [False, False]
    assert log.synced_to == 0


def test_a_map_that_was_written_in_the_middle_of_a_sync_is_not_named_before_the_next(files: MemoryFiles) -> None:
    """Another thread rotates the log meanwhile, and the sync that goes on may not have seen the map."""
    files.makedirs(FOLDER)
    path = f"{FOLDER}/0.log"
    log = LogWriter(0, FOLDER, files.create(path), 4096)
    log.append(7, [entry(7, 0)], 0, 1 << 20, [])
    log.flush()
    gate = files.faults.hold("datasync")
    thread = threading.Thread(target=log.sync)
    thread.start()
    gate.reached()
    log.write_map()
    gate.open()
    thread.join()
    assert not decode_header(files.read_bytes(path)).has_map
    log.sync()
    assert decode_header(files.read_bytes(path)).has_map
