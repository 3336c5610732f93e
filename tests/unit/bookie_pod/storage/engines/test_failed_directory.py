"""One ledger directory of several whose disk failed."""

from __future__ import annotations

import errno
from contextlib import suppress

import pytest

from bookie_pod.storage.engines.db import DbLedgerStorage
from bookie_pod.storage.engines.interface import FLUSH_TRIES
from bookie_pod.storage.entry_log.interface import Row
from bookie_pod.storage.gc.storage import collected
from bookie_protocol.errors import NoSuchEntry, NotThere, NoWritableDirectory, StorageFault
from tests.support.storage_engine import MemoryBookie, entry, put, small_options

FAILURE = StorageFault("directory /ledgers1 is gone")
WRITES = ("write", "writev", "pwrite")


def test_the_others_go_on_and_it_never_denies() -> None:
    bookie = MemoryBookie(("/ledgers0", "/ledgers1"), small_options(directories=2))
    storage = bookie.open()
    for ledger_id in (2, 3):
        put(storage, entry(ledger_id, 0))
    storage.flush()
    for ledger_id in (2, 3):
        put(storage, entry(ledger_id, 1))
    voided: list[bool] = []
    storage.on_swap(lambda: voided.append(True))

    storage.fail_directory(1, FAILURE)
    assert voided, "dicts that were handed out are void"
    put(storage, entry(2, 2))
    with pytest.raises(StorageFault, match="/ledgers1 is gone") as refused:
        storage.active_entries(3)
    assert not isinstance(refused.value, NotThere)
    assert not storage.is_full(3), "nobody waits for it"
    assert storage.read(3, 1) == entry(3, 1), "what memory holds is served"
    for denied in (lambda: storage.read(3, 7), lambda: storage.last_entry_id(3), lambda: storage.entry_ids(3)):
        with pytest.raises(StorageFault):
            denied()
    with pytest.raises(NoSuchEntry):
        storage.read(2, 7)

    with pytest.raises(StorageFault):
        storage.flush()  # so no mark moves
    assert [part.failure is None for part in collected(storage)] == [True, False]
    storage.close()
    storage = bookie.open()
    assert [storage.read(2, each) for each in range(3)] == [entry(2, each) for each in range(3)]
    assert storage.read(3, 0) == entry(3, 0)
    storage.close()


def test_a_disk_that_fails_during_a_read_is_not_asked_again_and_is_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    bookie = MemoryBookie.without_read_cache()
    storage = bookie.open()
    put(storage, entry(3, 0))
    storage.flush()
    lookups = bookie.metrics.lookups

    def fails(*at: int) -> list[Row]:
        storage.fail_directory(0, FAILURE)
        raise StorageFault("input/output error")

    monkeypatch.setattr(storage.directories[0].logs, "read_run", fails)
    for _ in range(2):
        with pytest.raises(StorageFault, match="/ledgers1 is gone"):
            storage.read(3, 0)
    assert bookie.metrics.lookups == lookups + 1
    storage.close()


def test_a_disk_that_fails_during_a_flush_is_what_the_flush_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = MemoryBookie().open()
    put(storage, entry(3, 0))

    def fails(*arguments: object, **named: object) -> list[int]:
        storage.fail_directory(0, FAILURE)
        raise NoWritableDirectory("all are full")  # as a directory that failed is

    monkeypatch.setattr(storage.directories[0].logs, "append_run", fails)
    with pytest.raises(StorageFault, match="/ledgers1 is gone") as told:
        storage.flush()
    assert not isinstance(told.value, NoWritableDirectory)
    storage.close()


def failing(number: int) -> tuple[DbLedgerStorage, list[tuple[int, str]]]:
    """Two directories; each write to a log of the second one fails with this error. What is told of it."""
    bookie = MemoryBookie(("/ledgers0", "/ledgers1"), small_options(directories=2))
    storage = bookie.open()
    bookie.faults.fail(*WRITES, path="/ledgers1/", errno=number)
    told: list[tuple[int, str]] = []
    storage.on_directory_failure(lambda index, failure: told.append((index, str(failure))))
    return storage, told


def test_a_directory_whose_writes_fail_again_and_again_is_told_of_once() -> None:
    storage, told = failing(errno.EIO)
    for ledger_id in (2, 3):
        put(storage, entry(ledger_id, 0))
    for _ in range(FLUSH_TRIES - 1):
        with pytest.raises(StorageFault):
            storage.flush()
    assert told == []
    for _ in range(3):
        with pytest.raises(StorageFault):
            storage.flush()
    ((index, why),) = told
    assert index == 1
    assert "Input/output error" in why
    assert storage.read(3, 0) == entry(3, 0)
    with suppress(StorageFault):  # what is open cannot be written
        storage.close()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE])
def test_what_the_machine_lacks_is_no_failed_disk(number: int) -> None:
    storage, told = failing(number)
    put(storage, entry(3, 0))
    for _ in range(FLUSH_TRIES + 2):
        with pytest.raises(StorageFault):
            storage.flush()
    assert told == []
    with suppress(StorageFault):  # what is open cannot be written
        storage.close()


def test_flushes_that_fail_now_and_then_are_no_failed_disk() -> None:
    bookie = MemoryBookie()
    told: list[int] = []
    storage = bookie.open()
    storage.on_directory_failure(lambda index, failure: told.append(index))
    for number in range(2 * FLUSH_TRIES):
        put(storage, entry(3, number))
        bookie.faults.fail(*WRITES, path=".log", times=1)
        with pytest.raises(StorageFault):
            storage.flush()
        storage.flush()
    assert told == []
    storage.close()


def test_a_thread_that_flushes_for_a_checkpoint_is_seen_at_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each for itself: a disk that hangs is no slower because others go on."""
    storage = MemoryBookie(("/ledgers0", "/ledgers1"), small_options(directories=2)).open()
    hanging = storage.directories[1]
    flush, seen = hanging.flush_and_seal, []

    def hang() -> None:
        put(storage, entry(2, 0))
        for _ in range(2):
            seen.append(storage.flushing()[1])
            storage.directories[0].flush()
        flush()

    monkeypatch.setattr(hanging, "flush_and_seal", hang)
    storage.flush()
    assert seen[0] == seen[1] != ("storage-1", None)
    assert storage.flushing()[1] == ("storage-1", None)
    storage.close()
