"""Pulsar's own managed ledgers on the bookies under test: roll-over, retention, take-over, cursors, and a bookie that
dies."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from bookie_client.blocking import BlockingClient
from bookie_protocol.errors import NoSuchLedger
from bookie_protocol.ledger_metadata.model import LedgerState
from tests.interop.pulsar_broker import PulsarRefused
from tests.support.until import until_true

PAYLOADS = [b"%06d" % number * (number % 200) for number in range(1050)]
SUBSCRIPTION = "sub%2Fscription"
"""As brokers encode it."""
SECONDS = 60


@pytest.fixture(scope="module")
def client(cluster):
    with BlockingClient(cluster.metadata_uri) as client:
        yield client


def consumed(broker, topic, entries=2000):
    """What a cursor has not acknowledged, to the end of the topic."""
    return [payload for _, payload in broker.read(topic, SUBSCRIPTION, entries)]


def test_ledgers_roll_over_and_give_every_entry_back(broker, client):
    topic = "interop/ledgers/persistent/rolled"
    broker.open(topic, entries=100)
    broker.mark_deleted(topic, SUBSCRIPTION)
    positions = broker.append(topic, PAYLOADS)
    ledgers = broker.ledgers(topic)
    assert positions == [(ledgers[number // 100], number % 100) for number in range(1050)]
    assert broker.read(topic, SUBSCRIPTION, 2000) == list(zip(positions, PAYLOADS, strict=True))
    told = broker.statistics(topic)
    assert (told["state"], told["lastConfirmedEntry"], told["pendingAddEntriesCount"]) == (
        "LedgerOpened",
        f"{ledgers[-1]}:49",
        0,
    )
    last = told["ledgers"][-1]
    assert (last["ledgerId"], last["entries"], last["size"], last["offloaded"]) == (ledgers[-1], 0, 0, False)
    for number, ledger in enumerate(ledgers[:-1]):
        metadata = client.metadata(ledger)
        size = sum(map(len, PAYLOADS[number * 100 : number * 100 + 100]))
        assert (metadata.state, metadata.last_entry_id, metadata.length) == (LedgerState.CLOSED, 99, size)
        assert metadata.custom_metadata == {
            "application": b"pulsar",
            "component": b"managed-ledger",
            "pulsar/managed-ledger": topic.encode(),
        }
    assert not client.metadata(ledgers[-1]).is_closed


def test_consumed_ledgers_vanish(broker, client):
    topic = "interop/ledgers/persistent/consumed"
    broker.open(topic, entries=100)
    broker.mark_deleted(topic, SUBSCRIPTION)
    positions = broker.append(topic, PAYLOADS[:450])
    ledgers = broker.ledgers(topic)
    broker.acknowledge_up_to(topic, SUBSCRIPTION, positions[249])
    broker.trim(topic)
    assert broker.ledgers(topic) == ledgers[2:]
    for gone in ledgers[:2]:
        with pytest.raises(NoSuchLedger):
            client.metadata(gone)
    assert consumed(broker, topic) == PAYLOADS[250:450]
    broker.acknowledge(topic, SUBSCRIPTION, positions[250:300])
    # The cursor is first moved on to the next ledger; another look then finds this one behind it.
    until_true(lambda: broker.trim(topic) or broker.ledgers(topic) == ledgers[3:], SECONDS)
    with pytest.raises(NoSuchLedger):
        client.metadata(ledgers[2])


def test_a_second_broker_fences_the_first(broker, brokers, cluster, client):
    """Which still runs, and learns of it when it writes. The second one reads BookKeeper's metadata with its code."""
    topic = "interop/ledgers/persistent/taken"
    broker.open(topic, entries=100)
    broker.mark_deleted(topic, SUBSCRIPTION)
    broker.append(topic, PAYLOADS[:150])
    before = broker.ledgers(topic)
    second = brokers(cluster.metadata_uri, driver="bookkeeper")
    second.open(topic, entries=100)
    found = client.metadata(before[-1])
    assert (found.state, found.last_entry_id) == (LedgerState.CLOSED, 49)
    with pytest.raises(PulsarRefused, match="ManagedLedgerFencedException"):
        broker.append(topic, [b"too late"])
    second.append(topic, PAYLOADS[150:160])
    assert consumed(second, topic) == PAYLOADS[:160]
    with pytest.raises(PulsarRefused, match="ManagedLedgerFencedException"):
        broker.append(topic, [b"later still"])
    assert second.ledgers(topic)[:2] == before


