"""Sorted and Interleaved beside disks that fail, and flushes that are asked for, refused, or over already."""

from __future__ import annotations

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from bookie_pod.storage.engines.interface import FLUSH_TRIES
from bookie_pod.storage.engines.memtable_flush import BackgroundFlush, Drain, checked, sync_for_index
from bookie_pod.storage.engines.memtable_storage import STORAGE_FLAGS, MemTableStorage, covers
from bookie_pod.storage.index.ledgers import NEEDS_INTEGRITY_CHECK
from bookie_pod.storage.journal.marks import LogMark
from bookie_protocol.errors import (
    DirectoryFault,
    EntryDamaged,
    LedgerStateUnknown,
    NoWritableDirectory,
    StorageFailed,
    StorageFault,
)
from tests.support.memtable_engine import ENGINES, Checkpoints, MemTableBookie
from tests.support.storage_engine import entry, put
from tests.support.until import until_true

engines = pytest.mark.parametrize("engine", list(ENGINES))


def _opened(engine: str, directories: int = 2) -> tuple[MemTableBookie, MemTableStorage]:
    bookie = MemTableBookie(engine, tuple(f"/ledgers{number}" for number in range(directories)))
    return bookie, bookie.open()


@engines
def test_a_directory_that_fails_flush_after_flush_is_told_of_once(engine: str) -> None:
    _, storage = _opened(engine)
    told: list[tuple[int, str]] = []
    storage.on_directory_failure(lambda index, failure: told.append((index, str(failure))))
    fault = DirectoryFault("it refuses", "/ledgers1")
    for _ in range(FLUSH_TRIES - 1):
        assert storage._failed(fault) is fault
    storage.flush()  # one that succeeds in between
    for tries in range(1, FLUSH_TRIES + 3):
        storage._failed(fault)
        assert len(told) == (tries >= FLUSH_TRIES)
    assert told == [(1, f"{FLUSH_TRIES} flushes failed one after the other, the last: it refuses")]
    elsewhere = storage._failed(DirectoryFault("it refuses", "/index0"))
    assert not isinstance(elsewhere, DirectoryFault)
    assert len(told) == 1
    storage.close()


@engines
def test_a_directory_that_failed_takes_nothing_and_no_mark_moves(engine: str) -> None:
    bookie, storage = _opened(engine)
    put(storage, entry(1, 0))
    storage.flush()
    failure = StorageFault("the disk is gone")
    changes = bookie.faults.record()
    storage.fail_directory(1, failure)
    storage.fail_directory(1, StorageFault("once more"))
    until_true(lambda: storage._given_up == {"/ledgers1"})
    for ledger_id in range(2, 12):
        put(storage, entry(ledger_id, 0))
        with pytest.raises(StorageFault, match="gone"):
            storage.flush()
    assert not [change for change in changes if change.path.startswith("/ledgers1")]
    assert [storage.read(ledger_id, 0) for ledger_id in range(2, 12)] == [entry(each, 0) for each in range(2, 12)]
    storage.close()


@engines
@pytest.mark.parametrize("which", [".idx", ".log"])
def test_a_checkpoint_fails_whole_if_its_pages_or_its_logs_do(engine: str, which: str) -> None:
    """Logs that pages point to go first, then the pages of all ledgers; neither may be left out. No slot names what a
    power failure could take."""
    bookie, storage = _opened(engine, 1)
    put(storage, *(entry(ledger_id, 0) for ledger_id in range(3)))
    operations = bookie.faults.record()
    bookie.faults.fail("datasync", path=which, times=1)
    with pytest.raises(StorageFault):
        storage.checkpoint([LogMark(1, 0)])
    written = {operation.path for operation in operations if operation.name == "pwrite" and ".idx" in operation.path}
    assert bool(written) is (which == ".idx"), "no page goes to a disk before its log"
    if which == ".idx":
        storage.checkpoint([LogMark(1, 0)])
    bookie.faults.die_now()
    again = bookie.crash(random.Random(1)).open()
    if which == ".idx":
        assert [again.read(ledger_id, 0) for ledger_id in range(3)] == [entry(ledger_id, 0) for ledger_id in range(3)]
    again.close()


