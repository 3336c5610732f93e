"""RocksDB behind the seam: order, durability, and damage that must never look like absence."""

from __future__ import annotations

import os
import resource
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from rocksdict import Rdict

from bookie_pod.config.sections.ledger_storage import RocksDbConfig
from bookie_pod.storage.files_posix import PosixFiles
from bookie_pod.storage.index import rocksdb_store
from bookie_pod.storage.index.locations import NEGATIVE
from bookie_pod.storage.index.rocksdb_store import (
    CHECKSUMS,
    SCAN_CHUNK,
    RocksStore,
    RocksStores,
)
from bookie_pod.storage.index.store import OrderedStore, StoreKind
from bookie_protocol.errors import ResourcesShort, StorageFault
from tests.support.memory_store import MemoryStores
from tests.support.until import until_true


def _key(number: int) -> bytes:
    return number.to_bytes(8, "big")


def _fill(store: OrderedStore, numbers: range, *, sync: bool = True) -> None:
    batch = store.batch()
    batch.put_many(map(_key, numbers), (b"v%d" % n for n in numbers))
    batch.commit(sync=sync)


def _tables(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.sst"))


def _logs(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.glob("*.log")) if path.stat().st_size]


def _copy_of_running(store: RocksStore, tmp_path: Path) -> Path:
    """The files as a crash would leave them; closing turns the write-ahead log into a table."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for path in Path(store.path).iterdir():
        if path.name != "LOCK":
            (copy / path.name).write_bytes(path.read_bytes())
    store.close()
    return copy


@pytest.fixture(params=["rocksdb", "memory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[OrderedStore]:
    """And what tests take for it."""
    path = str(tmp_path / StoreKind.LOCATIONS.value)
    opened = MemoryStores().open(path, StoreKind.LOCATIONS) if request.param == "memory" else RocksStore(path)
    yield opened
    opened.close()


def test_rows_come_back_in_order(store: OrderedStore) -> None:
    _fill(store, range(10, 20))
    assert store.get(_key(12)) == b"v12"
    assert store.get(_key(9)) is None
    assert 10 <= store.estimated_count() <= 11, "RocksDB has the number of the table beside them"
    assert store.floor(_key(15)) == (_key(15), b"v15")
    assert store.floor(_key(99)) == (_key(19), b"v19")
    assert store.floor(_key(9)) is None
    assert [key for key, _ in store.scan(_key(12), _key(15))] == [_key(n) for n in (12, 13, 14)]
    assert len(list(store.scan(end=NEGATIVE))) == 10
    _fill(store, range(100, 100 + 2 * SCAN_CHUNK))
    assert [key for key, _ in store.scan(_key(100), NEGATIVE)] == [_key(n) for n in range(100, 100 + 2 * SCAN_CHUNK)]
    assert len(list(store.scan(_key(100), _key(100 + SCAN_CHUNK)))) == SCAN_CHUNK
    assert len(list(store.scan(_key(100), _key(101 + SCAN_CHUNK)))) == SCAN_CHUNK + 1


def test_operations_of_a_batch_apply_in_their_order(store: OrderedStore) -> None:
    assert not store.was_written()
    _fill(store, range(5))
    batch = store.batch()
    batch.delete_range(_key(0), _key(3))
    batch.put(_key(1), b"new")
    batch.delete(_key(4))
    assert len(batch) == 3
    batch.commit()
    assert list(store.scan(end=NEGATIVE)) == [(_key(1), b"new"), (_key(3), b"v3")]
    assert store.was_written()


def test_what_was_synced_survives_without_a_close(tmp_path: Path) -> None:
    store = RocksStore(str(tmp_path / "db"))
    assert not store.was_written()
    _fill(store, range(3), sync=False)
    _fill(store, range(3, 6), sync=False)
    store.sync()
    again = RocksStore(str(_copy_of_running(store, tmp_path)))
    assert [key for key, _ in again.scan(end=NEGATIVE)] == [_key(n) for n in range(6)]
    assert again.was_written()
    again.close()


def test_a_store_that_lost_all_rows_to_deletions_was_written_all_the_same(tmp_path: Path) -> None:
    path = str(tmp_path / "db")
    for _ in range(3):  # the write-ahead log turns into a table, which turns into nothing
        store = RocksStore(path)
        if not store.was_written():
            batch = store.batch()
            batch.delete(_key(1))
            batch.commit()
        assert store.was_written()
        assert list(store.scan(end=NEGATIVE)) == []
        store.compact()
        store.close()


def test_a_second_opener_is_refused(tmp_path: Path) -> None:
    store = RocksStore(str(tmp_path / "db"))
    with pytest.raises(StorageFault, match="open"):
        RocksStore(str(tmp_path / "db"))
    store.close()
    store.close()
    with pytest.raises(StorageFault):
        store.get(b"x")


def test_a_torn_tail_of_the_log_is_dropped(tmp_path: Path) -> None:
    store = RocksStore(str(tmp_path / "db"))
    _fill(store, range(3))
    _fill(store, range(3, 6))
    copy = _copy_of_running(store, tmp_path)
    (log,) = _logs(copy)
    log.write_bytes(log.read_bytes()[:-7])
    store = RocksStore(str(copy))
    assert [key for key, _ in store.scan(end=NEGATIVE)] == [_key(n) for n in range(3)]
    store.close()


def test_damage_in_the_middle_of_the_log_is_no_silent_loss(tmp_path: Path) -> None:
    store = RocksStore(str(tmp_path / "db"))
    for at in range(0, 30, 3):
        _fill(store, range(at, at + 3))
    copy = _copy_of_running(store, tmp_path)
    (log,) = _logs(copy)
    data = bytearray(log.read_bytes())
    data[len(data) // 3] ^= 0xFF
    log.write_bytes(bytes(data))
    with pytest.raises(StorageFault, match="Corruption"):
        RocksStore(str(copy))


def test_a_damaged_table_is_a_fault_for_every_kind_of_look_up(tmp_path: Path) -> None:
    options = RocksDbConfig(bloom_filter_bits_per_key=0, block_size_bytes=4096)
    store = RocksStore(str(tmp_path / "db"), options)
    _fill(store, range(20_000))
    store.close()
    store = RocksStore(str(tmp_path / "db"), options)
    store.compact()
    store.close()
    (table,) = _tables(tmp_path / "db")
    data = bytearray(table.read_bytes())
    for at in range(0, len(data) // 2, 512):
        data[at] ^= 0xFF
    table.write_bytes(bytes(data))
    store = RocksStore(str(tmp_path / "db"), options)
    with pytest.raises(StorageFault):
        store.get(_key(100))
    with pytest.raises(StorageFault):
        store.floor(_key(100))
    with pytest.raises(StorageFault):
        list(store.scan(_key(100), _key(200)))
    store.close()


def test_a_lost_table_fails_the_open(tmp_path: Path) -> None:
    store = RocksStore(str(tmp_path / "db"))
    _fill(store, range(100))
    store.compact()
    store.close()
    for table in _tables(tmp_path / "db"):
        table.unlink()
    with pytest.raises(StorageFault):
        RocksStore(str(tmp_path / "db"))


def test_a_sync_lets_other_threads_run(tmp_path: Path) -> None:
    """The interpreter lock is free while the disk is waited for: another thread, to which nobody is made to give it,
    goes on ticking."""
    store = RocksStore(str(tmp_path / "db"))
    stop = threading.Event()
    ticks = []

    def tick() -> None:
        while not stop.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.0002)

    usual = sys.getswitchinterval()
    thread = threading.Thread(target=tick)
    thread.start()
    until_true(lambda: ticks)
    try:
        sys.setswitchinterval(600)
        before = len(ticks)
        for number in range(20_000):  # in memory a sync takes no time, and the other thread misses many
            _fill(store, range(number, number + 1))
            if len(ticks) > before:
                return
        pytest.fail("it stood still")
    finally:
        sys.setswitchinterval(usual)
        stop.set()
        thread.join()
        store.close()


def test_a_writer_seeks_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A seek reads from the disk under the interpreter lock."""
    store = RocksStore(str(tmp_path / "db"), RocksDbConfig(write_buffer_size_bytes=1 << 16))
    sought, floor = [], rocksdb_store._floor
    monkeypatch.setattr(rocksdb_store, "_floor", lambda db, key: sought.append(key) or floor(db, key))
    for number in range(0, 20_000, 500):
        _fill(store, range(number, number + 500))
    tables = [key for key, _ in store.scan(NEGATIVE)]
    assert len(tables) > 5
    assert len(sought) == 1
    assert store.has_all_tables()
    store.close()
    again = RocksStore(str(tmp_path / "db"), RocksDbConfig(write_buffer_size_bytes=1 << 16))
    _fill(again, range(1))
    assert again.has_all_tables()
    again.close()


