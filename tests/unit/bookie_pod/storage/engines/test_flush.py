"""Flushing: order in the logs, swaps, failures that must not lose a half, several directories."""

from __future__ import annotations

import errno
import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest

from bookie_pod.metrics.db_storage import FlushStage, ReadLevel
from bookie_pod.storage.engines import db
from bookie_pod.storage.engines.db import DbLedgerStorage
from bookie_pod.storage.engines.frozen import SLICE_ENTRIES
from bookie_pod.storage.entry_log import DiskState, split_location
from bookie_pod.storage.index.locations import NEGATIVE
from bookie_protocol.errors import NoWritableDirectory, StorageFault
from tests.support.memory_files import MemoryFiles
from tests.support.memtable_engine import Checkpoints
from tests.support.production import changed
from tests.support.storage_engine import KEY, MemoryBookie, entry, put, small_options


def test_a20_entries_lie_in_ledger_and_entry_order_and_locations_point_behind_the_length() -> None:
    bookie = MemoryBookie()
    storage = bookie.open()
    for entry_id in (2, 0, 1):
        for ledger_id in (9, 4, 7):
            put(storage, entry(ledger_id, entry_id, 50 + entry_id))
    storage.flush()
    directory = storage.directories[0]
    (log_id,) = directory.logs.log_ids()
    dumped = list(directory.logs.scan(log_id))
    assert [(ledger_id, entry_id) for _, ledger_id, entry_id, _ in dumped] == [
        (ledger_id, entry_id) for ledger_id in (4, 7, 9) for entry_id in (0, 1, 2)
    ]
    position = 1024
    for location, ledger_id, entry_id, data in dumped:
        assert directory.locations.get(ledger_id, entry_id) == location == (log_id << 32) | (position + 4)
        position += 4 + len(data)
    storage.close()


def test_a19_every_level_answers_and_is_counted() -> None:
    bookie = MemoryBookie(options=small_options(half_bytes=1 << 22))
    storage, levels = bookie.open(), bookie.metrics.levels
    put(storage, *(entry(1, entry_id) for entry_id in range(10)))
    storage.read(1, 3)
    assert levels == {ReadLevel.WRITE_CACHE: 1}

    gate = bookie.faults.hold("datasync", "sync", path=".log")
    flush = threading.Thread(target=storage.flush)
    flush.start()
    gate.reached()
    assert storage.read(1, 3) == entry(1, 3)
    assert levels[ReadLevel.FLUSHING_CACHE] == 1
    gate.open()
    flush.join()

    assert storage.read(1, 3) == entry(1, 3)  # kept
    assert levels[ReadLevel.READ_CACHE] == 1
    storage.close()
    storage = bookie.open()
    levels.clear()
    assert storage.read(1, 3) == entry(1, 3)
    assert levels[ReadLevel.ENTRY_LOG] == 1
    assert storage.read(1, 3) == entry(1, 3)
    assert levels[ReadLevel.READ_CACHE] == 1
    assert storage.read(1, 4) == entry(1, 4)
    assert storage.read(1, 5) == entry(1, 5)  # read ahead
    assert levels[ReadLevel.READ_CACHE] == 2
    assert levels[ReadLevel.ENTRY_LOG] == 2
    assert bookie.metrics.log_reads == 2
    storage.close()


def test_a18_a_full_half_asks_for_one_flush_and_takes_entries_again_after_the_swap() -> None:
    bookie = MemoryBookie(options=small_options(half_bytes=8192))
    storage = bookie.open()
    space = threading.Event()
    storage.on_space(space.set)
    entry_id = 0

    def fill() -> None:
        nonlocal entry_id
        while not storage.is_full(1):
            put(storage, entry(1, entry_id, 200))
            entry_id += 1

    gate = bookie.faults.hold("datasync", "sync", path=".log")
    fill()
    storage.request_flush(1)
    gate.reached()  # the half is frozen and its flush stands still
    assert space.wait(10)
    assert not storage.is_full(1)
    fill()
    space.clear()
    for _ in range(50):
        storage.request_flush(1)  # coalesced into one
    assert storage.is_full(1)
    assert not space.is_set()
    gate.open()
    assert space.wait(10)
    storage.flush()
    assert bookie.metrics.stages[FlushStage.ENTRY_LOG] == 2
    assert [storage.read(1, n) for n in range(entry_id)] == [entry(1, n, 200) for n in range(entry_id)]
    storage.close()


