"""DbLedgerStorage: what is asked of one directory, and what becomes of faults of our own making."""

from __future__ import annotations

from concurrent.futures import Future

import pytest

from bookie_pod.storage.engines import frozen as frozen_module
from bookie_pod.storage.engines import registry
from bookie_pod.storage.engines.db import DbLedgerStorage, raise_worst
from bookie_pod.storage.engines.detection import SWAP_FILE, check_no_swap, check_not_lost
from bookie_pod.storage.engines.log_reads import FIRST_WINDOW, NEAR, NEAR_BYTES, ReadAheadWindows, _span
from bookie_pod.storage.entry_log import EntryLogger
from bookie_pod.storage.index.ledger_data import LedgerRecord
from bookie_pod.storage.index.ledgers import NEEDS_INTEGRITY_CHECK
from bookie_pod.storage.index.store import StoreKind
from bookie_protocol.errors import (
    EntryDamaged,
    LedgerStateUnknown,
    NoWritableDirectory,
    StorageFault,
    WrongStorageEngine,
)
from tests.support.memory_files import MemoryFiles
from tests.support.memory_store import MemoryStores
from tests.support.storage_engine import KEY, MemoryBookie, entry, put


def _failed(error: Exception | None) -> Future[None]:
    future: Future[None] = Future()
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
    return future


def test_the_gravest_of_several_faults_is_told() -> None:
    full, disk, ours = NoWritableDirectory("full"), StorageFault("disk"), ValueError("ours")
    raise_worst([_failed(None), _failed(None)])
    for errors, gravest in (
        ([full, disk, ours], ours),
        ([full, disk], disk),
        ([None, full], full),
        ([disk, full], disk),
    ):
        with pytest.raises(type(gravest)) as caught:
            raise_worst([_failed(error) for error in errors])  # type: ignore[attr-defined]
        assert caught.value is gravest


def test_there_is_a_directory_at_least() -> None:
    with pytest.raises(ValueError, match="least"):
        DbLedgerStorage([], lambda work: work())