class _FullDisk:
    """A database whose writes fail from now on, as RocksDB's do after its first failed write."""

    def __init__(self, db: object) -> None:
        self._db = db

    def __getattr__(self, name: str) -> object:
        if name in ("write", "flush_wal"):
            raise OSError("IO error: No space left on device")
        return getattr(self._db, name)


def test_after_a_full_disk_the_store_recovers_once_there_is_room(tmp_path: Path) -> None:
    usable = 0
    store = RocksStore(str(tmp_path / "db"), RocksDbConfig(write_buffer_size_bytes=1 << 20), lambda: usable)
    _fill(store, range(3))
    store._db = _FullDisk(store._db)  # type: ignore[assignment]
    with pytest.raises(StorageFault, match="space"):
        _fill(store, range(3, 6))
    with pytest.raises(StorageFault, match="free"):
        _fill(store, range(3, 6))
    assert store.get(_key(1)) == b"v1"  # what was there stays readable
    before = store.scan(end=NEGATIVE)
    assert next(before) == (_key(0), b"v0")
    usable = 2 << 20
    _fill(store, range(3, 6))
    assert [key for key, _ in store.scan(end=NEGATIVE)] == [_key(n) for n in range(6)]
    assert [key for key, _ in before] == [_key(n) for n in range(1, 3)]
    store.close()


