"""`bookie gateway`: the gateway as a process of its own, from start to exit code.

    1. HTTP probes: alive, not ready
    2. metadata service; the cluster must exist
    3. gRPC: health, reflection, `LedgerService`
    4. SIGTERM or SIGINT: no new calls, ledgers that are being written are closed, connections closed

Beside a bookie it has an interpreter, and so a processor, to itself: both do more than together in one process.

Invariants
- It is a client of the cluster like any other, and reaches every bookie over its port.
- Its readiness is its own: whether the metadata service is there. No bookie's state is part of it.
- If its session cannot be renewed, it ends, so that whatever supervises it starts it anew (`session_renewal`).
- Nothing here needs the directories of a bookie, and HTTP serves probes and metrics only.

Threads: the main thread runs the event loop.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Final

import structlog

from bookie_pod.callers import Callers
from bookie_pod.client_memory import MemoryGovernor
from bookie_pod.config.model import BookieConfig
from bookie_pod.gateway.start import start_gateway
from bookie_pod.metrics.process import ProcessCollector
from bookie_pod.metrics.registry import Registry
from bookie_pod.node.metadata import open_metadata
from bookie_pod.node.processes.background import collect_cycles
from bookie_pod.node.processes.memory import guard_memory
from bookie_pod.node.processes.session_renewal import watch_session
from bookie_pod.node.processes.until_signal import run_until_signal
from bookie_pod.node.start_errors import as_start_errors, required_metadata_uri
from bookie_pod.server.grpc.start import start_grpc
from bookie_pod.server.http.start import start_http
from bookie_pod.server.status import NodeState
from bookie_protocol.errors import InvalidConfiguration, ServerStartFailed
from bookie_protocol.lasting import lasting_task
from bookie_protocol.metadata_service.interface import MetadataService, SessionState

if TYPE_CHECKING:
    from bookie_client.connection.network import Connector
    from bookie_pod.gateway.gateway import Gateway

STOP_SECONDS: Final = 20.0

_log = structlog.get_logger(__name__)


class GatewayProcess:
    """`NodeStatus` of the process, and its order of starting and stopping."""

    def __init__(self, config: BookieConfig) -> None:
        """`InvalidConfiguration`: the configuration asks for no gateway."""
        _check(config)
        self._config = config
        self._registry = Registry(config.metrics.latency_rollover_seconds)
        if config.metrics.expose_jvm_metrics:
            self._registry.add_collector(ProcessCollector())
        self._undo = AsyncExitStack()
        self._phase = "starting"
        self._metadata: MetadataService | None = None
        self._serves = False
        self.grpc_port = 0
        """The port that is listened on, once it serves."""

    async def run(self) -> None:
        """Until cancelled, or until the session cannot be renewed. Raises `StartupError`."""
        try:
            with as_start_errors(self._config):
                metadata = await self._start()
            await watch_session(self._config, metadata)
        finally:
            self._serves, self._phase = False, "stopping"
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await self._undo.aclose()
            _log.info("gateway stopped")

    async def _start(self) -> MetadataService:
        config = self._config
        uri = required_metadata_uri(config)
        memory = MemoryGovernor(config.client_memory_bytes)
        http = await start_http(config.http, self, self._registry, has_bookie=False, admin=False, memory=memory)
        if http is not None:
            self._undo.push_async_callback(http.stop)
        self._phase = "connecting to the metadata service"
        self._metadata = metadata = await open_metadata(config.metadata, uri)
        self._undo.push_async_callback(metadata.close)
        if not await metadata.cluster.exists():
            raise ServerStartFailed(f"there is no cluster at {uri}: create it with `bookie cluster init`")

        async def gateway() -> Sequence[Gateway]:
            return await start_gateway(config, metadata, self._registry, memory, _over_tcp)

        callers = Callers(memory)
        server = await start_grpc(config.grpc, self, gateway, callers, registry=self._registry, rules=config.access)
        assert server is not None  # `_check`
        self._undo.push_async_callback(server.stop)
        guard = guard_memory(callers, config.memory.budget_bytes)
        for task in (lasting_task(collect_cycles(), "collection of cycles"), lasting_task(guard, "guard of memory")):
            self._undo.callback(task.cancel)
        self._serves, self._phase, self.grpc_port = True, "serving", server.port
        server.refresh()
        _log.info("gateway serves", port=server.port, http_port=None if http is None else http.port)
        return metadata

    # --- NodeStatus -------------------------------------------------------------------------------------------

    def state(self) -> NodeState:
        return NodeState(
            self._serves,
            read_only=False,
            shutting_down=self._phase == "stopping",
            available_for_high_priority_writes=False,
        )

    def unhealthy_reason(self) -> str | None:
        return None

    def complaint(self) -> str | None:
        return None

    def unready_reason(self) -> str | None:
        if not self._serves or self._metadata is None:
            return self._phase
        state = self._metadata.session.state
        return None if state is SessionState.CONNECTED else f"the session with the metadata service is {state.value}"


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
    from bookie_client.connection.network import tcp_connector

    return tcp_connector


def serve_gateway(config: BookieConfig) -> int:
    """Run until SIGTERM or SIGINT; a second one ends the process at once. Raises `StartupError`."""
    process = GatewayProcess(config)
    gc.disable()  # `collect_cycles` runs instead, when there is time: entries on their way make no cycles
    return run_until_signal(process.run)
