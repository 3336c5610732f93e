"""What every storage engine must do, whatever its files look like.

An engine joins by adding a factory to `ENGINES`: it gets a folder of its own and gives functions that open the engine
over that folder, again and again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bookie_pod.ledgers.operations import LedgerOperations
from bookie_pod.ledgers.registry import Ledgers
from bookie_pod.storage.engines.db import DbLedgerStorage
from bookie_pod.storage.engines.interface import LedgerStorage
from bookie_pod.storage.files_posix import PosixFiles
from bookie_pod.storage.index.ledger_data import (
    MAX_EXPLICIT_LAC_BYTES,
    MAX_KEY_BYTES,
    LedgerRecord,
    check_storable,
)
from bookie_protocol.entry import LAST_ENTRY
from bookie_protocol.errors import BadRequest, LedgerStateUnknown, NoSuchEntry, NoSuchLedger, Unauthorized
from tests.support.memory_files import MemoryFiles
from tests.support.memtable_engine import MemTableBookie, memtable_options, open_memtable_engine
from tests.support.server_rig import HeldJournal
from tests.support.storage_engine import KEY, MemoryBookie, entry, open_engine, put, small_options

LAC_PACKET = bytes(range(20))
Opener = Callable[[], LedgerStorage]


def _db_in_memory(folder: Path) -> Opener:
    return MemoryBookie().open


def _db_on_disk(folder: Path) -> Opener:
    return lambda: open_engine(PosixFiles(), [str(folder / "current")], small_options())


def _db_on_three_disks(folder: Path) -> Opener:
    directories = [str(folder / name / "current") for name in ("a", "b", "c")]
    return lambda: open_engine(PosixFiles(), directories, small_options(directories=3))


def _memtable_in_memory(name: str) -> Callable[[Path], Opener]:
    """Index files have a slot for each entry id: sparse on disk, but not in the files of memory, which are short."""
    return lambda folder: MemTableBookie(name, files=MemoryFiles(largest_file=9 << 20)).open


def _memtable_on_disks(name: str, *, per_ledger: bool = False) -> Callable[[Path], Opener]:
    """Two ledger directories, two index directories of their own, and hardly any room for index pages."""

    def factory(folder: Path) -> Opener:
        ledgers = [str(folder / part / "current") for part in ("a", "b")]
        indexes = [str(folder / part / "current") for part in ("c", "d")]
        options = memtable_options(page_bytes=64, page_limit=2, open_files=1, per_ledger=per_ledger)
        return lambda: open_memtable_engine(name, PosixFiles(), ledgers, options, index_directories=indexes)

    return factory


ENGINES: dict[str, Callable[[Path], Opener]] = {
    "db, memory": _db_in_memory,
    "db, RocksDB": _db_on_disk,
    "db, RocksDB, three directories": _db_on_three_disks,
    "interleaved, memory": _memtable_in_memory("interleaved"),
    "interleaved, four directories": _memtable_on_disks("interleaved"),
    "sorted, memory": _memtable_in_memory("sorted"),
    "sorted, four directories": _memtable_on_disks("sorted"),
    "sorted, one log per ledger": _memtable_on_disks("sorted", per_ledger=True),
}


class Engine:
    """The engine under test, which can be closed and opened again."""

    def __init__(self, factory: Callable[[Path], Opener], folder: Path) -> None:
        self._opener = factory(folder)
        self.storage = self._opener()

    def reopen(self) -> LedgerStorage:
        self.storage.close()
        self.storage = self._opener()
        return self.storage


@pytest.fixture(params=list(ENGINES.values()), ids=list(ENGINES))
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(request.param, tmp_path)
    yield engine
    engine.storage.close()


def test_an_entry_is_readable_from_the_put_on_and_after_a_restart(engine: Engine) -> None:
    data = entry(7, 0)
    put(engine.storage, data)
    assert engine.storage.cached(7, 0) == data
    assert engine.storage.read(7, 0) == data
    engine.storage.flush()
    assert engine.storage.read(7, 0) == data
    assert engine.reopen().read(7, 0) == data


def test_a_run_from_memory_has_no_gap_and_is_as_long_as_asked(engine: Engine) -> None:
    entries = [entry(7, number) for number in range(6)]
    put(engine.storage, *entries[:3], *entries[4:])
    assert engine.storage.cached_run(7, range(10)) == entries[:3]
    assert engine.storage.cached_run(7, range(1, 2)) == entries[1:2]
    assert engine.storage.cached_run(7, range(3, 8)) == []
    assert engine.storage.cached_run(8, range(5)) == []
    put(engine.storage, entries[3])
    assert engine.storage.cached_run(7, range(10)) == entries
    engine.storage.delete_ledger(7)
    assert engine.storage.cached_run(7, range(10)) == []


def test_a_run_is_what_single_reads_of_memory_give_wherever_that_is(engine: Engine) -> None:
    """With any step, and the newest copy of each."""
    storage = engine.storage

    def check() -> None:
        for ids in (range(12), range(1, 12), range(0, 12, 3), range(2, 30, 3), range(11, 12), range(0)):
            alone = [storage.cached(7, entry_id) for entry_id in ids]
            assert storage.cached_run(7, ids) == alone[: [*alone, None].index(None)]

    put(storage, *(entry(7, number) for number in range(12)))
    check()
    storage.flush()
    check()
    assert [storage.read(7, number) for number in range(0, 12, 2)] == [entry(7, number) for number in range(0, 12, 2)]
    check()
    put(storage, *(entry(7, number, mark=b"y") for number in (3, 4, 5)))
    check()
    storage.delete_ledger(7)
    check()


def test_reading_apart_gives_the_same_entries_wherever_they_are(engine: Engine) -> None:
    entries = [entry(7, number) for number in range(12)]
    put(engine.storage, *entries[:6])
    engine.storage.flush()
    storage = engine.reopen()
    put(storage, *entries[6:])
    found: list[bytes] = []
    while len(found) < 12:
        run = storage.read_apart(7, len(found), 12 - len(found), 1 << 20)
        assert run
        found += run
    assert found == entries
    assert storage.read_apart(7, 4, 1, 0) == entries[4:5]
    with pytest.raises(NoSuchEntry):
        storage.read_apart(7, 12, 5, 1 << 20)
    with pytest.raises(NoSuchLedger):
        storage.read_apart(8, 0, 5, 1 << 20)


def test_what_is_not_there_is_told_apart(engine: Engine) -> None:
    storage = engine.storage
    with pytest.raises(NoSuchLedger):
        storage.read(1, 0)
    with pytest.raises(NoSuchLedger):
        storage.last_entry_id(1)
    with pytest.raises(NoSuchLedger):
        storage.entry_ids(1)
    storage.set_master_key(1, KEY)
    with pytest.raises(NoSuchEntry):
        storage.read(1, 0)
    with pytest.raises(NoSuchEntry):
        storage.read(1, LAST_ENTRY)
    assert list(storage.entry_ids(1)) == []
    put(storage, entry(1, 5))
    for _ in range(2):
        with pytest.raises(NoSuchEntry):
            storage.read(1, 4)
        with pytest.raises(NoSuchEntry):
            storage.read(1, 6)
        storage.flush()


def test_a_newer_copy_of_an_entry_wins_at_every_level(engine: Engine) -> None:
    storage = engine.storage
    first, second, third = (entry(3, 9, 64, mark) for mark in (b"a", b"b", b"c"))
    put(storage, first)
    storage.flush()
    assert storage.read(3, 9) == first
    put(storage, second, third)
    assert storage.read(3, 9) == third
    storage.flush()
    assert storage.read(3, 9) == third
    assert engine.reopen().read(3, 9) == third


def test_entries_that_are_put_as_a_run_are_put_as_single_ones_are(engine: Engine) -> None:
    storage = engine.storage
    first = [entry(1, number, mark=b"1") for number in range(40)]
    second = [entry(1, number, mark=b"2") for number in range(80)]
    put(storage, *first)
    storage.active_entries(1).update(zip(range(80), second, strict=True))
    storage.account(1, sum(map(len, second)), 80)
    for _ in range(2):
        assert [storage.read(1, number) for number in range(80)] == second
        storage.flush()
        storage = engine.reopen()


def test_the_last_entry_is_the_highest_id_wherever_it_is(engine: Engine) -> None:
    storage = engine.storage
    put(storage, entry(5, 100), entry(5, 7))
    assert storage.last_entry_id(5) == 100
    storage.flush()
    put(storage, entry(5, 3))  # a recovery add of an old entry must not hide the higher one on disk
    assert storage.last_entry_id(5) == 100
    assert storage.read(5, LAST_ENTRY) == entry(5, 100)
    put(storage, entry(5, 101))
    assert storage.last_entry_id(5) == 101
    storage.flush()
    assert engine.reopen().last_entry_id(5) == 101


def test_entry_ids_come_ascending_from_memory_and_disk(engine: Engine) -> None:
    storage = engine.storage
    put(storage, *(entry(4, e) for e in (9, 1, 5)), entry(5, 2))
    storage.flush()
    put(storage, *(entry(4, e) for e in (0, 5, 12)))
    assert list(storage.entry_ids(4)) == [0, 1, 5, 9, 12]
    storage.flush()
    assert list(engine.reopen().entry_ids(4)) == [0, 1, 5, 9, 12]


def test_negative_neighbours_and_large_ids(engine: Engine) -> None:
    storage = engine.storage
    largest, largest_entry = (1 << 63) - 1, storage.max_entry_id
    assert largest_entry >= (1 << 20) - 1
    put(storage, entry(largest, 0), entry(0, largest_entry), entry(0, 0), entry(1, 0))
    storage.flush()
    assert storage.last_entry_id(0) == largest_entry
    assert storage.last_entry_id(largest) == 0
    assert list(storage.entry_ids(0)) == [0, largest_entry]
    assert sorted(engine.reopen().ledger_ids()) == [0, 1, largest]


def test_what_is_taken_can_be_flushed(engine: Engine) -> None:
    record = LedgerRecord(b"k" * MAX_KEY_BYTES, fenced=True, limbo=True, explicit_lac=b"l" * MAX_EXPLICIT_LAC_BYTES)
    check_storable(record.key, record.explicit_lac)
    engine.storage.set_ledger(1, record)
    engine.storage.flush()
    assert engine.reopen().ledger(1) == record


def test_what_is_longer_than_any_engine_takes_is_refused_where_it_comes_in(engine: Engine) -> None:
    with pytest.raises(BadRequest, match="key of 513"):
        engine.storage.set_master_key(1, b"k" * (MAX_KEY_BYTES + 1))
    assert engine.storage.ledger(1) is None
    with pytest.raises(BadRequest, match="explicit LAC of 481 bytes"):
        check_storable(KEY, b"l" * (MAX_EXPLICIT_LAC_BYTES + 1))


def test_a_flush_shows_how_far_it_has_come(engine: Engine) -> None:
    storage = engine.storage
    put(storage, *(entry(ledger_id, 0) for ledger_id in range(4)))
    before = storage.written()
    storage.flush()
    assert storage.written() >= before + 4
    assert [at for _, at in storage.flushing()] == [None] * len(storage.flushing())


def test_ledger_records_survive_a_flush_even_without_entries(engine: Engine) -> None:
    storage = engine.storage
    storage.set_master_key(11, KEY)
    record = storage.ledger(11)
    assert record is not None
    storage.set_ledger(11, replace(record, fenced=True, explicit_lac=LAC_PACKET))
    storage.flush()
    reopened = engine.reopen()
    assert reopened.ledger(11) == replace(record, fenced=True, explicit_lac=LAC_PACKET)
    assert reopened.ledger(12) is None


@pytest.mark.parametrize("unknown", [b"", bytes(20)])
def test_a_key_that_nobody_knows_yet_is_replaced_by_the_first_real_one(engine: Engine, unknown: bytes) -> None:
    storage = engine.storage
    assert storage.set_master_key(1, unknown).key == unknown
    assert storage.set_master_key(1, KEY).key == KEY
    assert storage.set_master_key(1, unknown).key == KEY
    with pytest.raises(Unauthorized, match="ledger 1"):
        storage.set_master_key(1, KEY[::-1])
    storage.flush()
    record = engine.reopen().ledger(1)
    assert record is not None
    assert record.key == KEY


def test_a_deleted_ledger_is_gone_and_its_neighbours_are_not(engine: Engine) -> None:
    storage = engine.storage
    for ledger_id in (6, 7, 8):
        put(storage, entry(ledger_id, 0))
    storage.flush()
    put(storage, *(entry(ledger_id, 1) for ledger_id in (6, 7, 8)))
    storage.set_ledger(7, LedgerRecord(KEY, fenced=True))
    deleted: list[tuple[int, bool]] = []
    storage.on_ledger_deleted(lambda ledger_id, fenced, next_log: deleted.append((ledger_id, fenced)))
    for ledger_id in (7, 7, 1007):
        storage.delete_ledger(ledger_id)
    assert deleted == [(7, True), (7, False), (1007, False)]
    for _ in range(3):
        assert storage.ledger(7) is None
        assert storage.cached(7, 0) is None
        for entry_id in (0, 1, LAST_ENTRY):
            with pytest.raises(NoSuchLedger):
                storage.read(7, entry_id)
        for ledger_id in (6, 8):
            assert storage.read(ledger_id, 0) == entry(ledger_id, 0)
            assert storage.read(ledger_id, 1) == entry(ledger_id, 1)
        storage.flush()
        storage = engine.reopen()


def test_a_ledger_made_anew_after_its_deletion_keeps_only_what_is_new(engine: Engine) -> None:
    storage = engine.storage
    put(storage, entry(7, 0), entry(7, 50))
    storage.flush()
    put(storage, entry(7, 1))
    storage.delete_ledger(7)
    put(storage, entry(7, 2, mark=b"n"))
    for _ in range(2):
        assert storage.last_entry_id(7) == 2
        assert list(storage.entry_ids(7)) == [2]
        with pytest.raises(NoSuchEntry):
            storage.read(7, 0)
        storage.flush()
    assert list(engine.reopen().entry_ids(7)) == [2]


def test_deleting_twice_around_a_flush_forgets_both_lives(engine: Engine) -> None:
    storage = engine.storage
    put(storage, entry(7, 0))
    storage.delete_ledger(7)
    put(storage, entry(7, 1))
    storage.flush()
    storage.delete_ledger(7)
    storage.delete_ledger(8)  # never existed
    storage.flush()
    storage.set_master_key(7, KEY)
    assert list(storage.entry_ids(7)) == []
    storage.flush()
    with pytest.raises(NoSuchEntry):
        engine.reopen().read(7, 1)


def test_a_ledger_in_limbo_serves_what_it_has_and_denies_nothing(engine: Engine) -> None:
    storage = engine.storage
    put(storage, entry(2, 3))
    record = storage.ledger(2)
    assert record is not None
    storage.set_ledger(2, replace(record, limbo=True))
    for _ in range(2):
        assert storage.read(2, 3) == entry(2, 3)
        with pytest.raises(LedgerStateUnknown):
            storage.read(2, 4)
        with pytest.raises(LedgerStateUnknown):
            storage.read(2, LAST_ENTRY)
        storage.flush()
        storage = engine.reopen()


def test_an_entry_that_comes_back_in_the_middle_of_a_search_is_not_denied(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another bookie's copies are stored, and the ledger leaves its limbo, while a slow look-up finds nothing."""
    storage = engine.storage
    put(storage, entry(1, 0))
    storage.flush()
    record = storage.ledger(1)
    assert record is not None
    storage.set_ledger(1, replace(record, limbo=True))
    index, name = (
        (storage.directory_of(1).locations, "get_each")
        if isinstance(storage, DbLedgerStorage)
        else (storage.cache, "get")  # type: ignore[attr-defined]
    )
    look_up = getattr(index, name)

    def slow(ledger_id: int, entry_ids: object) -> object:
        found = look_up(ledger_id, entry_ids)
        put(storage, entry(1, 7))
        storage.set_ledger(1, record)
        return found

    monkeypatch.setattr(index, name, slow)
    with pytest.raises(LedgerStateUnknown):
        storage.read(1, 7)
    assert storage.read(1, 7) == entry(1, 7)