class _Stopped:
    """A database that stops its writers: until so many looks have passed, or for good, after an error."""

    def __init__(self, db: Rdict, looks: int, errors: int) -> None:
        self._db = db
        self.looks = looks
        self._errors = errors

    def __getattr__(self, name: str) -> object:
        return getattr(self._db, name)

    def property_int_value(self, name: str) -> int | None:
        if name == "rocksdb.is-write-stopped":
            self.looks -= 1
            return int(self.looks > 0)
        return self._errors if name == "rocksdb.background-errors" else self._db.property_int_value(name)


@pytest.mark.parametrize(("errors", "left"), [(0, 0), (1, 1_000_000)], ids=["for a while", "for good"])
def test_a_stopped_writer_waits_unless_it_would_for_good(tmp_path: Path, errors: int, left: int) -> None:
    store = RocksStore(str(tmp_path / "db"))
    db = store._db
    assert db is not None
    stopped = _Stopped(db, 5 if not errors else 1_000_001, errors)
    store._db = stopped  # type: ignore[assignment]
    _fill(store, range(3))
    assert stopped.looks == left
    store._db = db
    assert store.get(_key(2)) == b"v2"
    store.close()


def test_readers_wait_while_the_store_is_opened_anew(tmp_path: Path) -> None:
    store = RocksStore(str(tmp_path / "db"))
    _fill(store, range(100))
    stop = threading.Event()
    failures: list[Exception] = []
    reads = [0, 0]

    def look(reader: int) -> None:
        while not stop.is_set():
            try:
                assert store.get(_key(50)) == b"v50"
                assert store.floor(_key(200)) == (_key(99), b"v99")
                reads[reader] += 1
            except Exception as error:
                failures.append(error)

    threads = [threading.Thread(target=look, args=(reader,)) for reader in range(2)]
    for thread in threads:
        thread.start()
    try:
        for number in range(5):
            store._write_failed = True
            _fill(store, range(1))
            until_true(lambda number=number: min(reads) > number or failures, seconds=60)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failures == []
    store.close()
    with pytest.raises(StorageFault):
        store.get(_key(1))
    with pytest.raises(StorageFault):
        _fill(store, range(1))


