"""What Pulsar builds on its topics: compaction, transactions, delayed delivery, schemas."""

from __future__ import annotations

import time

import pytest

from tests.pulsar.client import QUIET_MS, Refused
from tests.support.until import until_true

SECONDS = 240
KEYS = 50
COUNT = 2000
LATER_MS = 10_000


def test_compaction(pulsar):
    """The newest message of each key is left for who reads compacted, and what came after the compaction follows."""
    topic, client, admin = "compacted", pulsar.client, pulsar.broker.admin
    client.produce(topic, COUNT, keys=KEYS)
    admin("PUT", f"persistent/public/default/{topic}/compaction")

    def is_compacted() -> bool:
        status = admin("GET", f"persistent/public/default/{topic}/compaction")
        assert status["status"] != "ERROR", status
        return bool(status["status"] == "SUCCESS")

    until_true(is_compacted, SECONDS)
    client.produce(topic, 10, first=COUNT, keys=KEYS)
    pulsar.broker.kill()
    pulsar.broker.start()
    client.subscribe("compacted", topic, "compacted", readCompacted=True)
    rows = client.receive("compacted", KEYS + 10)
    assert rows == [[number, f"key-{number % KEYS}"] for number in range(COUNT - KEYS, COUNT + 10)]
    assert client.nothing_more("compacted")
    client.call("close", name="compacted")
    assert client.consumed(topic, COUNT + 10) == list(range(COUNT + 10)), "who does not gets all"


def test_transactions(pulsar):
    """Consumed and produced together: seen when it is committed, never when it is not."""
    source, target, client = "tx-source", "tx-target", pulsar.client
    client.produce(source, 300, producer={"batchingEnabled": False})
    client.subscribe("tx-in", source, "one", subscriptionType="Shared")
    client.subscribe("tx-out", target, "one")
    client.call("begin", name="kept")
    taken = client.numbers("tx-in", 100, transaction="kept")
    client.produce(target, 100, transaction="kept")
    assert client.nothing_more("tx-out"), "not committed yet"
    client.call("commit", name="kept")
    assert client.numbers("tx-out", 100) == list(range(100))
    client.call("begin", name="dropped")
    client.numbers("tx-in", 100, transaction="dropped")
    client.produce(target, 100, first=1000, transaction="dropped")
    client.call("abort", name="dropped")
    client.produce(target, 1, first=5000)
    assert client.numbers("tx-out", 1) == [5000]
    assert client.nothing_more("tx-out")
    client.call("close", name="tx-in")
    client.subscribe("tx-in", source, "one", subscriptionType="Shared")
    left = client.numbers("tx-in", 200)
    assert sorted(taken + left) == list(range(300))
    assert client.nothing_more("tx-in")


def test_a_transaction_over_the_death_of_a_broker(pulsar):
    target, client = "tx-survivor", pulsar.client
    client.subscribe("tx-survivor", target, "one")
    client.call("begin", name="survivor")
    client.produce(target, 50, transaction="survivor")
    pulsar.broker.kill()
    pulsar.broker.start()
    assert client.nothing_more("tx-survivor")
    client.call("commit", name="survivor")
    assert client.numbers("tx-survivor", 50) == list(range(50))


def test_delayed_delivery(pulsar):
    """Nothing before its time, also when another broker has taken over; then all of it."""
    topic, client = "delayed", pulsar.client
    client.subscribe("delayed", topic, "one", subscriptionType="Shared")
    client.produce(topic, 100, delay_ms=LATER_MS * 4)
    client.produce(topic, 100, first=100, delay_ms=LATER_MS)
    began = time.monotonic()
    assert not client.receive("delayed", 1, quiet_ms=1000)
    assert sorted(client.numbers("delayed", 100)) == list(range(100, 200))
    assert time.monotonic() - began >= LATER_MS * 0.7 / 1000
    pulsar.broker.kill()
    pulsar.broker.start()
    due, came = set(range(100)), []
    while not due <= set(came):
        came += client.numbers("delayed", 1)
    came += client.numbers("delayed", 101, quiet_ms=QUIET_MS)
    assert len(came) == len(set(came))
    assert set(came) - due <= set(range(100, 200)), "nothing but acknowledgements that were lost with the broker"


def test_schemas(pulsar):
    """Stored in ledgers of their own; a broker that takes over knows them."""
    topic, client = "schemas", pulsar.client
    client.call("produce_records", topic=topic, kind="Reading", number=1)
    client.call("produce_records", topic=topic, kind="NewReading", number=2)
    with pytest.raises(Refused, match="IncompatibleSchemaException"):
        client.call("produce_records", topic=topic, kind="Other", number=3)
    pulsar.broker.kill()
    pulsar.broker.start()
    with pytest.raises(Refused, match="IncompatibleSchemaException"):
        client.call("produce_records", topic=topic, kind="Other", number=3)
    client.call("produce_records", topic=topic, kind="NewReading", number=4)
    client.subscribe("schemas", topic, "one", records=True)
    assert client.receive("schemas", 3) == [
        {"number": 1, "sensor": "s1"},
        {"number": 2, "sensor": "s2", "quality": 4},
        {"number": 4, "sensor": "s4", "quality": 8},
    ]
    stored = pulsar.broker.admin("GET", f"schemas/public/default/{topic}/schema")
    assert (stored["version"], stored["type"]) == (1, "AVRO")
