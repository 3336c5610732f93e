"""Messages of every size, batches, chunks, and each type of subscription."""

from __future__ import annotations

import pytest

from tests.pulsar.client import LARGEST, SINGLE, Refused

COUNT = 1000


def test_sizes(pulsar):
    topic = "sizes"
    sizes = [20, 1000, 65_536, 1_000_000, 4_194_304, LARGEST]
    ids = pulsar.client.produce(topic, 24, sizes=sizes, producer=SINGLE)
    assert len({(ledger, entry) for ledger, entry, _ in ids}) == 24
    assert pulsar.client.consumed(topic, 24) == list(range(24))
    with pytest.raises(Refused, match="InvalidMessageException"):
        pulsar.client.produce(topic, 1, sizes=[LARGEST + 400], producer=SINGLE)


@pytest.mark.parametrize("compression", ["NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"])
def test_batches(pulsar, compression):
    topic = f"batches-{compression}"
    producer = {"batchingMaxMessages": 500, "compressionType": compression}
    ids = pulsar.client.produce(topic, 10_000, sizes=[20, 100, 1000], producer=producer)
    entries = {(ledger, entry) for ledger, entry, _ in ids}
    assert 20 <= len(entries) < 1000, "they were sent as batches"
    assert pulsar.client.consumed(topic, 10_000) == list(range(10_000))


def test_chunks(pulsar):
    """Messages that are larger than what an entry may hold, between others."""
    topic = "chunks"
    sizes = [100, 12_000_000, 5_300_000, 100, 20_000_000]
    producer = {"chunkingEnabled": True, "batchingEnabled": False}
    ids = pulsar.client.produce(topic, 10, sizes=sizes, producer=producer)
    (earliest, latest), ledgers = (ids[0][1], ids[-1][1]), {ledger for ledger, _, _ in ids}
    assert len(ledgers) == 1
    assert latest - earliest + 1 >= 2 * (1 + 3 + 2 + 1 + 4), "chunks are entries"
    assert pulsar.client.consumed(topic, 10) == list(range(10))


def test_an_exclusive_subscription(pulsar):
    topic, client = "exclusive", pulsar.client
    client.produce(topic, COUNT, producer=SINGLE)
    client.subscribe("exclusive-1", topic, "one", subscriptionType="Exclusive")
    with pytest.raises(Refused, match="ConsumerBusyException"):
        client.subscribe("exclusive-2", topic, "one", subscriptionType="Exclusive")
    assert client.numbers("exclusive-1", 600, acknowledge="up_to") == list(range(600))
    client.call("close", name="exclusive-1")
    client.subscribe("exclusive-2", topic, "one", subscriptionType="Exclusive")
    assert client.numbers("exclusive-2", 400) == list(range(600, COUNT))
    assert client.nothing_more("exclusive-2")


def test_a_failover_subscription(pulsar):
    """The second consumer goes on where the first one had acknowledged."""
    topic, client = "failover", pulsar.client
    client.produce(topic, COUNT, producer=SINGLE)
    for name in ("failover-a", "failover-b"):
        client.subscribe(name, topic, "one", subscriptionType="Failover", receiverQueueSize=10)
    active, standby = "failover-a", "failover-b"
    while not client.receive(active, 1, acknowledge="none", quiet_ms=100):
        active, standby = standby, active
    assert client.nothing_more(standby)
    client.call("redeliver", name=active)
    assert client.numbers(active, 300, acknowledge="up_to") == list(range(300))
    client.numbers(active, 50, acknowledge="none")
    client.call("close", name=active)
    assert client.numbers(standby, 700, acknowledge="up_to") == list(range(300, COUNT))
    assert client.nothing_more(standby)


def test_a_shared_subscription(pulsar):
    """Each message goes to one of them; what one had and did not acknowledge goes to the other."""
    topic, client = "shared", pulsar.client
    for name in ("shared-1", "shared-2"):
        client.subscribe(name, topic, "one", subscriptionType="Shared", receiverQueueSize=100)
    client.produce(topic, COUNT, producer=SINGLE)
    first = client.numbers("shared-1", 200)
    dropped = client.numbers("shared-1", 100, acknowledge="none")
    second = client.numbers("shared-2", 200)
    client.call("close", name="shared-1")
    second += client.numbers("shared-2", COUNT - 400)
    assert set(dropped) <= set(second)
    assert sorted(first + second) == list(range(COUNT))
    assert client.nothing_more("shared-2")


def test_a_key_shared_subscription(pulsar):
    """All messages of a key go to the same consumer, in order."""
    topic, client = "key-shared", pulsar.client
    names = ("key-shared-1", "key-shared-2")
    for name in names:
        client.subscribe(name, topic, "one", subscriptionType="Key_Shared")
    client.produce(topic, COUNT, keys=20, producer=SINGLE)
    received: dict[str, list[tuple[int, str]]] = {name: [] for name in names}
    while sum(map(len, received.values())) < COUNT:
        for name in names:
            received[name] += client.receive(name, COUNT, quiet_ms=100)
    assert all(map(client.nothing_more, names))
    numbers = sorted(number for rows in received.values() for number, _ in rows)
    assert numbers == list(range(COUNT))
    keys = {name: {key for _, key in rows} for name, rows in received.items()}
    assert all(keys.values())
    assert not keys["key-shared-1"] & keys["key-shared-2"]
    for rows in received.values():
        for key in {key for _, key in rows}:
            of_key = [number for number, each in rows if each == key]
            assert of_key == sorted(of_key)
