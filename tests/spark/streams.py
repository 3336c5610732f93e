"""Streams of ledgers for tests of the streaming source and the sink, and queries over them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming import DataStreamReader, StreamingQuery

from bookie_client import BlockingClient
from bookie_client.streams import Manifest, PublishedLedger, Streams, StreamSettings, Txn
from tests.spark.ledgers import write_ledger

FORMAT = "bookkeeper"
SIZES = StreamSettings(ensemble=3, write_quorum=3, ack_quorum=3)


def create(client: BlockingClient, name: str) -> Manifest:
    return client.run(lambda each: Streams(each).create(name, SIZES, if_absent=True))


def manifest(client: BlockingClient, name: str) -> Manifest:
    return client.run(lambda each: Streams(each).manifest(name))


def append(
    client: BlockingClient, name: str, payloads: Iterable[bytes], txn: Txn | None = None, **arguments: object
) -> int:
    """A further ledger of a stream, which is created if there is none; returns its id. `arguments`: of the ledger."""
    create(client, name)
    ledger_id = write_ledger(client, payloads, **arguments)
    metadata = client.metadata(ledger_id)
    ledger = PublishedLedger(ledger_id, metadata.last_entry_id + 1, metadata.length)
    client.run(lambda each: Streams(each).publish(name, [ledger], txn))
    return ledger_id


def payloads(client: BlockingClient, name: str) -> list[bytes]:
    """Everything in a stream, in order."""
    found: list[bytes] = []
    for ledger in manifest(client, name).ledgers:
        with client.open(ledger.ledger_id) as reader:
            found += [entry.payload for entry in reader.entries()]
    return found


def source(spark: SparkSession, uri: str, options: Mapping[str, object]) -> DataFrame:
    reader: DataStreamReader = spark.readStream.format(FORMAT).option("metadataServiceUri", uri)
    return reader.options(**{name: str(value) for name, value in options.items()}).load()


def sink(frame: DataFrame, uri: str, name: str, checkpoint: Path, **options: object) -> StreamingQuery:
    """Write what there is now to a stream."""
    writer = frame.writeStream.format(FORMAT).option("metadataServiceUri", uri).option("stream", name)
    writer = writer.options(**{key: str(value) for key, value in options.items()})
    return writer.option("checkpointLocation", str(checkpoint)).trigger(availableNow=True).start()


def run(query: StreamingQuery, seconds: float = 100) -> StreamingQuery:
    """Wait for a query that ends by itself. Raises what it ended with."""
    assert query.awaitTermination(seconds)
    return query


def save(frame: DataFrame, uri: str, mode: str = "append", **options: object) -> None:
    writer = frame.write.format(FORMAT).mode(mode).option("metadataServiceUri", uri)
    writer.options(**{name: str(value) for name, value in options.items()}).save()


def copy(spark, uri, end, checkpoint, **options):
    return run(sink(source(spark, uri, options), uri, end, checkpoint))


def offset_of(checkpoint, batch):
    return json.loads((checkpoint / "offsets" / str(batch)).read_text().splitlines()[2])
