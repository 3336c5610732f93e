"""Topics of Pulsar in batch and as a stream, from real bookies, without a broker."""

from __future__ import annotations

import pytest

from pyspark_bookie.source.pulsar_schema.types import SchemaType
from tests.spark.ledgers import FULL, load, numbered, write_ledger
from tests.spark.streams import payloads, run, sink, source
from tests.spark.topics import set_schemas, set_topic
from tests.support.pulsar_entries import batch, entry, properties
from tests.support.pulsar_schemas import schema_entry, version_field

pytestmark = pytest.mark.timeout(600)
"""Several queries a test, each of which may take its time."""


def follow(spark, uri, topic, end, checkpoint, **options):
    """Copy what there is of a topic to a stream, ten entries at a time."""
    read = {"managedLedger": topic, "startingPosition": "earliest", "maxEntriesPerTrigger": 10, **options}
    return run(sink(source(spark, uri, read).select("value"), uri, end, checkpoint))


def rows_of(query):
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def test_a_topic_is_followed_over_roll_overs_and_while_its_broker_trims_it(spark, uri, client, tmp_path):
    topic, entries = "public/default/persistent/followed", numbered(45)
    ids = [write_ledger(client, entries[first : first + 9]) for first in (0, 9)]
    with client.create(**FULL) as broker:
        for payload in entries[18:25]:
            broker.append(payload)
        set_topic(client, topic, [*ids, broker.ledger_id], "LZ4")
        assert load(spark, uri, managedLedger=topic).count() == 24, "of the open ledger what is confirmed"
        query = follow(spark, uri, topic, "followed-copy", tmp_path / "c")
        assert rows_of(query) == [10, 10, 4]
        assert payloads(client, "followed-copy") == entries[:24]
        broker.append_many(entries[25:30])
    set_topic(client, topic, [broker.ledger_id, write_ledger(client, entries[30:])])
    for ledger_id in ids:
        client.delete(ledger_id)
    follow(spark, uri, "persistent://public/default/followed", "followed-copy", tmp_path / "c")
    assert payloads(client, "followed-copy") == entries


def test_what_a_broker_trims_unread_is_a_loss(spark, uri, client, tmp_path):
    topic, entries = "public/default/persistent/trimmed", numbered(30)
    ids = [write_ledger(client, entries[first : first + 10]) for first in (0, 10, 20)]
    set_topic(client, topic, ids[:1])
    follow(spark, uri, topic, "trimmed-copy", tmp_path / "c")
    set_topic(client, topic, ids[2:])
    with pytest.raises(Exception, match=rf"\[BOOKIE_DATA_LOSS\] stream {topic}: ledger {ids[0]}"):
        follow(spark, uri, topic, "trimmed-copy", tmp_path / "c")
    follow(spark, uri, topic, "trimmed-copy", tmp_path / "c", failOnDataLoss="false")
    assert payloads(client, "trimmed-copy") == [*entries[:10], *entries[20:]], "and nothing comes twice"


def test_messages_are_decoded_in_both(spark, uri, client, tmp_path):
    topic = "public/default/persistent/decoded"
    set_topic(client, topic, [write_ledger(client, [entry(b"single", (6, "k")), entry(batch([b"a", b"b"]), (11, 2))])])
    rows = load(spark, uri, managedLedger=topic, decode="pulsar").orderBy("entry_id", "batch_index").collect()
    found = [(row.key, bytes(row.value), row.entry_id, row.batch_index) for row in rows]
    assert found == [("k", b"single", 0, None), (None, b"a", 1, 0), (None, b"b", 1, 1)]
    assert {row.topic for row in rows} == {"persistent://public/default/decoded"}
    follow(spark, uri, topic, "decoded-copy", tmp_path / "c", decode="pulsar")
    assert payloads(client, "decoded-copy") == [b"single", b"a", b"b"]


def test_times_and_properties_of_messages_are_columns(spark, uri, client):
    topic = "public/default/persistent/described"
    single = entry(b"single", (12, 1_600_000_000_123), *properties(4, {"user": "ü", "empty": ""}))
    several = entry(batch([b"a", b"b"], [(5, 1_500_000_000_000), *properties(1, {"n": "1"})]), (11, 2))
    set_topic(client, topic, [write_ledger(client, [single, several])])
    rows = load(spark, uri, managedLedger=topic, decode="pulsar").orderBy("entry_id", "batch_index")
    found = rows.selectExpr("unix_millis(publish_time)", "unix_millis(event_time)", "properties").collect()
    assert [tuple(row) for row in found] == [
        (1_700_000_000_000, 1_600_000_000_123, {"user": "ü", "empty": ""}),
        (1_700_000_000_000, 1_500_000_000_000, {"n": "1"}),
        (1_700_000_000_000, None, {}),
    ]
    raw = load(spark, uri, managedLedger=topic).collect()
    assert {row.stream for row in raw} == {topic}


def test_values_are_read_by_the_schema_of_their_topic(spark, uri, client, tmp_path):
    """In batch, and as a stream whose topic gets another version."""
    topic = "public/default/persistent/typed"
    given = {"managedLedger": topic, "decode": "pulsar", "pulsarSchema": "json", "startingPosition": "earliest"}
    versions = [schema_entry(SchemaType.AVRO, b'"string"'), schema_entry(SchemaType.INT32, b"")]
    ids = [write_ledger(client, [entry(b"\x04hi", version_field(0))])]
    set_topic(client, topic, ids)
    set_schemas(client, "public/default/typed", versions[:1])
    columns = ["schema_version", "value_json"]
    assert [tuple(row) for row in load(spark, uri, **given).select(*columns).collect()] == [(0, '"hi"')]

    def copied():
        frame = source(spark, uri, given).selectExpr("value_json AS value")
        run(sink(frame, uri, "typed-copy", tmp_path / "c"))
        return payloads(client, "typed-copy")

    assert copied() == [b'"hi"']
    set_schemas(client, "public/default/typed", versions)
    set_topic(client, topic, [*ids, write_ledger(client, [entry(b"\0\0\0\7", version_field(1))])])
    assert copied() == [b'"hi"', b"7"]


def test_a_topic_that_is_not_there(spark, uri, tmp_path):
    told = r"\[BOOKIE_NO_SUCH_STREAM\] .*public/default/persistent/nobody"
    with pytest.raises(Exception, match=told):
        load(spark, uri, managedLedger="public/default/persistent/nobody").count()
    with pytest.raises(Exception, match=told):
        follow(spark, uri, "public/default/persistent/nobody", "x", tmp_path / "c")
    with pytest.raises(Exception, match=r"\[BOOKIE_BAD_REQUEST\] .*managed"):
        load(spark, uri, managedLedger="orders").count()
