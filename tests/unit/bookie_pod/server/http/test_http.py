"""Probes and metrics over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import gzip
import json
import os
import re
import socket
import subprocess
import sys
import time
import tracemalloc
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import aiohttp
import pytest
from structlog.testing import capture_logs

from bookie_pod.admin.routes import RESOURCES
from bookie_pod.client_memory import MemoryGovernor
from bookie_pod.config.sections.service import AccessConfig, HttpConfig
from bookie_pod.logs import MOST
from bookie_pod.metrics.registry import Registry
from bookie_pod.metrics.text import OPEN_METRICS, PLAIN, TextFormat
from bookie_pod.server.http import connection as connection_module
from bookie_pod.server.http import server as server_module
from bookie_pod.server.http import untaken
from bookie_pod.server.http.api import dispatch
from bookie_pod.server.http.api.context import Context, Workers
from bookie_pod.server.http.connection import _MOST_WAITING, LINGER_S, MAX_BODY_BYTES, MAX_HEAD_BYTES
from bookie_pod.server.http.server import HttpServer
from bookie_pod.server.http.start import start_http
from bookie_pod.server.status import NodeState
from bookie_protocol.errors import ExitCode, ServerStartFailed, TooManyRequests
from tests.support.garbage import left_in_cycles
from tests.support.until import until
from tests.unit.bookie_pod.server.http.connections import closed
from tests.unit.bookie_pod.server.nodes import FakeNode

LOCAL = HttpConfig(server_port=0, server_host="127.0.0.1")


@pytest.fixture
async def server(node: FakeNode, registry: Registry) -> AsyncIterator[HttpServer]:
    started = await start_http(LOCAL, node, registry)
    assert started is not None
    yield started
    await started.stop()


async def ask(server: HttpServer, path: str, method: str = "GET") -> tuple[int, str, str]:
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, f"http://127.0.0.1:{server.port}{path}") as answer,
    ):
        return answer.status, await answer.text(), answer.headers.get("Content-Type", "")


@pytest.mark.parametrize("path", ["/readyz", "/api/v1/bookie/is_ready"])
async def test_readiness_follows_the_node(server: HttpServer, node: FakeNode, path: str) -> None:
    assert (await ask(server, path))[:2] == (200, "OK")
    node.unready = "replaying journals: 40 %"
    assert (await ask(server, path))[:2] == (503, "replaying journals: 40 %")


async def test_liveness_is_not_readiness(server: HttpServer, node: FakeNode) -> None:
    node.unready = "starting"
    assert (await ask(server, "/healthz"))[:2] == (200, "OK")
    node.complains = "the auditor has not been running for 61 s"
    assert (await ask(server, "/healthz"))[:2] == (200, "OK, but the auditor has not been running for 61 s")
    node.unhealthy = "journal 0 failed: no space"
    assert (await ask(server, "/healthz"))[:2] == (503, "journal 0 failed: no space")
    for method in ("GET", "PUT", "POST", "DELETE"):
        assert (await ask(server, "/heartbeat", method))[:2] == (200, "OK\n")


async def test_state_is_laid_out_as_the_reference_does(server: HttpServer, node: FakeNode) -> None:
    golden = json.loads((Path(__file__).parents[4] / "golden" / "http-admin-api.json").read_text())
    answers = [call["answer"] for call in golden["calls"] if call["request"] == "GET /api/v1/bookie/state"]
    states = []
    for read_only in (False, True):
        node.flags = NodeState(True, read_only, False, True)
        states.append((await ask(server, "/api/v1/bookie/state"))[1])
    assert states == answers[:2]


async def test_metrics(server: HttpServer, registry: Registry) -> None:
    registry.scope("bookie").counter("WRITE_BYTES").add(5)
    status, text, content_type = await ask(server, "/metrics")
    assert (status, text, content_type) == (200, registry.render(), PLAIN.content_type)
    assert "bookie_WRITE_BYTES 5" in text


async def test_metrics_have_exemplars_for_who_takes_them_and_only_if_there_are_any(
    server: HttpServer, registry: Registry
) -> None:
    stats = registry.scope("a").op_stats("latency", summed=True)
    stats.observe_ms(3.0)
    stats.exemplify(3.0, 7)
    url, accept = f"http://127.0.0.1:{server.port}/metrics", {"Accept": "application/openmetrics-text;q=0.5,*/*;q=0.1"}
    found = []
    async with aiohttp.ClientSession() as session:
        for registry.has_exemplars, headers in ((False, accept), (True, accept), (True, {})):
            async with session.get(url, headers=headers) as answer:
                found.append((answer.headers["Content-Type"], "trace_id" in await answer.text()))
    assert found == [(PLAIN.content_type, False), (OPEN_METRICS.content_type, True), (PLAIN.content_type, False)]


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/metrics", 403),
        ("PUT", "/api/v1/bookie/state", 404),
        ("DELETE", "/api/v1/bookie/is_ready", 404),
        ("PUT", "/healthz", 404),
        ("PATCH", "/heartbeat", 405),
        ("GET", "/nowhere", 404),
    ],
)
async def test_other_methods_and_paths(server: HttpServer, method: str, path: str, status: int) -> None:
    assert (await ask(server, path, method))[0] == status


async def test_a_name_that_no_host_can_have_is_none_to_listen_on(node: FakeNode, registry: Registry) -> None:
    with pytest.raises(ServerStartFailed, match=r"a\.\.b:1 \(httpServerPort\): .* name"):
        await start_http(HttpConfig(server_host="a..b", server_port=1), node, registry)


async def test_a_port_in_use_names_port_and_key(server: HttpServer, node: FakeNode, registry: Registry) -> None:
    with pytest.raises(ServerStartFailed) as raised:
        await start_http(HttpConfig(server_host="127.0.0.1", server_port=server.port), node, registry)
    assert str(raised.value) == (
        f"HTTP port {server.port} is in use: stop what uses it or choose another httpServerPort"
    )
    assert raised.value.exit_code is ExitCode.SERVER_EXCEPTION
    stats_only = HttpConfig(server_enabled=False, stats_address="127.0.0.1", stats_port=server.port)
    with pytest.raises(ServerStartFailed, match="prometheusStatsHttpPort"):
        await start_http(stats_only, node, registry)


async def test_an_address_that_is_not_ours(node: FakeNode, registry: Registry) -> None:
    with pytest.raises(ServerStartFailed, match=r"203\.0\.113\.7:0 \(httpServerPort\)"):
        await start_http(HttpConfig(server_host="203.0.113.7", server_port=0), node, registry)


async def test_switched_off(node: FakeNode, registry: Registry) -> None:
    assert await start_http(HttpConfig(server_enabled=False, stats_enable=False), node, registry) is None


@pytest.mark.parametrize(
    ("host", "more", "insecure", "told"),
    [
        ("0.0.0.0", {}, False, ["the admin API takes changes from this machine alone"]),
        ("0.0.0.0", {}, True, ["everybody who reaches the admin API may read and delete ledgers"]),
        ("127.0.0.1", {}, True, []),
        ("localhost", {}, True, []),
        ("0.0.0.0", {"auth_token_file": "token"}, True, []),
        ("0.0.0.0", {"server_enabled": False, "stats_port": 0}, True, []),
    ],
)
async def test_an_admin_api_that_knows_nobody_is_told(
    node: FakeNode,
    registry: Registry,
    tmp_path: Path,
    host: str,
    more: dict[str, Any],
    insecure: bool,
    told: list[str],
) -> None:
    if "auth_token_file" in more:
        (tmp_path / "token").write_text("secret-of-the-port")
        more = {"auth_token_file": str(tmp_path / "token")}
    with capture_logs() as logs:
        config, rules = HttpConfig(server_port=0, server_host=host, **more), AccessConfig(allow_insecure=insecure)
        server = await start_http(config, node, registry, table=RESOURCES, rules=rules)
    assert server is not None
    await server.stop()
    assert told == [each["event"] for each in logs if each["log_level"] == "warning"]


async def connect(server: HttpServer, sent: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(sent)
    return reader, writer


HEARTBEAT = b"GET /heartbeat HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.mark.parametrize("sent", [b"", HEARTBEAT], ids=["silent", "idle"])
@pytest.mark.parametrize(("bound", "value"), [("MAX_CONNECTIONS", 3), ("side_connections", lambda: 6)])
async def test_who_does_nothing_for_longest_makes_way(
    node: FakeNode, registry: Registry, monkeypatch: pytest.MonkeyPatch, sent: bytes, bound: str, value: object
) -> None:
    monkeypatch.setattr(server_module, bound, value)
    monkeypatch.setattr(server_module, "UNREAD_S", -1.0)
    server = await start_http(LOCAL, node, registry)
    assert server is not None
    held = []
    for _ in range(10):
        reader, writer = await connect(server, sent)
        if sent:
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        held.append((reader, writer))
        assert (await ask(server, "/healthz"))[0] == 200
    for reader, _ in held[:6]:
        assert not (await asyncio.wait_for(reader.read(), 5)).startswith(b"HTTP/1.1 503")
    await closed(*(writer for _, writer in held))
    await server.stop()


async def unread(server: HttpServer) -> asyncio.StreamWriter:
    """A connection whose client asks for metrics until it is given more than it takes, and takes nothing."""
    running = server._runner.server
    assert running is not None
    mine = socket.socket()
    mine.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    mine.setblocking(False)
    before = set(running.connections)
    await asyncio.get_running_loop().sock_connect(mine, ("127.0.0.1", server.port))
    _, writer = await asyncio.open_connection(sock=mine)
    cast("asyncio.ReadTransport", writer.transport).pause_reading()
    while True:
        asked = running.requests_count
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda asked=asked: running.requests_count > asked)  # type: ignore[misc]
        (connection,) = set(running.connections) - before
        transport = cast("asyncio.WriteTransport", connection.transport)
        await until(lambda: connection._waiter is not None or transport.get_write_buffer_size())  # noqa: B023
        if transport.get_write_buffer_size():
            break
    return writer


@pytest.mark.parametrize(
    "nbytes", [32_000, 8_000_000], ids=["with its answer written", "with its answer to be written"]
)
async def test_who_takes_no_answer_has_no_place_for_longer_than_others(
    node: FakeNode, registry: Registry, monkeypatch: pytest.MonkeyPatch, nbytes: int
) -> None:
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 3)
    monkeypatch.setattr(registry, "pieces", lambda text: ["x" * nbytes])
    server = await start_http(LOCAL, node, registry)
    assert server is not None
    running = server._runner.server
    assert running is not None
    held = []
    for _ in range(8):
        held.append(await unread(server))
        assert len(running.connections) <= 4
    monkeypatch.setattr(registry, "pieces", lambda text: [])
    assert (await ask(server, "/metrics"))[0] == 200
    await closed(*held)
    await server.stop()


async def test_a_connection_that_is_kept_alive_no_longer_is_gone_though_its_client_takes_nothing(
    node: FakeNode, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_module, "KEEPALIVE_S", 0.5)
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 3)
    monkeypatch.setattr(registry, "pieces", lambda text: ["x" * 32_000])
    server = await start_http(LOCAL, node, registry)
    assert server is not None
    running = server._runner.server
    assert running is not None
    held = [await unread(server) for _ in range(3)]
    await until(lambda: not running.connections)
    await closed(*held)
    await server.stop()


async def test_connection_that_closes_after_its_answer_is_gone_though_its_client_takes_nothing(
    node: FakeNode, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(untaken, "TAKEN_S", 0.5)
    monkeypatch.setattr(registry, "pieces", lambda text: ["x" * 32_000])
    server = await start_http(LOCAL, node, registry)
    assert server is not None
    running = server._runner.server
    assert running is not None
    writer = await unread(server)
    writer.write(b"GET /heartbeat HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    await until(lambda: not running.connections)
    await closed(writer)
    await server.stop()


@pytest.mark.parametrize("few", [4, 16, 64, 1024])
async def test_connections_of_all_kinds_are_no_more_than_descriptors_allow(
    node: FakeNode, registry: Registry, monkeypatch: pytest.MonkeyPatch, few: int
) -> None:
    monkeypatch.setattr(server_module, "side_connections", lambda: few)
    server = await start_http(LOCAL, node, registry)
    assert server is not None
    assert min(server._bounds) > 0
    assert sum(server._bounds) <= few
    await server.stop()


async def test_who_is_not_there_yet_when_others_come_is_closed_when_silent(
    node: FakeNode, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several connections are accepted at once."""
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 3)
    monkeypatch.setattr(server_module, "UNREAD_S", -1.0)
    monkeypatch.setattr(server_module, "FIRST_REQUEST_S", 0.05)
    server = await start_http(LOCAL, node, registry)
    assert server is not None
    first = [await connect(server) for _ in range(2)]
    late = server._protocol()
    while server._make_way():
        pass
    left, right = socket.socketpair()
    await asyncio.get_running_loop().connect_accepted_socket(lambda: late, left)
    reader, writer = await asyncio.open_connection(sock=right)
    assert await asyncio.wait_for(reader.read(), 5) == b""
    await closed(writer, *(each for _, each in first))
    await server.stop()


