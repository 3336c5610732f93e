"""Looks at a ledger that is deleted in the middle of them: nobody is told damage for it, nor given a part for the
whole."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest

from bookie_pod.storage.engines.db import DbLedgerStorage
from bookie_pod.storage.engines.memtable_storage import MemTableStorage
from bookie_pod.storage.index.index_file import SLOT_BYTES, relative_path, slot_offset
from bookie_protocol.entry import LAST_ENTRY
from bookie_protocol.errors import EntryDamaged, NoSuchEntry, NoSuchLedger, NotThere, StorageFault
from tests.support.memtable_engine import ENGINES, MemTableBookie, memtable_options
from tests.support.storage_engine import MemoryBookie, entry, put

Storage = DbLedgerStorage | MemTableStorage
LEDGER, OTHER = 7, 8
HELD = [1, 2, 3, 4, 5]
"""In the first page of eight; entry 0 is on another bookie."""
FAR = range(16, 21)
"""In the third one."""


def forget(storage: Storage) -> None:
    storage.delete_ledger(LEDGER)
    storage.flush()


def make_anew(storage: Storage) -> None:
    forget(storage)
    put(storage, entry(LEDGER, 6))
    storage.flush()


def read_one(storage: Storage, ledger_id: int, entry_id: int) -> None:
    storage.read(ledger_id, entry_id)


def read_each(storage: Storage, ledger_id: int, entry_id: int) -> None:
    (found,) = storage.read_each(ledger_id, [entry_id])
    if isinstance(found, Exception):
        raise found


def read_apart(storage: Storage, ledger_id: int, entry_id: int) -> None:
    storage.read_apart(ledger_id, entry_id, 3, 1 << 20)


def once_before(monkeypatch: pytest.MonkeyPatch, place: object, name: str, action: Callable[[], None]) -> None:
    """The first call of a method finds that `action` was just done."""
    method = getattr(place, name)

    def call(*arguments: Any) -> Any:
        monkeypatch.setattr(place, name, method)
        action()
        return method(*arguments)

    monkeypatch.setattr(place, name, call)


def behind_the_first_look(
    monkeypatch: pytest.MonkeyPatch, storage: MemTableStorage, look: str, action: Callable[[], None]
) -> None:
    """`action` is done once an entry was not found, before it is asked whether it has ever been there (`_held`), or
    behind that, before it is looked for again (`get`)."""
    cache = storage.cache
    if look == "get":
        once_before(monkeypatch, cache, "_held", lambda: once_before(monkeypatch, cache, "get", action))
    else:
        once_before(monkeypatch, cache, look, action)


def fill(storage: Storage) -> None:
    put(storage, *(entry(ledger_id, each) for ledger_id in (LEDGER, OTHER) for each in (*HELD, *FAR)))
    storage.flush()


@pytest.fixture(params=list(ENGINES))
def memtable_bookie(request: pytest.FixtureRequest) -> MemTableBookie:
    return MemTableBookie(request.param, options=memtable_options(page_bytes=64))


@pytest.fixture
def memtable_storage(memtable_bookie: MemTableBookie) -> MemTableStorage:
    """Two ledgers, in pages of eight entries that are read from their files."""
    storage = memtable_bookie.open()
    fill(storage)
    storage.close()
    return memtable_bookie.open()


@pytest.fixture(params=["db", *ENGINES])
def storage(request: pytest.FixtureRequest) -> Storage:
    if request.param == "db":
        storage: Storage = MemoryBookie.without_read_cache().open()
    else:
        storage = MemTableBookie(request.param, options=memtable_options(page_bytes=64)).open()
    fill(storage)
    return storage


def damaged(bookie: MemTableBookie, storage: MemTableStorage, entry_ids: Sequence[int]) -> MemTableStorage:
    """The same, after a restart, but for the locations of these entries."""
    storage.close()
    path = f"{bookie.directories[0]}/{relative_path(LEDGER)}"
    bookie.files.corrupt(path, slot_offset(entry_ids[0]), bytes(SLOT_BYTES * len(entry_ids)))
    return bookie.open()


@pytest.mark.parametrize("change", [lambda storage: storage.delete_ledger(LEDGER), forget, make_anew])
@pytest.mark.parametrize("look", ["_held", "get"])
def test_of_a_page_that_went_with_its_ledger_no_damage_is_told(
    memtable_bookie: MemTableBookie,
    memtable_storage: MemTableStorage,
    change: Callable[[MemTableStorage], None],
    look: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before "the page held this location", or between that and "it holds it no more", its ledger went."""
    storage = damaged(memtable_bookie, memtable_storage, HELD[:1])
    with pytest.raises(EntryDamaged):
        storage.read(LEDGER, HELD[0])
    storage = damaged(memtable_bookie, storage, HELD[:1])
    behind_the_first_look(monkeypatch, storage, look, partial(change, storage))
    with pytest.raises(NotThere):
        storage.read(LEDGER, HELD[0])
    with pytest.raises(NoSuchEntry):
        storage.read(OTHER, 0)
    storage.close()


