"""The blocking client inside Spark tasks, whose workers are forked processes."""

from __future__ import annotations

import signal

import pytest
from pyspark.sql import SparkSession

from bookie_client.blocking import BlockingClient
from tests.support.spark_environment import spark_variables
from tests.support.standalone_command import StandaloneCommand

pytestmark = pytest.mark.slow


@pytest.fixture
def spark(monkeypatch):
    for name, value in spark_variables().items():
        monkeypatch.setenv(name, value)
    before = signal.getsignal(signal.SIGINT)
    session = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "512m")
        .getOrCreate()
    )
    yield session
    session.stop()
    signal.signal(signal.SIGINT, before)  # Spark's own handler cancels jobs of a context that is gone


@pytest.mark.timeout(240)
@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_tasks_write_and_read_ledgers(spark, tmp_path):
    with StandaloneCommand(tmp_path / "data", "--bookies", "3") as cluster:
        uri = cluster.uri

        def write(numbers):
            with BlockingClient(uri) as client, client.create() as ledger:
                ledger.append_many(b"%d" % number for number in numbers)
                yield ledger.ledger_id

        def read(ledger_ids):
            with BlockingClient(uri) as client:
                for ledger_id in ledger_ids:
                    with client.open(ledger_id) as reader:
                        yield from (int(entry.payload) for entry in reader.entries())

        ledgers = spark.sparkContext.parallelize(range(10_000), 4).mapPartitions(write).collect()
        assert len(set(ledgers)) == 4
        numbers = spark.sparkContext.parallelize(ledgers, 2).mapPartitions(read).collect()
        assert sorted(numbers) == list(range(10_000))
        with BlockingClient(uri) as client, pytest.raises(Exception, match="where it"):
            spark.sparkContext.parallelize(ledgers, 2).map(
                lambda ledger_id: client.metadata(ledger_id).length
            ).collect()
