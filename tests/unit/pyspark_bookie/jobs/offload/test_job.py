"""What the result row says of ledgers that are gone from the cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from bookie_client.streams import PublishedLedger, Streams, StreamSettings
from bookie_client.streams.model import STREAM_KEY
from pyspark_bookie.archive.files import Files
from pyspark_bookie.common.throttle import Throttle
from pyspark_bookie.jobs.framework.result import JobExit
from pyspark_bookie.jobs.offload.deletion import Deleter, DeletionFate, DeletionSettings
from tests.support.ledger_shelf import LedgerShelf
from tests.support.offload_rig import offloader
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