def test_callbacks_of_a_swap(engine: Engine) -> None:
    storage, calls = engine.storage, []
    storage.on_swap(lambda: calls.append("swap"))
    storage.on_space(lambda: calls.append("space"))
    storage.flush()
    assert calls == []  # nothing was in the cache, so the dicts handed out stay valid
    handed_out = storage.active_entries(1)
    put(storage, entry(1, 0))
    assert storage.active_entries(1) is handed_out
    storage.flush()
    assert calls == ["swap", "space"]
    assert storage.active_entries(1) is not handed_out


def test_closing_twice_is_no_error(engine: Engine) -> None:
    engine.storage.close()
    engine.storage.close()


def test_nothing_keeps_the_entries_of_a_half_for_long_once_it_was_flushed(engine: Engine) -> None:
    """A ledger that is written and then left alone, as each ledger is in the end, costs no memory."""
    storage = engine.storage
    ledgers = Ledgers(storage, 1)
    operations = LedgerOperations(ledgers, [HeldJournal()])
    lanes = operations.lanes()
    for entry_id in range(3):
        lane = operations.add(lanes, 7, entry_id, -1, KEY, entry(7, entry_id), recovery=False)
        operations.submit(lane, 1, lambda error: None)
    state = ledgers.states[7]
    assert state.hot_key == KEY
    storage.last_entry_id(7)
    held = storage.active_entries(7)
    in_memory = sys.getrefcount(held)
    for entry_id in range(20):
        put(storage, entry(10, entry_id, 100_000))  # in the same directory
        storage.flush()
    assert sys.getrefcount(held) == 2  # this test's own name, and the call itself
    assert in_memory > 2
    assert storage.read(7, 2) == entry(7, 2)
