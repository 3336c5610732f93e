"""A batch read as Spark drives it, in one process."""

from __future__ import annotations

import pytest
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import BinaryType, LongType, StructType

from bookie_client import BlockingClient, ClientOptions
from pyspark_bookie.common.errors import PodkeeperSparkError
from pyspark_bookie.source.batch import BatchReader, batch_reader
from pyspark_bookie.source.options import SourceOptions
from pyspark_bookie.source.schema import schema_for
from tests.support import dlog_entries
from tests.support.memory_metadata import MemoryMetadata
from tests.support.model_bookie import ModelBookie, ModelBookieServer
from tests.unit.bookie_client.conftest import FAST

ONE = {"ensemble": 1, "write_quorum": 1, "ack_quorum": 1}


@pytest.fixture
def client(monkeypatch):
    """Of one bookie on the client's event loop; all readers have it."""
    metadata, server = MemoryMetadata(), ModelBookieServer(ModelBookie("b1"))
    with BlockingClient(metadata, ClientOptions(**FAST)) as made:
        made.run(lambda _: server.start())
        made.run(lambda _: registered(metadata, server))
        monkeypatch.setattr(SourceOptions, "client", lambda _: made)
        yield made
        made.run(lambda _: server.stop())


async def registered(metadata, server):
    metadata.bookies.register_address("b1", "127.0.0.1", server.port)


def write(client, *payloads):
    with client.create(**ONE) as ledger:
        ledger.append_many(payloads)
    return ledger.ledger_id


def reader(schema=None, **raw):
    given = {"metadataServiceUri": "memory://", **{name: str(value) for name, value in raw.items()}}
    return batch_reader(given, schema or schema_for(given))


def rows(made):
    return [row for part in made.partitions() for batch in made.read(part) for row in batch.to_pylist()]


def test_entries_are_rows_and_what_is_lost_is_a_row_behind_them(client):
    ids = [write(client, b"a", b"bc"), write(client, b"d")]
    wanted = {"ledgers": f"{ids[0]}-{ids[1]},{ids[1] + 7}"}
    made = reader(**wanted, failOnDataLoss="false")
    assert isinstance(made, BatchReader)
    found = rows(made)
    assert [(row["ledger_id"], row["entry_id"], row["value"]) for row in found] == [
        (ids[0], 0, b"a"),
        (ids[0], 1, b"bc"),
        (ids[1], 0, b"d"),
        (ids[1] + 7, -1, None),
    ]
    assert [row["_corrupt"] for row in found] == [
        *[None] * 3,
        f"[BOOKIE_NO_SUCH_LEDGER] ledger {ids[1] + 7} does not exist",
    ]
    with pytest.raises(PodkeeperSparkError, match=f"ledger {ids[1] + 7}"):
        reader(**wanted).partitions()


def test_a_choice_of_columns_in_its_order(client):
    ledger_id = write(client, b"a", b"bc")
    made = reader(StructType().add("value", BinaryType()).add("ledger_id", LongType()), ledgers=ledger_id)
    assert [list(row.items()) for row in rows(made)] == [
        [("value", value), ("ledger_id", ledger_id)] for value in (b"a", b"bc")
    ]
    assert list(made.read(InputPartition(0))) == [], "of an empty plan"
    with pytest.raises(PodkeeperSparkError, match="values"):
        reader(StructType().add("values", BinaryType()), ledgers=ledger_id)


def test_records_of_a_decoder_are_rows(client):
    ledger_id = write(client, dlog_entries.entry(dlog_entries.record(10, b"one", 1)))
    assert [(row["transaction_id"], row["value"]) for row in rows(reader(ledgers=ledger_id, decode="dlog"))] == [
        (10, b"one")
    ]
    with pytest.raises(PodkeeperSparkError, match="BOOKIE_DECODE"):
        rows(reader(ledgers=ledger_id, decode="pulsar"))
