"""Interleaved and Sorted storage: when they drain, what a checkpoint syncs and in which order, what a failure does.

The storage thread of engines with one for all directories, by itself.
"""

from __future__ import annotations

import random
import shutil
import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from bookie_pod.metrics.memtable_storage import MemTableMetrics
from bookie_pod.metrics.registry import Registry
from bookie_pod.storage.checkpoint import CheckpointHandlers, SyncThread
from bookie_pod.storage.engines import memtable_flush
from bookie_pod.storage.engines.memtable_flush import BackgroundFlush
from bookie_pod.storage.engines.memtable_storage import InterleavedLedgerStorage, MemTableStorage
from bookie_pod.storage.entry_log import DiskState, split_location
from bookie_pod.storage.files_posix import PosixFiles
from bookie_pod.storage.journal.marks import LogMark, MarkFiles
from bookie_protocol.errors import (
    LedgerStateUnknown,
    NoWritableDirectory,
    StorageFailed,
    StorageFault,
)
from tests.support.memory_files import MemoryFiles
from tests.support.memtable_engine import (
    ENGINES,
    Checkpoints,
    MemTableBookie,
    memtable_options,
    open_memtable_engine,
)
from tests.support.storage_engine import entry, put

GOLDEN = Path(__file__).parents[4] / "golden"
MIB = 1 << 20


def dumped(storage: MemTableStorage) -> list[tuple[int, int]]:
    """(ledger, entry) of everything in the entry logs, in their order."""
    storage.logs.flush()
    return [row[1:3] for log_id in storage.logs.log_ids() for row in storage.logs.scan(log_id)]


class Throttling(MemTableMetrics):
    """Counts how often the memtable was full, and what was flushed."""

    def __init__(self) -> None:
        super().__init__(Registry())
        self.full = self.flushed_bytes = 0

    def throttled(self, seconds: float) -> None:
        assert seconds >= 0
        self.full += 1

    def flushed(self, seconds: float, nbytes: int) -> None:
        assert seconds >= 0
        self.flushed_bytes += nbytes


# --- Sorted ---------------------------------------------------------------------------------------------------


def test_sorted_logs_are_in_ledger_and_entry_order_and_the_newest_copy_stays() -> None:
    bookie = MemTableBookie("sorted")
    storage = bookie.open()
    for entry_id in (2, 0, 1):
        for ledger_id in (9, 4, 7):
            put(storage, entry(ledger_id, entry_id))
    put(storage, entry(4, 2, mark=b"later"))
    storage.flush()
    assert dumped(storage) == [(ledger_id, entry_id) for ledger_id in (4, 7, 9) for entry_id in (0, 1, 2)]
    assert storage.read(4, 2) == entry(4, 2, mark=b"later")
    storage.close()


def test_interleaved_logs_keep_the_order_in_which_entries_came() -> None:
    storage = MemTableBookie("interleaved").open()
    put(storage, entry(9, 0), entry(4, 1), entry(4, 0))
    storage.flush()
    put(storage, entry(9, 1))
    storage.flush()
    assert dumped(storage) == [(9, 0), (4, 1), (4, 0), (9, 1)]
    storage.close()


@pytest.mark.timeout(60)
def test_a22_two_memtables_at_most_adds_wait_none_fails_logs_roll_and_the_mark_moves() -> None:
    limit, log_size = MIB, 3 * MIB
    metrics = Throttling()
    bookie = MemTableBookie(
        "sorted", options=memtable_options(memtable_bytes=limit, log_size=log_size), metrics=metrics
    )
    loop = threading.RLock()  # stands for the event loop: puts and swaps take turns

    def on_loop(action: Callable[[], None]) -> None:
        with loop:
            action()

    bookie.on_loop = on_loop
    storage = bookie.open()
    journal = _Journal()
    checkpointed = threading.Semaphore(0)
    marks = MarkFiles(bookie.files, bookie.directories, 0, 1)
    sync = SyncThread(
        storage,
        [journal],
        [marks],
        bookie.writable,
        CheckpointHandlers(print, print, lambda seconds: checkpointed.release()),
        flush_interval_ms=1,  # without effect: these engines ask for their checkpoints
    )
    space = threading.Event()
    storage.on_space(space.set)
    sync.start()
    largest = waits = 0
    size = 4096
    wanted = 10 * limit // size
    for number in range(wanted):
        with loop:
            put(storage, entry(number % 7, number, size))
            journal.end = number + 1
            full = storage.is_full(number % 7)
            space.clear() if full else None
        if full:
            waits += 1
            storage.request_flush(number % 7)
            assert space.wait(30)
        largest = max(largest, storage.memtable.nbytes)
    assert largest <= 2 * (limit + size + 1000)
    assert waits >= 8
    assert metrics.full == waits
    assert checkpointed.acquire(timeout=30)
    assert 0 < marks.read().offset < wanted
    assert storage.logs.stats.logs_rotated > 1
    assert all(storage.logs.size(log_id) > log_size for log_id in storage.logs.log_ids()[:-1])  # rotated behind it
    sync.shutdown()
    assert marks.read().offset == wanted
    assert metrics.flushed_bytes == wanted * size
    storage.close()
    storage = bookie.on(bookie.files.restart()).open()
    assert all(storage.read(number % 7, number) == entry(number % 7, number, size) for number in range(wanted))
    storage.close()


