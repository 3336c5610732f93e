"""The location index: bytes on disk, look-ups, deletions, batches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bookie_pod.storage.index import locations as module
from bookie_pod.storage.index.locations import (
    MAX_ENTRY_ID,
    SHORT_RUN,
    EntryMove,
    LocationIndex,
    LocationRun,
    encode_rows,
)
from bookie_pod.storage.index.rocksdb_store import RocksStore
from bookie_pod.storage.index.store import OrderedStore, StoreKind
from bookie_protocol.errors import StorageFault
from tests.support.memory_store import MemoryStores

GOLDEN = json.loads((Path(__file__).parents[4] / "golden/disk-db/rocksdb.json").read_text())


def _golden_rows() -> list[tuple[bytes, bytes]]:
    return [(bytes.fromhex(row["key"]), bytes.fromhex(row["value"])) for row in GOLDEN["locations"]["rows"]]


def _memory() -> OrderedStore:
    return MemoryStores().open("/locations", StoreKind.LOCATIONS)


def _golden_runs() -> list[LocationRun]:
    runs: dict[int, tuple[list[int], list[int]]] = {}
    for key, value in _golden_rows():
        ledger_id, entry_id = module.KEY.unpack(key)
        ids, locations = runs.setdefault(ledger_id, ([], []))
        ids.append(entry_id)
        locations.append(module.VALUE.unpack(value)[0])
    return [LocationRun(ledger_id, *run) for ledger_id, run in runs.items()]


def test_rows_equal_those_of_the_reference_byte_for_byte(tmp_path: Path) -> None:
    store = RocksStore(str(tmp_path / "locations"))
    index = LocationIndex(store)
    index.write(_golden_runs())
    assert list(store.scan(end=module.NEGATIVE)) == _golden_rows()
    index.close()


def test_rows_of_the_reference_are_read(tmp_path: Path) -> None:
    store = _memory()
    batch = store.batch()
    batch.put_many(*zip(*_golden_rows(), strict=True))
    batch.commit()
    index = LocationIndex(store)
    for run in _golden_runs():
        assert list(index.rows(run.ledger_id)) == list(zip(run.entry_ids, run.locations, strict=True))
        assert index.last_entry_id(run.ledger_id) == run.entry_ids[-1]
        assert [index.get(run.ledger_id, entry_id) for entry_id in run.entry_ids] == list(run.locations)


def test_worked_example_of_the_reference() -> None:
    assert encode_rows(7, [3], [0x0000000500000404]) == (
        [bytes.fromhex("00000000000000070000000000000003")],
        [bytes.fromhex("0000000500000404")],
    )


@pytest.mark.parametrize("count", [1, SHORT_RUN - 1, SHORT_RUN, 5000])
def test_both_ways_of_encoding_agree(count: int) -> None:
    ids = [(1 << 40) + 3 * n for n in range(count)]
    places = [(n << 32) | 1028 for n in range(count)]
    keys, values = encode_rows(1 << 50, ids, places)
    assert keys == [module.KEY.pack(1 << 50, n) for n in ids]
    assert values == [module.VALUE.pack(n) for n in places]


def test_absence_is_zero_and_none() -> None:
    index = LocationIndex(_memory())
    assert index.is_empty()
    assert index.get(1, 1) == 0
    assert index.last_entry_id(1) is None
    index.write([LocationRun(1, [5], [99]), LocationRun(3, [0, MAX_ENTRY_ID], [1, 2])])
    assert index.last_entry_id(2) is None
    assert index.last_entry_id(1) == 5
    assert index.last_entry_id(3) == MAX_ENTRY_ID
    assert list(index.entry_ids(3)) == [0, MAX_ENTRY_ID]
    assert not index.is_empty()


def test_batches_are_no_longer_than_configured() -> None:
    stores = MemoryStores()
    index = LocationIndex(stores.open("/locations", StoreKind.LOCATIONS), max_batch=7)
    operations = stores.faults.record()
    index.write([LocationRun(ledger_id, list(range(10)), list(range(1, 11))) for ledger_id in range(3)])
    assert [operation.name for operation in operations].count("write") == 5  # 30 rows by 7
    assert operations[-1].name == "sync"
    assert sum(1 for ledger_id in range(3) for _ in index.rows(ledger_id)) == 30


def test_a_deleted_ledger_is_hidden_at_once_and_removed_before_new_rows() -> None:
    store = _memory()
    index = LocationIndex(store)
    index.write([LocationRun(1, [0, MAX_ENTRY_ID], [10, 11]), LocationRun(2, [0], [12])])
    index.delete_ledger(1)
    assert index.get(1, 0) == 0
    assert index.last_entry_id(1) is None
    assert list(index.rows(1)) == []
    assert len(list(store.scan())) == 3
    index.write([LocationRun(1, [4], [13])], index.pending_deletions())
    assert list(index.rows(1)) == [(4, 13)]
    assert index.pending_deletions() == {}
    assert index.get(2, 0) == 12


def test_a_deletion_that_came_during_a_write_stays_pending() -> None:
    index = LocationIndex(_memory())
    index.write([LocationRun(1, [0], [10])])
    index.delete_ledger(1)
    before = index.pending_deletions()
    index.delete_ledger(1)
    index.write([], before)
    assert list(index.pending_deletions()) == [1]
    assert index.get(1, 0) == 0


def test_a_store_that_fails_never_looks_empty() -> None:
    stores = MemoryStores()
    index = LocationIndex(stores.open("/locations", StoreKind.LOCATIONS))
    index.write([LocationRun(1, [0], [10])])
    stores.faults.fail("get", "seek", "scan", "write")
    for look_up in (
        lambda: index.get(1, 0),
        lambda: index.last_entry_id(1),
        lambda: list(index.rows(1)),
        lambda: index.write([LocationRun(1, [0], [10])]),
    ):
        with pytest.raises(StorageFault):
            look_up()


@pytest.mark.parametrize(("key", "value"), [(bytes(15), bytes(8)), (bytes(16), bytes(7))])
def test_rows_of_another_shape_are_damage(key: bytes, value: bytes) -> None:
    store = _memory()
    batch = store.batch()
    batch.put(key, value)
    batch.commit()
    with pytest.raises(StorageFault, match="location"):
        list(LocationIndex(store).rows(0)) or LocationIndex(store).last_entry_id(0)


def test_a_move_spares_what_was_written_again_or_deleted_meanwhile() -> None:
    index = LocationIndex(_memory(), max_batch=2)
    index.write([LocationRun(1, range(6), [10, 11, 12, 13, 14, 15]), LocationRun(2, [0], [20])])
    index.write([LocationRun(1, [2], [99])])
    index.delete_ledger(2)
    moves = [EntryMove(1, n, 10 + n, 100 + n) for n in range(6)] + [EntryMove(2, 0, 20, 200), EntryMove(3, 0, 30, 300)]
    assert index.move(moves) == 5
    assert [location for _, location in index.rows(1)] == [100, 101, 99, 103, 104, 105]
    index.write([], index.pending_deletions())
    assert list(index.rows(2)) == list(index.rows(3)) == []


def test_a_ledger_whose_deletion_is_pending_when_a_rebuild_begins_gets_no_rows_of_its_earlier_life() -> None:
    store = _memory()
    index = LocationIndex(store)
    index.write([LocationRun(1, [0, 1], [10, 11])])
    index.delete_ledger(1)
    twin = index.attach(_memory())
    assert index.offer(twin, 1, [(0, 10), (1, 11)], lambda ledger_id: True).put == 0  # made anew meanwhile
    index.write([LocationRun(1, [0], [99])], index.pending_deletions())
    assert list(twin.store.scan()) == list(store.scan())


def test_a_rebuild_ends_if_a_move_failed_whose_rows_may_stand_all_the_same() -> None:
    stores = MemoryStores()
    index = LocationIndex(stores.open("/locations", StoreKind.LOCATIONS))
    index.write([LocationRun(1, [0], [10])])
    twin = index.attach(_memory())
    index.offer(twin, 1, [(0, 10)], lambda ledger_id: True)
    stores.faults.fail("sync", times=1)
    with pytest.raises(StorageFault):
        index.move([EntryMove(1, 0, 10, 100)])
    index.settle()
    assert index.get(1, 0) in (10, 100)  # of a RocksDB that was opened anew nobody knows which it is before
    with pytest.raises(StorageFault, match="follow"):
        index.adopt(twin, _memory)
