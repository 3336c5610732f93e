"""Whatever a transfer reads from, its bytes pass the throttle before they go on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from bookie_client.reading.entry import LedgerEntry
from pyspark_bookie.archive.files import Files
from pyspark_bookie.archive.manifest import LedgerShape, Manifest
from pyspark_bookie.archive.writing import write_ledger
from pyspark_bookie.common.throttle import Throttle
from pyspark_bookie.jobs.export import Exporter
from pyspark_bookie.jobs.import_ import DumpSource
from pyspark_bookie.jobs.transfer.dumps import Dumps
from pyspark_bookie.jobs.transfer.sources import ArchiveSource, OpenCluster, OpenSource
from tests.support.ledger_shelf import LedgerShelf

PAYLOADS = [bytes(100 + number) for number in range(50)]
SIZE = sum(map(len, PAYLOADS))
UUID = "0123456789abcdef" * 2


class Counting(Throttle):
    """Holds nobody back."""

    def __init__(self) -> None:
        super().__init__(None)
        self.taken = 0

    def take(self, nbytes: int) -> None:
        self.taken += nbytes


@pytest.fixture
def shelf(tmp_path: Path) -> Iterator[LedgerShelf]:
    with LedgerShelf(tmp_path / "shelf") as made:
        made.put(7, PAYLOADS)
        yield made


def cluster(shelf: LedgerShelf, folder: Path, throttle: Throttle) -> OpenSource:
    return OpenCluster(shelf, None, throttle)


def dumps(shelf: LedgerShelf, folder: Path, throttle: Throttle) -> OpenSource:
    written = Dumps(Files(f"file://{folder}", "--target"))
    Exporter(OpenCluster(shelf, None, Throttle(None)), written, "zstd").export(7, len(PAYLOADS), SIZE)
    return DumpSource(f"file://{folder}").open(throttle)


def archive(shelf: LedgerShelf, folder: Path, throttle: Throttle) -> OpenSource:
    files = Files(str(folder), "--target")
    entries = [LedgerEntry(7, entry_id, 0, payload) for entry_id, payload in enumerate(PAYLOADS)]
    written = write_ledger(files, "data", 7, UUID, [entries], 1 << 30, Throttle(None))
    there = tuple(replace(file, path=f"data/{file.path}") for file in written.files)
    manifest = Manifest(7, UUID, "instance", written.counts, there, LedgerShape.of(shelf.metadata(7)))
    files.write("_manifests/ledger-7.json", manifest.encode(), "_tmp/manifest.json")
    return ArchiveSource((str(folder),)).open(throttle)


@pytest.mark.parametrize("source", [cluster, dumps, archive])
def test_all_bytes_pass_the_throttle_before_they_are_handed_on(
    source: Callable[[LedgerShelf, Path, Throttle], OpenSource], shelf: LedgerShelf, tmp_path: Path
) -> None:
    throttle = Counting()
    handed: list[bytes] = []
    for batch in source(shelf, tmp_path / "files", throttle).ledger(7, UUID).payloads():
        handed += batch
        assert throttle.taken >= sum(map(len, handed))
    assert handed == PAYLOADS


def test_an_export_keeps_to_the_throttle(shelf: LedgerShelf, tmp_path: Path) -> None:
    throttle = Counting()
    written = Dumps(Files(f"file://{tmp_path}/dumps", "--target"))
    outcome = Exporter(OpenCluster(shelf, None, throttle), written, "zstd").export(7, len(PAYLOADS), SIZE)
    assert throttle.taken == outcome.nbytes == SIZE
