"""What workers log while they read, as rows of Spark's own table (`spark.tvf.python_worker_logs()`)."""

from __future__ import annotations

import pytest

from bookie_client import BlockingClient
from bookie_protocol.digest import DigestType
from tests.spark.ledgers import FULL, load, numbered, write_ledger
from tests.support.flipped_bits import flip_bit
from tests.support.serve_cluster import ServeCluster

pytestmark = pytest.mark.timeout(600)

LOGGING = "spark.sql.pyspark.worker.logging.enabled"


@pytest.fixture
def logs(spark):
    """The table, while workers log."""
    spark.conf.set(LOGGING, "true")
    try:
        yield spark.tvf.python_worker_logs
    finally:
        spark.conf.unset(LOGGING)


def hurt_replica(cluster: ServeCluster, digest: DigestType) -> tuple[int, str]:
    """A ledger of thirty entries, and the bookie whose copy of the first one has a flipped bit."""
    with BlockingClient(cluster.uri) as client:
        ledger_id = write_ledger(client, numbered(30), **FULL, digest=digest)
        hurt = client.metadata(ledger_id).bookies_for(0)[0]
    assert cluster.bookies[hurt].stop() == 0
    flip_bit(cluster.bookies[hurt], numbered(30)[0])
    cluster.start([hurt])
    return ledger_id, hurt


def told_while_reading(spark, cluster, logs, ledger_id, beginning):
    """The one row that begins so, of a query that has every entry all the same."""
    frame = load(spark, cluster.uri, ledgers=ledger_id, locality="none")
    assert sorted(bytes(row.value) for row in frame.select("value").collect()) == numbered(30)
    (row,) = logs().where(f"msg LIKE '{beginning}%'").collect()
    assert (row.level, row.logger) == ("WARNING", "bookie_client.reading.choice")
    return row.msg


def test_a_damaged_replica_costs_no_entry_and_is_told_as_a_row(spark, mortal, logs):
    """A digest that needs the ledger's password is for clients alone to verify: the bookie serves what is damaged."""
    ledger_id, hurt = hurt_replica(mortal, DigestType.MAC)
    told = told_while_reading(spark, mortal, logs, ledger_id, "damaged replica")
    assert f"ledger={ledger_id} entry=0 bookie={hurt} error=" in told


def test_a_replica_that_its_bookie_found_damaged_is_told_as_well(spark, mortal, logs):
    ledger_id, hurt = hurt_replica(mortal, DigestType.CRC32C)
    told = told_while_reading(spark, mortal, logs, ledger_id, "a bookie cannot read its replica")
    assert f"ledger={ledger_id} bookie={hurt} error=" in told
    assert "answered EIO to the batch read from entry 0" in told
