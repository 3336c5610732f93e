"""Archived ledgers in an Iceberg table: each once, whoever dies, and whoever else commits."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import TableAlreadyExistsError
from pyiceberg.manifest import ManifestFile
from pyiceberg.utils.config import Config

from bookie_client import BlockingClient
from bookie_protocol.archive import OffloadRecord
from pyspark_bookie.archive.writing import schema
from pyspark_bookie.jobs.framework.arguments import UsageError
from pyspark_bookie.jobs.offload import iceberg
from pyspark_bookie.jobs.offload.cleaning import OffloadStore
from pyspark_bookie.jobs.offload.iceberg import (
    LEDGERS,
    TOKEN,
    IcebergTable,
    TableUnavailable,
    check_identifier,
    open_catalog,
)
from tests.support.killing import Killed
from tests.support.ledger_shelf import LedgerShelf
from tests.support.offload_rig import offloader
from tests.unit.pyspark_bookie.jobs.rig import DriverContext, drive

TABLE = "archive.ledgers"
PAYLOADS = [b"first", b"", b"last"]


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Catalog:
    """A catalogue in a file, as pyiceberg's configuration names it."""
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", f"sqlite:///{tmp_path}/catalog.db")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__TYPE", "sql")
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__WAREHOUSE", f"file://{tmp_path}/lake")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())  # it is read once
    return load_catalog("lake")


def archive(shelf: LedgerShelf, target: str, *ledger_ids: int) -> None:
    for ledger_id in ledger_ids:
        shelf.put(ledger_id, PAYLOADS)
        offloader(shelf, target).offload(ledger_id)


def table_of(shelf: BlockingClient, catalog: Catalog, target: str, **others: Any) -> IcebergTable:
    return IcebergTable(OffloadStore(shelf), catalog, TABLE, target, "cluster-1", **others)


def rows(catalog: Catalog) -> pa.Table:
    return catalog.load_table(TABLE).scan().to_arrow().sort_by([("ledger_id", "ascending"), ("entry_id", "ascending")])


def expected(*ledger_ids: int) -> list[tuple[int, int, bytes]]:
    return [(each, entry, payload) for each in ledger_ids for entry, payload in enumerate(PAYLOADS)]


def found(catalog: Catalog) -> list[tuple[int, int, bytes]]:
    return [(row["ledger_id"], row["entry_id"], row["value"]) for row in rows(catalog).to_pylist()]


def test_each_ledger_is_in_the_table_once(shelf: LedgerShelf, target: str, catalog: Catalog) -> None:
    archive(shelf, target, 7, 9)
    table = table_of(shelf, catalog, target)
    assert table.commit([7, 9, 11]) == 2
    assert table.commit([7, 9]) == 0
    archive(shelf, target, 8)
    assert table.missing(OffloadStore(shelf).read_all([7, 8, 9])) == [8]
    assert table.commit([7, 8, 9]) == 1
    assert found(catalog) == expected(7, 8, 9)
    assert rows(catalog)["length"].to_pylist()[:3] == [5, 0, 4]
    made = catalog.load_table(TABLE)
    summaries = [snapshot.summary for snapshot in made.metadata.snapshots]
    assert len({summary[TOKEN] for summary in summaries}) == 2
    record = OffloadStore(shelf).read_all([8])[8]
    assert summaries[1][LEDGERS] == f"8-{record.uuid}"
    assert record.tables == (str(made.metadata.table_uuid),)
    assert made.properties["gc.enabled"] == "false"


