"""Places of requests: bodies come before them, and viewers do not take them all."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from bookie_pod.admin.routes import RESOURCES
from bookie_pod.config.sections.service import HttpConfig
from bookie_pod.metrics.registry import Registry
from bookie_pod.roles import Caller
from bookie_pod.server.http.api import dispatch, rendering
from bookie_pod.server.http.start import start_http
from bookie_protocol.admin_api.bodies import plain
from bookie_protocol.admin_api.cluster import KNOWN, KnownBookie
from bookie_protocol.admin_api.decommission import LONG_PROOF
from tests.support.fake_admin import FakeAdmin
from tests.support.http_answers import HttpAnswer, ask
from tests.unit.bookie_pod.server.nodes import FakeNode

VIEWER, WRITER, OPERATOR = "looks-and-no-more", "writes-its-ledgers", "runs-the-cluster"
LOOK = ("/api/v1/bookie/info", "GET", None)
CHANGE = ("/api/v1/bookie/gc", "PUT", "{}")


class Server:
    def __init__(self, port: int, admin: FakeAdmin) -> None:
        self.port, self.admin = port, admin

    async def __call__(self, asked: tuple[str, str, str | None], token: str) -> HttpAnswer:
        return await ask(self.port, *asked, Authorization=f"Bearer {token}")

    @asynccontextmanager
    async def slow_body(self, token: str) -> AsyncIterator[asyncio.StreamReader]:
        """A request whose body does not end."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        head = (
            f"POST {LONG_PROOF.path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\nContent-Length: 400000\r\n"
        )
        writer.write(head.encode() + b'\r\n{"bookie_id":')
        await writer.drain()
        yield reader
        writer.close()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    (tmp_path / "tokens").write_text(f"{VIEWER} viewer\n{WRITER} writer\n{OPERATOR} operator\n")
    config = HttpConfig(server_port=0, server_host="127.0.0.1", auth_token_file=str(tmp_path / "tokens"))
    admin = FakeAdmin()
    served = await start_http(config, FakeNode(), Registry(), lambda: admin, table=RESOURCES)
    assert served is not None
    yield Server(served.port, admin)
    await served.stop()


async def test_bodies_that_do_not_come_take_no_place(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "ADMIN_CALLS", 2)
    monkeypatch.setattr(dispatch, "BODIES", 4)
    async with AsyncExitStack() as slow:
        for _ in range(6):
            await slow.enter_async_context(server.slow_body(VIEWER))
        assert (await server(LOOK, VIEWER)).status == 200
        assert (await server(LOOK, OPERATOR)).status == 200
        assert (await server(CHANGE, OPERATOR)).status == 200


async def test_a_body_that_does_not_come_ends_its_request(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "BODY_S", 0.05)
    async with server.slow_body(VIEWER) as reader:
        assert (await reader.readline()).split()[1] == b"408"


async def test_large_answers_to_viewers_keep_nobody_waiting_who_runs_the_cluster(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go, loop = asyncio.Event(), threading.Event(), asyncio.get_running_loop()

    def slowly(value: object) -> object:
        if isinstance(value, list):
            loop.call_soon_threadsafe(begun.set)
            go.wait()
        return plain(value)

    monkeypatch.setattr(rendering, "SMALL", 0)
    monkeypatch.setattr(rendering, "plain", slowly)
    viewer = asyncio.create_task(server((KNOWN.path, "GET", None), VIEWER))
    await begun.wait()
    try:
        async with asyncio.timeout(10):
            assert (await server(LOOK, OPERATOR)).status == 200
    finally:
        go.set()
    assert (await viewer).status == 200


@pytest.mark.parametrize("token", [VIEWER, WRITER])
async def test_places_are_kept_for_those_who_run_the_cluster(
    server: Server, monkeypatch: pytest.MonkeyPatch, token: str
) -> None:
    monkeypatch.setattr(dispatch, "ADMIN_CALLS", 4)
    begun, go = asyncio.Semaphore(0), asyncio.Event()

    async def slow(caller: Caller) -> list[KnownBookie]:
        begun.release()
        await go.wait()
        return []

    server.admin.cluster.known = slow  # type: ignore[method-assign]
    running = [asyncio.create_task(server((KNOWN.path, "GET", None), token)) for _ in range(3)]
    for _ in running:
        await asyncio.wait_for(begun.acquire(), 10)
    assert (await server(LOOK, token)).status == 503
    assert (await server(LOOK, OPERATOR)).status == 200
    assert (await server(CHANGE, OPERATOR)).status == 200
    go.set()
    assert {answer.status for answer in await asyncio.gather(*running)} == {200}
