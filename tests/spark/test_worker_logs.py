"""What workers log while they read, as rows of Spark's own table (`spark.tvf.python_worker_logs()`)."""

from __future__ import annotations

import pytest

from bookie_client import BlockingClient
from bookie_protocol.digest import DigestType
from tests.spark.ledgers import FULL, load, numbered, write_ledger
from tests.support.flipped_bits import flip_bit
from tests.support.metadata_process import MetadataProcess
from tests.support.serve_cluster import ServeCluster

pytestmark = pytest.mark.timeout(600)

LOGGING = "spark.sql.pyspark.worker.logging.enabled"


@pytest.fixture
def breakable(tmp_path):
    """Three bookies of one test."""
    metadata = MetadataProcess(tmp_path / "metadata")
    try:
        metadata.start()
        cluster = ServeCluster(tmp_path / "bookies", metadata.uri())
        try:
            cluster.add(3)
            yield cluster
        finally:
            cluster.stop()
    finally:
        metadata.stop()


@pytest.fixture
def logs(spark):
    """The table, while workers log."""
    spark.conf.set(LOGGING, "true")
    try:
        yield spark.tvf.python_worker_logs
    finally:
        spark.conf.unset(LOGGING)


def test_a_damaged_replica_costs_no_entry_and_is_told_as_a_row(spark, breakable, logs):
    """A digest that needs the ledger's password is for clients alone to verify: the bookie serves what is damaged."""
    with BlockingClient(breakable.uri) as client:
        ledger_id = write_ledger(client, numbered(30), **FULL, digest=DigestType.MAC)
        hurt = client.metadata(ledger_id).bookies_for(0)[0]
    assert breakable.bookies[hurt].stop() == 0
    flip_bit(breakable.bookies[hurt], numbered(30)[0])
    breakable.start([hurt])

    frame = load(spark, breakable.uri, ledgers=ledger_id, locality="none")
    assert sorted(bytes(row.value) for row in frame.select("value").collect()) == numbered(30)
    (row,) = logs().where("msg LIKE 'damaged replica%'").collect()
    assert (row.level, row.logger) == ("WARNING", "bookie_client.reading.sources")
    assert f"ledger={ledger_id} entry=0 bookie={hurt} error=" in row.msg
