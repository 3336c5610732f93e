"""Checkpoints: the order of steps, and what each kind of failure does."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest
from structlog.testing import capture_logs

from bookie_pod.storage.checkpoint import CheckpointHandlers, SyncThread
from bookie_pod.storage.journal.marks import LogMark
from bookie_protocol.errors import JournalDamaged, NoWritableDirectory, StorageFault


class Rig:
    """Storage, two journals and their marks, all of which write down what is asked of them."""

    def __init__(self, interval_ms: int = 3_600_000) -> None:
        self.calls: list[str] = []
        self.marks = [LogMark(1, 0), LogMark(7, 0)]
        self.flush_error: BaseException | None = None
        self.write_error: Exception | None = None
        self.trim_error: Exception | None = None
        self.read_only: list[BaseException] = []
        self.failed: list[BaseException] = []
        self.completed = threading.Semaphore(0)
        self.told = threading.Semaphore(0)
        self.during_flush: Callable[[], None] = lambda: None
        self.during_write: Callable[[], None] = lambda: None
        self.requested_flush_failed: Callable[[BaseException], None] | None = None
        self.checkpoints_by_interval = True
        self.pieces = 0
        self.steps: list[object] = []
        self.sync = SyncThread(
            self,
            [_Journal(self, 0), _Journal(self, 1)],
            [_Marks(self, 0), _Marks(self, 1)],
            lambda: ["/a", "/b"],
            CheckpointHandlers(
                lambda error: self._note(self.read_only, error),
                lambda error: self._note(self.failed, error),
                lambda seconds: self.completed.release(),
            ),
            flush_interval_ms=interval_ms,
        )

    def _note(self, errors: list[BaseException], error: BaseException) -> None:
        errors.append(error)
        self.told.release()

    def flush(self) -> None:
        self.calls.append("flush")
        self.during_flush()
        if self.flush_error is not None:
            raise self.flush_error

    def checkpoint(self, marks: Sequence[LogMark]) -> None:
        self.flush()

    def written(self) -> int:
        return self.pieces

    def start(self, checkpointer: SyncThread) -> None:
        self.started_with = checkpointer

    def on_flush_failure(self, callback: Callable[[BaseException], None]) -> None:
        self.requested_flush_failed = callback


class _Journal:
    def __init__(self, rig: Rig, index: int) -> None:
        self._rig, self._index = rig, index

    def last_mark(self) -> LogMark:
        self._rig.calls.append(f"take {self._index}")
        return self._rig.marks[self._index]

    def remove_below(self, mark: LogMark) -> list[int]:
        self._rig.calls.append(f"trim {self._index} {mark.offset}")
        if self._rig.trim_error is not None:
            raise self._rig.trim_error
        return []


class _Marks:
    def __init__(self, rig: Rig, index: int) -> None:
        self._rig, self._index = rig, index

    def write(self, mark: LogMark, writable: Sequence[str]) -> bool:
        assert list(writable) == ["/a", "/b"]
        self._rig.during_write()
        if self._rig.write_error is not None:
            raise self._rig.write_error
        self._rig.calls.append(f"mark {self._index} {mark.offset}")
        return True


def test_marks_are_taken_before_the_flush_and_written_after_it() -> None:
    rig = Rig()
    rig.marks = [LogMark(1, 10), LogMark(7, 20)]

    def move() -> None:
        rig.marks = [LogMark(1, 11), LogMark(7, 21)]

    rig.during_flush = move
    rig.sync.checkpoint()
    assert rig.calls == ["take 0", "take 1", "flush", "mark 0 10", "mark 1 20", "trim 0 10", "trim 1 20"]


def test_a_mark_that_has_not_moved_is_not_written_again() -> None:
    rig = Rig()
    rig.marks = [LogMark(1, 10), LogMark()]
    rig.sync.checkpoint()
    assert "mark 1 0" not in rig.calls  # (0, 0) marks nothing, and trims nothing
    assert not any(call.startswith("trim 1") for call in rig.calls)
    rig.calls.clear()
    rig.sync.checkpoint()
    assert "flush" in rig.calls  # deletions and entries that are not journaled reach the disk all the same
    assert not any(call.startswith("mark") for call in rig.calls)


@pytest.mark.parametrize("error", [StorageFault("disk"), NoWritableDirectory("full"), RuntimeError("ours")])
def test_a_failed_flush_moves_no_mark_and_trims_nothing(error: Exception) -> None:
    rig = Rig()
    rig.marks = [LogMark(1, 10), LogMark(7, 20)]
    rig.flush_error = error
    with pytest.raises(type(error)):
        rig.sync.checkpoint()
    assert rig.calls == ["take 0", "take 1", "flush"]
    rig.flush_error = None
    rig.sync.checkpoint()
    assert rig.calls[-4:] == ["mark 0 10", "mark 1 20", "trim 0 10", "trim 1 20"]


def test_marks_that_no_directory_takes_count_as_no_writable_directory() -> None:
    rig = Rig()
    rig.marks = [LogMark(1, 10), LogMark(7, 20)]
    rig.write_error = StorageFault("cannot write lastMark in any ledger directory")
    with pytest.raises(NoWritableDirectory, match="lastMark"):
        rig.sync.checkpoint()
    assert not any(call.startswith("trim") for call in rig.calls)


@pytest.mark.parametrize("error", [StorageFault("cannot list"), JournalDamaged("x.txn is no journal")])
def test_old_journals_that_cannot_be_deleted_do_no_harm(error: Exception) -> None:
    rig = Rig()
    rig.marks = [LogMark(1, 10), LogMark(7, 20)]
    rig.trim_error = error
    rig.sync.checkpoint()
    assert rig.calls[-2:] == ["trim 0 10", "trim 1 20"]


def test_a_long_flush_is_at_another_step_with_everything_that_it_writes() -> None:
    """Only a step that stays the same is no progress; marks are written in one."""
    rig = Rig()

    def flush() -> None:
        for rig.pieces in range(3):
            rig.steps.append(rig.sync.step())

    assert rig.sync.step() is None
    rig.during_flush = flush
    rig.during_write = lambda: rig.steps.append(rig.sync.step())
    rig.sync.checkpoint()
    assert None not in rig.steps
    assert len(set(rig.steps)) == 4
    assert rig.steps[-1] == rig.steps[-2]
    assert rig.sync.step() is None


def test_the_thread_checkpoints_by_interval_and_on_request() -> None:
    by_interval = Rig(interval_ms=5)
    by_interval.sync.start()
    for _ in range(3):
        assert by_interval.completed.acquire(timeout=10)
    by_interval.sync.stop()
    on_request = Rig()
    on_request.sync.start()
    assert on_request.calls == []
    on_request.sync.request()
    assert on_request.completed.acquire(timeout=10)
    on_request.sync.stop()
    assert on_request.calls.count("flush") == 1


def test_each_kind_of_failure_is_told_to_the_right_one_and_the_thread_goes_on() -> None:
    rig = Rig()
    rig.sync.start()
    rig.flush_error = NoWritableDirectory("full")
    rig.sync.request()
    assert rig.told.acquire(timeout=10)
    rig.flush_error = RuntimeError("ours")
    rig.sync.request()
    assert rig.told.acquire(timeout=10)
    failing = threading.Semaphore(0)
    rig.during_flush = failing.release
    rig.flush_error = StorageFault("disk")
    rig.sync.request()
    assert failing.acquire(timeout=10)
    rig.during_flush = lambda: None
    rig.sync.stop()
    assert [str(error) for error in rig.read_only] == ["full"]
    assert [str(error) for error in rig.failed] == ["ours"]


def test_failures_of_requested_flushes_go_the_same_way() -> None:
    rig = Rig()
    assert rig.requested_flush_failed is not None
    for error in (NoWritableDirectory("full"), StorageFault("disk"), MemoryError("ours")):
        rig.requested_flush_failed(error)
    assert [str(error) for error in rig.read_only] == ["full"]
    assert [str(error) for error in rig.failed] == ["ours"]


def test_a_disk_that_stays_full_is_told_once() -> None:
    rig = Rig()
    assert rig.requested_flush_failed is not None
    with capture_logs() as logs:
        for error in ("full", "full", "fuller"):
            rig.requested_flush_failed(NoWritableDirectory(error))
    assert [each["error"] for each in logs if each["log_level"] == "error"] == ["full", "fuller"]
    assert len(rig.read_only) == 3


def test_shutdown_flushes_and_marks_but_deletes_no_journal() -> None:
    rig = Rig()
    rig.sync.start()
    rig.marks = [LogMark(1, 10), LogMark(7, 20)]
    rig.sync.shutdown()
    assert rig.calls == ["take 0", "take 1", "flush", "mark 0 10", "mark 1 20"]
    rig.sync.stop()


def test_every_journal_needs_its_mark_writer() -> None:
    rig = Rig()
    with pytest.raises(ValueError, match=r"2 journals .* 1 mark"):
        SyncThread(rig, [_Journal(rig, 0), _Journal(rig, 1)], [_Marks(rig, 0)], list, CheckpointHandlers(print, print))
