"""Connections that break in ways of which only one side hears, or none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bookie_protocol.metadata_service.embedded.owner import EmbeddedOwner
from bookie_protocol.metadata_service.embedded.remote import GrpcTransport
from bookie_protocol.metadata_service.embedded.server import EmbeddedMetadataServer
from bookie_protocol.metadata_service.embedded.tree import EmbeddedTree
from bookie_protocol.metadata_service.interface import SessionState
from bookie_protocol.metadata_service.tree.service import MetadataService
from bookie_protocol.metadata_service.under_replication import LedgerLock
from tests.support.bookie_process import free_port


class Network:
    """Between clients and the owner. `silence`: connections of now stay open and carry nothing any more."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._era = 0
        self._writers: list[asyncio.StreamWriter] = []
        self.connections = 0

    async def start(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        there, back = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers += [writer, back]
        await asyncio.gather(self._pump(reader, back, self._era), self._pump(there, writer, self._era))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, era: int) -> None:
        try:
            while data := await reader.read(65536):
                if era == self._era:
                    writer.write(data)
        except OSError:
            return
        if era == self._era:
            writer.close()

    def silence(self) -> None:
        self._era += 1

    async def stop(self) -> None:
        self._server.close()
        for writer in self._writers:
            writer.close()


@pytest.fixture
async def network(tmp_path: Path) -> AsyncIterator[Network]:
    owner = await EmbeddedOwner.open(str(tmp_path))
    server = EmbeddedMetadataServer(owner)
    await server.start()
    network = Network(server.port)
    network.port = await network.start()  # type: ignore[attr-defined]
    yield network
    await network.stop()
    await server.stop()
    await owner.close()


async def connect(network: Network, timeout: float) -> MetadataService:
    tree = EmbeddedTree(GrpcTransport(f"127.0.0.1:{network.port}"), timeout)  # type: ignore[attr-defined]
    await tree.connect()
    return MetadataService(tree, "/ledgers", None)


async def test_who_hears_nothing_takes_a_new_connection_and_keeps_its_session(network: Network) -> None:
    service = await connect(network, 3.0)
    await service.cluster.initialize()
    states: list[SessionState] = []
    back = asyncio.Event()

    def listen(state: SessionState) -> None:
        states.append(state)
        if state is SessionState.CONNECTED:
            back.set()

    service.session.add_listener(listen)
    session_id = service.tree.session_id
    waits = asyncio.create_task(service.cluster.exists(timeout=30))  # under way when the connection is given up
    network.silence()
    async with asyncio.timeout(30):
        await back.wait()
        assert await waits
    assert states == [SessionState.SUSPENDED, SessionState.CONNECTED]
    assert service.tree.session_id == session_id
    assert network.connections == 2
    await service.close()


async def test_watches_of_a_connection_that_only_the_client_gave_up(network: Network) -> None:
    """At the owner the old stream still stands: what fires must not be written to it, or nobody would ever hear."""
    service = await connect(network, 1.5)
    await service.cluster.initialize()
    waiting: list[asyncio.Task[LedgerLock]] = [
        asyncio.create_task(service.under_replication.acquire()) for _ in range(4)
    ]
    await service.under_replication.locks()
    back = asyncio.Event()
    service.session.add_listener(lambda state: back.set() if state is SessionState.CONNECTED else None)
    network.silence()
    async with asyncio.timeout(30):
        await back.wait()
        for number in range(4):
            await service.under_replication.mark(number, ["b:1"], ctime_ms=1)
        assert {(await task).ledger_id for task in waiting} == set(range(4))
    await service.close()


async def test_a_start_that_is_cancelled_leaves_no_task() -> None:
    before = asyncio.all_tasks()
    tree = EmbeddedTree(GrpcTransport(f"127.0.0.1:{free_port()}"), 30)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await tree.connect()
    assert {task.get_name() for task in asyncio.all_tasks() - before} == set()


async def test_a_proxy_of_the_environment_is_not_asked(network: Network, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")
    service = await connect(network, 10)
    assert not await service.cluster.exists()
    await service.close()
