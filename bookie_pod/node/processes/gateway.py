"""`bookie gateway`: the gateway as a process of its own, which serves health, reflection and `LedgerService` over gRPC.

Beside a bookie it has an interpreter, and so a processor, to itself: both do more than together in one process.

Invariants
- It is a client of the cluster like any other, and reaches every bookie over its port.
- Its readiness is its own: whether the metadata service is there. No bookie's state is part of it.
- If its session cannot be renewed, it ends, so that whatever supervises it starts it anew (`service`).
- HTTP serves probes and metrics only. At its end it takes no new calls, and closes ledgers that are being written.

Threads: the main thread runs the event loop.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog

from bookie_pod.callers import Callers
from bookie_pod.client_memory import MemoryGovernor
from bookie_pod.config.model import BookieConfig
from bookie_pod.gateway.start import start_gateway
from bookie_pod.node.processes.background import collect_cycles
from bookie_pod.node.processes.memory import guard_memory
from bookie_pod.node.processes.service import ClusterProcess, watch_session
from bookie_pod.node.processes.until_signal import run_until_signal
from bookie_pod.server.grpc.server import GrpcServer
from bookie_pod.server.grpc.start import start_grpc
from bookie_pod.server.http.start import start_http
from bookie_protocol.errors import InvalidConfiguration
from bookie_protocol.lasting import lasting_task
from bookie_protocol.metadata_service.interface import MetadataService

if TYPE_CHECKING:
    from bookie_client.connection.pool import Connector
    from bookie_pod.gateway.gateway import Gateway
    from bookie_pod.server.http.server import HttpServer

_log = structlog.get_logger(__name__)


class GatewayProcess(ClusterProcess):
    """The gateway, its port, and its order of starting."""

    name = "gateway"

    def __init__(self, config: BookieConfig) -> None:
        """`InvalidConfiguration`: the configuration asks for no gateway."""
        _check(config)
        super().__init__(config)
        self._memory = MemoryGovernor(config.client_memory_bytes)
        self._server: GrpcServer | None = None

    @property
    def grpc_port(self) -> int:
        """The port that is listened on, once it serves."""
        return 0 if self._server is None else self._server.port

    async def _start_http(self) -> HttpServer | None:
        return await start_http(self._config.http, self, self._registry, memory=self._memory)

    async def _start_in(self, metadata: MetadataService) -> None:
        config, memory = self._config, self._memory

        async def gateway() -> Sequence[Gateway]:
            return await start_gateway(config, metadata, self._registry, memory, _over_tcp)

        callers = Callers(memory)
        server = await start_grpc(config.grpc, self, gateway, callers, registry=self._registry, rules=config.access)
        assert server is not None  # `_check`
        self._undo.push_async_callback(server.stop)
        guard = guard_memory(callers, config.memory.budget_bytes)
        for task in (lasting_task(collect_cycles(), "collection of cycles"), lasting_task(guard, "guard of memory")):
            self._undo.callback(task.cancel)
        self._server = server

    async def _serve(self) -> None:
        assert self._server is not None
        assert self._metadata is not None
        self._server.refresh()
        _log.info("gateway serves", port=self._server.port)
        await watch_session(self._config, self._metadata)


def _check(config: BookieConfig) -> None:
    if not config.grpc.server_enabled:
        raise InvalidConfiguration("grpcServerEnabled=false: the gateway is served over gRPC; set it to true here")
    if not config.gateway.enabled:
        raise InvalidConfiguration(
            "gatewayEnabled=false: set it to true here. It is false by itself where bookies demand certificates and the"
            " gRPC port nothing: demand a token there (grpcServerAuthTokenFile) or a certificate"
            " (grpcServerTlsClientAuthentication)"
        )


def _over_tcp() -> Connector:
    from bookie_client.connection.pool import tcp_connector

    return tcp_connector


def serve_gateway(config: BookieConfig) -> int:
    """Run until SIGTERM or SIGINT; a second one ends the process at once. Raises `StartupError`."""
    process = GatewayProcess(config)
    gc.disable()  # `collect_cycles` runs instead, when there is time: entries on their way make no cycles
    return run_until_signal(process.run)