def test_an_entry_larger_than_a_half_goes_in_when_the_half_is_empty() -> None:
    bookie = MemoryBookie(options=small_options(half_bytes=4096))
    storage = bookie.open()
    assert not storage.is_full(1)
    put(storage, entry(1, 0, 100_000))
    assert storage.is_full(1)
    storage.flush()
    assert not storage.is_full(1)
    assert storage.read(1, 0) == entry(1, 0, 100_000)
    storage.close()


def test_long_runs_and_long_entries_are_cut_into_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    bookie = MemoryBookie(options=small_options(half_bytes=1 << 24, log_size=1 << 22))
    storage = bookie.open()
    slices: list[int] = []
    logs = storage.directories[0].logs
    append = logs.append_run

    def append_run(ledger_id: int, entry_ids: Sequence[int], entries: Sequence[bytes], **more: bool) -> list[int]:
        slices.append(len(entries))
        return append(ledger_id, entry_ids, entries, **more)

    monkeypatch.setattr(logs, "append_run", append_run)
    wanted = [entry(1, n) for n in range(3 * SLICE_ENTRIES + 1)] + [entry(2, n, 700_000) for n in range(4)]
    put(storage, *wanted)
    storage.flush()
    assert slices == [SLICE_ENTRIES] * 3 + [1] + [1] * 4
    assert [storage.read(1, n) for n in range(3 * SLICE_ENTRIES + 1)] == wanted[:-4]
    assert [storage.read(2, n) for n in range(4)] == wanted[-4:]
    storage.close()


@pytest.mark.parametrize(
    ("operations", "path"),
    [
        (("create",), ".log"),
        (("write", "writev", "pwrite"), ".log"),
        (("sync", "datasync"), ".log"),
        (("write",), "/locations"),
        (("sync",), "/locations"),
        (("write",), "/ledgers0/ledgers"),
        (("sync",), "/ledgers0/ledgers"),
    ],
)
def test_a_failed_flush_keeps_its_half_readable_and_is_repeated_with_it(operations: tuple[str, ...], path: str) -> None:
    bookie = MemoryBookie()
    storage = bookie.open()
    first = [entry(1, n) for n in range(5)]
    put(storage, *first)
    bookie.faults.fail(*operations, path=path, errno=errno.EIO)
    for _ in range(2):
        with pytest.raises(StorageFault):
            storage.flush()
        assert [storage.cached(1, n) for n in range(5)] == first
    second = [entry(1, n) for n in range(5, 8)]
    put(storage, *second)
    with pytest.raises(StorageFault):
        storage.flush()
    bookie.faults.clear()
    storage.flush()
    assert bookie.metrics.failures == 3
    storage.close()
    # Killed now: only what reached the disks counts.
    again = MemoryBookie(bookie.directories, bookie.options, bookie.files.restart(), bookie.stores)
    storage = again.open()
    assert list(storage.entry_ids(1)) == list(range(8))
    assert [storage.read(1, n) for n in range(8)] == first + second
    storage.close()


def test_tries_whose_sync_fails_leave_nothing_on_the_disk() -> None:
    bookie = MemoryBookie(options=small_options(log_size=4096))
    storage = bookie.open()
    wanted = [entry(1, n, 300) for n in range(40)]
    put(storage, *wanted)
    logs = storage.directories[0].logs
    bookie.faults.fail("datasync", "sync", path=".log", after=2)  # of some that belong together
    for _ in range(5):
        with pytest.raises(StorageFault):
            storage.flush()
    bookie.faults.clear()
    storage.flush()
    assert sum(map(logs.size, logs.log_ids())) < 2 * 40 * 304
    assert [storage.read(1, n) for n in range(40)] == wanted
    storage.close()


