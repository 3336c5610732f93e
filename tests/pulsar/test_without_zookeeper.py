"""A broker on `bookie standalone`, without ZooKeeper: all metadata are in the embedded service, which Pulsar takes for
Oxia, or in Oxia."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from bookie_client.blocking import BlockingClient
from bookie_protocol.errors import MetadataNotFound
from tests.pulsar.conftest import Pulsar
from tests.pulsar.stores import Store, embedded, started
from tests.support.standalone_command import StandaloneCommand
from tests.support.until import until_true

SECONDS = 300
OPTIONS = ("--bookies", "3", "--set", "zkTimeout=10000")


class Alone(Pulsar):
    """A broker beside `bookie standalone`, which reports its bookies. `stop` ends both."""

    def __init__(self, work: Path, oxia: Store | None) -> None:
        self._data = work / "cluster"
        self._options = [*OPTIONS, *(["--zookeeper", oxia.uri] if oxia else [])]
        self.cluster = StandaloneCommand(self._data, *self._options).__enter__()
        try:
            super().__init__(work, oxia or embedded(self.cluster.uri))
        except BaseException:
            self.cluster.stop()
            raise

    @property
    def bookies(self) -> dict[str, dict[str, int]]:
        """The bookies by name, as the command reported them at its start."""
        return {each["bookie_id"]: each for each in self.cluster.ready["bookies"]}

    def is_back(self, bookie: str) -> bool:
        """True if it is registered at another port than the one that was killed."""
        with BlockingClient(self.uri) as client:
            try:
                info = client.run(lambda each: each.metadata_service.bookies.service_info(bookie))
            except MetadataNotFound:
                return False  # the killed one's session is over, and its successor has none yet
        address = info.bookie_address()
        return address is not None and address[1] != self.bookies[bookie]["port"]

    def restart(self) -> None:
        """Stop everything and start it again with its data."""
        self.broker.kill()
        assert self.cluster.stop() == 0
        if self.store.server is not None:
            self.store.server.stop()
            self.store.server.start()
        port = [] if self.store.server is not None else ["--metadata-port", str(urlsplit(self.uri).port)]
        self.cluster = StandaloneCommand(self._data, *self._options, *port).__enter__()
        self.broker.start()

    def stop(self) -> None:
        super().stop()
        self.cluster.stop()


@pytest.fixture(params=["embedded", pytest.param("oxia", marks=pytest.mark.oxia)])
def alone(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Alone]:
    with ExitStack() as stack:
        oxia = stack.enter_context(started("oxia", tmp_path / "oxia")) if request.param == "oxia" else None
        made = Alone(tmp_path, oxia)
        stack.callback(made.stop)
        made.broker.start()
        yield made


def test_a_broker_outlives_its_cluster(alone: Alone) -> None:
    """A bookie dies and comes back, the broker dies, a bookie leaves for good, and all of it starts again."""
    topic = "alone"
    with alone.producing(topic) as progress:
        victim = alone.last_ensemble(topic)[0]
        os.kill(alone.bookies[victim]["pid"], signal.SIGKILL)
        progress()
        until_true(lambda: alone.is_back(victim), SECONDS)
        alone.broker.kill()
        alone.broker.start()
        progress()
        going = next(each for each in alone.last_ensemble(topic) if each != victim)
        alone.command("decommission", going, "--grace", "1", "--rate", "0")
        os.kill(alone.bookies[going]["pid"], signal.SIGTERM)
        progress()
        assert going not in alone.last_ensemble(topic)
        alone.restart()
        assert alone.cluster.ready["decommissioned"] == [going]
        progress()
        alone.check_copies(topic)
    assert going not in alone.last_ensemble(topic)