async def busy_http(node: FakeNode, registry: Registry, monkeypatch: pytest.MonkeyPatch) -> HttpServer:
    """A server all of whose connections are served at any time: none makes way for another one."""
    server = await start_http(LOCAL, node, registry)
    assert server is not None
    monkeypatch.setattr(server, "_make_way", lambda: False)
    return server


async def test_while_all_are_served_the_probes_have_connections_of_their_own(
    node: FakeNode, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 2)
    monkeypatch.setattr(server_module, "PROBE_CONNECTIONS", 1)
    server = await busy_http(node, registry, monkeypatch)
    running = server._runner.server
    assert running is not None
    held = [(await connect(server, HEARTBEAT)) for _ in range(2)]
    for reader, _ in held:
        assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    for path, status in (("/healthz", 200), ("/readyz", 200), ("/metrics", 503), ("/api/v1/bookie/state", 503)):
        assert (await ask(server, path))[0] == status
        await until(lambda: len(running.connections) == 2)
    probe, writer = await connect(server, HEARTBEAT)
    assert (await probe.readline()).startswith(b"HTTP/1.1 200")
    reader, other = await connect(server, HEARTBEAT)
    assert (await reader.read()).startswith(b"HTTP/1.1 503")
    await closed(writer, other, *(each for _, each in held))
    await server.stop()


