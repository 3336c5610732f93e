"""The seal of a directory's two databases, on stores and files in memory."""

from __future__ import annotations

import errno

import pytest

from bookie_pod.storage.index.ledgers import LedgerIndex
from bookie_pod.storage.index.locations import LocationIndex, LocationRun
from bookie_pod.storage.index.seal import NAME, IndexEndLost, IndexSeal
from bookie_pod.storage.index.store import OrderedStore, StoreKind
from bookie_protocol.errors import NoWritableDirectory, StorageFault
from tests.support.memory_files import MemoryFiles
from tests.support.memory_store import MemoryStores

FOLDER = "/ledgers0"


class Rig:
    def __init__(self) -> None:
        self.files = MemoryFiles()
        self.files.makedirs(FOLDER)
        stores = MemoryStores()
        self.stores: dict[StoreKind, OrderedStore] = {
            kind: stores.open(f"{FOLDER}/{kind.value}", kind) for kind in StoreKind
        }
        self.locations = LocationIndex(self.stores[StoreKind.LOCATIONS])
        self.ledgers = LedgerIndex(self.stores[StoreKind.LEDGERS])
        self.seal = IndexSeal(self.files, FOLDER)

    def renew(self) -> None:
        self.seal.renew({StoreKind.LOCATIONS: self.locations, StoreKind.LEDGERS: self.ledgers})

    def check(self) -> bool:
        return IndexSeal(self.files, FOLDER).check(self.stores)

    def put(self) -> None:
        self.locations.write([LocationRun(1, [0], [10])])


def test_both_are_sealed_and_what_changes_nothing_writes_nothing() -> None:
    rig = Rig()
    assert not rig.check()
    rig.renew()
    assert rig.check()
    changes = rig.files.faults.record()
    rig.renew()
    assert not changes
    rig.put()
    rig.renew()
    assert changes
    assert rig.check()


@pytest.mark.parametrize("kind", list(StoreKind))
def test_a_database_that_ends_before_its_seal_has_lost_something(kind: StoreKind) -> None:
    rig = Rig()
    rig.renew()
    rows = list(rig.stores[kind].scan())
    rig.put()
    rig.renew()
    batch = rig.stores[kind].batch()
    for key, value in rows:
        batch.put(key, value)
    batch.commit()
    with pytest.raises(IndexEndLost, match=f"checkpoint 2 .* rebuild-{kind.value}"):
        rig.check()


def test_of_two_that_lost_something_the_ledgers_are_rebuilt_first() -> None:
    rig = Rig()
    rig.renew()
    rows = {kind: list(store.scan()) for kind, store in rig.stores.items()}
    rig.put()
    rig.renew()
    for kind, store in rig.stores.items():
        batch = store.batch()
        batch.put_many(*zip(*rows[kind], strict=True))
        batch.commit()
    for stores in (rig.stores, dict(reversed(rig.stores.items()))):
        with pytest.raises(IndexEndLost, match="rebuild-ledgers"):
            IndexSeal(rig.files, FOLDER).check(stores)


@pytest.mark.parametrize(("code", "fault"), [(errno.ENOSPC, NoWritableDirectory), (errno.EIO, StorageFault)])
def test_a_seal_that_cannot_be_written_is_owed(code: int, fault: type[StorageFault]) -> None:
    rig = Rig()
    rig.put()
    rig.files.faults.fail("overwrite", "create", "write", path=NAME, errno=code, times=1)
    with pytest.raises(StorageFault, match=f"write {FOLDER}/{NAME}") as caught:
        rig.renew()
    assert isinstance(caught.value, NoWritableDirectory) == (fault is NoWritableDirectory)
    assert (rig.locations.unsealed, rig.ledgers.unsealed) == (True, True)
    assert not rig.check()
    rig.renew()
    assert (rig.locations.unsealed, rig.ledgers.unsealed) == (False, False)
    assert rig.check()


def test_a_seal_that_cannot_be_read_is_a_fault_and_a_damaged_one_is_none() -> None:
    rig = Rig()
    rig.renew()
    rig.files.faults.fail("open", path=NAME)
    with pytest.raises(StorageFault, match=f"read {FOLDER}/{NAME}"):
        rig.check()
    rig.files.faults.clear()
    whole = rig.files.read_bytes(f"{FOLDER}/{NAME}")
    for at in range(len(whole)):
        rig.files.write_bytes(f"{FOLDER}/{NAME}", whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        assert not rig.check(), at
    rig.files.write_bytes(f"{FOLDER}/{NAME}", whole)
    assert rig.check()


def test_numbers_go_on_after_a_restart() -> None:
    rig = Rig()
    for _ in range(3):
        rig.put()
        rig.renew()
    rig.seal = IndexSeal(rig.files, FOLDER)
    assert rig.seal.check(rig.stores)
    rig.put()
    rig.renew()
    assert rig.seal._number == 4
    assert rig.check()


def test_a_new_database_is_sealed_in_the_place_of_the_old_one_and_the_other_stays_sealed() -> None:
    rig = Rig()
    rig.put()
    rig.renew()
    new = MemoryStores().open(f"{FOLDER}/rebuilt/locations", StoreKind.LOCATIONS)
    note = IndexSeal(rig.files, FOLDER).seal_new(StoreKind.LOCATIONS, new)
    assert rig.check()  # until it is in its place
    rig.stores[StoreKind.LOCATIONS] = new
    note()
    assert rig.check()


def test_where_nothing_was_sealed_a_new_database_is_not_either() -> None:
    rig = Rig()
    IndexSeal(rig.files, FOLDER).seal_new(StoreKind.LOCATIONS, rig.stores[StoreKind.LOCATIONS])()
    assert not rig.files.exists(f"{FOLDER}/{NAME}")
