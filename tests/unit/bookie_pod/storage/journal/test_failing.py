"""A journal that fails acknowledges nothing more; one that is stopped writes what is queued."""

from __future__ import annotations

import errno
import threading
import time
from types import SimpleNamespace

import pytest

from bookie_pod.storage.journal import Journal, LogMark
from bookie_pod.storage.journal import journal as journal_module
from bookie_pod.storage.journal.directory import journal_path
from bookie_pod.storage.journal.journal_file import DirectFile
from bookie_protocol.errors import StorageFault
from tests.support.journal_rig import (
    DIRECTORY,
    FOREVER,
    Acknowledgements,
    JournalRig,
    an_add,
    in_its_sync,
    records_of,
    small_options,
)
from tests.support.memory_files import MemoryFiles


@pytest.mark.parametrize(("direct", "operation"), [(True, "pwrite"), (True, "datasync"), (False, "writev")])
def test_an_io_error_ends_the_journal_and_acknowledges_nothing_more(direct: bool, operation: str) -> None:
    files = MemoryFiles()
    rig = JournalRig(files, small_options(direct_io=direct))
    with rig:
        rig.add(an_add(7, 0))
        files.faults.fail(operation)
        rig.journal.append(an_add(7, 1))
        error = rig.acknowledged.wait_for_failure()
        assert DIRECTORY in str(error)
        assert isinstance(error.__cause__, OSError)
        files.faults.clear()
        for _ in range(3):
            with pytest.raises(StorageFault, match="failed"):
                rig.journal.append(an_add(7, 2))
    assert rig.acknowledged.failures == [error]
    assert rig.journal.error is error
    assert len(rig.acknowledged.batches) == 1
    assert files.open_files == 0
    assert not any(thread.name.startswith("journal-0") for thread in threading.enumerate())


def test_what_waits_for_its_sync_when_a_write_fails_is_not_acknowledged() -> None:
    files = MemoryFiles()
    with in_its_sync(files) as (rig, gate):
        files.faults.fail("pwrite")
        rig.journal.append(an_add(7, 2))
        rig.acknowledged.wait_for_failure()
        gate.open()
    assert len(rig.acknowledged.batches) == 1, "its sync had begun"


def test_a_failed_journal_ends_though_it_cannot_tidy_up() -> None:
    files = MemoryFiles()
    with JournalRig(files, small_options(max_size_bytes=8192)) as rig:
        for i in range(9):
            rig.add(an_add(7, i, bytes(400)))
        while len(rig.journals()) < 2:
            time.sleep(0.0005)
        files.faults.fail("pwrite")
        files.faults.fail("unlink")
        rig.journal.append(an_add(7, 9))
        rig.acknowledged.wait_for_failure()
    assert len(rig.journals()) == 2
    assert files.open_files == 0


def test_nothing_follows_a_file_whose_sync_failed() -> None:
    files = MemoryFiles()
    with JournalRig(files, small_options(max_size_bytes=2048)) as rig:
        rig.add(an_add(7, 0))
        files.faults.fail("datasync")
        rig.journal.append(an_add(7, 1, bytes(2000)))
        assert isinstance(rig.acknowledged.wait_for_failure().__cause__, OSError)
        files.faults.clear()
    assert len(rig.journals()) == 1
    assert files.faults.counts["pwrite"] == 3, "not even a group that says what was synced"


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EIO])
def test_a_disk_without_room_for_a_whole_step_takes_what_still_fits(error: int) -> None:
    files = MemoryFiles()
    with JournalRig(files) as rig:
        rig.add(an_add(7, 0))
        files.faults.fail("allocate", errno=error)
        if error == errno.ENOSPC:
            for entry_id in range(1, 5):
                rig.add(an_add(7, entry_id, bytes(3000)))
            assert files.faults.counts["allocate"] > 1
        else:
            rig.journal.append(an_add(7, 1, bytes(9000)))
            assert rig.acknowledged.wait_for_failure().__cause__.errno == error  # type: ignore[union-attr]
    assert len(rig.acknowledged.batches) == (5 if error == errno.ENOSPC else 1)