class _Journal:
    end = 0

    def last_mark(self) -> LogMark:
        return LogMark(1, self.end)

    def remove_below(self, mark: LogMark) -> list[int]:
        return []


def test_sorted_asks_for_a_checkpoint_with_the_mark_of_the_map_that_filled_the_log() -> None:
    storage = MemTableBookie("sorted", options=memtable_options(log_size=2000)).open()
    checkpoints = Checkpoints()
    storage.start(checkpoints)
    checkpoints.now = [LogMark(1, 10)]
    put(storage, entry(1, 0))
    storage._background.run(storage._drain_in_background)
    checkpoints.now = [LogMark(1, 20)]
    put(storage, entry(1, 1))
    storage._background.run(storage._drain_in_background)
    put(storage, *(entry(1, entry_id, 500) for entry_id in range(2, 8)))
    checkpoints.now = [LogMark(1, 30)]
    storage._background.run(storage._drain_in_background)
    assert checkpoints.requests == [(LogMark(1, 30),)]
    assert storage.logs.log_ids() == [0]  # it grew beyond the limit, and was rotated behind the drain
    assert storage.logs.current_log_id() is None
    put(storage, entry(1, 8))
    checkpoints.now = [LogMark(1, 40)]
    storage.checkpoint(checkpoints.now)  # needs the current log, so that is rotated first
    assert storage.logs.log_ids() == [0, 1]
    assert storage.logs.is_flushed(1)
    storage.close()


def test_interleaved_asks_for_a_checkpoint_of_what_the_rotated_logs_hold_for_certain() -> None:
    storage = MemTableBookie("interleaved", options=memtable_options(log_size=2000)).open()
    checkpoints = Checkpoints()
    storage._background._pause = 3600
    storage.start(checkpoints)
    for turn in range(4):
        checkpoints.now = [LogMark(1, 10 * turn)]
        put(storage, *(entry(1, 3 * turn + n, 200) for n in range(3)))
        storage._background.run(lambda: None)  # what the puts asked for goes first
    logs = [split_location(storage.cache.get(1, entry_id))[0] for entry_id in range(12)]
    assert logs == [0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]
    # Log 0 was rotated in the middle of the second drain, log 1 in the middle of the third.
    assert checkpoints.requests == [(LogMark(1, 0),), (LogMark(1, 10),)]
    storage.close()


@pytest.mark.parametrize("engine", list(ENGINES))
def test_a_checkpoint_syncs_what_pages_point_to_then_pages_and_nothing_twice(engine: str) -> None:
    bookie = MemTableBookie(engine, options=memtable_options(log_size=2000))
    storage = bookie.open()
    checkpoints = Checkpoints()
    checkpoints.now = [LogMark(1, 5)]
    storage._background._pause = 3600
    storage.start(checkpoints)
    for turn in range(3):
        checkpoints.now = [LogMark(1, 5 + turn)]
        put(storage, *(entry(ledger_id, turn, 600) for ledger_id in (1, 2)))
        storage._background.run(storage._drain_in_background)
    put(storage, entry(3, 0))
    storage._background.run(storage._drain_in_background)
    current = storage.logs.current_log_id()
    assert current is not None
    operations = bookie.files.faults.record()
    marks = checkpoints.requests[-1]
    assert marks is not None
    storage.checkpoint(marks)
    synced = [op.path for op in operations if op.name in ("datasync", "sync")]
    kinds = [path[-3:] for path in synced if path.endswith((".log", ".idx"))]
    assert kinds == sorted(kinds, reverse=True)  # log before idx
    assert kinds.count("idx") == 3
    assert synced.count(f"/ledgers0/{current:x}.log") == 1
    operations.clear()
    storage.flush()
    assert not [op.path for op in operations if op.name == "datasync"]
    storage.close()


@pytest.mark.parametrize("engine", list(ENGINES))
def test_a_checkpoint_beyond_the_rotated_logs_makes_the_rest_durable_too(engine: str) -> None:
    bookie = MemTableBookie(engine)
    storage = bookie.open()
    checkpoints = Checkpoints()
    storage._background._pause = 3600
    storage.start(checkpoints)
    put(storage, entry(1, 0))
    storage._background.run(storage._drain_in_background)  # drained under an older mark, in the current log
    put(storage, entry(1, 1))
    storage.checkpoint([LogMark(2, 0)])
    storage._background.close()
    bookie.faults.die_now()
    again = bookie.crash(random.Random(1)).open()
    assert [again.read(1, entry_id) for entry_id in (0, 1)] == [entry(1, 0), entry(1, 1)]
    again.close()


