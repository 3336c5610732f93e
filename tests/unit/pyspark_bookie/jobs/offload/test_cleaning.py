"""What dead attempts left: found by age, and never what counts."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from bookie_protocol.archive import Abandoned, LedgerIdentity, OffloadRecord, OffloadState
from bookie_protocol.errors import MetadataDamaged
from pyspark_bookie.archive.files import Files, Listed
from pyspark_bookie.jobs.offload.cleaning import OffloadStore, Orphans, find_orphans, remove_orphans
from tests.support.ledger_shelf import LedgerShelf
from tests.support.offload_rig import check_complete, folder_of, offloader, stop_after

PAYLOADS = [b"first", b"", b"last"]
LATER = datetime.now(UTC) + timedelta(days=1)


def current_uuid(shelf: LedgerShelf):
    def current(ledger_id: int) -> str | None:
        stored = OffloadStore(shelf).read(ledger_id)
        return None if stored is None else stored.value.uuid

    return current


def test_only_what_nobody_remembers_is_an_orphan(shelf: LedgerShelf, target: str) -> None:
    files = Files(target, "--target")
    shelf.put(7, PAYLOADS)
    offloader(shelf, target).offload(7)
    shelf.put(8, PAYLOADS)
    stop_after(shelf, target, OffloadState.UPLOADED, 8)
    root = folder_of(target)
    [data] = root.rglob("data/**/*.parquet")
    forgotten = [
        data.parent / f"ledger-7-{'0' * 32}-0.parquet",
        data.parent / f"ledger-9-{'1' * 32}-0.parquet",
        root / "_tmp" / ("2" * 32) / f"ledger-8-{'2' * 32}-0.parquet",
        root / "_tmp" / ("3" * 32) / "manifest.json",
    ]
    strangers = [data.parent / "notes.txt", root / "data" / "ledger-7.csv"]
    for path in (*forgotten, *strangers):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")

    assert find_orphans(files, datetime.now(UTC) - timedelta(days=3), current_uuid(shelf)).files == ()
    found = find_orphans(files, LATER, current_uuid(shelf))
    assert {root / file.path for file in found.files} == set(forgotten)
    assert found.nbytes == 4
    remove_orphans(files, found)
    assert not any(path.exists() for path in forgotten)
    assert all(path.exists() for path in strangers)
    for path in strangers:
        path.unlink()
    offloader(shelf, target).offload(8)
    check_complete(shelf, target, 7, PAYLOADS)
    check_complete(shelf, target, 8, PAYLOADS)


def test_files_that_a_manifest_names_stay_though_the_record_is_lost(shelf: LedgerShelf, target: str) -> None:
    shelf.put(7, PAYLOADS)
    offloader(shelf, target).offload(7)
    store = OffloadStore(shelf)
    stored = store.read(7)
    assert stored is not None
    store.delete(stored)
    assert find_orphans(Files(target, "--target"), LATER, current_uuid(shelf)).files == ()


def test_an_archive_that_does_not_exist_has_no_orphans(shelf: LedgerShelf, target: str) -> None:
    assert find_orphans(Files(target, "--target"), LATER, current_uuid(shelf)).files == ()


def test_a_name_that_a_store_allows_and_no_folder_has_takes_no_other_attempt_with_it(tmp_path: Path) -> None:
    live = tmp_path / "_tmp" / "live" / "file"
    live.parent.mkdir(parents=True)
    live.touch()
    remove_orphans(Files(str(tmp_path), "--target"), Orphans((Listed("_tmp//file", 1, None),)))
    assert live.exists()


@pytest.mark.parametrize("uuid", ["", "..", "../data", "A" * 32, "a" * 31])
def test_the_uuid_of_an_attempt_is_no_path(uuid: str) -> None:
    """Its folder is deleted with all that is in it."""
    attempt = Abandoned("file:///archive", "a" * 32, "data")
    identity = LedgerIdentity(3, 10, None)
    record = OffloadRecord(
        ledger_id=7,
        state=OffloadState.PREPARED,
        target=attempt.target,
        uuid=attempt.uuid,
        folder=attempt.folder,
        ledger=identity,
        abandoned=(attempt,),
    )
    assert OffloadRecord.decode(record.encode()) == record
    for bad in (replace(record, uuid=uuid), replace(record, abandoned=(replace(attempt, uuid=uuid),))):
        with pytest.raises(MetadataDamaged, match="offload"):
            OffloadRecord.decode(bad.encode())