def test_without_a_writable_directory_the_flush_says_so_and_goes_on_later() -> None:
    bookie = MemoryBookie(files=MemoryFiles(volumes={"/ledgers0": 1 << 20}), options=small_options(half_bytes=1 << 22))
    storage = bookie.open()
    put(storage, entry(1, 0))
    state = bookie.states["/ledgers0"]
    state.report("/ledgers0", DiskState.FULL)
    failures: list[BaseException] = []
    failed = threading.Event()

    def note(error: BaseException) -> None:
        failures.append(error)
        failed.set()

    storage.on_flush_failure(note)
    with pytest.raises(NoWritableDirectory):
        storage.flush()
    assert failures == []  # `flush` raised it
    storage.request_flush(1)
    assert failed.wait(10)
    assert isinstance(failures[0], NoWritableDirectory)
    state.report("/ledgers0", DiskState.WRITABLE)
    storage.flush()
    assert storage.read(1, 0) == entry(1, 0)
    assert bookie.metrics.sizes == [(40, 1)]
    storage.close()


def test_ledgers_are_flushed_even_when_the_cache_is_empty() -> None:
    bookie = MemoryBookie()
    storage = bookie.open()
    storage.set_master_key(1, KEY)
    storage.flush()
    record = storage.ledger(1)
    assert record is not None
    storage.set_ledger(1, replace(record, fenced=True))
    storage.flush()
    assert bookie.metrics.stages == {FlushStage.LEDGERS: 2, FlushStage.WHOLE: 2}
    storage.flush()
    assert bookie.metrics.stages[FlushStage.WHOLE] == 2  # nothing to do
    storage.close()


def test_a_deletion_during_a_flush_leaves_nothing_behind() -> None:
    bookie = MemoryBookie()
    storage = bookie.open()
    put(storage, entry(1, 0), entry(2, 0))
    gate = bookie.faults.hold("datasync", "sync", path=".log")
    flush = threading.Thread(target=storage.flush)
    flush.start()
    gate.reached()
    storage.delete_ledger(1)
    assert storage.cached(1, 0) is None
    gate.open()
    flush.join()
    storage.flush()
    assert storage.ledger_ids() == [2]
    assert [key for key, _ in storage.directories[0].locations._store.scan(b"", NEGATIVE)] == [
        bytes(7) + b"\x02" + bytes(8)
    ]
    storage.close()


def test_several_directories_share_the_ledgers_by_modulus_and_fail_apart() -> None:
    directories = ("/d0", "/d1", "/d2")
    bookie = MemoryBookie(directories, small_options(directories=3))
    storage = bookie.open()
    for ledger_id in range(9):
        put(storage, entry(ledger_id, 0))
    bookie.faults.fail("sync", path="/d1/locations")
    with pytest.raises(StorageFault, match="/d1/locations"):
        storage.flush()
    bookie.faults.clear()
    for index, directory in enumerate(storage.directories):
        assert sorted(directory.ledgers.ledger_ids()) == [index, index + 3, index + 6]
        assert not directory.locations.is_empty()
    assert bookie.metrics.stages[FlushStage.WHOLE] == 2
    storage.flush()
    assert bookie.metrics.stages[FlushStage.WHOLE] == 3
    storage.close()
    storage = MemoryBookie(directories, bookie.options, bookie.files.restart(), bookie.stores).open()
    assert [storage.read(ledger_id, 0) for ledger_id in range(9)] == [entry(ledger_id, 0) for ledger_id in range(9)]
    storage.close()


@pytest.mark.parametrize(("ledger_id", "index"), [(0, 0), (4, 1), (-1, 2), (-3, 0), ((1 << 63) - 1, 1)])
def test_the_directory_of_a_ledger_is_the_reference_s(ledger_id: int, index: int) -> None:
    storage: DbLedgerStorage = MemoryBookie(("/d0", "/d1", "/d2"), small_options(directories=3)).open()
    assert storage.directory_of(ledger_id) is storage.directories[index]
    storage.close()


def test_rolled_logs_hold_what_the_index_says() -> None:
    bookie = MemoryBookie(options=small_options(log_size=4096))
    storage = bookie.open()
    wanted = {(ledger_id, n): entry(ledger_id, n, 300) for ledger_id in (1, 2) for n in range(40)}
    put(storage, *wanted.values())
    storage.flush()
    logs = {split_location(storage.directories[0].locations.get(*place))[0] for place in wanted}
    assert len(logs) > 5
    assert {place: storage.read(*place) for place in wanted} == wanted
    storage.close()


