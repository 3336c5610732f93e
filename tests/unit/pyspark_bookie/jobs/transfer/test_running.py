"""What a transfer tells of ledgers that are not at the source, and when a stream gets what was transferred."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bookie_client.streams import PublishedLedger, StreamPosition, Streams
from bookie_client.streams.model import STREAM_KEY
from bookie_protocol.errors import NoSuchStream
from pyspark_bookie.archive.files import ArchivedFileMissing, ArchiveUnavailable, Files
from pyspark_bookie.archive.manifest import manifest_file
from pyspark_bookie.archive.reading import manifest_at
from pyspark_bookie.common.throttle import Throttle
from pyspark_bookie.jobs.export import Exporter
from pyspark_bookie.jobs.framework.arguments import UsageError
from pyspark_bookie.jobs.framework.result import JobExit, JobResult
from pyspark_bookie.jobs.framework.tasks import Outcome
from pyspark_bookie.jobs.offload.cleaning import OffloadStore, Orphans
from pyspark_bookie.jobs.offload.deletion import Deleter, DeletionFate, DeletionSettings
from pyspark_bookie.jobs.transfer.dumps import Dumps
from pyspark_bookie.jobs.transfer.machine import Transferrer
from pyspark_bookie.jobs.transfer.running import _transfer
from pyspark_bookie.jobs.transfer.sources import OpenCluster
from tests.support.ledger_shelf import LedgerShelf
from tests.support.offload_rig import offloader
from tests.unit.pyspark_bookie.jobs.rig import DriverContext, drive

COPY = ("copy", "--to-metadata", "embedded://elsewhere", "--stream", "orders", "--to-stream", "copied")


def listed(shelf: LedgerShelf, *ledger_ids: int) -> None:
    for ledger_id in ledger_ids:
        shelf.put(ledger_id, [b"first", b"last"], custom={STREAM_KEY: b"orders"})
    ledgers = [PublishedLedger(each, 2, 9) for each in ledger_ids]
    shelf.run(lambda client: Streams(client).create("orders"))
    shelf.run(lambda client: Streams(client).publish("orders", ledgers))


def archive(shelf: LedgerShelf, ledger_id: int, target: str) -> None:
    offloader(shelf, target).offload(ledger_id)
    settings = DeletionSettings(target, 0.0, keep_listed=True)
    assert Deleter(shelf, Files(target, "--target"), settings, Throttle(None)).delete(ledger_id) is DeletionFate.DELETED


def findings(result: JobResult) -> dict[int, tuple[str, str]]:
    assert result.findings is not None
    return {row["ledger_id"]: (row["what"], row["detail"]) for row in result.findings.to_pylist()}


@pytest.mark.parametrize("words", [COPY, ("export", "--stream", "orders", "--target", "{folder}")])
def test_what_is_in_an_archive_is_told_with_the_command_that_restores_it(
    shelf: LedgerShelf, target: str, tmp_path: Path, words: tuple[str, ...]
) -> None:
    listed(shelf, 1, 2)
    archive(shelf, 1, target)
    shelf.delete(2)
    result = drive(DriverContext(shelf, *(word.format(folder=tmp_path) for word in words)))
    assert (result.counters["missing"], result.exit) == (2, JobExit.FINDINGS)
    what, detail = findings(result)[1]
    assert what == "ARCHIVED"
    assert detail.endswith(f"restore --source {target} --keep-ids --ledgers 1")
    assert findings(result)[2] == ("MISSING", "the ledger does not exist")


@pytest.mark.parametrize("job", ["restore", "import"])
def test_a_source_that_is_not_there_is_no_empty_one(shelf: LedgerShelf, tmp_path: Path, job: str) -> None:
    """Nothing of it would be transferred, and all be well."""
    (tmp_path / "file").write_bytes(b"")
    told = {"nowhere": (ArchivedFileMissing, "is not there"), "file": (ArchiveUnavailable, "it is not a folder")}
    for name, (error, words) in told.items():
        with pytest.raises(error, match=f"--source: {tmp_path}/{name} .*{words}"):
            drive(DriverContext(shelf, job, "--source", f"{tmp_path}/{name}"))
    assert drive(DriverContext(shelf, job, "--source", str(tmp_path))).exit is JobExit.OK


@pytest.mark.parametrize("job", ["restore", "import"])
def test_arguments_are_wrong_whatever_the_source_is(shelf: LedgerShelf, tmp_path: Path, job: str) -> None:
    with pytest.raises(UsageError, match="exclude"):
        drive(DriverContext(shelf, job, "--source", f"{tmp_path}/nowhere", "--keep-ids", "--to-stream", "s"))


def test_files_of_an_archive_that_is_not_there_are_not_looked_for(shelf: LedgerShelf, tmp_path: Path) -> None:
    with pytest.raises(ArchivedFileMissing, match=f"--target: {tmp_path}/nowhere is"):
        drive(DriverContext(shelf, "orphans", "--kind", "offload-files", "--target", f"{tmp_path}/nowhere"))


def test_a_stream_gets_nothing_while_a_ledger_is_missing(
    shelf: LedgerShelf, capsys: pytest.CaptureFixture[str]
) -> None:
    listed(shelf, 1)
    shelf.delete(1)
    result = drive(DriverContext(shelf, *COPY))
    assert (result.counters["published"], result.exit) == (None, JobExit.FINDINGS)
    assert "stream copied: nothing is added to it, because 1 of its ledgers are not there" in capsys.readouterr().err
    with pytest.raises(NoSuchStream):
        shelf.run(lambda client: Streams(client).manifest("copied"))


def test_of_a_number_that_was_used_again_the_last_ledger_is_restored_and_the_others_are_told(
    shelf: LedgerShelf, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    uuids = []
    for payloads in ([b"monday"], [b"fri", b"day"]):
        shelf.put(7, payloads)
        _, record = offloader(shelf, target).offload(7)
        assert record is not None
        uuids.append(record.uuid)
        shelf.delete(7)

    def planned(*words: str) -> str:
        result = drive(DriverContext(shelf, "restore", "--source", target, "--dry-run", *words))
        assert findings(result)[7][0] == "WOULD_WRITE"
        return findings(result)[7][1]

    manifests = [manifest_at(Files(target, "--source"), 7, uuid) for uuid in uuids]
    assert all(manifests)
    for manifest, archived in zip(manifests, ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"), strict=True):
        assert manifest is not None
        content = replace(manifest, archived=archived).encode()
        Files(target, "--source").write(manifest_file(7, manifest.uuid), content, "_tmp/manifest.json")
    assert planned() == "2 entries, 6 bytes"
    assert f"--uuid {uuids[0]} restores that" in capsys.readouterr().err
    assert planned("--uuid", uuids[0]) == "1 entries, 6 bytes"


def test_what_cannot_count_of_a_folder_of_dumps_is_told_and_nothing_else_is_taken_for_it(
    shelf: LedgerShelf, tmp_path: Path
) -> None:
    for ledger_id in (5, 6, 7):
        shelf.put(ledger_id, [b"first", b"last"])
        exporter = Exporter(OpenCluster(shelf, None, Throttle(None)), Dumps(Files(str(tmp_path), "--target")), "none")
        exporter.export(ledger_id, 2, 9)
    shutil.copy(tmp_path / "ledger-6.dump", tmp_path / "ledger-5.dump")
    shutil.copy(tmp_path / "ledger-7.dump", tmp_path / "ledger-7.dump.gz")
    for words in (("import", "--dry-run", "--source"), ("export", "--all", "--dry-run", "--target")):
        result = drive(DriverContext(shelf, *words, str(tmp_path)))
        told = findings(result)
        assert told[5] == ("ENTRY_DAMAGED", "ledger-5.dump is the dump of ledger 6")
        assert (told[7][0], "2 dumps of one ledger" in told[7][1]) == ("REFUSED", True)
        assert (result.counters["failed"], result.exit) == (2, JobExit.FINDINGS)


def test_a_dry_run_below_a_file_promises_nothing(shelf: LedgerShelf, tmp_path: Path) -> None:
    shelf.put(7, [b"first"])
    (tmp_path / "file").touch()
    for job in ("export", "offload"):
        with pytest.raises(ArchiveUnavailable, match=r"--target: .*/file/below.*Not a"):
            drive(DriverContext(shelf, job, "--all", "--dry-run", "--target", f"{tmp_path}/file/below"))


def test_a_cluster_that_does_not_tell_its_id_has_no_archive(
    shelf: LedgerShelf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def nothing(*_: object) -> None:
        return None

    cluster = shelf.run(lambda client: asyncio.sleep(0, type(client.metadata_service.cluster)))
    monkeypatch.setattr(cluster, "instance_id", nothing)
    with pytest.raises(UsageError, match="instance"):
        drive(DriverContext(shelf, "orphans", "--kind", "offload-files", "--target", str(tmp_path)))


@pytest.mark.parametrize(
    "words",
    [
        COPY,
        ("export", "--stream", "orders", "--target", "{}/dumps"),
        ("audit", "--stream", "orders"),
        ("offload", "--stream", "orders", "--target", "s3://OWN:S3CRET@bucket/b?region=eu-west-1", "--dry-run"),
    ],
    ids=lambda words: words[0],
)
def test_no_job_tells_the_login_in_an_archives_uri(
    shelf: LedgerShelf,
    target: str,
    tmp_path: Path,
    words: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ledger 1 is there alone, 2 in the cluster, too."""
    listed(shelf, 1, 2)
    archive(shelf, 1, target)
    offloader(shelf, target).offload(2)
    store = OffloadStore(shelf)
    for ledger_id in (1, 2):
        stored = store.read(ledger_id)
        assert stored is not None
        store.update(stored, replace(stored.value, target="s3://KEY:S3CRET@bucket/a?session_token=S3CRET"))
    for name in ("other_owner", "find_orphans"):
        found = {"other_owner": None, "find_orphans": Orphans(())}[name]
        monkeypatch.setattr(f"pyspark_bookie.jobs.offload.job.{name}", lambda *_, found=found: found)
    result = drive(DriverContext(shelf, *(word.format(tmp_path) for word in words)))
    told = capsys.readouterr().err + str(result.findings.to_pylist() if result.findings is not None else "")
    assert "s3://...@bucket/a?..." in told
    assert "S3CRET" not in told