@pytest.mark.parametrize("sent", [b"", b"GET /metr", b"GET /metrics HTTP/1.1\r\n"], ids=["silent", "begun", "asks"])
async def test_while_all_are_served_no_number_of_strangers_keeps_a_probe_out(
    node: FakeNode, registry: Registry, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 1)
    monkeypatch.setattr(server_module, "MOST_LOOKED_AT", 2)
    server = await busy_http(node, registry, monkeypatch)
    held = [await connect(server, HEARTBEAT)]
    assert (await held[0][0].readline()).startswith(b"HTTP/1.1 200")
    strangers = [await connect(server, sent) for _ in range(6)]
    assert (await ask(server, "/healthz"))[0] == 200
    for reader, _ in strangers[:4]:
        assert (await asyncio.wait_for(reader.read(), 5)).startswith(b"HTTP/1.1 503")
    probe, writer = await connect(server, b"GET /hea")
    writer.write(b"lthz HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await probe.readline()).startswith(b"HTTP/1.1 200")
    await server.stop()
    for reader, _ in strangers[4:]:
        assert (await asyncio.wait_for(reader.read(), 5)).startswith(b"HTTP/1.1 503")
    await closed(writer, *(each for _, each in (*held, *strangers)))


async def test_strangers_who_come_all_at_once_do_not_drive_out_a_probe_that_came_first(
    node: FakeNode, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 1)
    monkeypatch.setattr(server_module, "PROBE_CONNECTIONS", 1)
    server = await busy_http(node, registry, monkeypatch)
    held, writer = await connect(server, HEARTBEAT)
    assert (await held.readline()).startswith(b"HTTP/1.1 200")
    with contextlib.ExitStack() as opened:  # the loop does not run while they come
        come = [opened.enter_context(socket.create_connection(("127.0.0.1", server.port))) for _ in range(100)]
        for probe in come[:2]:
            probe.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        answers = [await asyncio.to_thread(probe.recv, 12) for probe in come[:2]]
        assert answers == [b"HTTP/1.1 200", b"HTTP/1.1 503"], "there is room for one more"
        await closed(writer)
        await server.stop()


async def test_a_probe_that_comes_behind_a_crowd_while_the_loop_is_busy_is_answered_in_time(
    server: HttpServer,
) -> None:
    """Beyond the backlog the kernel drops whoever comes, who comes again after a second."""
    with contextlib.ExitStack() as opened:  # the loop does not run while they come
        for _ in range(450):
            opened.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=5))
        probe = opened.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=0.9))
        probe.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert await asyncio.to_thread(probe.recv, 12) == b"HTTP/1.1 200"