def test_nor_is_its_last_entry_damaged(memtable_storage: MemTableStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    once_before(monkeypatch, memtable_storage.cache, "last_entry_id", partial(forget, memtable_storage))
    with pytest.raises(NotThere):
        memtable_storage.read(LEDGER, LAST_ENTRY)
    memtable_storage.close()


@pytest.mark.parametrize("look", ["_held", "get"])
def test_an_entry_that_comes_back_meanwhile_is_not_denied(
    memtable_bookie: MemTableBookie, memtable_storage: MemTableStorage, look: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = damaged(memtable_bookie, memtable_storage, HELD[:2])

    def put_back() -> None:
        put(storage, *(entry(LEDGER, each) for each in HELD[:2]))
        storage.flush()

    behind_the_first_look(monkeypatch, storage, look, put_back)
    assert storage.read(LEDGER, HELD[0]) == entry(LEDGER, HELD[0])
    storage.close()


@pytest.mark.parametrize("look", ["last_held", "last_entry_id", "check_life"])
@pytest.mark.parametrize("lost", [FAR, range(24)], ids=["end", "all"])
def test_no_earlier_entry_is_the_last_one_while_that_comes_back(
    memtable_bookie: MemTableBookie,
    memtable_storage: MemTableStorage,
    look: str,
    lost: Sequence[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    storage = damaged(memtable_bookie, memtable_storage, lost)

    def put_back() -> None:
        put(storage, *(entry(LEDGER, each) for each in FAR))
        storage.flush()

    once_before(monkeypatch, storage.cache, look, put_back)
    try:
        assert storage.last_entry_id(LEDGER) == FAR[-1]
    except EntryDamaged:
        assert look == "check_life"
    assert storage.last_entry_id(LEDGER) == FAR[-1]
    storage.close()


def test_damage_is_told_though_the_ledger_grows_meanwhile(
    memtable_bookie: MemTableBookie, memtable_storage: MemTableStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = damaged(memtable_bookie, memtable_storage, HELD[:2])

    def grow() -> None:
        put(storage, *(entry(LEDGER, each) for each in range(32, 35)))
        storage.flush()

    behind_the_first_look(monkeypatch, storage, "get", grow)
    for entry_id in HELD[:2]:
        with pytest.raises(EntryDamaged, match="lost"):
            storage.read(LEDGER, entry_id)
    with pytest.raises(NoSuchEntry):
        storage.read(LEDGER, 0)
    put(storage, *(entry(LEDGER, each) for each in HELD[:2]))
    storage.flush()
    assert storage.read(LEDGER, HELD[0]) == entry(LEDGER, HELD[0])
    storage.close()


@pytest.mark.parametrize(("change", "told"), [(forget, NotThere), (make_anew, StorageFault)])
@pytest.mark.parametrize("read", [read_one, read_each, read_apart])
def test_an_entry_whose_log_went_with_its_ledger_is_not_there(
    storage: Storage,
    read: Callable[[Storage, int, int], object],
    change: Callable[[Storage], None],
    told: type[Exception],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Between the look into the index and the read its ledger was deleted, and the log collected. One that was made
    anew looks like one that has lost the location: nobody denies the entry."""
    logs = storage.directories[0].logs if isinstance(storage, DbLedgerStorage) else storage.logs

    def go() -> None:
        change(storage)
        raise StorageFault("entry log 0 is gone")

    once_before(monkeypatch, logs, "read_run", go)
    with pytest.raises(told):
        read(storage, LEDGER, HELD[1])
    storage.close()


@pytest.mark.parametrize("read", [read_one, read_each, read_apart])
def test_an_entry_that_was_moved_before_its_ledger_went_is_not_there(
    storage: Storage, read: Callable[[Storage, int, int], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of the two reads finds that its log is gone."""
    logs = storage.directories[0].logs if isinstance(storage, DbLedgerStorage) else storage.logs

    def moved() -> None:
        put(storage, entry(LEDGER, HELD[1]))
        storage.flush()
        once_before(monkeypatch, logs, "read_run", gone)
        raise StorageFault("entry log 0 is gone")

    def gone() -> None:
        forget(storage)
        raise StorageFault("entry log 1 is gone")

    once_before(monkeypatch, logs, "read_run", moved)
    with pytest.raises(NotThere):
        read(storage, LEDGER, HELD[1])
    storage.close()


@pytest.mark.parametrize("engine", list(ENGINES))
def test_a_location_that_is_lost_in_the_middle_of_a_read_is_no_deletion(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log cannot be read, and of a page that left memory meanwhile the file has lost the entry."""
    first = 8 * 64
    bookie = MemTableBookie(engine, options=memtable_options(page_bytes=64, page_limit=1))
    storage = bookie.open()
    put(storage, *(entry(LEDGER, first + each) for each in range(6)), entry(OTHER, 1))
    storage.flush()
    storage.read(LEDGER, first)

    def lose() -> None:
        path = f"{bookie.directories[0]}/{relative_path(LEDGER)}"
        bookie.files.corrupt(path, slot_offset(first + 1), bytes(SLOT_BYTES))
        storage.read(OTHER, 1)
        storage.delete_ledger(OTHER)  # of another ledger: it says nothing of this one
        raise StorageFault("entry log 0 cannot be read")

    once_before(monkeypatch, storage.logs, "read_run", lose)
    with pytest.raises(StorageFault, match=r"log 0 .*read"):
        storage.read(LEDGER, first + 1)
    storage.close()


@pytest.mark.parametrize("read", [read_one, read_each, read_apart])
def test_a_row_that_is_lost_in_the_middle_of_a_read_is_no_deletion(
    read: Callable[[Storage, int, int], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = MemoryBookie.without_read_cache().open()
    fill(storage)
    directory = storage.directories[0]

    def lose() -> None:
        monkeypatch.setattr(directory.locations, "get_each", lambda _, entry_ids: [0] * len(entry_ids))
        raise StorageFault("entry log 0 cannot be read")

    once_before(monkeypatch, directory.logs, "read_run", lose)
    with pytest.raises(StorageFault, match=r"log 0 .*read"):
        read(storage, LEDGER, HELD[1])
    storage.close()


def test_damage_is_told_at_the_place_that_an_entry_was_moved_to(
    storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = storage.directories[0]._log_reads if isinstance(storage, DbLedgerStorage) else storage._reads
    logs = storage.directories[0].logs if isinstance(storage, DbLedgerStorage) else storage.logs

    class AllDamaged(frozenset[int]):
        def __contains__(self, _: object) -> bool:
            return True

    def moved() -> None:
        put(storage, entry(LEDGER, HELD[1]))
        storage.flush()
        reads.damaged = AllDamaged()
        raise StorageFault("entry log 0 is gone")

    once_before(monkeypatch, logs, "read_run", moved)
    with pytest.raises(EntryDamaged):
        storage.read(LEDGER, HELD[1])
    storage.close()


def test_of_a_ledger_that_is_being_deleted_no_part_is_told(
    memtable_storage: MemTableStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two steps of a deletion: some entries are in memory, the others in the index."""
    put(memtable_storage, entry(LEDGER, FAR[-1] + 1))
    told: list[Exception] = []

    def look() -> None:
        for what in (memtable_storage.last_entry_id, lambda ledger_id: list(memtable_storage.entry_ids(ledger_id))):
            with pytest.raises(NoSuchLedger) as caught:
                what(LEDGER)
            told.append(caught.value)

    once_before(monkeypatch, memtable_storage.memtable, "delete", look)
    memtable_storage.delete_ledger(LEDGER)
    assert len(told) == 2
    memtable_storage.close()


@pytest.mark.parametrize("change", [forget, make_anew])
def test_a_list_that_was_cut_short_by_a_deletion_is_not_taken_for_whole(
    storage: Storage, change: Callable[[Storage], None]
) -> None:
    many = 3000
    put(storage, *(entry(LEDGER, each) for each in range(many)))
    storage.flush()
    assert list(storage.entry_ids(LEDGER)) == list(range(many))
    listed = storage.entry_ids(LEDGER)
    assert [next(listed) for _ in range(3)] == [0, 1, 2]
    change(storage)
    with pytest.raises(NoSuchLedger):
        list(listed)
    storage.close()


def last_entry_of(storage: Storage) -> object:
    return storage.last_entry_id(LEDGER)


def list_of(storage: Storage) -> object:
    return list(storage.entry_ids(LEDGER))


@pytest.mark.parametrize(("look", "part"), [(last_entry_of, "last_entry_id"), (list_of, "entry_ids")])
def test_no_answer_is_made_of_two_lives(
    storage: Storage, look: Callable[[Storage], object], part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look into memory and that into the index the ledger was deleted, and made anew."""
    put(storage, entry(LEDGER, FAR[-1] + 1))
    index = storage.directories[0].locations if isinstance(storage, DbLedgerStorage) else storage.cache
    once_before(monkeypatch, index, part, partial(make_anew, storage))
    with pytest.raises(NotThere):
        look(storage)
    assert storage.last_entry_id(LEDGER) == 6
    assert list_of(storage) == [6]
    storage.close()


def test_no_last_entry_is_made_of_what_memory_had_of_a_deleted_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    storage = MemoryBookie.without_read_cache().open()
    fill(storage)
    put(storage, entry(LEDGER, HELD[0]))
    once_before(monkeypatch, storage.directories[0].locations, "last_entry_id", partial(storage.delete_ledger, LEDGER))
    with pytest.raises(NoSuchLedger):
        storage.last_entry_id(LEDGER)
    storage.close()


def test_no_last_entry_is_made_of_the_undamaged_pages_of_a_deleted_ledger(
    memtable_bookie: MemTableBookie, memtable_storage: MemTableStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = damaged(memtable_bookie, memtable_storage, FAR)
    with pytest.raises(EntryDamaged):
        storage.last_entry_id(LEDGER)
    once_before(monkeypatch, storage.cache, "last_entry_id", partial(storage.delete_ledger, LEDGER))
    with pytest.raises(NotThere):
        storage.last_entry_id(LEDGER)
    storage.close()


def test_no_last_entry_is_made_of_what_a_deletion_left(
    memtable_storage: MemTableStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first page is in memory, the last one only in the file, which goes before it is looked at."""
    assert memtable_storage.read(LEDGER, HELD[0]) == entry(LEDGER, HELD[0])
    once_before(monkeypatch, memtable_storage.cache, "_pages_in_file", partial(forget, memtable_storage))
    with pytest.raises(NoSuchLedger):
        memtable_storage.last_entry_id(LEDGER)
    assert memtable_storage.last_entry_id(OTHER) == FAR[-1]
    memtable_storage.close()
