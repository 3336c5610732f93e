"""Topics that a broker has open, read beside it by our client and by Spark: messages, and where subscriptions stand."""

from __future__ import annotations

import json

import pytest

from bookie_client import Client
from bookie_client.blocking import BlockingClient
from bookie_client.streams import StreamPosition
from bookie_client.streams.managed_ledgers import managed_cursors, managed_ledger
from pyspark_bookie.source.pulsar import messages
from tests.pulsar.client import LARGEST, SINGLE, text
from tests.pulsar.conftest import OnOurs
from tests.spark.ledgers import load
from tests.support.spark import SparkSessions
from tests.support.spark_jobs import run_job
from tests.support.until import until_true

COUNT = 12_000
"""A ledger of the broker's takes 5000 entries, and is deleted once all are consumed."""
SIZES = (20, 300, 1000)
SECONDS = 60


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    sessions = SparkSessions(tmp_path_factory.mktemp("spark"))
    yield sessions.get()
    sessions.stop()


async def entries(client: Client, stored: str) -> list[tuple[tuple[int, int], bytes]]:
    """What can be read of a topic, without fencing its broker."""
    topic = await managed_ledger(client, stored)
    found = []
    for ledger in topic.manifest.ledgers:
        async with client.open(ledger.ledger_id, password=None) as reader:
            if reader.last_add_confirmed >= 0:
                read = await reader.read(0, reader.last_add_confirmed)
                found += [((each.ledger_id, each.entry_id), bytes(each.payload)) for each in read]
    return found


def is_stored(pulsar: OnOurs, topic: str) -> bool:
    """Whether the subscription has a ledger for where it stands. A broker that makes one while it unloads the topic may
    lose both."""
    told = pulsar.broker.admin("GET", f"persistent/public/default/{topic}/internalStats")
    return bool(told["cursors"]["one"]["state"] == "Open")


@pytest.mark.parametrize("batched", [False, True])
def test_our_client_reads_what_producers_sent(pulsar, batched):
    """All but the last entry while the broker has the topic open, because no bookie knows yet that it counts; all when
    the topic is unloaded. The positions are those that the producer was told."""
    topic = f"read-{'batches' if batched else 'singles'}"
    stored = f"public/default/persistent/{topic}"
    pulsar.client.subscribe(topic, topic, "one")
    producer = {"batchingEnabled": batched, "compressionType": "LZ4"}
    ids = pulsar.client.produce(topic, COUNT, sizes=SIZES, producer=producer)
    ids += pulsar.client.produce(topic, 1, first=COUNT, sizes=SIZES, producer=producer)
    expected = [((ledger, entry), text(n, SIZES[n % len(SIZES)])) for n, (ledger, entry, _) in enumerate(ids)]
    assert len({ledger for (ledger, _), _ in expected}) == (1 if batched else 3)
    with BlockingClient(pulsar.uri) as client:

        def read() -> list[tuple[tuple[int, int], bytes | None]]:
            found = client.run(lambda each: entries(each, stored))
            return [(position, message.value) for position, entry in found for message in messages(entry)]

        assert read() == expected[:-1]
        assert pulsar.client.numbers(topic, 4000, acknowledge="up_to") == list(range(4000))
        pulsar.client.call("close", name=topic)
        until_true(lambda: is_stored(pulsar, topic), SECONDS)
        pulsar.broker.admin("PUT", f"persistent/public/default/{topic}/unload")
        assert read() == expected
        acknowledged = client.run(lambda each: managed_cursors(each, stored))["one"]
    # A batch that is acknowledged in part is not behind the subscription.
    ledger, entry, _ = ids[3999]
    assert acknowledged == StreamPosition(ledger, entry if ids[4000][:2] == (ledger, entry) else entry + 1)


def test_spark_reads_what_producers_sent(pulsar, spark):
    topic = "spark"
    ids = pulsar.client.produce(topic, COUNT, sizes=SIZES, keys=10, producer={"compressionType": "ZSTD"})
    pulsar.broker.admin("PUT", f"persistent/public/default/{topic}/unload")
    uri, name = pulsar.uri, f"persistent://public/default/{topic}"
    rows = load(spark, uri, managedLedger=name, decode="pulsar").collect()
    found = {(row.ledger_id, row.entry_id, row.batch_index): row for row in rows}
    assert len(found) == len(rows) == COUNT
    for number, (ledger, entry, place) in enumerate(ids):
        row = found[ledger, entry, None if place < 0 else place]
        assert (row.key, bytes(row.value)) == (f"key-{number % 10}", text(number, SIZES[number % len(SIZES)]))
        assert row.topic == name


def test_spark_reads_values_by_the_schemas_that_brokers_stored(pulsar, spark):
    """Of each kind, and of a topic whose schema was changed."""
    expected = {
        "Reading": {"number": 1, "sensor": "s1"},
        "NewReading": {"number": 2, "sensor": "s2", "quality": 4},
        "Json": {"number": 3, "sensor": "s3"},
        "Native": "1970-01-01T00:00:04Z",
        "Number": 5,
    }
    topics = {kind: "typed-avro" if "Reading" in kind else f"typed-{kind.lower()}" for kind in expected}
    for number, (kind, topic) in enumerate(topics.items(), 1):
        pulsar.client.call("produce_records", topic=topic, kind=kind, number=number)
    found = []
    for topic in dict.fromkeys(topics.values()):
        pulsar.broker.admin("PUT", f"persistent/public/default/{topic}/unload")
        name = f"persistent://public/default/{topic}"
        rows = load(spark, pulsar.uri, managedLedger=name, decode="pulsar", pulsarSchema="json").orderBy("ledger_id")
        found += [(row.schema_version, json.loads(row.value_json)) for row in rows.collect()]
    assert [value for _, value in found] == list(expected.values())
    assert [version for version, _ in found] == [0, 1, 0, 0, 0]


def test_the_largest_messages_are_read_moved_and_checked(pulsar, spark, capfd):
    """By whoever was told nothing of the broker's limit."""
    topic = "largest"
    pulsar.client.subscribe(topic, topic, "one")
    ids = pulsar.client.produce(topic, 6, sizes=[LARGEST], producer=SINGLE)
    pulsar.client.call("close", name=topic)
    pulsar.broker.admin("PUT", f"persistent/public/default/{topic}/unload")
    name = f"persistent://public/default/{topic}"
    rows = load(spark, pulsar.uri, managedLedger=name, decode="pulsar").collect()
    found = sorted((row.ledger_id, row.entry_id, bytes(row.value)) for row in rows)
    assert found == [(ledger, entry, text(number, LARGEST)) for number, (ledger, entry, _) in enumerate(ids)]
    (ledger_id,) = {ledger for ledger, _, _ in ids}
    pulsar.bookies.add(1)
    with BlockingClient(pulsar.uri) as client:
        going = client.metadata(ledger_id).last_ensemble[0]
        pulsar.command("decommission", going, "--grace", "1", "--rate", "0")
        assert pulsar.bookies.bookies.pop(going).stop() == 0
        assert going not in client.metadata(ledger_id).all_bookies()
    audit = run_job(capfd, "audit", "--metadata", pulsar.uri, "--ledgers", str(ledger_id), "--digests")
    assert (audit.code, audit.row["entries"]) == (0, 2 * len(ids)), audit.errors
    pulsar.client.subscribe(topic, topic, "one")
    assert pulsar.client.numbers(topic, len(ids)) == list(range(len(ids)))
