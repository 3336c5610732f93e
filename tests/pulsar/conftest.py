"""One ZooKeeper, three bookies of ours, one broker and one client of Pulsar for the whole ring."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from bookie_client.blocking import BlockingClient
from tests.pulsar.broker import Broker, initialise_metadata
from tests.pulsar.client import PulsarClient
from tests.support.serve_cluster import ServeCluster
from tests.support.until import until_true
from tests.support.zookeeper import ZooKeeperServer

_SECONDS = 1200
_REGISTERED_S = 120
BOOKIES = {
    # A decommission makes a bookie read-only over its admin API.
    "httpServerEnabled": "true",
    "httpServerPort": "0",
    "httpServerHost": "127.0.0.1",
    # Space that nobody needs comes back soon.
    "gcWaitTime": "500",
    "logSizeLimit": str(4 << 20),
    "minorCompactionInterval": "1",
    "majorCompactionInterval": "2",
    "flushInterval": "500",
    "gcOverreplicatedLedgerWaitTime": "-1",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.pulsar)
            item.add_marker(pytest.mark.timeout(_SECONDS))


class Pulsar:
    """What runs. Tests take topics of their own."""

    def __init__(self, work: Path, zookeeper: ZooKeeperServer) -> None:
        self.bookies = ServeCluster(work, zookeeper.uri(), BOOKIES)
        self.broker = Broker(work, zookeeper.hosts)
        self._log = work / "client.log"
        self._client: PulsarClient | None = None

    @property
    def client(self) -> PulsarClient:
        """One for all tests, and another one after a test that ended it."""
        if self._client is None or self._client.has_ended():
            self._client = PulsarClient(self.broker.url, self._log)
        return self._client

    def up(self) -> None:
        """Whatever tests ended runs again, and every bookie is registered."""
        self.bookies.start(name for name, bookie in self.bookies.bookies.items() if bookie.process is None)
        if self.broker.process is None:
            self.broker.start()
        with BlockingClient(self.bookies.uri) as client:
            until_true(lambda: client.writable_bookies() == set(self.bookies.bookies), _REGISTERED_S)

    def stop(self) -> None:
        if self._client is not None:
            self._client.stop()
        if self.broker.process is not None:
            self.broker.kill()
        self.bookies.stop()


@pytest.fixture(scope="session")
def running(zookeeper: ZooKeeperServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pulsar]:
    initialise_metadata(zookeeper.hosts)
    made = Pulsar(tmp_path_factory.mktemp("pulsar"), zookeeper)
    try:
        made.bookies.add(3)
        yield made
    finally:
        made.stop()


@pytest.fixture
def pulsar(running: Pulsar) -> Pulsar:
    running.up()
    return running
