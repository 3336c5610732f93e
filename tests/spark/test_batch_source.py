"""Reading ledgers as DataFrames, from real bookies."""

from __future__ import annotations

import pytest

from tests.spark.ledgers import FULL, STRIPED, load, numbered, write_ledger
from tests.spark.streams import append


@pytest.mark.parametrize("sizes", [FULL, STRIPED], ids=["by batch", "striped"])
def test_rows_are_the_entries(spark, uri, client, sizes):
    payloads = [*numbered(1500), b"", b"x" * 100_000]
    ledger_id = write_ledger(client, payloads, **sizes)
    frame = load(spark, uri, ledgers=ledger_id)
    assert frame.schema.simpleString() == (
        "struct<ledger_id:bigint,entry_id:bigint,value:binary,length:int,lac:bigint,stream:string>"
    )
    rows = frame.orderBy("entry_id").collect()
    assert [bytes(row.value) for row in rows] == payloads
    assert [row.entry_id for row in rows] == list(range(1502))
    assert [row.length for row in rows] == [len(payload) for payload in payloads]
    assert {row.ledger_id for row in rows} == {ledger_id}
    assert {row.stream for row in rows} == {None}
    assert all(-1 <= row.lac < row.entry_id for row in rows)


def test_what_was_confirmed_when_an_entry_was_sent_is_a_column(spark, uri, client):
    with client.create(**FULL) as ledger:
        for payload in numbered(4):
            ledger.append(payload)
    rows = load(spark, uri, ledgers=ledger.ledger_id).collect()
    assert sorted((row.entry_id, row.lac) for row in rows) == [(0, -1), (1, 0), (2, 1), (3, 2)]


def test_rows_of_streams_tell_their_stream(spark, uri, client):
    first, second = append(client, "told.a", numbered(5)), append(client, "told.b", numbered(3))
    rows = load(spark, uri, streams="told.a,told.b").collect()
    assert sorted((row.stream, row.ledger_id, row.entry_id) for row in rows) == [
        *(("told.a", first, entry_id) for entry_id in range(5)),
        *(("told.b", second, entry_id) for entry_id in range(3)),
    ]


def test_the_metadata_column_tells_where_a_row_came_from(spark, uri, client, cluster):
    ledger_id = write_ledger(client, numbered(100), **STRIPED)
    rows = load(spark, uri, ledgers=ledger_id, includeMetadata="true").select("entry_id", "_metadata.*").collect()
    metadata = client.metadata(ledger_id)
    assert len(rows) == 100
    for row in rows:
        bookies = metadata.bookies_for(row.entry_id)
        assert bookies[row.replica_index] == row.bookie
        assert (row.fragment, row.digest_type) == (0, "CRC32C")
        assert 0 <= row.read_latency_us < 60_000_000


def test_a_schema_of_ones_own_selects_columns(spark, uri, client):
    ledger_id = write_ledger(client, numbered(10))
    reader = spark.read.format("bookkeeper").option("metadataServiceUri", uri).option("ledgers", ledger_id)
    frame = reader.schema("length int, entry_id long").load()
    assert [tuple(row) for row in frame.orderBy("entry_id").collect()] == [(20, number) for number in range(10)]
    for schema, why in (
        ("entry_id int", "entry_id"),
        ("key string", " key"),
    ):
        with pytest.raises(Exception, match=rf"\[BOOKIE_SCHEMA\].*{why}"):
            reader.schema(schema).load().collect()


def test_nothing_to_read_is_an_empty_frame(spark, uri, client):
    """PySpark turns an empty plan into one partition that is none of ours."""
    ledger_id = write_ledger(client, [])
    assert load(spark, uri, ledgers=ledger_id).count() == 0
    assert load(spark, uri, ledgerPattern="application=nobody").collect() == []


def test_replicas_are_rows_of_their_own(spark, uri, client):
    ledger_id = write_ledger(client, numbered(50), **STRIPED)
    rows = load(spark, uri, ledgers=ledger_id, readMode="replica").select("*", "_metadata.*").collect()
    metadata = client.metadata(ledger_id)
    found = sorted((row.entry_id, row.replica_index, row.bookie, bytes(row.value)) for row in rows)
    assert found == [
        (entry_id, place, bookie, payload)
        for entry_id, payload in enumerate(numbered(50))
        for place, bookie in enumerate(metadata.bookies_for(entry_id))
    ]
    assert {row["_corrupt"] for row in rows} == {None}
    bookie = metadata.last_ensemble[1]
    rows = load(spark, uri, ledgers=ledger_id, readMode=f"bookie:{bookie}").collect()
    assert [row.entry_id for row in rows] == [e for e in range(50) if bookie in metadata.bookies_for(e)]
