"""Processes beside the bookies: gateway, auto-recovery and metadata service start, answer probes and stop alike.

    1. HTTP probes: alive, not ready
    2. what the process needs: the metadata service with its cluster, or its own store
    3. what it serves: ready
    4. SIGTERM or SIGINT: what was started is stopped, the last first

Nothing here needs the directories of a bookie.

A process that cannot renew its session with the metadata service ends, to be restarted (`watch_session`); so does a
bookie. The driver opens another session after one that expired, so usually nothing is to be done. If no connection
comes back although the metadata service takes new ones, something is wrong with this process: such as a session with a
ZooKeeper that lost its data, which refuses clients that have seen later changes than it has, and ends no session. While
the service takes none, waiting is all there is to do.

Threads: the main thread runs the event loop.
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Final

import structlog

from bookie_pod.config.model import BookieConfig
from bookie_pod.metrics.registry import ProcessCollector, Registry
from bookie_pod.node.metadata import open_metadata, with_patience
from bookie_pod.node.start_errors import as_start_errors, required_metadata_uri
from bookie_pod.server.status import NodeState
from bookie_protocol.errors import ExitCode, InvalidConfiguration, MetadataError, ServerStartFailed, StartupError
from bookie_protocol.metadata_service.interface import SessionState
from bookie_protocol.metadata_service.tree.service import MetadataService

if TYPE_CHECKING:
    from bookie_pod.server.http.server import HttpServer

STOP_S: Final = 20.0
"""Seconds that the parts of a process may take to stop."""
PROBE_PAUSE_S: Final = 10.0
"""Seconds between two looks at a session that is away."""
PATIENCE_S: Final = 60.0
"""Seconds that a session may be away before the process looks for the reason."""
RETURN_S: Final = 20.0
"""A service that is back takes new connections at once; the clients that lost theirs come within so many seconds."""

_log = structlog.get_logger(__name__)


class ServiceProcess(ABC):
    """`NodeStatus` of the process, and its order of starting and stopping."""

    name: str
    """The name of the process in the log."""
    stop_s: float | None = STOP_S

    def __init__(self, latency_rollover_s: int, *, process_metrics: bool = True) -> None:
        self._registry = Registry(latency_rollover_s)
        if process_metrics:
            self._registry.add_collector(ProcessCollector())
        self._undo = AsyncExitStack()
        self._phase = "starting"
        self._serves = False

    async def run(self) -> None:
        """Run until cancelled, or until a part of it fails. Raises `StartupError`."""
        try:
            await self._start()
            self._serves, self._phase = True, "serving"
            await self._serve()
        finally:
            self._serves, self._phase = False, "stopping"
            try:
                async with asyncio.timeout(self.stop_s) as limit:
                    await self._undo.aclose()
            except TimeoutError:
                if not limit.expired():  # a disk's, say
                    raise
            _log.info(f"{self.name} stopped")

    @abstractmethod
    async def _start(self) -> None:
        """Start what serves, and have it stopped by `_undo`."""

    @abstractmethod
    async def _serve(self) -> None:
        """Watch what was started, until it fails."""

    def _stops(self, server: HttpServer | None) -> HttpServer | None:
        if server is not None:
            self._undo.push_async_callback(server.stop)
        return server

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
        return None if self._serves else self._phase


class ClusterProcess(ServiceProcess):
    """A process that is a client of a cluster: ready while its session with the metadata service lasts."""

    def __init__(self, config: BookieConfig) -> None:
        super().__init__(config.metrics.latency_rollover_seconds, process_metrics=config.metrics.expose_jvm_metrics)
        self._config = config
        self._metadata: MetadataService | None = None

    async def _start(self) -> None:
        with as_start_errors(self._config):
            uri = required_metadata_uri(self._config)
            self._stops(await self._start_http())
            self._phase = "connecting to the metadata service"
            self._metadata = metadata = await with_patience(
                self._config.metadata, lambda: open_metadata(self._config.metadata, uri), self._wait_for_metadata
            )
            self._undo.push_async_callback(metadata.close)
            if not await metadata.cluster.exists():
                raise ServerStartFailed(f"there is no cluster at {uri}: create it with `bookie cluster init`")
            await self._start_in(metadata)

    def _wait_for_metadata(self, reason: str) -> None:
        self._phase = f"connecting to the metadata service: no answer so far: {reason}"

    @abstractmethod
    async def _start_http(self) -> HttpServer | None:
        """None: the configuration asks for no HTTP."""

    @abstractmethod
    async def _start_in(self, metadata: MetadataService) -> None:
        """Start what serves this cluster."""

    def unready_reason(self) -> str | None:
        if not self._serves or self._metadata is None:
            return self._phase
        state = self._metadata.session.state
        return None if state is SessionState.CONNECTED else f"the session with the metadata service is {state.value}"


class SessionNotRenewed(StartupError):
    """The session with the metadata service ended, and this process could not open another one."""

    exit_code = ExitCode.METADATA_SESSION_EXPIRED

    def __init__(self, reason: str) -> None:
        super().__init__(f"{reason}, although it takes new connections: the process ends, to be restarted")


async def watch_session(config: BookieConfig, metadata: MetadataService) -> None:
    """Watch the session until cancelled. Raises `SessionNotRenewed`."""
    loop = asyncio.get_running_loop()
    connected_at, back_at = loop.time(), math.inf
    while True:
        await asyncio.sleep(PROBE_PAUSE_S)
        if metadata.session.state is SessionState.CONNECTED:
            connected_at, back_at = loop.time(), math.inf
        elif (away := loop.time() - connected_at) >= PATIENCE_S:
            asked_at = loop.time()
            back_at = min(back_at, asked_at) if await others_get_sessions(config, metadata) else math.inf
            if asked_at - back_at >= RETURN_S:
                raise SessionNotRenewed(f"no connection to the metadata service for {away:.0f} s")


async def others_get_sessions(config: BookieConfig, metadata: MetadataService) -> bool:
    """Return whether a new connection works while that of `metadata` still does not."""
    try:
        another = await open_metadata(config.metadata, required_metadata_uri(config))
    except (MetadataError, InvalidConfiguration, OSError):
        return False
    try:
        await another.cluster.exists()
        another_has_one = another.session.state is SessionState.CONNECTED  # not while the metadata move to Oxia
    except MetadataError:
        return False
    finally:
        await another.close()
    return another_has_one and metadata.session.state is not SessionState.CONNECTED