def test_cursors_come_back_from_their_ledgers(broker, brokers, cluster, client):
    topic = "interop/ledgers/persistent/remembered"
    dying = brokers(cluster.metadata_uri)
    dying.open(topic, entries=100)
    dying.mark_deleted(topic, SUBSCRIPTION)
    positions = dying.append(topic, PAYLOADS[:250])
    dying.acknowledge_up_to(topic, SUBSCRIPTION, positions[41])
    out_of_order = [45, 47, 48, 120, 249]
    dying.acknowledge(topic, SUBSCRIPTION, [positions[each] for each in out_of_order])
    cursor = dying.statistics(topic)["cursors"][SUBSCRIPTION]
    dying.stop()
    assert client.metadata(cursor["cursorLedger"]).custom_metadata["pulsar/cursor"] == SUBSCRIPTION.encode()
    broker.open(topic, entries=100)
    assert client.metadata(cursor["cursorLedger"]).is_closed
    assert broker.mark_deleted(topic, SUBSCRIPTION) == positions[41]
    expected = [each for each in range(42, 250) if each not in out_of_order]
    assert consumed(broker, topic) == [PAYLOADS[each] for each in expected]
    broker.append(topic, [b"goes on"])
    assert consumed(broker, topic) == [b"goes on"]


def test_more_than_a_ledger_takes_by_default_and_a_broker_that_dies(broker, brokers, cluster, client):
    """As the 50,000 entries of a broker's own configuration have it."""
    topic, payloads = "interop/ledgers/persistent/long", [b"%06d" % number for number in range(50_500)]
    dying = brokers(cluster.metadata_uri)
    dying.open(topic)
    dying.mark_deleted(topic, SUBSCRIPTION)
    positions = dying.append(topic, payloads)
    ledgers = dying.ledgers(topic)
    assert positions == [(ledgers[number // 50_000], number % 50_000) for number in range(50_500)]
    dying.acknowledge_up_to(topic, SUBSCRIPTION, positions[49_899])
    assert [payload for _, payload in dying.read(topic, SUBSCRIPTION, 10)] == payloads[49_900:49_910]
    dying.stop()
    broker.open(topic)
    assert consumed(broker, topic) == payloads[49_900:]
    broker.acknowledge_up_to(topic, SUBSCRIPTION, positions[50_100])
    broker.trim(topic)
    assert broker.ledgers(topic)[0] == ledgers[1]
    assert ledgers[0] not in client.list()


def test_a_bookie_is_killed_while_a_broker_writes(brokers, make_cluster, bookie_kind):
    """Its place is taken by the third one; entries and cursor are there without it, and with it again."""
    cluster = make_cluster()
    with ThreadPoolExecutor(3) as threads:
        bookies = [cluster.bookie(bookie_kind) for _ in range(3)]
        for started in [threads.submit(each.start) for each in bookies]:
            started.result()
    topic = f"interop/ledgers/persistent/survivor-{bookie_kind}"
    broker = brokers(cluster.metadata_uri)
    broker.open(topic, entries=400)
    broker.mark_deleted(topic, SUBSCRIPTION)
    positions = broker.append(topic, PAYLOADS[:350])
    enough = Event()

    def write():
        for each in PAYLOADS[350:]:
            if enough.is_set():
                return
            positions.extend(broker.append(topic, [each]))

    with BlockingClient(cluster.metadata_uri) as client, ThreadPoolExecutor(1) as thread:
        writing = thread.submit(write)
        until_true(lambda: len(positions) > 410 or writing.done(), SECONDS)
        ledger = positions[410][0]
        (ensemble,) = client.metadata(ledger).ensembles.values()
        killed = next(each for each in bookies if each.bookie_id == ensemble[0])
        killed.kill()
        until_true(lambda: len(positions) > 550 or writing.done(), SECONDS)
        enough.set()
        writing.result(SECONDS)
        assert len(client.metadata(ledger).ensembles) == 2
    broker.acknowledge_up_to(topic, SUBSCRIPTION, positions[9])
    assert broker.read(topic, SUBSCRIPTION, 2000) == list(zip(positions, PAYLOADS, strict=False))[10:]
    broker.stop()
    second = brokers(cluster.metadata_uri)
    second.open(topic, entries=400)
    assert consumed(second, topic) == PAYLOADS[10 : len(positions)]
    killed.start()
    second.append(topic, PAYLOADS)
    assert consumed(second, topic) == PAYLOADS