def test_a_next_file_that_cannot_be_made_at_all_ends_the_journal() -> None:
    files = MemoryFiles()
    with JournalRig(files, small_options(max_size_bytes=4096)) as rig:
        files.faults.fail("create")
        for i in range(40):
            try:
                rig.journal.append(an_add(7, i, bytes(400)))
            except StorageFault:
                break
            time.sleep(0.0005)
        assert ".txn" in str(rig.acknowledged.wait_for_failure())
    acknowledged = len(rig.acknowledged.batches)
    assert records_of(rig)[:acknowledged] == [(7, i) for i in range(acknowledged)]
    assert files.open_files == 0


def test_a_failing_deliver_ends_the_journal() -> None:
    files = MemoryFiles()
    told = Acknowledgements()

    def deliver(batches: object, error: object) -> None:
        raise RuntimeError("loop is closed")

    files.makedirs(DIRECTORY)
    journal = Journal(DIRECTORY, 0, files, small_options(), deliver, told.failed)
    journal.start()
    journal.append(an_add(7, 0))
    assert "loop is closed" in str(told.wait_for_failure())
    journal.stop()


def test_start_fails_with_one_line_if_no_file_can_be_made() -> None:
    files = MemoryFiles()
    files.makedirs(DIRECTORY)
    files.faults.read_only()
    journal = Journal(DIRECTORY, 3, files, small_options(), lambda b, e: None, lambda e: None)
    with pytest.raises(StorageFault, match=r"journal 3 in /journal/current: .*Read-only"):
        journal.start()
    journal.stop()


def test_stop_writes_and_acknowledges_what_is_queued() -> None:
    rig = JournalRig(options=small_options(max_group_wait_ms=FOREVER))
    rig.journal.start()
    for i in range(100):
        rig.journal.append(an_add(7, i))
    rig.journal.stop()
    assert len(rig.acknowledged.batches) == 100
    assert records_of(rig) == [(7, i) for i in range(100)]
    with pytest.raises(StorageFault, match="is stopped"):
        rig.journal.append(an_add(7, 100))
    rig.journal.stop()


@pytest.mark.parametrize("kept", [0, 5])
def test_a_start_on_a_full_disk_deletes_what_no_replay_needs(kept: int) -> None:
    files = MemoryFiles()
    files.makedirs(DIRECTORY)
    for journal_id in range(3, 9):
        files.write_bytes(journal_path(DIRECTORY, journal_id), b"")
    files.faults.fail("pwrite", path=f"{DIRECTORY}/9.txn", errno=errno.ENOSPC, times=1)
    rig = JournalRig(files, small_options(max_backups=kept))
    if kept:
        rig.journal.start(LogMark(8, 512), written=LogMark(8, 512))
        rig.journal.stop()
        assert rig.journals() == ["8.txn", "9.txn"], "all backups went, for the journal that adds need"
    else:
        with pytest.raises(StorageFault, match="start"):
            rig.journal.start(LogMark(8, 512), written=LogMark(8, 512))
        assert rig.journals() == ["8.txn"], "no try leaves a file behind"


def test_closing_a_direct_file_is_possible_while_a_traceback_holds_its_buffer() -> None:
    files = MemoryFiles()
    files.makedirs(DIRECTORY)
    file = DirectFile(files, f"{DIRECTORY}/9.txn")
    files.faults.fail("pwrite", errno=errno.ENOSPC)
    with pytest.raises(OSError, match="space") as caught:
        file.write(b"x" * 100)
    held = file._view[:10]
    file.close()
    file.close()
    assert caught.value.errno == errno.ENOSPC
    assert files.open_files == 0
    held.release()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("operation", ["pwrite", "datasync"])
def test_a_failure_is_told_though_nobody_can_log_it(operation: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def raising(*_: object, **__: object) -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(journal_module, "_log", SimpleNamespace(error=raising, info=raising, warning=raising))
    files = MemoryFiles()
    with JournalRig(files) as rig:
        rig.add(an_add(7, 0))
        files.faults.fail(operation)
        rig.journal.append(an_add(7, 1))
        assert "journal 0 in" in str(rig.acknowledged.wait_for_failure())


@pytest.mark.parametrize("ending", [SystemExit, KeyboardInterrupt, MemoryError])
def test_whatever_ends_a_thread_is_told(ending: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    with JournalRig() as rig:
        rig.add(an_add(7, 0))

        def ends(*_: object) -> None:
            raise ending

        monkeypatch.setattr(rig.journal._sync, "_acknowledge", ends)
        rig.journal.append(an_add(7, 1))
        assert isinstance(rig.acknowledged.wait_for_failure().__cause__, ending)
