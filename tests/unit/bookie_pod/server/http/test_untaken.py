"""Answers that their client takes slowly, or not at all."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest

from bookie_pod.admin.routes import RESOURCES
from bookie_pod.client_memory import MemoryGovernor
from bookie_pod.config.sections.service import HttpConfig
from bookie_pod.metrics.registry import Registry
from bookie_pod.server.http import untaken
from bookie_pod.server.http.server import HttpServer
from bookie_pod.server.http.start import start_http
from tests.support.certificates import Certificates
from tests.support.fake_admin import FakeAdmin
from tests.support.http_answers import ask
from tests.support.until import until
from tests.unit.bookie_pod.server.nodes import FakeNode

MARKS = "/api/v1/autorecovery/list_under_replicated_ledger?printmissingreplica=true"
MIB = 1024 * 1024
ANSWER, LIMIT = 16 * MIB, 64 * MIB
"""More than the kernel takes, and what two of them fit in."""


@pytest.fixture
async def admin() -> FakeAdmin:
    return FakeAdmin()


@asynccontextmanager
async def started(
    config: HttpConfig, admin: FakeAdmin, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[HttpServer]:
    monkeypatch.setattr(registry, "pieces", lambda text: ["x" * ANSWER])
    memory = MemoryGovernor(LIMIT)
    server = await start_http(config, FakeNode(), registry, lambda: admin, table=RESOURCES, memory=memory)
    assert server is not None
    try:
        yield server
    finally:
        await server.stop()


@pytest.fixture
async def server(admin: FakeAdmin, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[HttpServer]:
    async with started(HttpConfig(server_port=0, server_host="127.0.0.1"), admin, registry, monkeypatch) as served:
        yield served


@pytest.fixture
async def over_tls(
    admin: FakeAdmin, registry: Registry, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> AsyncIterator[HttpServer]:
    Certificates(tmp_path).make_all()
    config = HttpConfig(
        server_port=0,
        server_host="127.0.0.1",
        tls_enable=True,
        key_store_path=str(tmp_path / "bookie.key"),
        certificate_path=str(tmp_path / "bookie.pem"),
        trust_store_path=str(tmp_path / "authority.pem"),
        tls_client_authentication=False,
    )
    async with started(config, admin, registry, monkeypatch) as served:
        yield served


async def asked_over_tls(server: HttpServer, path: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A request of which the beginning of the answer has come, and of which no more is taken."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context, limit=1 << 16)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    assert await reader.readexactly(4) == b"HTTP"
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    return reader, writer


async def asked(server: HttpServer, path: str) -> socket.socket:
    """A request of which the beginning of the answer has come."""
    loop, client = asyncio.get_running_loop(), socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 18)
    client.setblocking(False)
    await loop.sock_connect(client, ("127.0.0.1", server.port))
    await loop.sock_sendall(client, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    assert await loop.sock_recv(client, 4) == b"HTTP"
    return client


async def test_an_answer_of_which_nothing_is_taken_ends_its_connection(
    server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(untaken, "TAKEN_S", 0.1)
    client = await asked(server, "/metrics")
    await until(lambda: not server._runner.server.connections)  # type: ignore[union-attr]
    assert server._memory.held == 0
    client.close()


async def test_answers_that_are_not_taken_count_in_the_memory_of_clients(server: HttpServer) -> None:
    clients = [await asked(server, "/metrics") for _ in range(2)]
    await until(lambda: server._memory.held > ANSWER)
    clients += [await asked(server, "/metrics") for _ in range(3)]
    await until(lambda: server._memory.cut_off > 0)
    assert server._memory.held <= LIMIT
    assert (await ask(server.port, "/healthz")).status == 200
    for client in clients:
        client.close()
    await until(lambda: server._memory.held == 0)


async def test_over_tls_an_answer_of_which_nothing_is_taken_ends_its_connection(
    over_tls: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(untaken, "TAKEN_S", 0.1)
    _, writer = await asked_over_tls(over_tls, "/metrics")
    await until(lambda: not over_tls._runner.server.connections)  # type: ignore[union-attr]
    assert over_tls._memory.held == 0
    writer.transport.abort()


async def test_over_tls_answers_that_are_not_taken_count_in_the_memory_of_clients(over_tls: HttpServer) -> None:
    writers = [(await asked_over_tls(over_tls, "/metrics"))[1] for _ in range(2)]
    await until(lambda: over_tls._memory.held > ANSWER)
    for writer in writers:
        writer.transport.abort()
    await until(lambda: over_tls._memory.held == 0)


@pytest.mark.parametrize("path", ["/metrics", MARKS])
async def test_over_tls_a_client_has_the_whole_answer_though_it_is_cut_in_pieces(
    over_tls: HttpServer, admin: FakeAdmin, path: str
) -> None:
    admin.auto_recovery.marked = {1: ("x" * ANSWER,)}
    reader, writer = await asked_over_tls(over_tls, path)
    await until(lambda: over_tls._memory.held > ANSWER)
    writer.transport.resume_reading()  # type: ignore[attr-defined]
    answer = await reader.read(-1)
    assert ANSWER <= answer.count(b"x") < ANSWER + 100
    await until(lambda: over_tls._memory.held == 0)
    writer.close()


@pytest.mark.parametrize("path", ["/metrics", MARKS])
async def test_a_client_that_takes_next_to_nothing_has_no_place_for_long(
    server: HttpServer, admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(untaken, "TAKEN_S", 0.2)
    monkeypatch.setattr(untaken, "LEAST", ANSWER)
    admin.auto_recovery.marked = {1: ("x" * ANSWER,)}
    loop, client, came = asyncio.get_running_loop(), await asked(server, path), 0
    with suppress(ConnectionError):
        while piece := await loop.sock_recv(client, 1 << 17):
            came += len(piece)
            if came >= ANSWER:
                break
            await asyncio.sleep(0.01)
    assert came < ANSWER
    await until(lambda: server._memory.held == 0)
    client.close()


@pytest.mark.parametrize("path", ["/metrics", MARKS])
async def test_a_client_that_takes_an_answer_slowly_has_the_whole(
    server: HttpServer, admin: FakeAdmin, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setattr(untaken, "TAKEN_S", 0.2)
    monkeypatch.setattr(untaken, "LEAST", 1)
    admin.auto_recovery.marked = {1: ("x" * ANSWER,)}
    loop, client, came, began = asyncio.get_running_loop(), await asked(server, path), 0, time.monotonic()
    while came < ANSWER:
        piece = await loop.sock_recv(client, 1 << 17)
        assert piece, f"broken off after {came} bytes"
        came += len(piece)
        await asyncio.sleep(0.01)  # it is slow
    assert time.monotonic() - began > 3 * untaken.TAKEN_S
    client.close()
