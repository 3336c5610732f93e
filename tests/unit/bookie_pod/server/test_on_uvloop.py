"""The HTTP and the gRPC server on the event loop that a bookie runs on."""

from __future__ import annotations

import asyncio

import aiohttp
import grpc
import pytest
import uvloop
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bookie_pod.config.sections.service import GrpcConfig, HttpConfig
from bookie_pod.metrics.registry import Registry
from bookie_pod.server.grpc.start import start_grpc
from bookie_pod.server.http.start import start_http
from bookie_protocol.errors import ServerStartFailed
from tests.unit.bookie_pod.server.nodes import FakeNode

HTTP = HttpConfig(server_port=0, server_host="127.0.0.1")
GRPC = GrpcConfig(server_port=0, server_host="127.0.0.1")


def test_http(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        from bookie_pod.server.http import server as server_module

        server = await start_http(HTTP, FakeNode(), Registry())
        assert server is not None
        url = f"http://127.0.0.1:{server.port}/readyz"
        async with aiohttp.ClientSession() as session, session.get(url) as answer:
            assert (answer.status, await answer.text()) == (200, "OK")
        with pytest.raises(ServerStartFailed, match="is in use"):
            await start_http(HttpConfig(server_port=server.port, server_host="127.0.0.1"), FakeNode(), Registry())
        for bound in ("MAX_CONNECTIONS", "PROBE_CONNECTIONS"):
            monkeypatch.setattr(server_module, bound, 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /metrics HTTP/1.1\r\n")
        assert (await asyncio.wait_for(reader.read(), 5)).startswith(b"HTTP/1.1 503")
        writer.close()
        await writer.wait_closed()
        await server.stop()

    uvloop.run(main())


def test_grpc() -> None:
    async def main() -> None:
        node = FakeNode()
        server = await start_grpc(GRPC, node)
        assert server is not None
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            request = health_pb2.HealthCheckRequest(service="bookie")
            assert (await stub.Check(request)).status == health_pb2.HealthCheckResponse.SERVING
            node.unready = "stopping"
            server.refresh()
            assert (await stub.Check(request)).status == health_pb2.HealthCheckResponse.NOT_SERVING
        with pytest.raises(ServerStartFailed, match="grpcServerPort"):
            await start_grpc(GrpcConfig(server_port=server.port, server_host="127.0.0.1"), node)
        await server.stop()

    uvloop.run(main())
