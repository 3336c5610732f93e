"""Requests of a few bytes that no client has reason to send, and bodies that are too large."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from structlog.testing import capture_logs

from bookie_pod.config.sections.service import HttpConfig
from bookie_pod.logs import MOST
from bookie_pod.metrics.registry import Registry
from bookie_pod.server.http.connection import MAX_BODY_BYTES, MAX_HEAD_BYTES
from bookie_pod.server.http.server import HttpServer
from bookie_pod.server.http.start import start_http
from tests.support.until import until
from tests.unit.bookie_pod.admin.conftest import Served
from tests.unit.bookie_pod.admin.conftest import served as served  # a fixture
from tests.unit.bookie_pod.server.http.connections import closed
from tests.unit.bookie_pod.server.nodes import FakeNode

HEARTBEAT = b"GET /heartbeat HTTP/1.1\r\nHost: x\r\n\r\n"
NOT_PATHS = [
    b"GET http://xn--a/",
    b"GET http://" + b"xn--a." * 1300 + b"/",
    b"GET http://here/healthz",
    b"CONNECT here:80",
    b"OPTIONS *",
]


@pytest.fixture
async def server(node: FakeNode, registry: Registry) -> AsyncIterator[HttpServer]:
    started = await start_http(HttpConfig(server_port=0, server_host="127.0.0.1"), node, registry)
    assert started is not None
    yield started
    await started.stop()


@pytest.fixture
async def unheard() -> list[dict[str, Any]]:
    """What the event loop was told of errors that nobody has heard of."""
    told: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
    return told


async def answers(server: HttpServer, *sent: bytes) -> bytes:
    """All that comes, until the connection is closed: each is sent when those before it are answered."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    received = b""
    async with asyncio.timeout(5):
        for each in sent[:-1]:
            writer.write(each)
            received += await reader.readuntil(b"OK\n")
        writer.write(sent[-1])
        received += await reader.read()
    await closed(writer)
    return received


@pytest.mark.parametrize("before", [(), (HEARTBEAT,)], ids=["first", "second"])
@pytest.mark.parametrize("begin", NOT_PATHS, ids=lambda begin: begin[:20].decode())
async def test_target_that_is_not_a_path_is_refused(
    server: HttpServer, unheard: list[dict[str, Any]], before: tuple[bytes, ...], begin: bytes
) -> None:
    received = await answers(server, *before, begin + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    assert received.rpartition(b"HTTP/1.1 ")[2].split()[0] == b"400"
    gc.collect()
    assert unheard == []


@pytest.mark.parametrize("before", [(), (HEARTBEAT,)], ids=["first", "second"])
async def test_error_of_the_task_of_a_connection_closes_it_and_is_one_of_few_lines(
    server: HttpServer,
    unheard: list[dict[str, Any]],
    monkeypatch: pytest.MonkeyPatch,
    before: tuple[bytes, ...],
) -> None:
    running = server._runner.server
    assert running is not None
    make = running.request_factory

    def fail(message: Any, *rest: Any) -> web.BaseRequest:
        if message.path == "/fails":
            raise UnicodeError("of aiohttp, or of ours")
        return make(message, *rest)

    monkeypatch.setattr(running, "request_factory", fail)
    with capture_logs() as logs:
        for _ in range(MOST + 5):
            received = await answers(server, *before, b"GET /fails HTTP/1.1\r\nHost: x\r\n\r\n")
            assert received.count(b"HTTP/1.1") == len(before)
    gc.collect()
    assert unheard == []
    assert len(logs) == MOST
    assert all(line["log_level"] == "error" for line in logs)
    await until(lambda: not running.connections)


@pytest.mark.parametrize(
    ("sent", "kind", "text"),
    [
        (b"GET http://[/ HTTP/1.1\r\nHost: x\r\n\r\n", "InvalidURLError", "http://["),
        (b"GET nowhere HTTP/1.1\r\nHost: x\r\n\r\n", "InvalidURLError", "nowhere"),
        (b"GET / HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n", "BadHttpMessage", "header"),
        (b"\x16\x03\x01\x02\x00\x01\r\n", "BadHttpMethod", "HTTPS"),
    ],
)
async def test_log_says_what_is_wrong_with_a_request(server: HttpServer, sent: bytes, kind: str, text: str) -> None:
    with capture_logs() as logs:
        assert (await answers(server, sent)).split()[1] == b"400"
    (line,) = logs
    assert kind in line["reason"]
    assert text in line["reason"]


async def test_log_of_a_bad_request_has_no_control_characters(server: HttpServer) -> None:
    with capture_logs() as logs:
        await answers(server, b"GET \xc2\x9b31m\xe2\x80\xae HTTP/1.1\r\nHost: x\r\n\r\n")
    (line,) = logs
    assert line["reason"].isprintable()


@pytest.mark.parametrize("nbytes", [MAX_BODY_BYTES + 1, 600_000, 1 << 20, 4 << 20, 16 << 20])
async def test_client_of_too_large_a_body_learns_why(served: Served, nbytes: int) -> None:
    for _ in range(3):
        answer = await served.put("bookie/gc", "x" * nbytes)
        assert answer.status == 413
    assert served.admin.gc.forced == []


async def test_client_of_too_large_a_body_is_answered_while_it_sends(served: Served) -> None:
    """The answer would be lost if what the client still sends reset the connection."""
    port = served.server.port
    loop = asyncio.get_running_loop()
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.setblocking(False)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
        head = b"PUT /api/v1/bookie/gc HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nContent-Length: 40000000\r\n\r\n" % port
        sending = asyncio.ensure_future(loop.sock_sendall(client, head + bytes(40_000_000)))
        async with asyncio.timeout(5):
            answer = await loop.sock_recv(client, 1 << 16)
        sending.cancel()
    assert answer.split()[1] == b"413"


async def test_answer_before_a_body_that_is_too_large_is_the_only_one(server: HttpServer) -> None:
    """A second one would be taken for that to another request."""
    head = b"PUT /heartbeat HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(head)
    begin = await reader.readuntil(b"OK\n")
    writer.write(bytes(MAX_HEAD_BYTES + MAX_BODY_BYTES + 1_000_000))
    rest = b""
    try:
        async with asyncio.timeout(5):
            rest = await reader.read()
    except ConnectionError:
        pass
    assert begin.split()[1] == b"200"
    assert rest == b""
    await closed(writer)


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/api/v1/bookie/is_ready", "/heartbeat"])
async def test_head_of_a_probe_is_answered_as_get(server: HttpServer, node: FakeNode, path: str) -> None:
    async with aiohttp.ClientSession() as session:
        for reason in (None, "replaying journals"):
            node.unready = node.unhealthy = reason
            asked = [(await session.request(how, f"http://127.0.0.1:{server.port}{path}")) for how in ("GET", "HEAD")]
            by_get, by_head = asked
            assert by_head.status == by_get.status
            assert by_head.headers["Content-Length"] == by_get.headers["Content-Length"]
            assert await by_head.read() == b""
