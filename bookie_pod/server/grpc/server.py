"""The gRPC server: `grpc.health.v1.Health` and reflection.

Invariants
- The services "" and "bookie" are SERVING exactly while the node has no reason to be unready; a change shows
  within `POLL_S`, at once after `refresh`. Other names are NOT_FOUND.
- At most `MAX_CONCURRENT_RPCS` calls run; gRPC answers RESOURCE_EXHAUSTED beyond.
- Every service is NOT_SERVING from the moment that `stop` begins.

Event loop only.
"""

from __future__ import annotations

import asyncio
from typing import Final

import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from bookie_pod.config.sections.service import GrpcConfig
from bookie_pod.server.status import NodeStatus
from bookie_protocol.errors import ServerStartFailed

SERVICES: Final = ("", "bookie")
POLL_S: Final = 0.5
MAX_CONCURRENT_RPCS: Final = 128
STOP_GRACE_S: Final = 1.0
_MAX_MESSAGE_BYTES: Final = 1024 * 1024
_SERVING = health_pb2.HealthCheckResponse.SERVING
_NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


class GrpcServer:
    """Serves the health of one node."""

    def __init__(self, config: GrpcConfig, status: NodeStatus) -> None:
        self._config = config
        self._status = status
        self._health = health.aio.HealthServicer()
        self._server: grpc.aio.Server | None = None
        self._poll: asyncio.Task[None] | None = None
        self._port = 0

    @property
    def port(self) -> int:
        """The port that is listened on; the configured one unless that is 0."""
        return self._port

    async def start(self) -> None:
        """Listen; `ServerStartFailed` if that is not possible."""
        server = grpc.aio.server(
            maximum_concurrent_rpcs=MAX_CONCURRENT_RPCS,
            options=[
                ("grpc.so_reuseport", 0),  # else two bookies would share the port without noticing
                ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
            ],
        )
        health_pb2_grpc.add_HealthServicer_to_server(self._health, server)
        names = (health.SERVICE_NAME, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, server)
        host, port = self._config.server_host, self._config.server_port
        try:
            self._port = server.add_insecure_port(f"{host}:{port}")
        except RuntimeError as error:
            await server.stop(None)
            raise ServerStartFailed(
                f"gRPC port {port} on {host} cannot be opened: it is in use or the address is not this host's; "
                "choose another grpcServerPort or grpcServerHost"
            ) from error
        self._server = server
        await self.refresh()
        await server.start()
        self._poll = asyncio.create_task(self._follow_status(), name="grpc-health")

    async def refresh(self) -> None:
        """Show the node's present readiness."""
        serving = _SERVING if self._status.unready_reason() is None else _NOT_SERVING
        for service in SERVICES:
            await self._health.set(service, serving)

    async def stop(self) -> None:
        """Report NOT_SERVING, let calls end for `STOP_GRACE_S` at most, close. May be called more than
        once."""
        if self._poll is not None:
            self._poll.cancel()
            await asyncio.gather(self._poll, return_exceptions=True)
            self._poll = None
        await self._health.enter_graceful_shutdown()
        if self._server is not None:
            await self._server.stop(STOP_GRACE_S)
            self._server = None

    async def _follow_status(self) -> None:
        while True:
            await asyncio.sleep(POLL_S)
            await self.refresh()
