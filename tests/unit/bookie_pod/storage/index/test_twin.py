"""A second index that is built beside the one in use, and becomes it; both keep up with what changes."""

from __future__ import annotations

import pytest

from bookie_pod.storage.index import ledgers as ledgers_module
from bookie_pod.storage.index import locations as module
from bookie_pod.storage.index.ledger_data import LedgerRecord
from bookie_pod.storage.index.ledgers import NEEDS_INTEGRITY_CHECK, LedgerIndex
from bookie_pod.storage.index.locations import MAX_ENTRY_ID, LocationIndex, LocationRun
from bookie_pod.storage.index.store import OrderedStore, StoreKind
from bookie_protocol.errors import StorageFault
from tests.support.memory_store import MemoryStores

KEY = bytes(range(20))


class Rig:
    """An index with a few rows, and stores that fail as they are told."""

    def __init__(self) -> None:
        self.stores = MemoryStores()
        self.index = LocationIndex(self.open("used"))
        self.index.write([LocationRun(1, [0, 1], [10, 11])])

    def open(self, name: str) -> OrderedStore:
        return self.stores.open(f"/{name}/locations", StoreKind.LOCATIONS)


@pytest.fixture
def rig() -> Rig:
    return Rig()


def _known(ledger_id: int) -> bool:
    return ledger_id != 5


def test_a_scan_fills_in_what_nobody_knows_better(rig: Rig) -> None:
    twin = rig.index.attach(rig.open("twin"))
    found = rig.index.offer(twin, 1, [(0, 10), (1, 99), (7, 70)], _known)
    assert (found.put, found.same) == (3, 1)
    assert [twin.get(1, entry_id) for entry_id in (0, 1, 7, 8)] == [10, 99, 70, 0]
    rig.index.write([LocationRun(1, [2], [12])])
    assert twin.get(1, 2) == 12
    found = rig.index.offer(twin, 1, [(2, 77), (0, 10)], _known)
    assert (found.put, found.same) == (1, 1)
    assert twin.get(1, 2) == 12, "it is newer than the scan"
    assert rig.index.offer(twin, 5, [(0, 50)], _known).put == 0
    rig.index.delete_ledger(1)
    assert rig.index.offer(twin, 1, [(3, 13)], _known).put == 0
    assert twin.get(1, 3) == 0


def test_an_index_that_cannot_be_read_knows_nothing_better(rig: Rig) -> None:
    twin = rig.index.attach(rig.open("twin"))
    rig.index.write([LocationRun(1, [2], [12])])
    rig.stores.faults.fail("get", path="/used")
    found = rig.index.offer(twin, 1, [(2, 77)], _known)
    assert (found.put, found.same, twin.get(1, 2)) == (1, 0, 77)


def test_rows_that_no_log_confirms_are_kept_unless_they_changed(rig: Rig) -> None:
    twin = rig.index.attach(rig.open("twin"))
    assert not rig.index.keep(twin, 1, 0, 99), "it is another row by now"
    assert twin.get(1, 0) == 0
    assert rig.index.keep(twin, 1, 0, 10)
    assert twin.get(1, 0) == 10
    assert not rig.index.keep(twin, 1, 0, 10), "it has one"
    assert not rig.index.keep(twin, 1, 6, 60), "there is none"


def test_deletions_and_moves_reach_both(rig: Rig) -> None:
    twin = rig.index.attach(rig.open("twin"))
    rig.index.write([LocationRun(2, [0, MAX_ENTRY_ID], [20, 21]), LocationRun(3, [0], [30])])
    rig.index.move([module.EntryMove(3, 0, 30, 300)])
    rig.index.delete_ledger(2)
    rig.index.write([], rig.index.pending_deletions())
    assert [twin.get(2, 0), twin.get(2, MAX_ENTRY_ID), twin.get(3, 0)] == [0, 0, 300]


