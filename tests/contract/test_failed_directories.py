"""A ledger directory whose disk takes no writes, in every engine: it is given up after a bounded number of tries, the
other goes on, nothing is denied, and what the failed one owes comes back with the journals."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from types import SimpleNamespace

import pytest

from bookie_pod.storage.engines.interface import FLUSH_TRIES, LedgerStorage
from bookie_pod.storage.entry_log.directories import DiskState
from bookie_protocol.errors import StorageFailed, StorageFault
from tests.support.memory_faults import MUTATING
from tests.support.memtable_engine import MemTableBookie, memtable_options
from tests.support.storage_engine import MemoryBookie, entry, put, small_options

SOUND, FAILED = "/l0", "/l1"
FAILURE = StorageFault(f"directory {FAILED} takes nothing")
WRITES, SYNCS, ALL = ("write", "writev", "pwrite"), ("sync", "datasync"), tuple(MUTATING)
LEDGERS = range(6)
SIZE = 400


def _memtable(name: str, *, per_ledger: bool = False) -> Callable[[], MemTableBookie]:
    """Logs of a few entries, and hardly any room for pages of the index."""
    options = memtable_options(log_size=4096, page_bytes=64, page_limit=3, per_ledger=per_ledger, isolates=True)
    return lambda: MemTableBookie(name, (SOUND, FAILED), options=options)


ENGINES: dict[str, Callable[[], MemoryBookie | MemTableBookie]] = {
    "db": lambda: MemoryBookie((SOUND, FAILED), small_options(directories=2, log_size=4096)),
    "interleaved": _memtable("interleaved"),
    "sorted": _memtable("sorted"),
    "sorted, one log per ledger": _memtable("sorted", per_ledger=True),
}


@dataclass
class Told:
    """A bookie with one disk that fails, and everything that its clients were told is there."""

    bookie: MemoryBookie | MemTableBookie
    storage: LedgerStorage
    rounds: int = 0
    taken: list[tuple[int, int]] = field(default_factory=list)
    """(ledger, entry)."""
    failures: list[int] = field(default_factory=list)

    def put(self) -> list[int]:
        """One more entry of each ledger; the ledgers that took it."""
        takers = []
        for ledger_id in LEDGERS:
            with suppress(StorageFault):
                put(self.storage, entry(ledger_id, self.rounds, SIZE))
                takers.append(ledger_id)
        self.taken += [(ledger_id, self.rounds) for ledger_id in takers]
        self.rounds += 1
        return takers

    def flush(self) -> bool:
        try:
            self.storage.flush()
        except StorageFailed:
            raise
        except StorageFault:
            return False
        return True

    def give_up(self) -> None:
        """As the disk monitor does."""
        self.bookie.states[FAILED].report(FAILED, DiskState.FULL)
        self.storage.fail_directory(1, FAILURE)

    def readable(self) -> set[int]:
        """Ledgers of which everything can be read; nothing is denied, or another entry."""
        faults = set()
        for ledger_id, entry_id in self.taken:
            try:
                assert self.storage.read(ledger_id, entry_id) == entry(ledger_id, entry_id, SIZE)
            except StorageFault:
                faults.add(ledger_id)
        return set(LEDGERS) - faults

    def restart(self) -> None:
        """The disk is mended, and the journals bring everything back, since no mark has moved."""
        self.bookie.faults.clear()
        with suppress(StorageFault):
            self.storage.close()
        self.storage = self.bookie.open()
        for ledger_id, entry_id in self.taken:
            put(self.storage, entry(ledger_id, entry_id, SIZE))


@pytest.fixture(params=list(ENGINES))
def told(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    """With index files in both directories: by chance none may be in the one that fails, which nobody would notice."""
    turns = count()
    taking_turns = SimpleNamespace(choice=lambda candidates: candidates[next(turns) % len(candidates)])
    monkeypatch.setattr("bookie_pod.storage.index.ledger_cache.directories.random", taking_turns)
    bookie = ENGINES[request.param]()
    told = Told(bookie, bookie.open())
    told.storage.on_directory_failure(lambda index, failure: told.failures.append(index))
    told.put()
    assert told.flush()
    yield told
    bookie.faults.clear()
    with suppress(StorageFault):
        told.storage.close()


def fail(told: Told, operations: tuple[str, ...], number: int = errno.EIO) -> None:
    """Until the engine gives up trying."""
    told.bookie.faults.fail(*operations, path=f"{FAILED}/", errno=number)
    for _ in range(20 * FLUSH_TRIES):
        told.put()
        told.flush()
        if told.failures:
            return
    raise AssertionError("it is tried for ever")


@pytest.mark.parametrize(
    ("operations", "number"),
    [(WRITES, errno.EIO), (SYNCS, errno.EIO), (ALL, errno.EROFS)],
    ids=["writes", "syncs", "mounted read-only"],
)
def test_it_is_given_up_and_the_other_goes_on(told: Told, operations: tuple[str, ...], number: int) -> None:
    fail(told, operations, number)
    assert told.failures == [1]
    told.give_up()
    assert not told.flush()
    told.bookie.faults.log = []
    for _ in range(10):
        takers = told.put()
        assert len(takers) >= len(LEDGERS) // 2
        assert not told.flush(), "no mark may move"
        assert told.readable() >= set(takers)
    written = {each.path for each in told.bookie.faults.log if each.mutates and each.path.startswith(f"{FAILED}/")}
    assert {path for path in written if not path.endswith("/lastId")} == set()
    if isinstance(told.bookie, MemTableBookie) and operations is not ALL:
        assert takers == list(LEDGERS), "there are other places for its ledgers"
    told.restart()
    assert told.flush()
    assert told.readable() == set(LEDGERS)


def test_a_disk_that_cannot_be_read_either_is_no_reason_to_deny_anything(told: Told) -> None:
    fail(told, WRITES)
    told.give_up()
    told.bookie.faults.fail("pread", "open", "data_from", path=f"{FAILED}/")
    for _ in range(10):
        assert told.put()
        assert not told.flush()
        told.readable()
    for ledger_id in LEDGERS:
        with suppress(StorageFault):
            assert told.storage.last_entry_id(ledger_id) == max(at for each, at in told.taken if each == ledger_id)
    told.restart()
    assert told.flush()
    assert told.readable() == set(LEDGERS)


@pytest.mark.parametrize(
    ("operations", "number"), [(WRITES, errno.EIO), (ALL, errno.EROFS)], ids=["writes", "mounted read-only"]
)
def test_all_of_them_at_once_cost_nothing_that_was_told(told: Told, operations: tuple[str, ...], number: int) -> None:
    """Two disks behind one controller, say: no mark moves, nothing is denied, and a start brings everything back."""
    for folder in (SOUND, FAILED):
        told.bookie.faults.fail(*operations, path=f"{folder}/", errno=number)
    for _ in range(2 * FLUSH_TRIES):
        told.put()
        assert not told.flush()
    for index, folder in enumerate((SOUND, FAILED)):
        told.bookie.states[folder].report(folder, DiskState.FULL)
        told.storage.fail_directory(index, StorageFault(f"directory {folder} takes nothing"))
    for _ in range(3):
        told.put()
        assert not told.flush()
        told.readable()
    told.restart()
    assert told.flush()
    assert told.readable() == set(LEDGERS)


def test_a_ledger_that_is_deleted_meanwhile_does_not_stop_the_others(told: Told) -> None:
    fail(told, WRITES)
    told.give_up()
    told.bookie.faults.fail("unlink", path=f"{FAILED}/")
    gone = LEDGERS[1]
    told.storage.delete_ledger(gone)
    told.taken = [each for each in told.taken if each[0] != gone]
    for _ in range(3):
        told.put()
        assert not told.flush()
        told.readable()
    told.restart()
    assert told.flush()
    assert told.readable() == set(LEDGERS)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EMFILE])
def test_what_the_machine_lacks_is_no_failed_disk(told: Told, number: int) -> None:
    told.bookie.faults.fail(*WRITES, path=f"{FAILED}/", errno=number)
    for _ in range(2 * FLUSH_TRIES):
        told.put()
        told.flush()
    assert told.failures == []
    told.bookie.faults.clear()
    assert told.flush()
    assert told.readable() == set(LEDGERS)
