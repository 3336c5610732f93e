"""One metadata service, three bookies of ours, one broker and one client of Pulsar for the whole ring."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from bookie_client.blocking import BlockingClient
from tests.pulsar.broker import Broker, initialise_metadata
from tests.pulsar.client import PulsarClient
from tests.pulsar.stores import Store, started
from tests.support import warm
from tests.support.auto_recovery import read_every_replica
from tests.support.serve_cluster import ServeCluster
from tests.support.until import until_true

_METADATA = os.environ.get("PULSAR_METADATA", "zookeeper")
_SECONDS = 1200
_REGISTERED_S = 120
_STEP = 300
"""Messages that are to be acknowledged between two events."""
_STEP_S = 300
_COMMAND_S = 300
BOOKIES = {
    # A busy machine lets ZooKeeper wait for longer than the default of these clusters.
    "zkTimeout": "10000",
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
    """A broker and its client, on the bookies of the same metadata. Tests take topics of their own."""

    def __init__(self, work: Path, store: Store) -> None:
        initialise_metadata(store.url)
        self.store = store
        self.uri = store.uri
        self.broker = Broker(work, store.url)
        self._log = work / "client.log"
        self._client: PulsarClient | None = None

    @property
    def client(self) -> PulsarClient:
        """One for all tests, and another one after a test that ended it."""
        if self._client is None or self._client.has_ended():
            self._client = PulsarClient(self.broker.url, self._log)
        return self._client

    @contextmanager
    def producing(self, topic: str) -> Iterator[Callable[[], None]]:
        """Gives what waits for the next messages. In the end all that was acknowledged is there, once and in order: for
        a subscription that has been there from the first message on, and for one that comes when it is over."""
        client, follower = self.client, f"{topic}-follower"
        client.subscribe(follower, topic, "follower")
        client.load(topic, topic, sizes=(20, 500, 3000))

        def progress() -> None:
            before = client.progress(topic, 0, 0)
            assert client.progress(topic, _STEP, _STEP_S) >= before + _STEP

        progress()
        yield progress
        progress()
        count = client.unload(topic)
        assert client.consumed(topic, count) == list(range(count))
        assert client.numbers(follower, count) == list(range(count))
        assert client.nothing_more(follower)
        client.call("close", name=follower)

    def ledgers(self, topic: str) -> list[int]:
        """Of a topic, by what the broker tells."""
        name = topic if "/" in topic else f"public/default/{topic}"
        told = self.broker.admin("GET", f"persistent/{name}/internalStats")
        return [each["ledgerId"] for each in told["ledgers"]]

    def last_ensemble(self, topic: str) -> tuple[str, ...]:
        """The bookies that the topic is written to."""
        with BlockingClient(self.uri) as client:
            return client.metadata(self.ledgers(topic)[-1]).last_ensemble

    def check_copies(self, topic: str) -> None:
        """Each entry of the topic is on each bookie that has to have it, and is the same everywhere. The ledger that
        the broker has open is left out: it may be without its newest copies. What is consumed is soon deleted."""
        *closed, _ = self.ledgers(topic)
        with BlockingClient(self.uri) as client:
            assert client.run(lambda each: read_every_replica(each, closed)) > 0

    def command(self, *arguments: str) -> None:
        """`bookie cluster ...`, which has to succeed."""
        done = warm.run(warm.BOOKIE, ["cluster", *arguments, "--metadata", self.uri], _COMMAND_S)
        assert done.returncode == 0, (done.stdout + done.stderr).decode()

    def stop(self) -> None:
        if self._client is not None:
            self._client.stop()
        if self.broker.process is not None:
            self.broker.kill()


class OnOurs(Pulsar):
    """`bookies` are ours."""

    def __init__(self, work: Path, store: Store) -> None:
        super().__init__(work, store)
        self.bookies = ServeCluster(work, self.uri, BOOKIES)

    def up(self) -> None:
        """Whatever tests ended runs again, and every bookie is registered."""
        self.bookies.start(name for name, bookie in self.bookies.bookies.items() if bookie.process is None)
        if self.broker.process is None:
            self.broker.start()
        with BlockingClient(self.uri) as client:
            until_true(lambda: client.writable_bookies() == set(self.bookies.bookies), _REGISTERED_S)

    def stop(self) -> None:
        super().stop()
        self.bookies.stop()


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnOurs]:
    work = tmp_path_factory.mktemp("pulsar")
    with started(_METADATA, work / "metadata") as store:
        made = OnOurs(work, store)
        try:
            made.bookies.add(3)
            yield made
        finally:
            made.stop()


@pytest.fixture
def pulsar(running: OnOurs) -> OnOurs:
    running.up()
    return running
