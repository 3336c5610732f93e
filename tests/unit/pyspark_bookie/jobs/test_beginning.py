"""How much there is to do is shown before the first piece of it is done."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_bookie.archive.files import Files
from pyspark_bookie.common.throttle import Throttle
from pyspark_bookie.jobs.export import Exporter, ExportFate
from pyspark_bookie.jobs.transfer.dumps import Dumps
from pyspark_bookie.jobs.transfer.sources import OpenCluster
from tests.support.ledger_shelf import LedgerShelf
from tests.support.offload_rig import offloader
from tests.unit.pyspark_bookie.jobs.rig import DriverContext, drive

PAYLOADS = [bytes(1_000_000), bytes(500_000)]
LEDGERS = (7, 8)


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[LedgerShelf]:
    with LedgerShelf(tmp_path) as made:
        for ledger_id in LEDGERS:
            made.put(ledger_id, PAYLOADS)
        yield made


@pytest.fixture
def folder(tmp_path: Path) -> str:
    return f"file://{tmp_path}/folder"


def shown(shelf: LedgerShelf, name: str, *words: str) -> list[str]:
    """What a job says that does no piece of its work."""
    context = DriverContext(shelf, name, *words)
    result = drive(context)
    assert not result.complete
    return context.shown.getvalue().splitlines()


@pytest.mark.parametrize("name", ["offload", "export", "copy"])
def test_jobs_that_read_a_cluster(shelf: LedgerShelf, folder: str, name: str) -> None:
    """Though what was said last, of the metadata, was said a moment ago."""
    to = ("--to-metadata", "embedded://other") if name == "copy" else ("--target", folder)
    lines = shown(shelf, name, "--ledgers", "7,8", *to)
    assert lines[1:] == [f"{name}: 0 of 3 MB (0 %), 0 of 2 ledgers"], lines
    assert "reading metadata" in lines[0]


def test_import(shelf: LedgerShelf, folder: str) -> None:
    exporter = Exporter(
        OpenCluster(shelf, None, Throttle(None)), Dumps(Files(folder, "--target")), "zstd", replace=False
    )
    assert [exporter.export(each, 2, 1_500_000).fate for each in LEDGERS] == [ExportFate.EXPORTED] * 2
    assert shown(shelf, "import", "--source", folder) == ["import: 0 of 3 MB (0 %), 0 of 2 ledgers"]


def test_restore(shelf: LedgerShelf, folder: str) -> None:
    for each in LEDGERS:
        offloader(shelf, folder).offload(each)
    assert shown(shelf, "restore", "--source", folder) == ["restore: 0 of 3 MB (0 %), 0 of 2 ledgers"]


def test_the_deletion_of_what_was_offloaded(shelf: LedgerShelf, folder: str) -> None:
    for each in LEDGERS:
        offloader(shelf, folder).offload(each)
    context = DriverContext(shelf, "offload", "--ledgers", "7,8", "--target", folder, "--delete-after", "0")
    drive(context)
    assert context.shown.getvalue().splitlines()[1:] == ["offload: 0 of 2 ledgers (0 %), deleted"]


def test_scrub(shelf: LedgerShelf) -> None:
    context = DriverContext(shelf, "scrub", "--time-limit", "0")
    drive(context)
    assert context.shown.getvalue().splitlines() == ["scrub: 0 of 2 ledgers (0 %), 0 MB, 0 findings"]
