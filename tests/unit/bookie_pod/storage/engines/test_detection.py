"""A disk is opened only by the engine that wrote it, and never with its index gone."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pytest

from bookie_pod.storage.engines.detection import (
    DB_LEDGER_STORAGE,
    INTERLEAVED_LEDGER_STORAGE,
    SORTED_LEDGER_STORAGE,
    find_log_with_entries,
)
from bookie_pod.storage.engines.interface import LedgerStorage
from bookie_pod.storage.engines.registry import StorageParts, open_storage
from bookie_pod.storage.files_posix import PosixFiles
from bookie_pod.storage.index.rocksdb_store import RocksStore
from bookie_protocol.errors import InvalidConfiguration, WrongStorageEngine
from tests.support.memtable_engine import MemTableBookie
from tests.support.production import changed, production
from tests.support.storage_engine import call_directly, entry, put, small_options

GOLDEN = Path(__file__).parents[4] / "golden"


def _open(ledgers: Path, index: Path | None = None, engine: str = DB_LEDGER_STORAGE) -> LedgerStorage:
    parts = StorageParts(PosixFiles(), call_directly, [str(ledgers)], [str(index)] if index else [])
    return open_storage(changed(small_options(), storage_class=engine), parts)


def _written(ledgers: Path, index: Path | None = None) -> None:
    storage = _open(ledgers, index)
    put(storage, entry(1, 0))
    storage.flush()
    storage.close()


def _copy(name: str, target: Path) -> Path:
    shutil.copytree(GOLDEN / name, target)
    return target


@pytest.mark.parametrize("disk", ["disk-interleaved", "disk-sorted"])
def test_a29_a_disk_of_the_reference_s_default_engine_is_refused_with_the_key_to_set(disk: str, tmp_path: Path) -> None:
    current = _copy(disk, tmp_path / "current")
    before = sorted(path.name for path in current.rglob("*"))
    with pytest.raises(WrongStorageEngine) as caught:
        _open(current)
    line = str(caught.value)
    assert str(current) in line
    assert ".idx" in line
    assert f"ledgerStorageClass={SORTED_LEDGER_STORAGE}" in line
    assert "\n" not in line
    assert sorted(path.name for path in current.rglob("*")) == before


def test_a_disk_of_ours_is_refused_under_another_engine_s_name(tmp_path: Path) -> None:
    _written(tmp_path / "current")
    with pytest.raises(WrongStorageEngine, match=f"ledgerStorageClass={DB_LEDGER_STORAGE}"):
        _open(tmp_path / "current", engine=SORTED_LEDGER_STORAGE)


@pytest.mark.parametrize("engine", [SORTED_LEDGER_STORAGE, INTERLEAVED_LEDGER_STORAGE])
def test_a_disk_of_index_files_is_refused_under_the_default_engine(engine: str, tmp_path: Path) -> None:
    storage = _open(tmp_path / "current", engine=engine)
    put(storage, entry(1, 0))
    storage.flush()
    storage.close()
    with pytest.raises(WrongStorageEngine, match=f"ledgerStorageClass={SORTED_LEDGER_STORAGE}"):
        _open(tmp_path / "current")
    storage = _open(tmp_path / "current", engine=engine)
    assert storage.read(1, 0) == entry(1, 0)
    storage.close()


def test_index_files_that_are_lost_are_told_from_ledgers_that_were_deleted(tmp_path: Path) -> None:
    ledgers, index = tmp_path / "ledgers", tmp_path / "index"
    storage = _open(ledgers, index, SORTED_LEDGER_STORAGE)
    put(storage, entry(1, 0))
    storage.flush()
    storage.delete_ledger(1)
    storage.flush()
    storage.close()
    assert not list(index.rglob("*.idx"))
    _open(ledgers, index, SORTED_LEDGER_STORAGE).close()  # all ledgers deleted, their entry logs not collected yet
    shutil.rmtree(index)
    with pytest.raises(WrongStorageEngine, match=r"\.idx .*/0\.log"):
        _open(ledgers, index, SORTED_LEDGER_STORAGE)


def test_an_unknown_engine_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfiguration, match=r"no\.such\.Storage.*DbLedgerStorage"):
        _open(tmp_path, engine="no.such.Storage")


@pytest.mark.parametrize("lost", [("ledgers",), ("locations",), ("ledgers", "locations")])
def test_entry_logs_without_their_index_are_refused(lost: tuple[str, ...], tmp_path: Path) -> None:
    ledgers, index = tmp_path / "ledgers", tmp_path / "index"
    _written(ledgers, index)
    for name in lost:
        shutil.rmtree(index / name)
    with pytest.raises(WrongStorageEngine, match=r"0\.log "):
        _open(ledgers, index)
    assert not any((index / name).exists() for name in lost)


@pytest.mark.parametrize("name", ["ledgers", "locations"])
def test_an_index_replaced_by_an_empty_one_is_refused(name: str, tmp_path: Path) -> None:
    _written(tmp_path / "current")
    shutil.rmtree(tmp_path / "current" / name)
    RocksStore(str(tmp_path / "current" / name)).close()
    with pytest.raises(WrongStorageEngine, match="lost"):
        _open(tmp_path / "current")


def test_a_golden_disk_of_the_reference_without_its_index_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WrongStorageEngine, match="lacks"):
        _open(_copy("disk-db", tmp_path / "current"))


def test_an_index_whose_ledgers_were_all_deleted_is_opened(tmp_path: Path) -> None:
    _written(tmp_path / "current")
    storage = _open(tmp_path / "current")
    storage.delete_ledger(1)
    storage.flush()
    storage.close()
    for _ in range(2):
        storage = _open(tmp_path / "current")
        assert storage.ledger_ids() == []
        storage.close()


def test_a_start_that_died_before_the_first_entry_is_repeated(tmp_path: Path) -> None:
    current = tmp_path / "current"
    current.mkdir()
    RocksStore(str(current / "ledgers")).close()
    (current / "0.log").write_bytes(b"")
    (current / "1.log").write_bytes(b"BKLO" + bytes(5000))
    _open(current).close()
    _open(current).close()


def test_what_counts_as_an_entry_in_a_log(tmp_path: Path) -> None:
    files, log = PosixFiles(), tmp_path / "0.log"
    ledgers_map = (36).to_bytes(4, "big") + b"\xff" * 16 + bytes(20)
    record = (40).to_bytes(4, "big") + entry(1, 0)
    for body, found in [
        (b"", False),
        (bytes(100), False),
        (ledgers_map, False),
        (ledgers_map + record, True),
        (record, True),
        (b"\xf0" * (4096 - 1024) + record, True),
        (b"\xf0" * (4096 - 1024), False),
        (b"\xf0" * (4096 - 1024) + ledgers_map, False),
        (record[:10], False),
    ]:
        log.write_bytes(b"BKLO".ljust(1024, b"\0") + body)
        assert (find_log_with_entries(files, str(tmp_path)) is not None) is found, body[:30]
    assert find_log_with_entries(files, str(tmp_path / "missing")) is None


def test_counts_of_directories_must_match(tmp_path: Path) -> None:
    for ledgers, indexes in (([str(tmp_path / "a"), str(tmp_path / "b")], [str(tmp_path / "i")]), ([], [])):
        with pytest.raises(InvalidConfiguration):
            open_storage(production(), StorageParts(PosixFiles(), call_directly, ledgers, indexes))
    assert list(tmp_path.iterdir()) == []


def test_when_one_directory_fails_the_others_are_closed_again(tmp_path: Path) -> None:
    paths = [tmp_path / "a", tmp_path / "b"]
    holder = RocksStore(_made(paths[1]) + "/locations")
    config, parts = small_options(directories=2), StorageParts(PosixFiles(), call_directly, list(map(str, paths)))
    with pytest.raises(Exception, match="open"):
        open_storage(config, parts)
    holder.close()
    open_storage(config, parts).close()


def _made(path: Path) -> str:
    path.mkdir()
    return str(path)


@pytest.mark.parametrize("engine", ["sorted", "interleaved"])
def test_a_new_index_directory_is_stamped_before_any_entry_is_stored(engine: str) -> None:
    bookie = MemTableBookie(engine)
    bookie.open().close()
    assert bookie.files.is_dir("/ledgers0/0/0")


def test_a_disk_of_the_reference_s_db_engine_reads_whole(tmp_path: Path) -> None:
    current = _copy("disk-db", tmp_path / "current")
    golden = json.loads((GOLDEN / "disk-db/rocksdb.json").read_text())
    for name, rows in ((name, database["rows"]) for name, database in golden.items()):
        store = RocksStore(str(current / name))
        batch = store.batch()
        for row in rows:
            batch.put(bytes.fromhex(row["key"]), bytes.fromhex(row["value"]))
        batch.commit()
        store.close()
    storage = _open(current)
    places = [struct.unpack(">qq", bytes.fromhex(row["key"])) for row in golden["locations"]["rows"]]
    assert len(places) > 60
    for ledger_id, entry_id in places:
        assert struct.unpack_from(">qq", storage.read(ledger_id, entry_id)) == (ledger_id, entry_id)
        assert storage.ledger(ledger_id) is not None
    put(storage, entry(0, 1000))
    storage.flush()
    assert storage.last_entry_id(0) == 1000
    storage.close()