@engines
def test_a_drain_that_fails_for_its_disk_counts_too(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, storage = _opened(engine)
    told: list[int] = []
    storage.on_directory_failure(lambda index, failure: told.append(index))

    def refuses(drain: Drain) -> None:
        raise DirectoryFault("it refuses", "/ledgers1")

    monkeypatch.setattr(storage, "_run_drain", refuses)
    put(storage, entry(1, 0))
    for _ in range(FLUSH_TRIES):
        assert told == []
        with pytest.raises(DirectoryFault):
            storage.flush()
    assert told == [1]
    monkeypatch.undo()
    storage.flush()
    assert storage.read(1, 0) == entry(1, 0)
    storage.close()


@engines
def test_a_flush_of_nothing_moves_what_rotated_logs_hold_for_certain(engine: str) -> None:
    _, storage = _opened(engine)
    checkpoints = Checkpoints()
    storage.start(checkpoints)
    put(storage, entry(1, 0))
    checkpoints.now = [LogMark(3, 0)]
    storage.flush()
    checkpoints.now = [LogMark(5, 0)]
    storage.flush()
    storage.logs.rotate()
    assert storage._rotated_stamp == (LogMark(5, 0),)
    storage.close()


@engines
def test_what_is_refused_is_damaged_and_flags_are_kept(engine: str) -> None:
    bookie, storage = _opened(engine)
    put(storage, entry(1, 0), entry(1, 1))
    storage.flush()
    storage.refuse({storage.cache.get(1, 1)})
    assert storage.read(1, 0) == entry(1, 0)
    with pytest.raises(EntryDamaged, match="scrubber"):
        storage.read(1, 1)
    assert storage.flags() == 0
    storage.set_flags(NEEDS_INTEGRITY_CHECK)
    assert storage.flags() == NEEDS_INTEGRITY_CHECK
    for operation, act in (("open", storage.flags), ("overwrite", lambda: storage.set_flags(0))):
        bookie.faults.fail(operation, "create", path=STORAGE_FLAGS)
        with pytest.raises(StorageFault, match=f"cannot (read|write) .*{STORAGE_FLAGS}"):
            act()
        bookie.faults.clear()
    storage.close()


@engines
def test_a_ledger_that_gets_into_limbo_while_its_last_entry_is_sought_is_not_empty(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, storage = _opened(engine)
    storage.set_master_key(1, b"k")
    look = storage.cache.last_entry_id

    def limbo_meanwhile(ledger_id: int) -> int | None:
        storage.put_in_limbo([ledger_id])
        return look(ledger_id)

    monkeypatch.setattr(storage.cache, "last_entry_id", limbo_meanwhile)
    with pytest.raises(LedgerStateUnknown):
        storage.last_entry_id(1)
    storage.close()


def test_marks_that_a_stamp_covers() -> None:
    assert not covers(None, [LogMark()])
    low, high = LogMark(1, 5), LogMark(1, 6)
    assert [covers((own,), (mark,)) for own, mark in ((low, low), (high, low), (low, high))] == [True, True, False]
    assert not covers((high, low), (low, high))


# --- the thread that flushes ----------------------------------------------------------------------------------------


def test_a_flush_that_a_checkpoint_has_done_is_not_done_again() -> None:
    done: list[float | None] = []
    flush = BackgroundFlush("test", lambda: done.append(flush.began))
    flush._requested()
    assert done == [], "nobody has asked"
    flush._wanted = True
    flush._requested()
    (began,) = done
    assert began is not None
    assert flush.began is None
    flush.close()
    flush._requested()
    assert len(done) == 1
    with pytest.raises(StorageFault, match="closed"):
        flush.run(lambda: None)
    flush.request()
    assert flush.began is None


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (StorageFault("x"), NoWritableDirectory),
        (NoWritableDirectory("x"), NoWritableDirectory),
        (DirectoryFault("x", "/a"), DirectoryFault),
        (StorageFailed("x"), StorageFailed),
        (ValueError("x"), ValueError),
    ],
)
def test_what_is_told_of_a_flush_that_failed(error: Exception, told: type[Exception]) -> None:
    heard: list[BaseException] = []

    def fails() -> None:
        raise error

    flush = BackgroundFlush("test", fails)
    flush.on_failure(heard.append)
    flush.request()
    until_true(lambda: bool(heard))
    assert [type(each) for each in heard] == [told]
    assert (flush._retry is None) == isinstance(error, StorageFailed), "all others are repeated"
    assert flush._wanted
    flush.close()