def test_a_twin_that_fails_ends_the_rebuild_and_nothing_else(rig: Rig) -> None:
    twin = rig.index.attach(rig.open("twin"))
    rig.stores.faults.fail("write", path="/twin", times=1)
    rig.index.write([LocationRun(1, [2], [12])])
    assert rig.index.get(1, 2) == 12
    failure = twin.failure
    assert failure is not None
    rig.index.write([LocationRun(1, [3], [13])])
    assert twin.failure is failure
    assert list(twin.store.scan()) == [], "nothing is written to it any more"
    for refused in (
        lambda: rig.index.offer(twin, 1, [(0, 10)], _known),
        lambda: rig.index.keep(twin, 1, 0, 10),
        lambda: rig.index.adopt(twin, lambda: rig.open("third")),
    ):
        with pytest.raises(StorageFault, match="follow"):
            refused()
    assert rig.index.get(1, 3) == 13
    rig.index.detach()
    rig.index.write([LocationRun(1, [4], [14])])


def test_one_that_is_not_wanted_follows_no_more(rig: Rig) -> None:
    twin = rig.index.attach(rig.open("twin"))
    rig.index.detach()
    rig.index.write([LocationRun(1, [2], [12])])
    rig.index.delete_ledger(1)
    assert (twin.get(1, 2), twin.deleted) == (0, set())


def test_the_twin_becomes_the_index(rig: Rig) -> None:
    twin = rig.index.attach(rig.open("twin"))
    rig.index.offer(twin, 1, [(0, 10)], _known)
    rig.index.unsealed = False
    used = rig.index._store
    synced = rig.stores.faults.counts["sync"]
    rig.index.adopt(twin, lambda: rig.open("twin"))
    assert rig.stores.faults.counts["sync"] > synced
    assert (rig.index.get(1, 0), rig.index.get(1, 1), rig.index.unsealed) == (10, 0, True)
    assert rig.index.path == "/twin/locations"
    with pytest.raises(StorageFault, match="closed"):
        used.get(b"")
    rig.index.write([LocationRun(1, [5], [15])])
    assert rig.index.get(1, 5) == 15


def test_a_look_up_that_meets_the_change_is_repeated(rig: Rig) -> None:
    def look(store: OrderedStore) -> str:
        if store.path == "/used/locations":
            rig.index._store = rig.open("other")
            raise StorageFault("it is closed")
        return store.path

    assert rig.index._ask(look) == "/other/locations"
    asked = []

    def fails(store: OrderedStore) -> None:
        asked.append(store)
        raise StorageFault("it is damaged")

    with pytest.raises(StorageFault, match="damaged"):
        rig.index._ask(fails)
    assert len(asked) == 1, "the same store says the same"


@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 6, 7])
def test_rows_are_read_a_few_at_a_time(rig: Rig, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "ROWS_AT_ONCE", 3)
    ids = [2 * number for number in range(count - 1)] + [MAX_ENTRY_ID] * bool(count)
    rig.index.write([LocationRun(2, ids, range(1, count + 1)), LocationRun(3, [0], [99])])
    rows = list(zip(ids, range(1, count + 1), strict=True))
    assert list(rig.index.rows(2)) == rows
    assert list(rig.index.rows(2, 3)) == [row for row in rows if row[0] >= 3]
    assert rig.index.get_each(2, [0, 1, 2]) == [dict(rows).get(entry_id, 0) for entry_id in (0, 1, 2)]
    rig.index.delete_ledger(2)
    assert rig.index.get_each(2, [0, 1, 2]) == [0, 0, 0]