def test_a_run_that_died_behind_its_commit_is_gone_on_with(
    shelf: LedgerShelf, target: str, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the snapshot is gone, and with other ledgers beside."""
    archive(shelf, target, 7, 9)
    with monkeypatch.context() as dying:
        dying.setattr(OffloadStore, "update", lambda *_: (_ for _ in ()).throw(Killed("before the mark")))
        with pytest.raises(Killed):
            table_of(shelf, catalog, target).commit([7, 9])
    archive(shelf, target, 8)
    table = table_of(shelf, catalog, target)
    assert table.missing(OffloadStore(shelf).read_all([7, 8, 9])) == [8]
    assert table.commit([7, 8, 9]) == 1
    assert found(catalog) == expected(7, 8, 9)


@pytest.mark.parametrize("maintained", ["", "compacted", "expired"])
def test_a_ledger_whose_record_lost_its_mark_is_not_added_again(
    shelf: LedgerShelf, target: str, catalog: Catalog, maintained: str
) -> None:
    """As an older release leaves the record; also where a compaction has put other files in the place of the archive's,
    or the snapshot that said what was added is gone."""
    for each in (7, 8):
        archive(shelf, target, each)
        assert table_of(shelf, catalog, target).commit([each]) == 1
    made = catalog.load_table(TABLE)
    if maintained == "compacted":
        made.overwrite(made.scan().to_arrow())
    if maintained == "expired":
        made.maintenance.expire_snapshots().by_id(made.metadata.snapshots[0].snapshot_id).commit()
        assert len(catalog.load_table(TABLE).metadata.snapshots) == 1
    store = OffloadStore(shelf)
    stored = store.read(7)
    assert stored is not None
    store.update(stored, replace(stored.value, tables=()))
    archive(shelf, target, 9)
    table = table_of(shelf, catalog, target)
    assert table.missing(store.read_all([7, 8, 9])) == [9]
    assert table.commit([7, 8, 9]) == 1
    assert found(catalog) == expected(7, 8, 9)
    assert store.read_all([7])[7].tables == stored.value.tables


def test_a_run_reads_each_manifest_of_the_table_once(
    shelf: LedgerShelf, target: str, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg, "LEDGERS_AT_ONCE", 1)
    read: list[str] = []
    ordinary = ManifestFile.fetch_manifest_entry

    def noted(self: ManifestFile, *args: Any, **named: Any) -> Any:
        read.append(self.manifest_path)
        return ordinary(self, *args, **named)

    monkeypatch.setattr(ManifestFile, "fetch_manifest_entry", noted)
    ledger_ids = list(range(1, 7))
    archive(shelf, target, *ledger_ids)
    assert table_of(shelf, catalog, target).commit(ledger_ids) == 6
    assert len(read) == len(set(read)) == 5
    assert found(catalog) == expected(*ledger_ids)
    read.clear()
    assert table_of(shelf, catalog, target).commit(ledger_ids) == 0
    assert read == []


KILLED = """
import os, signal, sys
from bookie_client import BlockingClient
from pyiceberg.catalog import load_catalog
from pyspark_bookie.jobs.offload.cleaning import OffloadStore
from pyspark_bookie.jobs.offload.iceberg import IcebergTable

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[3] == "mark":
    OffloadStore.update = die
with BlockingClient(sys.argv[1]) as client:
    before, store = die if sys.argv[3] == "commit" else lambda: None, OffloadStore(client)
    IcebergTable(store, load_catalog("lake"), "archive.ledgers", sys.argv[2], "cluster-1", before).commit([7])
"""


@pytest.mark.parametrize("place", ["commit", "mark"])
def test_a_process_that_is_killed_costs_no_row_and_doubles_none(
    tmp_path: Path, target: str, catalog: Catalog, place: str
) -> None:
    with LedgerShelf(tmp_path / "shelf") as shelf:
        archive(shelf, target, 7)
    uri = f"file://{tmp_path}/shelf/metadata"
    words = [sys.executable, "-c", KILLED, uri, target, place]
    assert subprocess.run(words, capture_output=True, timeout=60).returncode == -9
    with BlockingClient(uri) as client:
        assert table_of(client, catalog, target).commit([7]) == (1 if place == "commit" else 0)
    assert found(catalog) == expected(7)


def test_of_two_runs_at_once_each_ledger_is_added_by_one(shelf: LedgerShelf, target: str, catalog: Catalog) -> None:
    """The other one commits between this one's look and its commit, and what this one adds is looked at again."""
    archive(shelf, target, 7, 8, 9)
    other = table_of(shelf, catalog, target)
    others = iter([[7, 8]])
    table = table_of(shelf, catalog, target, before_commit=lambda: other.commit(next(others, [])))
    assert table.commit([7, 8, 9]) == 1
    assert found(catalog) == expected(7, 8, 9)


def test_a_table_that_others_change_all_the_time_is_told(
    shelf: LedgerShelf, target: str, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(shelf, target, 7, *range(20, 23))
    monkeypatch.setattr(iceberg, "_TRIES", 2)
    other = table_of(shelf, catalog, target)
    others = iter([[20], [21]])
    table = table_of(shelf, catalog, target, before_commit=lambda: other.commit(next(others)))
    with pytest.raises(TableUnavailable, match="again"):
        table.commit([7])


def test_another_table_gets_all_again(shelf: LedgerShelf, target: str, catalog: Catalog) -> None:
    archive(shelf, target, 7)
    table = table_of(shelf, catalog, target)
    assert table.commit([7]) == 1
    catalog.drop_table(TABLE)
    assert table.commit([7]) == 1
    assert found(catalog) == expected(7)


def test_a_table_whose_maintenance_deletes_files_is_refused(shelf: LedgerShelf, target: str, catalog: Catalog) -> None:
    archive(shelf, target, 7)
    catalog.create_namespace("archive")
    catalog.create_table(TABLE, pa.schema([("ledger_id", pa.int64())]))
    with pytest.raises(UsageError, match="maintenance"):
        table_of(shelf, catalog, target).commit([7])
    with catalog.load_table(TABLE).transaction() as transaction:
        transaction.set_properties({"gc.enabled": "false"})
    with pytest.raises(TableUnavailable, match="used"):
        table_of(shelf, catalog, target).commit([7])


def test_a_table_that_another_run_makes_meanwhile_is_held_to_the_same(
    shelf: LedgerShelf, target: str, catalog: Catalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive(shelf, target, 7)
    make = catalog.create_table

    def other_first(*_: object, **__: object) -> None:
        make(TABLE, schema())
        raise TableAlreadyExistsError(TABLE)

    monkeypatch.setattr(catalog, "create_table", other_first)
    with pytest.raises(UsageError, match="maintenance"):
        table_of(shelf, catalog, target).commit([7])


def test_a_missing_file_is_told(shelf: LedgerShelf, target: str, catalog: Catalog) -> None:
    archive(shelf, target, 7)
    for path in Path(target.removeprefix("file://")).glob("data/**/*.parquet"):
        path.unlink()
    with pytest.raises(TableUnavailable) as told:
        table_of(shelf, catalog, target).commit([7])
    assert "\n" not in str(told.value)


def test_a_catalogue_that_cannot_be_used_is_told_without_its_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYICEBERG_CATALOG__LAKE__URI", "nothing://user:secret@host/db")
    monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
    with pytest.raises(TableUnavailable) as told:
        open_catalog("lake")
    assert "secret" not in str(told.value)
    assert "host" in str(told.value)


@pytest.mark.parametrize("name", ["ledgers", ".ledgers", "a..b", "a. b", ""])
def test_a_table_has_a_namespace(name: str) -> None:
    with pytest.raises(UsageError, match=r"NAMESPACE\.TABLE"):
        check_identifier(name)


def test_the_job_commits_what_is_archived(shelf: LedgerShelf, target: str, catalog: Catalog) -> None:
    archive(shelf, target, 7, 9)
    words = ("offload", "--all", "--target", target, "--iceberg-catalog", "lake", "--iceberg-table", TABLE)
    planned = drive(DriverContext(shelf, *words, "--dry-run"))
    assert planned.findings is not None
    assert [row["what"] for row in planned.findings.to_pylist()] == ["WOULD_COMMIT"] * 2
    assert not catalog.table_exists(TABLE)
    assert drive(DriverContext(shelf, *words)).counters["committed"] == 2
    assert drive(DriverContext(shelf, *words)).counters["committed"] == 0
    assert found(catalog) == expected(7, 9)
    for wrong in (("--iceberg-table", "ledgers"), ("--iceberg-catalog", "lake")):
        with pytest.raises(UsageError, match="--iceberg-"):
            drive(DriverContext(shelf, "offload", "--all", "--target", target, *wrong))


def test_a_record_of_an_earlier_release_is_in_no_table(shelf: LedgerShelf, target: str) -> None:
    archive(shelf, target, 7)
    record = OffloadStore(shelf).read_all([7])[7]
    row = json.loads(record.in_table("t").encode())
    assert OffloadRecord.decode(json.dumps(row).encode()).tables == ("t",)
    del row["tables"]
    assert OffloadRecord.decode(json.dumps(row).encode()) == record
    assert record.in_table("t").in_table("t").tables == ("t",)
