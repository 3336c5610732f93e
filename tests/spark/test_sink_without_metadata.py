"""The metadata service goes away when tasks have written their ledgers and the driver has not published them yet.

Longer than `metadataTimeout`: the write fails with one line that says what to do, nothing is published, and doing it
again publishes once. Shorter: nobody notices.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from bookie_client import BlockingClient
from tests.spark.ledgers import numbered
from tests.spark.streams import append, payloads, run, source
from tests.support.faulty_sink import CommitGate, Gated
from tests.support.metadata_process import MetadataProcess
from tests.support.serve_cluster import ServeCluster
from tests.support.until import until_true

pytestmark = pytest.mark.timeout(600)
"""Several queries a test, each of which may take its time."""
SECONDS = 300

ONE = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1}
SIZES = {"ensembleSize": 1, "writeQuorum": 1, "ackQuorum": 1}
IMPATIENT, PATIENT = "8s", "100s"
TOLD = r"\[BOOKIE_METADATA_UNAVAILABLE\] [^\n]*stream out\b[^\n]*does the metadata service run[^\n]*"


@pytest.fixture
def metadata(tmp_path):
    made = MetadataProcess(tmp_path / "metadata")
    try:
        made.start()
        cluster = ServeCluster(tmp_path / "bookies", made.uri())
        try:
            cluster.add(1)
            yield made
        finally:
            cluster.stop()
    finally:
        made.stop()


@pytest.fixture
def gate(tmp_path, spark):
    spark.dataSource.register(Gated)
    return CommitGate(tmp_path / "gate")


def again(metadata):
    """The service is back, and its bookie with it."""
    metadata.start()
    with BlockingClient(metadata.uri()) as client:
        until_true(lambda: client.writable_bookies(), 100)


def start(spark, metadata, gate, checkpoint, timeout):
    read = {"stream": "in", "startingPosition": "earliest", "maxEntriesPerTrigger": 10}
    writer = source(spark, metadata.uri(), read).writeStream.format("gated").options(**SIZES, **gate.options)
    writer = writer.option("metadataServiceUri", metadata.uri()).option("metadataTimeout", timeout)
    writer = writer.option("stream", "out").option("checkpointLocation", str(checkpoint))
    return writer.trigger(availableNow=True).start()


def away_at_commit(metadata, gate):
    """When the tasks of the batch have written."""
    gate.until_written()
    metadata.kill()
    gate.open()
    gate.until_committing()


def fill(metadata):
    with BlockingClient(metadata.uri()) as client:
        append(client, "in", numbered(30), **ONE)


def published(metadata):
    with BlockingClient(metadata.uri()) as client:
        return payloads(client, "out")


@pytest.mark.parametrize("batch", [0, 1])
def test_a_query_fails_and_its_restart_publishes_once(spark, metadata, gate, tmp_path, batch):
    """The first commit of a process, and one that has a connection."""
    fill(metadata)
    gate.shut(batch)
    query = start(spark, metadata, gate, tmp_path / "c", IMPATIENT)
    away_at_commit(metadata, gate)
    with pytest.raises(Exception, match=TOLD + "checkpoint"):
        run(query, SECONDS)
    again(metadata)
    assert published(metadata) == numbered(10 * batch)
    run(start(spark, metadata, gate, tmp_path / "c", PATIENT), SECONDS)
    assert published(metadata) == numbered(30)


def test_a_query_waits_for_a_service_that_comes_back(spark, metadata, gate, tmp_path):
    fill(metadata)
    gate.shut(1)
    query = start(spark, metadata, gate, tmp_path / "c", PATIENT)
    away_at_commit(metadata, gate)
    metadata.start()
    run(query, SECONDS)
    assert published(metadata) == numbered(30)
    assert [each["numInputRows"] for each in query.recentProgress] == [10, 10, 10]


def write(spark, metadata, gate, timeout):
    """In this thread: Spark looks the source of a write up in the session of it."""
    rows = spark.range(0, 30, 1, 1).selectExpr("lpad(id, 20, '0') AS value")
    options = {**SIZES, **gate.options, "metadataServiceUri": metadata.uri(), "metadataTimeout": timeout}
    options |= {"stream": "out", "txnAppId": "etl", "txnVersion": 1}
    rows.write.format("gated").mode("append").options(**options).save()


@pytest.fixture
def helper():
    with ThreadPoolExecutor(1) as made:
        yield made


def test_a_batch_write_fails_and_counts_once_when_it_is_done_again(spark, metadata, gate, helper):
    gate.shut()
    away = helper.submit(away_at_commit, metadata, gate)
    with pytest.raises(Exception, match=TOLD + "txnAppId"):
        write(spark, metadata, gate, IMPATIENT)
    away.result()
    again(metadata)
    assert published(metadata) == []
    for _ in range(2):
        write(spark, metadata, gate, PATIENT)
    assert published(metadata) == numbered(30)


def test_a_batch_write_waits_for_a_service_that_comes_back(spark, metadata, gate, helper):
    def away_for_a_while():
        away_at_commit(metadata, gate)
        metadata.start()

    gate.shut()
    away = helper.submit(away_for_a_while)
    write(spark, metadata, gate, PATIENT)
    away.result()
    assert published(metadata) == numbered(30)