def test_a_compaction_is_one_of_the_store(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    compacted: list[bool] = []
    monkeypatch.setattr(rig.index._store, "compact", lambda: compacted.append(rig.index._compacting.locked()))
    rig.index.compact()
    assert compacted == [True], "no store takes its place meanwhile"
    assert not rig.index._compacting.locked()


def test_only_what_is_in_doubt_is_settled(rig: Rig) -> None:
    syncs = rig.stores.faults.counts
    before = syncs["sync"]
    rig.index.settle()
    assert syncs["sync"] == before
    rig.stores.faults.fail("sync", times=1)
    rig.index.unsealed = False
    with pytest.raises(StorageFault):
        rig.index.write([LocationRun(1, [2], [12])])
    assert rig.index.unsealed
    before = syncs["sync"]
    rig.index.settle()
    assert syncs["sync"] == before + 1
    rig.index.settle()
    assert syncs["sync"] == before + 1


@pytest.mark.parametrize("most", [1, 2, 5, 100])
def test_deletions_are_cut_into_batches_too(most: int) -> None:
    stores = MemoryStores()
    index = LocationIndex(stores.open("/used/locations", StoreKind.LOCATIONS), max_batch=most)
    index.write([LocationRun(ledger_id, [0, MAX_ENTRY_ID], [1, 2]) for ledger_id in range(10)])
    for ledger_id in range(9):
        index.delete_ledger(ledger_id)
    operations = stores.faults.record()
    index.write([], index.pending_deletions())
    writes = [operation for operation in operations if operation.name == "write"]
    assert len(writes) == -(-18 // max(2, most + most % 2))
    assert [(ledger_id, list(index.entry_ids(ledger_id))) for ledger_id in (8, 9)] == [(8, []), (9, [0, MAX_ENTRY_ID])]


# --- ledgers ------------------------------------------------------------------------------------------------------


def _ledgers(stores: MemoryStores, name: str) -> OrderedStore:
    return stores.open(f"/{name}/ledgers", StoreKind.LEDGERS)


def test_a_new_database_of_ledgers_gets_what_changed_while_it_was_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers_module, "_ROWS_PER_BATCH", 2)
    stores = MemoryStores()
    index = LedgerIndex(_ledgers(stores, "used"))
    for ledger_id in range(5):
        index.set_master_key(ledger_id, KEY)
    index.set_flags(NEEDS_INTEGRITY_CHECK)
    index.write(index.records(index.take_dirty()))
    fresh = _ledgers(stores, "fresh")
    filling = index.fill(fresh)
    assert next(filling) == 2
    index.put(0, LedgerRecord(KEY, fenced=True))
    index.delete(1)
    index.set_master_key(9, KEY)
    index.write(index.records(index.take_dirty()))
    assert list(filling) == [2, 1]
    index.unsealed = False
    before = stores.faults.counts["sync"]
    index.adopt(fresh, lambda: _ledgers(stores, "fresh"))
    assert stores.faults.counts["sync"] == before + 1, "it is durable before it is used"
    assert (index.path, index.unsealed, index.flags()) == ("/fresh/ledgers", True, NEEDS_INTEGRITY_CHECK)
    index.set_master_key(10, KEY)
    index.write(index.records(index.take_dirty()))
    index.close()
    again = LedgerIndex(_ledgers(stores, "fresh"))
    assert sorted(again.ledger_ids()) == [0, 2, 3, 4, 9, 10]
    assert again.get(0) == LedgerRecord(KEY, fenced=True)
    assert _ledgers(stores, "used").path == "/used/ledgers", "it was closed, or nobody could open it"


def test_one_that_is_given_up_is_not_brought_up_to_date() -> None:
    stores = MemoryStores()
    index = LedgerIndex(_ledgers(stores, "used"))
    index.set_master_key(1, KEY)
    list(index.fill(_ledgers(stores, "fresh")))
    index.abandon()
    index.write(index.records(index.take_dirty()))
    assert index._written is None
    other = _ledgers(stores, "other")
    index.adopt(other, lambda: _ledgers(stores, "other"))
    index.close()
    assert LedgerIndex(_ledgers(stores, "other")).ledger_ids() == []


@pytest.mark.parametrize(("count", "writes"), [(1, 1), (2, 1), (3, 2), (4, 2), (5, 3)])
def test_ledgers_are_written_in_batches(count: int, writes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers_module, "_ROWS_PER_BATCH", 2)
    stores = MemoryStores()
    index = LedgerIndex(_ledgers(stores, "used"))
    for ledger_id in range(count):
        index.set_master_key(ledger_id, KEY)
    operations = stores.faults.record()
    index.unsealed = False
    index.write(index.records(index.take_dirty()))
    assert [operation.name for operation in operations] == ["write"] * writes + ["sync"]
    assert index.unsealed
    index.unsealed = False
    index.set_flags(0)
    assert index.unsealed