@pytest.mark.parametrize(("per_ledger", "drain"), [(True, "memtable-flush"), (False, "storage-0")])
def test_one_log_per_ledger_is_drained_in_parallel_and_checkpointed_by_interval(per_ledger: bool, drain: str) -> None:
    bookie = MemTableBookie("sorted", options=memtable_options(per_ledger=per_ledger))
    storage = bookie.open()
    assert storage.checkpoints_by_interval is per_ledger
    threads: set[str] = set()
    append = storage.logs.append_run

    def append_run(*arguments: object, **more: bool) -> list[int]:
        threads.add(threading.current_thread().name.rsplit("_", 1)[0])
        return append(*arguments, **more)  # type: ignore[arg-type]

    storage.logs.append_run = append_run  # type: ignore[method-assign, assignment]
    put(storage, *(entry(ledger_id, entry_id) for ledger_id in range(5) for entry_id in range(3)))
    storage.checkpoint([LogMark(1, 1)])
    assert threads == {drain}
    logs = {ledger_id: split_location(storage.cache.get(ledger_id, 0))[0] for ledger_id in range(5)}
    assert len(set(logs.values())) == (5 if per_ledger else 1)
    storage._background.close()
    bookie.faults.die_now()
    again = bookie.crash(random.Random(1)).open()
    assert [again.read(ledger_id, 2) for ledger_id in range(5)] == [entry(ledger_id, 2) for ledger_id in range(5)]
    again.close()


# --- Interleaved ----------------------------------------------------------------------------------------------


def test_interleaved_drains_by_itself_once_it_was_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InterleavedLedgerStorage, "_gather_seconds", 0.001)
    bookie = MemTableBookie("interleaved")
    loop = threading.RLock()

    def on_loop(action: Callable[[], None]) -> None:
        with loop:
            action()

    bookie.on_loop = on_loop
    storage = bookie.open()
    with loop:
        put(storage, entry(1, 0))
    swapped = threading.Event()
    storage.on_swap(swapped.set)
    storage.start(Checkpoints())
    with loop:
        put(storage, entry(1, 1))
    assert swapped.wait(10)
    storage._background.run(lambda: None)
    assert storage.cached(1, 0) is None  # in log and index now
    assert storage.read(1, 0) == entry(1, 0)
    assert storage.cache.get(1, 1) != 0
    storage.close()


# --- failures -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", list(ENGINES))
def test_a_background_flush_that_fails_says_read_only_and_goes_on_later(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memtable_flush, "RETRY_SECONDS", 0.01)
    bookie = MemTableBookie(engine)
    storage = bookie.open()
    told: list[BaseException] = []
    failed, space = threading.Semaphore(0), threading.Event()
    storage.on_flush_failure(lambda error: (told.append(error), failed.release())[0])
    put(storage, entry(1, 0))
    bookie.faults.fail("pwrite", "create", path=".log")
    storage.request_flush(1)
    for _ in range(3):
        assert failed.acquire(timeout=10)
    assert {type(error) for error in told} == {NoWritableDirectory}
    assert storage.read(1, 0) == entry(1, 0)
    put(storage, entry(1, 1))
    storage.on_space(space.set)
    bookie.faults.clear()
    assert space.wait(10)  # the retry took the next map as well
    storage.flush()
    assert [storage.read(1, entry_id) for entry_id in (0, 1)] == [entry(1, 0), entry(1, 1)]
    storage.close()


@pytest.mark.parametrize("engine", list(ENGINES))
def test_after_a_failed_sync_of_a_log_nothing_but_a_restart_helps(engine: str) -> None:
    bookie = MemTableBookie(engine)
    storage = bookie.open()
    put(storage, entry(1, 0))
    bookie.faults.fail("datasync", path=".log", times=1)
    with pytest.raises(StorageFailed):
        storage.flush()
    put(storage, entry(1, 1))
    told: list[BaseException] = []
    failed = threading.Event()
    storage.on_flush_failure(lambda error: (told.append(error), failed.set())[0])
    storage.request_flush(1)
    assert failed.wait(10)
    assert isinstance(told[0], StorageFailed)
    assert storage.read(1, 1) == entry(1, 1)
    ended: list[BaseException] = []
    sync = SyncThread(storage, [], [], list, CheckpointHandlers(print, ended.append))
    sync._tell(told[0])
    assert ended == told
    storage.close()


