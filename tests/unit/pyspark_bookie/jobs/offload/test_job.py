"""What the result row says of ledgers that are gone from the cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie_client.streams import PublishedLedger, Streams, StreamSettings
from bookie_client.streams.model import STREAM_KEY
from bookie_client.streams.store import ManifestStore
from pyspark_bookie.archive.files import Files
from pyspark_bookie.archive.instance import claim
from pyspark_bookie.common.throttle import Throttle
from pyspark_bookie.jobs.framework.arguments import UsageError
from pyspark_bookie.jobs.framework.result import JobExit
from pyspark_bookie.jobs.offload.deletion import Deleter, DeletionFate, DeletionSettings
from tests.support.ledger_shelf import LedgerShelf
from tests.support.offload_rig import folder_of, offloader
from tests.unit.pyspark_bookie.jobs.rig import DriverContext, drive

PAYLOADS = [b"first", b"last"]


def test_a_listed_ledger_that_was_offloaded_is_there_and_one_that_was_lost_is_missing(
    shelf: LedgerShelf, target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shelf.run(lambda client: Streams(client).create("orders", StreamSettings()))
    for ledger_id in (1, 2, 3):
        shelf.put(ledger_id, PAYLOADS, custom={STREAM_KEY: b"orders"})
    shelf.run(lambda client: Streams(client).publish("orders", [PublishedLedger(each, 2, 9) for each in (1, 2, 3)]))
    other = f"file://{tmp_path}/other"
    for ledger_id, archive in ((1, target), (2, other)):
        offloader(shelf, archive).offload(ledger_id)
        settings = DeletionSettings(archive, 0.0, keep_listed=True)
        deleter = Deleter(shelf, Files(archive, "--target"), settings, Throttle(None))
        assert deleter.delete(ledger_id) is DeletionFate.DELETED

    def run() -> tuple[object, ...]:
        result = drive(DriverContext(shelf, "offload", "--stream", "orders", "--target", target))
        return *(result.counters[name] for name in ("selected", "already_there", "missing")), result.exit

    assert run() == (1, 1, 0, JobExit.OK)
    assert f"offload: 1 ledgers are in the archive {other} alone, and not in {target}\n" in capsys.readouterr().err
    shelf.delete(3)
    assert run() == (0, 1, 1, JobExit.FINDINGS)


def test_an_archive_of_another_cluster_is_left_alone(shelf: LedgerShelf, target: str) -> None:
    """As when a cluster was lost: its successor begins its numbers anew, and runs the same job."""
    files = Files(target, "--target")
    assert claim(files, "its-predecessor") is None
    shelf.put(7, PAYLOADS)
    before = sorted(folder_of(target).rglob("*"))
    for further in ([], ["--dry-run"]):
        with pytest.raises(UsageError, match="its-predecessor"):
            drive(DriverContext(shelf, "offload", "--all", "--target", target, *further))
    assert sorted(folder_of(target).rglob("*")) == before
    with pytest.raises(UsageError, match="its-predecessor"):
        drive(DriverContext(shelf, "orphans", "--kind", "offload-files", "--target", target, "--no-dry-run"))


def test_a_dry_run_asks_all_streams_once(shelf: LedgerShelf, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for ledger_id in (1, 2, 3):
        shelf.put(ledger_id, PAYLOADS)
        offloader(shelf, target).offload(ledger_id)
    asked: list[int] = []
    listing = ManifestStore.listing
    monkeypatch.setattr(
        ManifestStore, "listing", lambda store, among: asked.append(len(among)) or listing(store, among)
    )
    words = ("--all", "--target", target, "--delete-after", "0s", "--dry-run")
    result = drive(DriverContext(shelf, "offload", *words))
    assert result.findings is not None
    assert [row["what"] for row in result.findings.to_pylist()] == ["WOULD_DELETE"] * 3
    assert asked == [3]


def test_a_dry_run_claims_nothing(shelf: LedgerShelf, target: str) -> None:
    drive(DriverContext(shelf, "offload", "--all", "--target", target, "--dry-run"))
    assert not folder_of(target).exists()


def test_another_ledger_of_the_number_is_work(shelf: LedgerShelf, target: str) -> None:
    shelf.put(7, PAYLOADS)
    offloader(shelf, target).offload(7)

    def planned() -> tuple[object, object]:
        counters = drive(DriverContext(shelf, "offload", "--all", "--target", target, "--dry-run")).counters
        return counters["already_there"], counters["pending"]

    assert planned() == (1, 0)
    shelf.delete(7)
    shelf.put(7, PAYLOADS, created_ms=1_800_000_000_000)
    assert planned() == (0, 1)