def test_a_flush_that_a_checkpoint_has_done_is_not_done_again(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = MemoryBookie().open()
    flushed: list[int] = []
    monkeypatch.setattr(storage, "_flush", flushed.append)
    storage._requested_flush(0)
    assert flushed == []
    storage.directories[0].flush_wanted = True
    storage._requested_flush(0)
    assert flushed == [0]
    storage.close()
    monkeypatch.setattr(storage.directories[0], "close", lambda: pytest.fail("it is closed"))
    storage.close()


@pytest.mark.parametrize("why", ["", "closed", "swapped", "failed"])
def test_a_flush_is_repeated_as_long_as_it_is_wanted_and_possible(why: str) -> None:
    storage = MemoryBookie().open()
    (directory,) = storage.directories
    directory.flush_wanted = why != "swapped"
    if why == "failed":
        directory.failure = StorageFault("the disk is gone")
    if why == "closed":
        storage.close()
    storage._retry_later(0)
    assert bool(storage._retries) == (why == "")
    storage.close()


@pytest.mark.parametrize("why", ["", "closed", "wanted", "failed"])
def test_a_flush_is_asked_for_once_and_only_where_it_is_possible(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = MemoryBookie().open()
    (directory,) = storage.directories
    submitted: list[int] = []
    monkeypatch.setattr(storage, "_submit", submitted.append)
    directory.flush_wanted = why == "wanted"
    if why == "failed":
        directory.failure = StorageFault("the disk is gone")
    if why == "closed":
        storage.close()
    storage.request_flush(7)
    storage.request_flush(7)
    assert submitted == ([0] if why == "" else [])
    storage.close()


@pytest.mark.parametrize(("step", "gaps"), [(1, [True, False]), (3, [True, True])])
def test_a_stream_of_a_striped_ledger_is_known_by_the_gaps_in_its_ids(
    step: int, gaps: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = MemoryBookie.without_read_cache().open()
    (directory,) = storage.directories
    put(storage, *(entry(1, step * number) for number in range(20)))
    storage.flush()
    windows = directory._log_reads._windows
    told: list[tuple[int, bool]] = []
    done = windows.done

    def noted(ledger_id: int, next_entry_id: int, window: int, *, gaps: bool = False) -> None:
        told.append((next_entry_id, gaps))
        done(ledger_id, next_entry_id, window, gaps=gaps)

    monkeypatch.setattr(windows, "done", noted)
    monkeypatch.setattr(directory._log_reads, "_window_bytes", 1 << 20)
    storage.read(1, 0)
    storage.read(1, step)
    assert told == [(1, gaps[0]), (step + step * FIRST_WINDOW + 1, gaps[1])]
    storage.close()


def test_a_checkpoint_makes_durable_what_was_put_and_flags_are_kept() -> None:
    bookie = MemoryBookie()
    storage = bookie.open()
    put(storage, entry(1, 0))
    storage.checkpoint([])
    storage.set_flags(NEEDS_INTEGRITY_CHECK)
    storage.close()
    again = bookie.open()
    assert (again.read(1, 0), again.flags()) == (entry(1, 0), NEEDS_INTEGRITY_CHECK)
    again.close()


def test_a_flag_in_any_directory_is_one_of_the_storage_until_it_is_cleared() -> None:
    """A rebuild of one directory's database of ledgers sets it there."""
    bookie = MemoryBookie(("/l0", "/l1"))
    storage = bookie.open()
    storage.directories[1].ledgers.set_flags(NEEDS_INTEGRITY_CHECK)
    assert storage.flags() == NEEDS_INTEGRITY_CHECK
    storage.set_flags(0)
    storage.close()
    storage = bookie.restart().open()
    assert storage.flags() == 0
    assert [directory.ledgers.flags() for directory in storage.directories] == [0, 0]
    storage.directories[1].ledgers.set_flags(NEEDS_INTEGRITY_CHECK)
    storage.fail_directory(1, StorageFault("gone"))
    assert storage.flags() == 0, "its ledgers are not served, and it says so once it is back"
    storage.set_flags(0)
    assert storage.directories[1].ledgers.flags() == NEEDS_INTEGRITY_CHECK
    storage.close()


@pytest.mark.parametrize("error", [MemoryError(), StorageFault("x")])
def test_a_flush_that_was_broken_off_begins_anew_in_new_logs(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody knows how far it has come: what a fault of the disk tells, an error of ours does not."""
    storage = MemoryBookie().open()
    (directory,) = storage.directories
    for ledger_id in (1, 2):
        put(storage, entry(ledger_id, 0))
    append, calls = directory.logs.append_run, list[int]()

    def fails(ledger_id: int, *what: object, **how: int) -> list[int]:
        calls.append(ledger_id)
        if calls == [1, 2]:
            raise error
        return append(ledger_id, *what, **how)  # type: ignore[arg-type]

    monkeypatch.setattr(directory.logs, "append_run", fails)
    with pytest.raises(type(error)):
        storage.flush()
    storage.flush()
    assert calls == ([1, 2, 1, 2] if isinstance(error, MemoryError) else [1, 2, 2])
    assert [storage.read(ledger_id, 0) for ledger_id in (1, 2)] == [entry(1, 0), entry(2, 0)]
    assert [directory.locations.get(ledger_id, 0) > 0 for ledger_id in (1, 2)] == [True, True]
    storage.close()


def test_of_a_ledger_that_is_deleted_before_its_turn_nothing_is_appended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frozen_module, "SLICE_ENTRIES", 2)
    storage = MemoryBookie().open()
    (directory,) = storage.directories
    put(storage, *(entry(1, each) for each in range(4)), *(entry(2, each) for each in range(4)))
    append, calls = directory.logs.append_run, list[tuple[int, int]]()

    def appends(ledger_id: int, entry_ids: list[int], entries: list[bytes], **how: int) -> list[int]:
        calls.append((ledger_id, len(entry_ids)))
        if len(calls) == 1:
            storage.delete_ledger(2)
        return append(ledger_id, entry_ids, entries, **how)

    monkeypatch.setattr(directory.logs, "append_run", appends)
    storage.flush()
    assert calls == [(1, 2), (1, 2)]
    assert list(storage.entry_ids(1)) == [0, 1, 2, 3]
    storage.close()


def test_what_both_halves_hold_is_counted_and_listed() -> None:
    storage = MemoryBookie().open()
    (directory,) = storage.directories
    put(storage, entry(1, 0), entry(1, 3))
    before = directory.write_cache_usage()
    assert before[1] == 2
    directory._swap()
    put(storage, entry(1, 1))
    active, count = directory._active.nbytes, directory._active.count
    assert directory.write_cache_usage() == (before[0] + active, 2 + count)
    assert list(storage.entry_ids(1)) == [0, 1, 3]
    assert storage.last_entry_id(1) == 3
    storage.flush()
    assert directory.write_cache_usage() == (0, 0)
    storage.close()


def test_a_ledger_is_restored_only_if_it_is_not_there() -> None:
    storage = MemoryBookie().open()
    (directory,) = storage.directories
    record = LedgerRecord(KEY, fenced=True)
    assert directory.restore_ledger(1, record)
    assert not directory.restore_ledger(1, LedgerRecord(KEY))
    assert storage.ledger(1) == record
    storage.close()


def test_while_an_index_is_in_doubt_nothing_is_denied_and_nothing_listed() -> None:
    storage = MemoryBookie().open()
    (directory,) = storage.directories
    put(storage, entry(1, 0))
    storage.flush()
    directory.doubt = "it is rebuilt"
    assert storage.read(1, 0) == entry(1, 0)
    for ask in (
        lambda: storage.read(1, 1),
        lambda: storage.read(9, 0),
        lambda: storage.last_entry_id(1),
        lambda: list(storage.entry_ids(1)),
    ):
        with pytest.raises(LedgerStateUnknown):
            ask()
    directory.doubt = None
    directory.refuse({directory.locations.get(1, 0)})
    directory.read_cache.forget_ledger(1)
    with pytest.raises(EntryDamaged):
        storage.read(1, 0)
    storage.close()


@pytest.mark.parametrize(
    ("entry_ids", "locations", "spans"),
    [
        ([1, 2, 3], [100, 200, 300], [2, 1, 0]),
        ([1, 2, 3], [100, None, 300], [0, 0, 0]),
        ([1, 2, 3], [300, 200, 100], [0, 0, 0]),
        ([1, 2, 3], [100, 100, 300], [0, 1, 0]),
        ([1, 2, 2 + NEAR], [100, 200, 300], [1 + NEAR, NEAR, 0]),
        ([1, 2, 3 + NEAR], [100, 200, 300], [1, 0, 0]),
        ([1, 1, 2], [100, 200, 300], [0, 1, 0]),
        ([3, 2, 4], [100, 200, 300], [0, 2, 0]),
        ([1, 2, 3], [100, 100 + NEAR_BYTES, 101 + 2 * NEAR_BYTES], [1, 0, 0]),
    ],
)
def test_what_lies_close_together_is_read_together(
    entry_ids: list[int], locations: list[int | None], spans: list[int]
) -> None:
    assert [_span(entry_ids, locations, place) for place in range(3)] == spans


def test_windows_that_are_off_remember_no_stream() -> None:
    windows = ReadAheadWindows(0)
    windows.done(1, 5, 0)
    assert windows.window(1, 5) == 0
    assert not windows._streams
    windows = ReadAheadWindows(1000)
    windows.done(1, 5, 0)
    assert windows.window(1, 5) == FIRST_WINDOW


def test_closing_tries_every_part_and_tells_the_first_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    bookie = MemoryBookie(("/ledgers0", "/ledgers1"))
    storage = bookie.open()

    def refuses() -> None:
        raise StorageFault("it cannot be closed")

    closed: list[int] = []
    for index, directory in enumerate(storage.directories):
        close = directory.logs.close
        monkeypatch.setattr(
            directory.logs, "close", refuses if index == 0 else lambda close=close: (closed.append(1), close())
        )
    with pytest.raises(StorageFault, match="closed"):
        storage.close()
    assert closed == [1]
    monkeypatch.undo()
    bookie.open().close()  # the databases were closed, or they could not be opened again


def test_a_directory_that_cannot_be_put_together_is_closed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    bookie = MemoryBookie()
    closed: list[EntryLogger] = []
    monkeypatch.setattr(registry.EntryLogger, "close", lambda logs: closed.append(logs))

    def refuses(*_: object, **__: object) -> None:
        raise ValueError("ours")

    monkeypatch.setattr(registry, "SingleDirectoryStorage", refuses)
    with pytest.raises(ValueError, match="ours"):
        bookie.open()
    assert len(closed) == 1
    monkeypatch.undo()
    bookie.open().close()


# --- what a start looks at ------------------------------------------------------------------------------------------


def test_an_interrupted_change_of_the_index_refuses_the_start() -> None:
    bookie = MemoryBookie()
    bookie.open().close()
    check_no_swap(bookie.files, "/ledgers0")
    bookie.files.write_bytes(f"/ledgers0/{SWAP_FILE}", b"{}")
    with pytest.raises(WrongStorageEngine, match="finish`"):
        bookie.open()
    assert bookie.files.open_files == 0


def test_a_directory_that_cannot_be_looked_at_refuses_the_start() -> None:
    bookie = MemoryBookie()
    bookie.open().close()
    bookie.faults.fail("listdir")
    with pytest.raises(StorageFault, match="inspect /ledgers0"):
        bookie.open()
    files = MemoryFiles()
    files.makedirs("/ledgers0")
    files.faults.fail("listdir")
    store = MemoryStores().open("/ledgers0/locations", StoreKind.LOCATIONS)
    with pytest.raises(StorageFault, match="inspect /ledgers0"):
        check_not_lost(files, store, "/ledgers0")
    assert not store.was_written()