# --- copies of a stream -----------------------------------------------------------------------------------------


class TransferringContext(DriverContext):
    """Within one shelf: the tasks run here."""

    def run_tasks(self, function: object, items: object, access: object = None) -> Iterator[Any]:
        for item in items:  # type: ignore[attr-defined]
            source = OpenCluster(self._shelf, None, Throttle(None))
            transferrer = Transferrer(self._shelf, source, item.settings)
            ledgers = zip(item.ledger_ids, item.uuids, item.lives, item.places, strict=True)
            yield Outcome(item, tuple(_transfer(transferrer, *each) for each in ledgers), None)


def content(shelf: LedgerShelf, stream: str) -> list[bytes]:
    manifest = shelf.run(lambda client: Streams(client).manifest(stream))
    spans = manifest.spans(manifest.earliest)
    return [
        payload
        for span in spans
        for payload in shelf.payloads(span.ledger.ledger_id)[span.first : (span.last or 0) + 1]
    ]


def publish(shelf: LedgerShelf, *ledger_ids: int) -> None:
    for each in ledger_ids:
        shelf.put(each, [b"%d/0" % each, b"%d/1" % each], custom={STREAM_KEY: b"orders"})
    ledgers = [PublishedLedger(each, 2, sum(map(len, shelf.payloads(each)))) for each in ledger_ids]
    shelf.run(lambda client: Streams(client).create("orders", if_absent=True))
    shelf.run(lambda client: Streams(client).publish("orders", ledgers))


