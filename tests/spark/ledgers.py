"""Ledgers for tests of the source, and reading them with Spark."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql import DataFrame, SparkSession

from bookie_client import BlockingClient

FULL = {"ensemble": 3, "write_quorum": 3, "ack_quorum": 3}
STRIPED = {"ensemble": 3, "write_quorum": 2, "ack_quorum": 2}


def write_ledger(client: BlockingClient, payloads: Iterable[bytes], **arguments) -> int:
    """A closed ledger; by default every bookie has every entry."""
    with client.create(**{**FULL, **arguments}) as ledger:
        ledger.append_many(payloads)
    return ledger.ledger_id


def load(spark: SparkSession, uri: str, **options: object) -> DataFrame:
    reader = spark.read.format("bookkeeper").option("metadataServiceUri", uri)
    return reader.options(**{name: str(value) for name, value in options.items()}).load()


def numbered(count: int, size: int = 20) -> list[bytes]:
    return [b"%0*d" % (size, number) for number in range(count)]
