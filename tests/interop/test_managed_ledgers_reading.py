"""Topics as Pulsar's own code stores them, read by our client and by Spark: just what Pulsar reads of them."""

from __future__ import annotations

import pytest

from bookie_client.blocking import BlockingClient
from bookie_client.streams import StreamPosition
from bookie_client.streams.managed_ledgers import Compression, managed_cursors, managed_ledger, managed_ledger_names
from bookie_protocol.metadata_service.managed_ledgers import ROOT
from tests.spark.ledgers import load
from tests.support.pulsar_metadata import ledger_info, message
from tests.support.spark import SparkSessions
from tests.support.until import until_true

LONG = pytest.mark.timeout(600)
"""For whichever test comes first: Java, Spark and a query that starts its workers."""
NAMESPACE = "interop/reading"
SUBSCRIPTION = "sub%2Fscription"
SECONDS = 60
PAYLOADS = [b"%06d" % number * (number % 200) for number in range(250)]


@pytest.fixture(scope="module")
def client(cluster):
    with BlockingClient(cluster.metadata_uri) as client:
        yield client


@pytest.fixture(scope="module")
def spark(tmp_path_factory):
    sessions = SparkSessions(tmp_path_factory.mktemp("spark"))
    yield sessions.get()
    sessions.stop()


def written(broker, topic, **options):
    """A topic of three ledgers, of which the last one is open; the positions of its entries. Without a subscription its
    broker would delete what is full."""
    broker.open(topic, entries=100, **options)
    broker.mark_deleted(topic, SUBSCRIPTION)
    return broker.append(topic, PAYLOADS)


def ours(client, topic):
    return client.run(lambda each: managed_ledger(each, topic))


def cursors_of(client, topic):
    return client.run(lambda each: managed_cursors(each, topic))


def stored_bytes(client, topic):
    return client.run(lambda each: each.metadata_service.managed_ledgers(ROOT).read(topic)).value


def ledgers_of(found):
    return [(each.ledger_id, each.entries, each.nbytes, each.closed_ms) for each in found.manifest.ledgers]


def told(stored):
    """The same as Pulsar tells it. To an open ledger it gives the time of the telling; stored is 0."""
    return [
        (each["ledgerId"], each["entries"], each["size"], each["timestamp"] if each["entries"] else None)
        for each in stored["ledgers"]
    ]


@pytest.mark.parametrize("compression", Compression.__members__)
def test_ledgers_properties_and_the_end(broker, client, compression):
    topic = f"{NAMESPACE}/persistent/listed-{compression}"
    written(broker, topic, compression=compression)
    broker.call("property", topic=topic, name="owner", value="Käthe")
    found, stored = ours(client, topic), broker.stored(topic, compression=compression)
    assert ledgers_of(found) == told(stored)
    assert [each.entries for each in found.manifest.ledgers] == [100, 100, None]
    assert found.properties == stored["properties"] == {"owner": "Käthe"}
    assert found.terminated is None
    assert stored_bytes(client, topic).startswith(b"\x47\x78") == (compression != "NONE")
    ledger, entry = broker.call("terminate", topic=topic)["end"]
    found, stored = ours(client, topic), broker.stored(topic, compression=compression)
    assert stored["terminatedPosition"] == {"ledgerId": ledger, "entryId": entry}
    assert found.terminated == StreamPosition(ledger, entry + 1)
    assert ledgers_of(found) == told(stored)
    assert [each.entries for each in found.manifest.ledgers] == [100, 100, None], "closed, and Pulsar does not say so"


def test_bytes_made_by_hand_are_those_of_pulsar(broker, client):
    """The other tests of topics are made of such bytes."""
    topic = f"{NAMESPACE}/persistent/bytes"
    written(broker, topic)
    *closed, last = broker.stored(topic)["ledgers"]
    names = ("ledgerId", "entries", "size", "timestamp")
    infos = [ledger_info(*(each[name] for name in names)) for each in closed]
    infos = [(1, each) for each in [*infos, ledger_info(last["ledgerId"])]]
    assert stored_bytes(client, topic) == message(*infos)
    ledger, entry = broker.call("terminate", topic=topic)["end"]
    assert stored_bytes(client, topic) == message(*infos, (2, message((1, ledger), (2, entry))))


