"""What a transfer tells of ledgers that are not at the source, and when a stream gets what was transferred."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie_client.streams import PublishedLedger, Streams
from bookie_client.streams.model import STREAM_KEY
from bookie_protocol.errors import NoSuchStream
from pyspark_bookie.archive.files import Files
from pyspark_bookie.common.throttle import Throttle
from pyspark_bookie.jobs.framework.result import JobExit, JobResult
from pyspark_bookie.jobs.offload.deletion import Deleter, DeletionFate, DeletionSettings
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
