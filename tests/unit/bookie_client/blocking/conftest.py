"""Model bookies on an event loop of their own, and blocking clients for them."""

from __future__ import annotations

from random import Random

import pytest

from bookie_client import ClientOptions
from bookie_client.blocking import BlockingClient
from bookie_client.blocking.loop_thread import LoopThread
from tests.unit.bookie_client.conftest import FAST, ModelCluster


class ServedCluster:
    """A `ModelCluster` whose bookies run on another thread; metadata is in memory and bound to no loop."""

    def __init__(self, bookies: int = 3) -> None:
        self.loop = LoopThread("model bookies")
        self.model = ModelCluster()
        for number in range(bookies):
            self.loop.run(self.model.add_bookie, f"b{number + 1}")

    def client(self, **options) -> BlockingClient:
        return BlockingClient(self.model.metadata, ClientOptions(**{**FAST, **options}), random=Random(1))

    def hold(self) -> None:
        """Bookies answer nothing until `release`."""
        for server in self.model.servers.values():
            server.hold = True

    def release(self) -> None:
        for server in self.model.servers.values():
            self.loop.call(server.release)

    def stop(self) -> None:
        self.loop.run(self.model.stop)
        self.loop.stop()


@pytest.fixture
def cluster():
    cluster = ServedCluster()
    yield cluster
    cluster.stop()


@pytest.fixture
def client(cluster):
    with cluster.client(add_timeout=30.0, read_timeout=30.0) as client:
        yield client
