"""The code of Pulsar's brokers, with its `oxia:` metadata store, on a cluster of `bookie standalone`: no ZooKeeper."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bookie_client.blocking import BlockingClient
from bookie_protocol.ledger_metadata.model import LedgerState
from tests.interop.pulsar_broker import PulsarBroker
from tests.support.standalone_command import StandaloneCommand

TOPIC = "interop/oxia/persistent/topic"
SUBSCRIPTION = "sub"
PAYLOADS = [b"%06d" % number * (number % 200) for number in range(250)]


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[StandaloneCommand]:
    with StandaloneCommand(tmp_path / "cluster", "--bookies", "3") as command:
        yield command


def oxia(cluster: StandaloneCommand) -> str:
    return cluster.uri.replace("embedded://", "oxia://").replace("/ledgers", "/default")


def test_brokers_keep_topics_on_a_standalone_cluster(cluster: StandaloneCommand, tmp_path: Path) -> None:
    broker = PulsarBroker(oxia(cluster), tmp_path / "broker.log")
    try:
        broker.open(TOPIC, entries=100)
        broker.mark_deleted(TOPIC, SUBSCRIPTION)
        positions = broker.append(TOPIC, PAYLOADS)
        ledgers = broker.ledgers(TOPIC)
        assert positions == [(ledgers[number // 100], number % 100) for number in range(len(PAYLOADS))]
    finally:
        broker.stop()
    with BlockingClient(cluster.uri) as client:
        assert client.metadata(ledgers[0]).state is LedgerState.CLOSED
    successor = PulsarBroker(oxia(cluster), tmp_path / "successor.log")
    try:
        successor.open(TOPIC, entries=100)
        read = successor.read(TOPIC, SUBSCRIPTION, 1000)
        assert [payload for _, payload in read] == PAYLOADS
        successor.acknowledge_up_to(TOPIC, SUBSCRIPTION, positions[-1])
        successor.trim(TOPIC)
        assert len(successor.ledgers(TOPIC)) == 1
    finally:
        successor.stop()
