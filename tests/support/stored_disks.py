"""Disks of stopped bookies for tests of tools: golden ones of the reference, and ones that our engines wrote."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from bookie_pod.storage.engines.detection import DB_LEDGER_STORAGE, INTERLEAVED_LEDGER_STORAGE, SORTED_LEDGER_STORAGE
from bookie_pod.storage.engines.interface import LedgerStorage
from bookie_pod.storage.engines.registry import StorageParts, open_storage
from bookie_pod.storage.files_posix import PosixFiles
from bookie_pod.storage.index.rocksdb_store import RocksStores
from bookie_pod.storage.index.store import StoreKind
from bookie_pod.storage.inspect.layout import DiskLayout
from tests.support.production import changed
from tests.support.storage_engine import call_directly, entry, put, small_options

GOLDEN = Path(__file__).parents[1] / "golden"
ENGINES = {"db": DB_LEDGER_STORAGE, "sorted": SORTED_LEDGER_STORAGE, "interleaved": INTERLEAVED_LEDGER_STORAGE}
_HELPERS = ("description.json", "lastMark.running", "rocksdb.json", "journal-0.txn")


def golden_disk(engine: str, directory: Path) -> DiskLayout:
    """A copy of a golden disk as it lay: `<directory>/journal/current` and `<directory>/ledgers/current`."""
    source = GOLDEN / f"disk-{engine}"
    current, journal = directory / "ledgers/current", directory / "journal/current"
    shutil.copytree(source, current)
    journal.mkdir(parents=True)
    description = json.loads((source / "description.json").read_text())
    name = description["files"][f"disk-{engine}/journal-0.txn"]["originalName"]
    shutil.copy(source / "journal-0.txn", journal / name)
    shutil.copy(source / "VERSION", journal / "VERSION")
    if engine == "db":
        _restore_databases(json.loads((source / "rocksdb.json").read_text()), current)
    for helper in _HELPERS:
        (current / helper).unlink(missing_ok=True)
    return DiskLayout((str(journal),), (str(current),))


def _restore_databases(content: dict[str, dict[str, list[dict[str, str]]]], current: Path) -> None:
    stores = RocksStores(PosixFiles())
    for kind in StoreKind:
        store = stores.open(str(current / kind.value), kind)
        batch = store.batch()
        for row in content[kind.value]["rows"]:
            batch.put(bytes.fromhex(row["key"]), bytes.fromhex(row["value"]))
        batch.commit()
        store.close()


def open_engine_on(layout: DiskLayout, engine: str, *, log_size: int = 1 << 20) -> LedgerStorage:
    """The engine on these folders, without journals."""
    config = changed(
        small_options(log_size=log_size, directories=len(layout.ledgers)),
        storage_class=ENGINES[engine],
        skip_list_size_limit_bytes=1 << 20,
        page_limit=64,
        min_usable_for_index_file_bytes=0,
    )
    return open_storage(config, StorageParts(PosixFiles(), call_directly, layout.ledgers, layout.indexes))


def write_disk(
    engine: str,
    directory: Path,
    ledgers: dict[int, int],
    *,
    directories: int = 1,
    fenced: tuple[int, ...] = (),
    log_size: int = 1 << 20,
) -> DiskLayout:
    """A disk of our engine with so many entries in each ledger, cleanly stopped."""
    from dataclasses import replace

    folders = tuple(str(directory / f"ledgers{at}/current") for at in range(directories))
    layout = DiskLayout((), folders)
    storage = open_engine_on(layout, engine, log_size=log_size)
    try:
        for ledger_id, count in ledgers.items():
            for entry_id in range(count):
                put(storage, entry(ledger_id, entry_id, 100))
            if ledger_id in fenced:
                record = storage.ledger(ledger_id)
                assert record is not None
                storage.set_ledger(ledger_id, replace(record, fenced=True))
            storage.flush()
    finally:
        storage.close()
    return layout


def contents(layout: DiskLayout, engine: str) -> dict[int, tuple[object, dict[int, bytes]]]:
    """What an engine serves from a disk: record and entries of each ledger."""
    storage = open_engine_on(layout, engine)
    try:
        return {
            ledger_id: (
                storage.ledger(ledger_id),
                {entry_id: storage.read(ledger_id, entry_id) for entry_id in storage.entry_ids(ledger_id)},
            )
            for ledger_id in sorted(storage.ledger_ids())
        }
    finally:
        storage.close()
