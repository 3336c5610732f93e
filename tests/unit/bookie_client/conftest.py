"""A cluster of model bookies on localhost, with metadata in memory."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from bookie_client import Client, ClientOptions
from tests.support.memory_metadata import MemoryMetadata
from tests.support.model_bookie import ModelBookie, ModelBookieServer

FAST = {"add_timeout": 0.4, "read_timeout": 0.4, "reconnect_delay": 0.01, "degraded_retry_interval": 0.02}


def tasks_of_handles():
    """Tasks but for those that make connections: these belong to the client, which goes on when the handle that
    asked for one is gone, and to the model bookies' loop."""
    return {task for task in asyncio.all_tasks() if not _connects(task)}


def _connects(task):
    return task.get_name().startswith("connect ") or "_accept_connection" in task.get_coro().__qualname__


class ModelCluster:
    def __init__(self) -> None:
        self.metadata = MemoryMetadata()
        self.servers: dict[str, ModelBookieServer] = {}

    async def add_bookie(self, bookie_id: str) -> ModelBookieServer:
        server = ModelBookieServer(ModelBookie(bookie_id))
        await server.start()
        self.servers[bookie_id] = server
        self.metadata.bookies.register_address(bookie_id, "127.0.0.1", server.port)
        return server

    def client(self, **options) -> Client:
        return Client(self.metadata, ClientOptions(**{**FAST, **options}), random=Random(1))

    def bookie(self, bookie_id: str) -> ModelBookie:
        return self.servers[bookie_id].bookie

    def held_at(self, bookie_id: str, ledger_id: int) -> set[int]:
        ledger = self.bookie(bookie_id).ledgers.get(ledger_id)
        return set(ledger.entries) if ledger else set()

    def stored(self, ledger_id: int):
        return self.metadata.ledgers.stored[ledger_id].value

    async def stop(self) -> None:
        for server in self.servers.values():
            await server.stop()


@pytest.fixture
async def cluster():
    cluster = ModelCluster()
    yield cluster
    await cluster.stop()


@pytest.fixture
async def three(cluster):
    for name in ("b1", "b2", "b3"):
        await cluster.add_bookie(name)
    return cluster


@pytest.fixture(params=[3, 2], ids=["v3", "v2"])
def version(request):
    return request.param


def payloads(count, size=100):
    return [f"{i:08d}".encode() * (size // 8) for i in range(count)]
