"""A server of the admin API over fake ports."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from bookie_pod.admin.routes import RESOURCES
from bookie_pod.config.sections.service import HttpConfig
from bookie_pod.metrics.registry import Registry
from bookie_pod.server.http.server import HttpServer
from bookie_pod.server.http.start import start_http
from tests.support.fake_admin import FakeAdmin
from tests.support.http_answers import HttpAnswer, ask
from tests.unit.bookie_pod.server.nodes import FakeNode

LOCAL = HttpConfig(server_port=0, server_host="127.0.0.1")


class Served:
    """The fakes, and a way to ask."""

    def __init__(self, server: HttpServer, admin: FakeAdmin, node: FakeNode) -> None:
        self.server = server
        self.admin = admin
        self.node = node
        self.serving = True

    async def __call__(
        self, path: str, method: str = "GET", body: str | bytes | None = None, **headers: str
    ) -> HttpAnswer:
        return await ask(self.server.port, path, method, body, **headers)

    async def get(self, path: str) -> HttpAnswer:
        return await self("/api/v1/" + path)

    async def put(self, path: str, body: str | bytes | None = None) -> HttpAnswer:
        return await self("/api/v1/" + path, "PUT", body)


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    admin, node = FakeAdmin(), FakeNode()
    made: list[Served] = []
    server = await start_http(LOCAL, node, Registry(), lambda: admin if made[0].serving else None, table=RESOURCES)
    assert server is not None
    made.append(Served(server, admin, node))
    yield made[0]
    await server.stop()