async def test_what_is_no_http_is_parsed_no_further_and_leaves_no_cycle(server: HttpServer) -> None:
    """aiohttp would make an error of each piece that comes behind it, and keep them all in cycles with their frames."""

    async def refused() -> None:
        head = b"GET / HTTP/1.1\r\nHost: x\r\n" + b"a:b\r\n" * 6_000
        _, writer = await connect(server, head)
        await closed(writer)

    await refused()
    with left_in_cycles() as left:
        for _ in range(5):
            await refused()
    assert not left & {"frame", "traceback", "BadHttpMessage", "_Connection"}


async def test_path_of_slashes_is_not_looked_for(server: HttpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """aiohttp looks for a route of the path up to each of them: that of 8,000 takes hundredths of a second."""
    resolved: list[str] = []
    monkeypatch.setattr(aiohttp.web.UrlDispatcher, "resolve", lambda self, request: resolved.append(request.path))
    reader, writer = await connect(server, b"GET " + b"/" * 8_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n")
    assert (await reader.readline()).split()[1] == b"404"
    assert resolved == []
    await closed(writer)


async def test_requests_that_come_before_their_turn_are_few(server: HttpServer) -> None:
    """What the parser makes of them counts nowhere until they are served."""
    reader, writer = await connect(server, HEARTBEAT * (_MOST_WAITING + 1))
    assert (await reader.readline()).split()[1] == b"503"
    await closed(writer)
    reader, writer = await connect(server, HEARTBEAT * _MOST_WAITING)
    for _ in range(_MOST_WAITING):
        assert (await reader.readuntil(b"OK\n")).split()[1] == b"200"
    await closed(writer)


async def test_whoever_came_a_moment_ago_makes_way_for_nobody(
    node: FakeNode, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the probe has sent may not have been read yet."""
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 1)
    monkeypatch.setattr(server_module, "UNREAD_S", 3600.0)
    server = await start_http(LOCAL, node, registry)
    assert server is not None
    probe, writer = await connect(server)
    others = [await connect(server, b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n") for _ in range(20)]
    for reader, _ in others:
        assert (await reader.readline()).startswith(b"HTTP/1.1 503")
    writer.write(HEARTBEAT)
    assert (await probe.readline()).startswith(b"HTTP/1.1 200")
    await closed(writer, *(each for _, each in others))
    await server.stop()


async def test_what_is_no_http_is_a_line_in_the_log_and_few_of_them(server: HttpServer) -> None:
    with capture_logs() as logs:
        for _ in range(30):
            reader, writer = await connect(server, b"GET / HTTP/1.1\r\nHost: x\r\nbad header\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 400")
            await closed(writer)
    assert len(logs) == MOST
    assert all("exc_info" not in line and line["log_level"] == "warning" for line in logs)


async def endless(server: HttpServer, begin: bytes, piece: bytes) -> tuple[int, bytes]:
    """Send the same piece again and again until the server has enough; how much it took, and its answer's status."""
    reader, writer = await connect(server, begin)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 16)
    sent = len(begin)
    with contextlib.suppress(ConnectionError):
        while not writer.is_closing() and not reader.at_eof() and sent < 10_000_000:
            writer.write(piece)
            sent += len(piece)
            await writer.drain()
            await asyncio.sleep(0.001)
    answer = b""
    with contextlib.suppress(ConnectionError):
        answer = await asyncio.wait_for(reader.readline(), 5)
    await closed(writer)
    return sent, answer


@pytest.mark.parametrize(
    ("begin", "piece", "status", "most"),
    [
        (b"GET /", b"x" * 1000, b"431", MAX_HEAD_BYTES),
        (b"GET /readyz HTTP/1.1\r\n", b"X-Head: 1\r\n" * 100, b"431", MAX_HEAD_BYTES),
        (
            b"PUT /readyz HTTP/1.1\r\nHost: x\r\nContent-Length: 9999999\r\n\r\n",
            bytes(4000),
            b"404",
            MAX_HEAD_BYTES + MAX_BODY_BYTES,
        ),
    ],
    ids=["a path", "headers", "a body"],
)
async def test_requests_that_do_not_end(
    server: HttpServer, begin: bytes, piece: bytes, status: bytes, most: int
) -> None:
    sent, answer = await endless(server, begin, piece)
    assert sent <= most + 500_000  # what lies in the sockets' buffers meanwhile
    assert answer.split()[1:2] in ([status], [])  # a reset may overtake it
    assert (await ask(server, "/healthz"))[0] == 200


CHUNKED = b"GET /metrics HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    ("begin", "status"),
    [
        (CHUNKED, b"411"),
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n" + bytes(5000) + CHUNKED, b"411"),
        (b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n" + CHUNKED, b"400"),
    ],
    ids=["at first", "behind another body", "behind an upgrade"],
)
async def test_a_body_in_chunks_is_refused_before_it_is_parsed(
    server: HttpServer, begin: bytes, status: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Thousands of chunks of one byte cost a turn of the event loop some hundredths of a second, for each client."""
    chunks = []
    monkeypatch.setattr(aiohttp.StreamReader, "end_http_chunk_receiving", lambda self: chunks.append(self))
    reader, _ = await connect(server, begin + b"1\r\nx\r\n" * 30_000)
    async with asyncio.timeout(10):
        assert (await reader.readline()).split()[1] == status
    assert len(chunks) <= 1024 / len(b"1\r\nx\r\n")


@pytest.mark.parametrize("path", ["/healthz", "/metrics", "/api/v1/bookie/gc"])
async def test_a_compressed_body_is_refused_and_not_read(server: HttpServer, path: str) -> None:
    body = gzip.compress(bytes(50_000_000))
    head = f"PUT {path} HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n"
    reader, writer = await connect(server, head.encode())
    writer.write(body)
    before = time.process_time()
    assert (await reader.readline()).split()[1] == b"415"
    assert time.process_time() - before < 0.05  # to inflate it takes longer
    await asyncio.wait_for(reader.read(), 5)  # it is closed
    await closed(writer)


async def test_a_refused_request_is_not_read_to_its_end(server: HttpServer) -> None:
    begin = b"PUT /nothing HTTP/1.1\r\nHost: x\r\nContent-Length: 500000\r\n\r\n"
    reader, writer = await connect(server, begin)
    answer = await asyncio.wait_for(reader.read(), LINGER_S / 2)
    assert answer.split()[1] == b"404"
    assert b"connection: close" in answer.lower()
    await closed(writer)


async def test_the_openapi_document_is_laid_out_once(server: HttpServer) -> None:
    assert json.loads((await ask(server, "/openapi.json"))[1])["openapi"]
    # Anybody may ask for it, so it does not take the places of those who read files either.
    with (
        patch.object(dispatch, "jackson", side_effect=AssertionError),
        patch("json.dumps", side_effect=AssertionError),
        patch.object(Workers, "run", side_effect=TooManyRequests),
    ):
        assert (await ask(server, "/openapi.json"))[0] == 200


async def test_a_head_as_browsers_and_proxies_make_it(server: HttpServer) -> None:
    fields = {"Cookie": "x" * 8000, **{f"X-Forwarded-{number}": "y" * 200 for number in range(50)}}
    async with aiohttp.ClientSession() as session:
        for _ in range(3):
            async with session.get(f"http://127.0.0.1:{server.port}/readyz", headers=fields) as answer:
                assert answer.status == 200


async def test_the_head_of_a_later_request_is_bounded_too(server: HttpServer) -> None:
    reader, writer = await connect(server, b"GET /heartbeat HTTP/1.1\r\nHost: x\r\n\r\n")
    async with asyncio.timeout(10):
        await reader.readuntil(b"OK\n")
        writer.write(b"GET /metrics HTTP/1.1\r\nHost: x\r\n" + b"Accept: %s\r\n" % (b"," * 8000) * 10 + b"\r\n")
        assert (await reader.readline()).split()[1] == b"431"
    await closed(writer)


async def test_a_head_that_comes_byte_by_byte(server: HttpServer) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    protocol = next(iter(server._silent))
    for byte in b"GET /healthz HTTP/1.1\r\nHost: it\r\nContent-Length: 40000\r\n\r\n":
        protocol.data_received(bytes([byte]))
    protocol.data_received(b" " * 40000)
    assert (await reader.readline()).split()[1] == b"200"
    writer.close()


async def test_what_is_received_and_not_dealt_with_is_governed(node: FakeNode, registry: Registry) -> None:
    memory = MemoryGovernor(1 << 20)
    server = await start_http(LOCAL, node, registry, memory=memory)
    assert server is not None
    head = b"GET /readyz HTTP/1.1\r\n" + b"".join(b"X-%d: " % number + b"x" * 6_000 + b"\r\n" for number in range(60))
    held = []
    for _ in range(20):
        reader, writer = await connect(server, HEARTBEAT)
        await reader.readuntil(b"OK\n")
        writer.write(head)
        held.append((reader, writer))
        await asyncio.sleep(0)
        assert memory.total <= memory.limit
    await until(lambda: memory.cut_off >= 17)
    assert memory.total <= memory.limit
    assert (await ask(server, "/healthz"))[0] == 200
    await closed(*(each for _, each in held))
    await until(lambda: memory.total == 0)
    reader, writer = await connect(server, HEARTBEAT)
    await reader.readuntil(b"OK\n")
    assert memory.total == 0  # what was dealt with counts no more
    await closed(writer)
    await server.stop()


@pytest.mark.parametrize("sent", [b"", b"GET /readyz HTTP/1.1\r\nHo"])
async def test_silent_connections_are_closed(
    node: FakeNode, registry: Registry, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(server_module, "FIRST_REQUEST_S", 0.05)
    server = await start_http(LOCAL, node, registry)
    assert server is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(sent)
    assert await asyncio.wait_for(reader.read(), 5) == b""
    writer.close()
    await writer.wait_closed()
    assert (await ask(server, "/readyz"))[0] == 200
    await server.stop()


async def test_stop_closes_and_may_be_repeated(server: HttpServer) -> None:
    port = server.port
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /heartbeat HTTP/1.1\r\nHost: x\r\n\r\n")
    await reader.readuntil(b"OK\n")
    await server.stop()
    await server.stop()
    assert await reader.read() == b""
    writer.close()
    await writer.wait_closed()
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.parametrize(
    "request_of_many_bytes",
    [
        b"GET /metrics HTTP/1.1\r\nHost: here\r\n\r\n",
        b"POST /healthz HTTP/1.1\r\nHost: here\r\nContent-Length: 400000\r\n\r\n" + bytes(400_000),
        b"PUT /api/v1/config/server_config HTTP/1.1\r\nHost: here\r\nContent-Length: 400000\r\n\r\n" + bytes(400_000),
    ],
    ids=["answer", "body that nobody wants", "body"],
)
async def test_an_idle_connection_keeps_nothing_of_its_last_request(
    node: FakeNode, registry: Registry, monkeypatch: pytest.MonkeyPatch, request_of_many_bytes: bytes
) -> None:
    monkeypatch.setattr(registry, "pieces", lambda text: ["x" * 400_000])
    config = HttpConfig(server_port=0, server_host="127.0.0.1", server_enabled=True)
    server = await start_http(config, node, registry, object, table=RESOURCES)
    assert server is not None

    async def idle() -> asyncio.StreamWriter:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(request_of_many_bytes)
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"Content-Length: (\d+)", head)
        assert length is not None
        await reader.readexactly(int(length[1]))
        await until(lambda: not any(each.held for each in server._memory._shares))
        return writer

    writers = [await idle()]
    tracemalloc.start()
    try:
        writers += [await idle() for _ in range(5)]
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] < 400_000
    finally:
        tracemalloc.stop()
    await closed(*writers)
    await server.stop()


async def test_many_metrics_are_rendered_in_many_turns_of_the_loop(server: HttpServer, registry: Registry) -> None:
    turn, turns, ticking = 0, set[int](), True

    def look() -> float:
        until = time.thread_time() + 0.003
        while time.thread_time() < until:
            pass
        turns.add(turn)
        return 1.0

    def tick() -> None:
        nonlocal turn
        turn += 1
        if ticking:
            asyncio.get_running_loop().call_soon(tick)

    for number in range(20):
        registry.gauge("slow", {"number": str(number)}, look)
    tick()
    status, text, _ = await ask(server, "/metrics")
    ticking = False
    assert (status, text.count("slow{"), len(turns)) == (200, 20, 20)


async def test_however_many_ask_for_metrics_they_are_rendered_a_few_times(
    node: FakeNode, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = await start_http(HttpConfig(server_port=0, server_host="127.0.0.1", server_enabled=True), node, registry)
    assert server is not None
    rendered = 0

    def pieces(text: TextFormat) -> Iterator[str]:
        nonlocal rendered
        rendered += 1
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass
        yield f"rendered {rendered}\n"

    monkeypatch.setattr(registry, "pieces", pieces)
    url = f"http://127.0.0.1:{server.port}/metrics"

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:

        async def ask() -> str:
            async with session.get(url) as answer:
                return await answer.text()

        answers = await asyncio.gather(*(ask() for _ in range(60)))
        assert rendered < 20
        assert set(answers) <= {f"rendered {number}\n" for number in range(1, rendered + 1)}
        before = rendered
        assert await ask() == f"rendered {before + 1}\n"  # never an old one
    await server.stop()


async def test_metrics_are_not_put_off_by_a_time_at_which_the_process_stood_still(
    node: FakeNode, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0

    def pieces(text: TextFormat) -> Iterator[str]:
        nonlocal now
        now += 600.0
        yield "rendered\n"

    monkeypatch.setattr(registry, "pieces", pieces)
    monkeypatch.setattr("time.perf_counter", lambda: now)
    context = Context(node, registry, lambda: None, Workers(1))
    async with asyncio.timeout(10):
        assert await context.metrics() == await context.metrics() == "rendered\n"


def test_aiohttp_is_not_loaded_before_it_is_needed() -> None:
    code = "import sys, bookie_pod.server.http.start; sys.exit('aiohttp' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, env=dict(os.environ)).returncode == 0