def test_without_a_writable_directory_nothing_is_lost() -> None:
    bookie = MemTableBookie("sorted", ("/a", "/b"))
    storage = bookie.open()
    put(storage, entry(1, 0))
    bookie.files.set_capacity("/", 1000)
    for directory in bookie.directories:
        bookie.states[directory].report(directory, DiskState.FULL)
    with pytest.raises(NoWritableDirectory):
        storage.flush()
    bookie.files.set_capacity("/", 1 << 40)
    bookie.states["/b"].report("/b", DiskState.WRITABLE)
    storage.flush()
    assert storage.read(1, 0) == entry(1, 0)
    assert storage.logs.path(0).startswith("/b/")
    storage.close()


def test_a_ledger_that_is_deleted_during_a_drain_leaves_nothing() -> None:
    bookie = MemTableBookie("sorted")
    storage = bookie.open()
    put(storage, entry(1, 0), entry(2, 0))
    gate = bookie.faults.hold("datasync", path=".idx")
    flush = threading.Thread(target=storage.flush)
    flush.start()
    gate.reached()  # ledger 1's index file is being made
    storage.delete_ledger(1)
    gate.open()
    flush.join()
    storage.flush()
    assert not bookie.files.exists("/ledgers0/0/1/1.idx")
    assert storage.ledger_ids() == [2]
    storage.close()
    storage = bookie.on(bookie.files.restart()).open()
    assert storage.ledger_ids() == [2]
    storage.close()


@pytest.mark.parametrize("largest_file", [16 << 40, 1 << 20])
def test_an_entry_that_no_index_can_hold_is_never_denied(largest_file: int) -> None:
    bookie = MemTableBookie("sorted", files=MemoryFiles(largest_file=largest_file))
    storage = bookie.open()
    beyond = storage.max_entry_id + 1
    assert beyond <= largest_file // 8
    put(storage, entry(1, beyond), entry(1, 0))
    storage.flush()
    for _ in range(2):
        assert storage.read(1, 0) == entry(1, 0)
        with pytest.raises(LedgerStateUnknown):
            storage.read(1, beyond)
        storage.close()
        storage = bookie.on(bookie.files.restart()).open()
    storage.close()


def test_a_missing_log_is_a_fault_not_an_absent_entry() -> None:
    bookie = MemTableBookie("interleaved")
    storage = bookie.open()
    put(storage, entry(1, 0))
    storage.flush()
    storage.close()
    bookie.files.unlink("/ledgers0/0.log")
    storage = bookie.open()
    with pytest.raises(StorageFault):
        storage.read(1, 0)
    storage.close()


# --- disks of the reference, options ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("engine", "disk", "lasts"),
    [("sorted", "disk-sorted", {0: 31, 7: 9, 8: 3, 17: 0}), ("interleaved", "disk-interleaved", {0: 31, 7: 9, 8: 3})],
)
def test_a29_a_disk_of_the_reference_is_read_whole(
    engine: str, disk: str, lasts: dict[int, int], tmp_path: Path
) -> None:
    current = tmp_path / "current"
    shutil.copytree(GOLDEN / disk, current)
    storage = open_memtable_engine(engine, PosixFiles(), [str(current)], memtable_options())
    assert sorted(storage.ledger_ids()) == [0, 1, 7, 8, 9, 10, 17, 27]
    assert {ledger_id: storage.last_entry_id(ledger_id) for ledger_id in lasts} == lasts
    count = 0
    for ledger_id in storage.ledger_ids():
        for entry_id in storage.entry_ids(ledger_id):
            data = storage.read(ledger_id, entry_id)
            assert data[:16] == ledger_id.to_bytes(8, "big") + entry_id.to_bytes(8, "big")
            count += 1
    assert count > 60
    record = storage.ledger(7)
    assert record is not None
    assert record.fenced
    storage.close()


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("fails", [False, True])
def test_closing_leaves_no_file_open(engine: str, fails: bool) -> None:
    bookie = MemTableBookie(engine)
    storage = bookie.open()
    put(storage, entry(1, 0))
    storage.flush()
    assert bookie.files.open_files > 0
    if fails:
        bookie.faults.fail("write", "pwrite", "sync", "datasync")
    with pytest.raises(StorageFault) if fails else nullcontext():
        storage.close()
    assert bookie.files.open_files == 0


def test_closing_waits_for_a_retry_that_has_just_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memtable_flush, "RETRY_SECONDS", 0.0)
    begun, goes_on = threading.Event(), threading.Event()

    def retry() -> None:
        begun.set()
        goes_on.wait()

    def work() -> None:
        monkeypatch.setattr(flush, "_submit", retry)
        raise OSError("no disk")

    flush = BackgroundFlush("storage-0", work)
    flush.request()
    assert begun.wait(10)
    closing = threading.Thread(target=flush.close)
    closing.start()
    closing.join(0.05)
    assert closing.is_alive()
    goes_on.set()
    closing.join(10)
    assert not closing.is_alive()