def test_a_look_up_is_repeated_as_often_as_the_store_is_opened_anew_under_it(tmp_path: Path) -> None:
    store = RocksStore(str(tmp_path / "db"))
    _fill(store, range(3))
    left = 3

    def look(db: Rdict) -> object:
        nonlocal left
        if left:
            left -= 1
            store._write_failed = True
            _fill(store, range(1))
        return db.get(_key(2))

    assert store._call("get", look) == b"v2"
    assert left == 0
    store.close()


def test_the_files_carry_what_the_reference_reads(tmp_path: Path) -> None:
    stores = RocksStores(PosixFiles())
    path = str(tmp_path / "locations")
    assert not stores.exists(path)
    store = stores.open(path, StoreKind.LOCATIONS)
    assert stores.exists(path)
    store.close()
    (options,) = sorted((tmp_path / "locations").glob("OPTIONS-*"))[-1:]
    text = options.read_text()
    for setting in (
        "format_version=5",
        "checksum=kxxHash\n",
        "compression=kLZ4Compression",
        "block_size=65536",
        "filter_policy=bloomfilter",
        "level_compaction_dynamic_level_bytes=true",
        "comparator=leveldb.BytewiseComparator",
    ):
        assert setting in text, setting


@pytest.mark.parametrize("checksum", sorted(CHECKSUMS))
@pytest.mark.parametrize(("kind", "lz4"), [("locations", True), ("locations", False), ("ledgers", True)])
def test_other_options_open_the_same_data(checksum: str, kind: str, lz4: bool, tmp_path: Path) -> None:
    path = str(tmp_path / "db")
    unusual = RocksDbConfig(
        block_cache_size_bytes=0,
        bloom_filter_bits_per_key=0,
        checksum_type=checksum,
        lz4_compression=lz4,
        format_version=4,
        num_levels=5,
        log_path=str(tmp_path / "log"),
    )
    store = RocksStore(path, unusual, kind=StoreKind(kind))
    _fill(store, range(100))
    store.compact()
    store.close()
    assert list((tmp_path / "log").iterdir())
    store = RocksStore(path, replace(unusual, checksum_type="kxxHash", lz4_compression=True, format_version=5))
    assert len(list(store.scan(end=NEGATIVE))) == 100
    store.close()


def test_too_few_descriptors_are_no_damage(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, hard))
    try:
        with pytest.raises(ResourcesShort):
            RocksStore(str(tmp_path / "db"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_each_table_begins_with_its_number_and_one_that_the_manifest_lost_is_missed(tmp_path: Path) -> None:
    """No table is missed in sound ones: not behind a failed write, a compaction, or a start."""
    path = tmp_path / "db"
    options = RocksDbConfig(files_in_level0=100)  # no compaction, of which RocksDB itself would tell
    store = RocksStore(str(path), options)
    assert store.has_all_tables(), "nothing was written"
    (manifest,) = path.glob("MANIFEST-*")
    sizes = []
    for number in range(8):
        _fill(store, range(number, number + 3))
        assert store._db is not None
        store._db.flush(True)
        sizes.append(manifest.stat().st_size)
    _fill(store, range(1))
    tables = len(list(store.scan(NEGATIVE)))
    assert tables == 9
    copy = _copy_of_running(store, tmp_path)
    store.close()
    for number, size in enumerate(sizes[:-1]):
        damaged = shutil.copytree(copy, tmp_path / f"damaged{number}")
        os.truncate(damaged / manifest.name, size)
        for _ in range(2):
            store = RocksStore(str(damaged), options)
            assert not store.has_all_tables()
            store.close()
    for more in range(1, 4):
        store = RocksStore(str(copy), options)
        _fill(store, range(2))
        store.compact()
        store._write_failed = True  # so it is opened anew
        _fill(store, range(2))
        assert store.has_all_tables()
        assert len(list(store.scan(NEGATIVE))) == tables + 2 * more
        store.close()


def test_nothing_is_asked_for(store: OrderedStore) -> None:
    assert list(store.get_each([])) == []
    assert list(store.get_each([_key(1), _key(2)])) == [None, None]