# --- a drain --------------------------------------------------------------------------------------------------------


def _drain(storage: MemTableStorage, **options: bool) -> Drain:
    assert storage.memtable.freeze()
    assert storage.memtable.frozen is not None
    return Drain(
        storage.memtable.frozen,
        storage.logs,
        storage.cache,
        in_order=True,
        roll=False,
        on_unindexable=lambda ledger_id: None,
        **options,
    )


@pytest.mark.parametrize("gravest", [ValueError("ours"), StorageFault("a disk")])
def test_of_ledgers_that_are_drained_at_once_each_is_tried_and_the_gravest_fault_is_told(
    gravest: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, storage = _opened("sorted")
    for ledger_id in (1, 2, 3):
        put(storage, entry(ledger_id, 0))
    drain = _drain(storage)
    append = drain.append

    def fails(ledger_id: int, *what: list[int]) -> list[int]:
        if ledger_id == 1:
            raise StorageFault("a disk")
        if ledger_id == 2:
            raise gravest
        return append(ledger_id, *what)  # type: ignore[arg-type]

    monkeypatch.setattr(drain, "append", fails)
    with ThreadPoolExecutor(2) as threads:
        with pytest.raises(type(gravest), match=str(gravest)):
            drain.run(threads)
        assert list(drain._parts) == [1, 2]
        monkeypatch.setattr(drain, "append", append)
        drain.run(threads)
    assert (list(drain._parts), drain.nbytes) == ([], 3 * 40)
    assert [storage.cache.get(ledger_id, 0) > 0 for ledger_id in (1, 2, 3)] == [True] * 3
    storage.close()


def test_of_a_ledger_that_is_not_known_any_more_nothing_is_indexed() -> None:
    _, storage = _opened("sorted")
    put(storage, entry(1, 0), entry(2, 0))
    drain = _drain(storage)
    storage.cache.delete(1)
    drain.run()
    assert (storage.cache.records.get(1), storage.cache.get(2, 0) > 0) == (None, True)
    assert list(drain._parts) == []
    storage.close()


def test_after_a_sync_that_failed_a_drain_says_that_nothing_helps_but_a_restart() -> None:
    bookie, storage = _opened("sorted", 1)
    put(storage, entry(1, 0))
    drain = _drain(storage)
    storage.logs.append_run(9, [0], [entry(9, 0)])
    bookie.faults.fail("datasync", times=1)
    with pytest.raises(StorageFailed):
        sync_for_index(storage.logs)
    with pytest.raises(StorageFailed):
        drain.run()
    fault, failed = StorageFault("x"), StorageFailed("y")
    assert isinstance(checked(storage.logs, fault), StorageFailed)
    assert checked(storage.logs, failed) is failed
    storage.logs.abandon_unsynced()
    assert checked(storage.logs, fault) is fault
    storage.close()


# --- opening --------------------------------------------------------------------------------------------------------


@engines
@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda bookie: bookie.faults.fail("makedirs"), "directory"),
        (lambda bookie: bookie.files.write_bytes("/ledgers0/0/1/x.idx", b""), "hex"),
    ],
)
def test_a_start_that_fails_leaves_no_file_open(
    engine: str, spoil: Callable[[MemTableBookie], None], message: str
) -> None:
    bookie = MemTableBookie(engine)
    storage = bookie.open()
    put(storage, entry(1, 0))
    storage.flush()
    storage.close()
    spoil(bookie)
    with pytest.raises(StorageFault, match=message):
        bookie.open()
    assert bookie.files.open_files == 0
    bookie.faults.clear()
