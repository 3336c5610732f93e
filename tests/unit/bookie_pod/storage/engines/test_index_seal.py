"""An index that lost rows which were durable is found out at the start, whatever took them."""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from bookie_pod.storage.engines.db import DbLedgerStorage
from bookie_pod.storage.files_posix import PosixFiles
from bookie_pod.storage.index.rocksdb_store import RocksStores
from bookie_pod.storage.index.seal import NAME
from bookie_pod.storage.index.store import StoreKind
from bookie_protocol.errors import NoWritableDirectory, StorageFault, WrongStorageEngine
from tests.support.memory_faults import Died
from tests.support.storage_engine import MemoryBookie, entry, open_engine, put, small_options

FILES = PosixFiles()
ROUNDS, LEDGERS, ENTRIES = 6, 3, 20
DAMAGES = 8


def open_at(folder: Path) -> DbLedgerStorage:
    return open_engine(FILES, [str(folder)], small_options())


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory as a killed process leaves it: everything checkpointed, and nothing but the log in the databases."""
    folder = tmp_path_factory.mktemp("seal") / "written"
    storage = open_at(folder)
    for number in range(ROUNDS):
        for ledger_id in range(LEDGERS):
            put(storage, *(entry(ledger_id, number * ENTRIES + each) for each in range(ENTRIES)))
        storage.flush()
    copy = folder.with_name("copy")
    shutil.copytree(folder, copy)
    storage.close()
    return copy


def whole(folder: Path) -> bool:
    """Whether everything is there; False: the start was refused."""
    try:
        storage = open_at(folder)
    except (StorageFault, WrongStorageEngine):
        return False
    try:
        for ledger_id in range(LEDGERS):
            assert storage.last_entry_id(ledger_id) == ROUNDS * ENTRIES - 1
            assert [*storage.entry_ids(ledger_id)] == [*range(ROUNDS * ENTRIES)]
    finally:
        storage.close()
    return True


def _cut(data: bytes, rng: random.Random) -> bytes:
    return data[: rng.randrange(len(data))]


def _flip(data: bytes, rng: random.Random) -> bytes:
    # Mostly near the end, where RocksDB takes damage for the torn record of a crash.
    at = rng.randrange(len(data)) if rng.random() < 0.3 else len(data) - 1 - rng.randrange(min(600, len(data)))
    return data[:at] + bytes([data[at] ^ 1 << rng.randrange(8)]) + data[at + 1 :]


def _zeros(data: bytes, rng: random.Random) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + bytes(len(data) - at)


@pytest.mark.parametrize("damage", [_cut, _flip, _zeros])
def test_no_damage_of_a_database_log_is_silent(
    written: Path, tmp_path: Path, damage: Callable[[bytes, random.Random], bytes]
) -> None:
    rng = random.Random(4)
    refused = 0
    for number in range(DAMAGES):
        folder = shutil.copytree(written, tmp_path / str(number))
        [log] = (folder / rng.choice(["locations", "ledgers"])).glob("*.log")
        log.write_bytes(damage(log.read_bytes(), rng))
        refused += not whole(folder)
        shutil.rmtree(folder)
    assert refused >= DAMAGES * 0.6


def test_a_refusal_stays(written: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(written, tmp_path / "bookie")
    [log] = (folder / "locations").glob("*.log")
    log.write_bytes(log.read_bytes()[:-200])
    assert not whole(folder)
    assert not whole(folder), "RocksDB has thrown the end away by now"


@pytest.mark.parametrize("kind", list(StoreKind))
def test_an_older_copy_of_a_database_is_behind_its_mark(written: Path, tmp_path: Path, kind: StoreKind) -> None:
    folder = shutil.copytree(written, tmp_path / "bookie")
    older = shutil.copytree(folder / kind.value, tmp_path / "older")
    storage = open_at(folder)
    put(storage, entry(LEDGERS, 0))
    storage.flush()
    storage.close()
    shutil.rmtree(folder / kind.value)
    older.rename(folder / kind.value)
    with pytest.raises(StorageFault, match=f"rebuild-{kind.value}"):
        open_at(folder)


@pytest.mark.parametrize("kind", list(StoreKind))
def test_a_table_that_the_manifest_does_not_name_any_more_is_missed(tmp_path: Path, kind: StoreKind) -> None:
    """RocksDB takes an end of its manifest that it cannot read for a crash, and goes on with the log behind it."""
    folder = tmp_path / "bookie"
    storage = open_at(folder)
    put(storage, entry(1, 0))
    storage.flush()
    (manifest,) = (folder / kind.value).glob("MANIFEST-*")
    size = manifest.stat().st_size
    getattr(storage.directories[0], kind.value)._store._db.flush(True)
    assert manifest.stat().st_size > size
    put(storage, entry(2, 0))
    storage.flush()
    copy = shutil.copytree(folder, tmp_path / "copy")
    storage.close()
    os.truncate(copy / kind.value / manifest.name, size)
    for _ in range(2):
        with pytest.raises(StorageFault, match=f"tables.*rebuild-{kind.value}"):
            open_at(copy)


# --- what is accepted -------------------------------------------------------------------------------------------


def test_a_directory_without_a_seal_is_accepted_and_sealed(written: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(written, tmp_path / "bookie")
    (folder / NAME).unlink()
    storage = open_at(folder)
    storage.flush()
    storage.close()
    assert (folder / NAME).exists()
    assert whole(folder)


def test_a_database_that_was_built_anew_is_another_one() -> None:
    bookie = MemoryBookie()
    storage = bookie.open()
    put(storage, entry(1, 0))
    storage.flush()
    storage.close()
    assert bookie.stores is not None
    old = bookie.stores.stores.pop("/ledgers0/locations")
    new = bookie.stores.open("/ledgers0/locations", StoreKind.LOCATIONS)
    batch = new.batch()
    for key, value in old._rows.values.items():
        if key[0] < 0x80:
            batch.put(key, value)
    batch.commit()
    new.close()
    storage = bookie.open()
    assert storage.read(1, 0) == entry(1, 0)
    storage.close()


def test_a_damaged_seal_says_nothing() -> None:
    bookie = MemoryBookie()
    storage = bookie.open()
    put(storage, entry(1, 0))
    storage.flush()
    storage.close()
    data = bytearray(bookie.files.read_bytes(f"/ledgers0/{NAME}"))
    for at in range(len(data)):
        data[at] ^= 0x40
        bookie.files.write_bytes(f"/ledgers0/{NAME}", bytes(data))
        bookie.open().close()
        data[at] ^= 0x40
    bookie.files.write_bytes(f"/ledgers0/{NAME}", bytes(data[:-1]))
    bookie.open().close()


def test_a_crash_at_any_write_of_a_checkpoint_is_no_loss() -> None:
    for at in range(40):
        bookie = MemoryBookie()
        storage = bookie.open()
        put(storage, entry(1, 0))
        storage.flush()
        put(storage, entry(2, 0))
        bookie.faults.die_at(bookie.faults.mutations + at)
        try:
            storage.flush()
        except Died:
            after = bookie.crash(random.Random(at)).open()
            assert after.read(1, 0) == entry(1, 0)
            after.close()
        else:
            assert at > 5
            return
    raise AssertionError("the checkpoint never came to its end")


def test_without_changes_nothing_is_sealed_and_a_full_disk_leaves_it_for_later() -> None:
    bookie = MemoryBookie()
    storage = bookie.open()
    put(storage, entry(1, 0))
    storage.flush()
    before = bookie.files.read_bytes(f"/ledgers0/{NAME}")
    storage.flush()
    assert bookie.files.read_bytes(f"/ledgers0/{NAME}") == before
    put(storage, entry(1, 1))
    bookie.faults.fail("write", path=NAME, errno=errno.ENOSPC)
    with pytest.raises(NoWritableDirectory):
        storage.flush()
    bookie.faults.clear()
    storage.flush()
    assert bookie.files.read_bytes(f"/ledgers0/{NAME}") > before
    storage.close()


def test_after_a_seal_that_failed_halfway_the_next_checkpoint_seals() -> None:
    bookie = MemoryBookie()
    storage = bookie.open()
    put(storage, entry(1, 0))
    storage.flush()
    sealed = bookie.files.read_bytes(f"/ledgers0/{NAME}")
    storage.directories[0].locations.unsealed = True  # and the ledgers have nothing new
    bookie.faults.fail("write", path=StoreKind.LEDGERS.value, errno=errno.EIO)
    with pytest.raises(StorageFault):
        storage.flush()
    bookie.faults.clear()
    storage.flush()
    assert bookie.files.read_bytes(f"/ledgers0/{NAME}") != sealed
    storage.close()


def test_a_store_is_known_by_what_it_was_when_it_was_opened(tmp_path: Path) -> None:
    """A rebuild may put another database into its place between the row of a seal and its file."""
    stores = RocksStores(FILES)
    old, new = tmp_path / "locations", tmp_path / "new"
    open_store = stores.open(str(old), StoreKind.LOCATIONS)
    identity = open_store.identity()
    assert identity
    stores.open(str(new), StoreKind.LOCATIONS).close()
    old.rename(tmp_path / "backup")
    new.rename(old)
    assert open_store.identity() == identity
    open_store.close()
    again = stores.open(str(old), StoreKind.LOCATIONS)
    assert again.identity() != identity
    again.close()
