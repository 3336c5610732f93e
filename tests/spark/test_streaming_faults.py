"""Queries whose ledgers, password or metadata service are not there, or go away: an error that names them, no hang."""

from __future__ import annotations

import pytest

from bookie_client import BlockingClient
from bookie_protocol.errors import NotThere
from tests.spark.ledgers import load, numbered, write_ledger
from tests.spark.streams import append, payloads, run, sink, source
from tests.support.bookie_process import free_port
from tests.support.metadata_process import MetadataProcess
from tests.support.serve_cluster import ServeCluster
from tests.support.until import until_true

pytestmark = pytest.mark.timeout(600)
"""Several queries a test, each of which may take its time."""

EARLIEST = {"startingPosition": "earliest", "maxEntriesPerTrigger": 10}
ONE = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1}


def copy(spark, uri, end, checkpoint, **options):
    return run(sink(source(spark, uri, {**EARLIEST, **options}), uri, end, checkpoint))


def per_batch(frame, checkpoint, then, seconds=100):
    """Run a query to its end that tells `then` the number of each batch when its rows are counted; returns how many
    rows each had."""
    counts = []

    def take(rows, number):
        counts.append(rows.count())
        then(number)

    writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(checkpoint))
    run(writer.trigger(availableNow=True).start(), seconds)
    return counts


def test_growth_during_a_run_that_ends_by_itself_is_for_the_next_one(spark, uri, client, tmp_path):
    append(client, "growing", numbered(25))
    frame = source(spark, uri, {"stream": "growing", **EARLIEST})
    more = [numbered(30)[25:]]
    assert per_batch(frame, tmp_path / "c", lambda _: more and append(client, "growing", more.pop())) == [10, 10, 5]
    assert per_batch(frame, tmp_path / "c", lambda _: None) == [5]


def test_another_password(spark, uri, client, tmp_path):
    ledger_id = write_ledger(client, numbered(3), password=b"s3cret")
    told = rf"\[BOOKIE_UNAUTHORIZED\] ledger {ledger_id} .* passwordFile"
    with pytest.raises(Exception, match=told):
        copy(spark, uri, "secret-copy", tmp_path / "c", ledgers=ledger_id)
    append(client, "secret", numbered(3), password=b"s3cret")
    with pytest.raises(Exception, match=r"\[BOOKIE_UNAUTHORIZED\] ledger \d+ .* passwordFile"):
        copy(spark, uri, "secret-copy", tmp_path / "d", stream="secret")
    (tmp_path / "password").write_text("s3cret\n")
    frame = source(spark, uri, {**EARLIEST, "stream": "secret", "passwordFile": tmp_path / "password"})
    run(sink(frame, uri, "secret-copy", tmp_path / "d"))
    assert payloads(client, "secret-copy") == numbered(3)


def test_a_ledger_that_is_deleted_between_batches(spark, uri, client, tmp_path):
    """Of a stream that lists it, and by itself."""
    listed = [append(client, "holed", numbered(30)[first : first + 10]) for first in (0, 10, 20)]
    frame = source(spark, uri, {"stream": "holed", **EARLIEST})
    told = rf"\[BOOKIE_DATA_LOSS\] ledger {listed[1]} .* 0 to 9 "
    with pytest.raises(Exception, match=told):
        per_batch(frame, tmp_path / "c", lambda number: client.delete(listed[1]) if number == 0 else None)
    frame = source(spark, uri, {"stream": "holed", "failOnDataLoss": "false", **EARLIEST}).select("value")
    assert per_batch(frame, tmp_path / "c", lambda _: None) == [0, 10]

    alone = write_ledger(client, numbered(30))
    frame = source(spark, uri, {"ledgers": alone, "settlingTime": "0s", **EARLIEST})
    with pytest.raises(Exception, match=rf"\[BOOKIE_DATA_LOSS\] .*ledger {alone}\b"):
        per_batch(frame, tmp_path / "d", lambda _: client.delete(alone))


def test_no_metadata_service(spark, tmp_path):
    """Neither hangs: not the source, nor the sink."""
    away = f"embedded://127.0.0.1:{free_port()}/ledgers"
    told = r"\[BOOKIE_METADATA_UNAVAILABLE\]"
    with pytest.raises(Exception, match=told):
        run(
            source(spark, away, {"stream": "s", "metadataTimeout": "2s"})
            .writeStream.format("noop")
            .option("checkpointLocation", str(tmp_path / "c"))
            .trigger(availableNow=True)
            .start()
        )
    rate = spark.readStream.format("rate").load().selectExpr("cast(value AS string) AS value")
    with pytest.raises(Exception, match=told):
        run(sink(rate, away, "s", tmp_path / "d", metadataTimeout="2s"))


@pytest.fixture
def quick(tmp_path):
    """A metadata service and one bookie of one test, which gives the space of deleted ledgers back at once."""
    metadata = MetadataProcess(tmp_path / "metadata")
    try:
        metadata.start()
        cluster = ServeCluster(
            tmp_path / "bookies",
            metadata.uri(),
            {"gcWaitTime": "200", "flushInterval": "200", "logSizeLimit": "1048576"},
        )
        try:
            cluster.add(1)
            yield cluster.uri, metadata
        finally:
            cluster.stop()
    finally:
        metadata.stop()


def test_what_goes_away_under_a_query_is_told(spark, quick, tmp_path):
    uri, metadata = quick
    with BlockingClient(uri) as client:
        ledger_id = write_ledger(client, numbered(30), **ONE)
        gone = write_ledger(client, numbered(30), **ONE)
        frame = load(spark, uri, ledgers=gone)
        assert frame.count() == 30
        with client.open(gone) as reader:
            client.delete(gone)
            until_true(lambda: _is_gone(reader), 60)
    with pytest.raises(Exception, match=rf"\[BOOKIE_DATA_LOSS\] .*ledger {gone}\b"):
        frame.count()  # planned when it was there

    options = {"ledgers": ledger_id, "metadataTimeout": "3s", "metadataRefresh": "0s", "settlingTime": "0s", **EARLIEST}
    with pytest.raises(Exception, match=r"\[BOOKIE_METADATA_UNAVAILABLE\]"):
        per_batch(source(spark, uri, options), tmp_path / "c", lambda _: metadata.kill())


def _is_gone(reader):
    try:
        reader.read(0, 0)
    except NotThere:
        return True
    return False
