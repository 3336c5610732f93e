"""Pulsar's own managed ledgers with their metadata in Oxia, which bookies and clients of Podkeeper share with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bookie_client.blocking import BlockingClient
from bookie_protocol.ledger_metadata.model import LedgerState
from tests.interop.pulsar_broker import PulsarBroker
from tests.support.oxia import MISSING, OxiaServer, is_program
from tests.support.serve_cluster import ServeCluster

pytestmark = pytest.mark.oxia
TOPIC = "interop/oxia/persistent/topic"


@pytest.fixture
def server(tmp_path: Path) -> Iterator[OxiaServer]:
    """Of this test alone: Pulsar's root is always the same."""
    if not is_program():
        pytest.skip(MISSING)
    made = OxiaServer(tmp_path)
    made.start()
    yield made
    made.stop()


def test_a_broker_and_our_client_share_a_cluster(server: OxiaServer, tmp_path: Path) -> None:
    uri = f"metadata-store:oxia://{server.target}/default"
    cluster = ServeCluster(tmp_path / "bookies", uri)
    try:
        cluster.add(3)
        with BlockingClient(uri) as client:
            with client.create(ensemble=3) as ours:
                ours.append(b"ours")
            broker = PulsarBroker(f"oxia://{server.target}/default", tmp_path / "broker.log")
            try:
                broker.open(TOPIC, entries=10)
                broker.mark_deleted(TOPIC, "subscription")  # which keeps what it has not read
                positions = broker.append(TOPIC, [b"%d" % number for number in range(25)])
                ledgers = broker.ledgers(TOPIC)
            finally:
                broker.stop()
            with client.create(ensemble=3) as last:
                last.append(b"ours")
            assert len({ours.ledger_id, *ledgers, last.ledger_id}) == 5, "no id is given twice"
            assert client.metadata(ledgers[0]).state is LedgerState.CLOSED
            assert set(client.list()) >= {ours.ledger_id, *ledgers, last.ledger_id}
            with client.open(ledgers[0]) as reader:
                assert [entry.payload for entry in reader.entries(0, 9)] == [b"%d" % number for number in range(10)]
            assert positions[0] == (ledgers[0], 0)
    finally:
        cluster.stop()