def test_a_copy_is_in_the_order_of_the_stream_and_goes_on_with_it(shelf: LedgerShelf) -> None:
    """Whatever the numbers of its ledgers are."""
    publish(shelf, 1003, 1001)
    for more in ((), (1002,), ()):
        if more:
            publish(shelf, *more)
        result = drive(TransferringContext(shelf, *COPY))
        assert result.exit is JobExit.OK
        assert content(shelf, "copied") == content(shelf, "orders")
    assert content(shelf, "copied")[0] == b"1003/0"


def test_what_was_truncated_within_a_ledger_stays_so(shelf: LedgerShelf) -> None:
    publish(shelf, 1003, 1001)
    shelf.run(lambda client: Streams(client).truncate("orders", StreamPosition(1003, 1)))
    drive(TransferringContext(shelf, *COPY))
    assert content(shelf, "copied") == [b"1003/1", b"1001/0", b"1001/1"]


def test_a_copy_may_leave_out_the_ledger_within_which_the_stream_begins(shelf: LedgerShelf) -> None:
    ages = {1003: round(time.time() * 1000), 1001: 1_700_000_000_000}
    for each, created_ms in ages.items():
        shelf.put(each, [b"%d/0" % each, b"%d/1" % each], custom={STREAM_KEY: b"orders"}, created_ms=created_ms)
    shelf.run(lambda client: Streams(client).create("orders"))
    shelf.run(lambda client: Streams(client).publish("orders", [PublishedLedger(each, 2, 12) for each in ages]))
    shelf.run(lambda client: Streams(client).truncate("orders", StreamPosition(1003, 1)))
    assert drive(TransferringContext(shelf, *COPY, "--older-than", "1d")).exit is JobExit.OK
    assert content(shelf, "copied") == [b"1001/0", b"1001/1"]
