"""A streaming query whose ledgers go into an archive between its batches, as Spark drives it, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadMaxRows

from bookie_client.streams import PublishedLedger, Streams, StreamSettings
from pyspark_bookie.archive.files import Files
from pyspark_bookie.common.access import AccessOptions
from pyspark_bookie.common.errors import PodkeeperSparkError
from pyspark_bookie.common.throttle import Throttle
from pyspark_bookie.jobs.offload.deletion import Deleter, DeletionFate, DeletionSettings
from pyspark_bookie.source.schema import schema_for
from pyspark_bookie.source.streaming.reader import StreamingReader
from tests.support.ledger_shelf import LedgerShelf
from tests.support.offload_rig import offloader

RAW = {"metadataServiceUri": "zk://nowhere/ledgers", "stream": "orders", "startingPosition": "earliest"}
IDS = (3, 1, 2)
EXPECTED = [(ledger_id, entry) for ledger_id in IDS for entry in range(4)]


def reader(**more: str) -> StreamingReader:
    raw = {**RAW, "maxEntriesPerTrigger": "5", **more}
    return StreamingReader(raw, schema_for(raw))


def rows(one: StreamingReader, start: dict, end: dict) -> list[tuple[int, int]]:
    batches = [batch for partition in one.partitions(start, end) for batch in one.read(partition)]
    return [(row["ledger_id"], row["entry_id"]) for batch in batches for row in batch.to_pylist()]


def test_it_goes_on_without_loss_or_repetition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shelf has no bookies: what is read comes from the archive alone."""
    target = f"file://{tmp_path}/archive"
    with LedgerShelf(tmp_path) as shelf:
        monkeypatch.setattr(AccessOptions, "client", lambda self, **_: shelf)
        shelf.run(lambda client: Streams(client).create("orders", StreamSettings()))
        for each in IDS:
            shelf.put(
                each, [b"%d" % number for number in range(4)], custom={"podkeeper/stream": b"orders"}, password=b""
            )
        published = [PublishedLedger(each, 4, 4) for each in IDS]
        shelf.run(lambda client: Streams(client).publish("orders", published))
        first = reader()
        begin = first.initialOffset()
        middle = first.latestOffset(begin, ReadMaxRows(5))

        settings = DeletionSettings(target, 0.0, keep_listed=True)
        deleter = Deleter(shelf, Files(target, "--target"), settings, Throttle(None))
        for each in IDS:
            offloader(shelf, target, password=b"").offload(each)
            assert deleter.delete(each) is DeletionFate.DELETED
        found = rows(first, begin, middle)
        assert found == EXPECTED[:5]
        start, again = middle, reader()
        while (end := again.latestOffset(start, ReadMaxRows(5))) != start:
            found += rows(again, start, end)
            start = end
        assert found == EXPECTED
        with pytest.raises(PodkeeperSparkError, match=r"ledger 3 .*deleted .*entries 0 to 3"):
            reader(tiers="bookies").partitions(begin, middle)