def test_offloaded_and_trimmed_ledgers(broker, client):
    topic = f"{NAMESPACE}/persistent/offloaded"
    positions = written(broker, topic, offloads=True)
    broker.call("offload", topic=topic)
    first, second, last = broker.stored(topic)["ledgers"]
    found = ours(client, topic)
    assert {each.ledger_id: (each.uuid, each.is_complete, each.is_deleted) for each in found.offloaded.values()} == {
        each["ledgerId"]: (each["offloadedContextUuid"], True, False) for each in (first, second)
    }
    broker.acknowledge_up_to(topic, SUBSCRIPTION, positions[149])
    broker.trim(topic)
    found = ours(client, topic)
    assert ledgers_of(found) == told({"ledgers": [second, last]})
    assert {ledger_id: each.is_deleted for ledger_id, each in found.offloaded.items()} == {second["ledgerId"]: True}
    until_true(lambda: not {first["ledgerId"], second["ledgerId"]} & set(client.list()), SECONDS)


@pytest.mark.parametrize("compression", ["NONE", "ZSTD"])
def test_cursors(broker, client, compression):
    """First in the node, then in the ledger that the broker appends to, then in the node again."""
    topic = f"{NAMESPACE}/persistent/cursors-{compression}"
    positions = written(broker, topic, compression=compression)
    broker.mark_deleted(topic, "fresh")
    start, end = StreamPosition(positions[0][0], 0), StreamPosition(positions[-1][0], 50)
    assert cursors_of(client, topic) == {"fresh": end, "sub/scription": start}
    for number in (41, 119):
        ledger, entry = positions[number]
        broker.acknowledge_up_to(topic, SUBSCRIPTION, (ledger, entry))
        assert cursors_of(client, topic) == {"fresh": end, "sub/scription": StreamPosition(ledger, entry + 1)}
    broker.acknowledge(topic, SUBSCRIPTION, [positions[130]])
    before = cursors_of(client, topic)
    assert before == {"fresh": end, "sub/scription": StreamPosition(ledger, entry + 1)}
    assert broker.statistics(topic)["cursors"][SUBSCRIPTION]["cursorLedger"] >= 0
    broker.call("close", topic=topic)
    stored = broker.stored(topic, compression=compression)["cursors"][SUBSCRIPTION]
    assert (stored["cursorsLedgerId"], stored["markDelete"]) == (-1, {"ledgerId": ledger, "entryId": entry})
    assert cursors_of(client, topic) == before


@LONG
def test_spark_reads_what_a_broker_wrote(spark, broker, cluster):
    topic = f"{NAMESPACE}/persistent/an+order"
    positions = written(broker, topic)
    broker.call("terminate", topic=topic)
    rows = load(spark, cluster.metadata_uri, managedLedger="persistent://interop/reading/an order").collect()
    found = sorted(((row.ledger_id, row.entry_id), bytes(row.value)) for row in rows)
    assert found == list(zip(positions, PAYLOADS, strict=True))


@LONG
def test_spark_decodes_the_batches_of_a_producer(spark, broker, cluster):
    topic = f"{NAMESPACE}/persistent/batches"
    broker.open(topic, entries=3)
    broker.mark_deleted(topic, SUBSCRIPTION)
    batches = {}
    for number, compression in enumerate(Compression.__members__):
        each = [{"key": f"{compression}-{i}", "value": "ü" * i * 10, "user": f"{i}"} for i in range(number + 1)]
        batches[broker.append_batch(topic, each, compression)] = each
    broker.call("close", topic=topic)
    rows = load(spark, cluster.metadata_uri, managedLedger=topic, decode="pulsar").collect()
    found = {(row.ledger_id, row.entry_id, row.batch_index): row for row in rows}
    assert found.keys() == {(*position, i) for position, each in batches.items() for i in range(len(each))}
    for position, batch in batches.items():
        for i, each in enumerate(batch):
            row = found[*position, i]
            assert (row.key, bytes(row.value).decode(), row.properties) == (
                each["key"],
                each["value"],
                {"user": each["user"]},
            )
            assert row.topic == "persistent://interop/reading/batches"


def test_names(client, broker):
    broker.open(f"{NAMESPACE}/persistent/an+order%2Fagain")
    names = client.run(lambda each: managed_ledger_names(each, NAMESPACE))
    assert f"{NAMESPACE}/persistent/an+order%2Fagain" in names
    assert all(name.startswith(f"{NAMESPACE}/persistent/") for name in names)
