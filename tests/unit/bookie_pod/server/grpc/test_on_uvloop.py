"""The gRPC server on the event loop that a bookie runs on."""

from __future__ import annotations

import grpc
import pytest
import uvloop
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bookie_pod.config.sections.service import GrpcConfig
from bookie_pod.server.grpc.start import start_grpc
from bookie_protocol.errors import ServerStartFailed
from tests.unit.bookie_pod.server.nodes import FakeNode

GRPC = GrpcConfig(server_port=0, server_host="127.0.0.1")


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