def test_a_requested_flush_that_failed_is_repeated_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(db, "RETRY_SECONDS", 0.01)
    bookie = MemoryBookie(options=small_options(half_bytes=4096))
    storage = bookie.open()
    failed, space = threading.Semaphore(0), threading.Event()
    storage.on_flush_failure(lambda error: failed.release())
    bookie.faults.fail("sync", path="/locations")
    put(storage, entry(1, 0, 5000))
    storage.request_flush(1)  # swaps, then fails
    assert failed.acquire(timeout=10)
    storage.on_space(space.set)
    put(storage, entry(1, 1, 5000))
    storage.request_flush(1)  # cannot swap: the first half is still frozen
    for _ in range(3):
        assert failed.acquire(timeout=10)
    assert storage.is_full(1)
    assert not space.is_set()
    bookie.faults.clear()
    assert space.wait(10)
    storage.flush()
    assert [storage.read(1, n) for n in range(2)] == [entry(1, n, 5000) for n in range(2)]
    storage.close()


def test_closing_ends_the_repetition() -> None:
    bookie = MemoryBookie(options=small_options(half_bytes=4096))
    storage = bookie.open()
    failed = threading.Semaphore(0)
    storage.on_flush_failure(lambda error: failed.release())
    bookie.faults.fail("create", path=".log")
    put(storage, entry(1, 0, 5000))
    with pytest.raises(StorageFault):
        storage.flush()
    put(storage, entry(1, 1, 5000))
    storage.request_flush(1)
    assert failed.acquire(timeout=10)
    storage.close()
    assert not any(isinstance(thread, threading.Timer) for thread in threading.enumerate())
    assert bookie.metrics.failures == 2


def test_a_deletion_takes_dicts_back_only_if_one_was_handed_out() -> None:
    storage = MemoryBookie().open()
    put(storage, entry(1, 0), entry(2, 0))
    storage.flush()
    swaps: list[int] = []
    storage.on_swap(lambda: swaps.append(1))
    storage.delete_ledger(1)
    assert swaps == []
    put(storage, entry(2, 1))
    storage.delete_ledger(2)
    assert swaps == [1]
    storage.close()


def test_a_flush_begins_at_the_threshold_and_nobody_waits() -> None:
    """Long before a half is full its entries go to the log; the half is never reported full."""
    swapped = threading.Event()
    options = changed(small_options(half_bytes=1 << 20), flush_threshold_bytes=16 << 10)
    bookie = MemoryBookie(options=options)
    storage = bookie.open()
    storage.start(Checkpoints())
    storage.on_swap(swapped.set)
    first = [entry(7, number, 400) for number in range(60)]
    put(storage, *first)
    assert swapped.wait(10)
    assert not storage.is_full(7)
    storage.flush()
    assert storage.directories[0].write_cache_usage()[1] == 0
    assert [storage.read(7, number) for number in range(60)] == first
    assert bookie.metrics.sizes, "entries reached the entry log"
    storage.close()


@pytest.mark.parametrize("tries", [1, 4])
def test_a_flush_on_a_full_disk_takes_no_more_than_its_entries_need(tries: int) -> None:
    """Each try goes on where the one before was; begun anew, it would eat what becomes free meanwhile."""
    bookie = MemoryBookie(options=small_options(half_bytes=16 << 20, log_size=32 << 20))
    storage = bookie.open()
    entries = [entry(1, number, 1000) for number in range(4000)]
    put(storage, *entries)
    bookie.files.set_capacity("/", used := bookie.files.usage("/").total - bookie.files.usage("/").usable)
    for _ in range(tries):
        bookie.files.set_capacity("/", used := used + (800 << 10))
        with pytest.raises(StorageFault):
            storage.flush()
    bookie.files.set_capacity("/", 1 << 40)
    storage.flush()
    written = sum(
        bookie.files.size(storage.directories[0].logs.path(log)) for log in storage.directories[0].logs.log_ids()
    )
    assert written < sum(map(len, entries)) + (1200 << 10)  # at most a slice is written twice
    assert [storage.read(1, number) for number in range(4000)] == entries
    storage.close()
