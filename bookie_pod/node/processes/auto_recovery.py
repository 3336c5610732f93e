"""`bookie autorecovery`: auditor and replication worker as a process of their own, from start to exit code.

    1. HTTP probes: alive, not ready
    2. metadata service; the cluster must exist
    3. auditor and worker
    4. SIGTERM or SIGINT: locks and the vote are given back, connections closed

Invariants
- A session that expires is followed by another one, which the driver opens, and the work begins again in it.
- If no connection comes back although the metadata service takes new ones, the process ends with the exit code of an
  expired session, so that whatever supervises it starts it anew (`session_renewal`): it is never alive and idle.
- The admin API serves what is about the cluster, and nothing that is about a bookie.
- Nothing here needs the directories of a bookie.

Threads: the main thread runs the event loop.

Source: reference auto-recovery, section 1.
"""

from __future__ import annotations

import asyncio
import socket
from contextlib import AsyncExitStack, suppress
from typing import Final

import structlog

from bookie_client.cpu_priority import yield_processors
from bookie_pod.autorecovery.start import RunningAutoRecovery, start
from bookie_pod.client_memory import MemoryGovernor
from bookie_pod.config.model import BookieConfig
from bookie_pod.metrics.process import ProcessCollector
from bookie_pod.metrics.registry import Registry
from bookie_pod.node import options
from bookie_pod.node.admin.process_ports import ProcessAdministration
from bookie_pod.node.identity.bookie_id import derive_host
from bookie_pod.node.metadata import open_metadata
from bookie_pod.node.processes import session_renewal
from bookie_pod.node.processes.session_renewal import SessionNotRenewed, others_get_sessions
from bookie_pod.node.processes.until_signal import run_until_signal
from bookie_pod.node.processes.watch import PartEnded
from bookie_pod.node.start_errors import as_start_errors, required_metadata_uri
from bookie_pod.server.http.admin.ports import AdminPorts
from bookie_pod.server.http.start import start_http
from bookie_pod.server.status import NodeState
from bookie_protocol.errors import InvalidConfiguration, ServerStartFailed
from bookie_protocol.metadata_service.interface import MetadataService, SessionState

STOP_SECONDS: Final = 20.0

_log = structlog.get_logger(__name__)


class AutoRecoveryProcess:
    """`NodeStatus` of the process, and its order of starting and stopping."""

    def __init__(self, config: BookieConfig) -> None:
        self._config = config
        self._registry = Registry(config.metrics.latency_rollover_seconds)
        if config.metrics.expose_jvm_metrics:
            self._registry.add_collector(ProcessCollector())
        self._undo = AsyncExitStack()
        self._phase = "starting"
        self._metadata: MetadataService | None = None
        self._running: RunningAutoRecovery | None = None
        self._administration: ProcessAdministration | None = None
        self._stopping = False

    async def run(self) -> None:
        """Until cancelled, the session cannot be renewed, or a part of it is dead. Raises `StartupError`."""
        try:
            with as_start_errors(self._config):
                await self._start()
            await self._watch()
        finally:
            self._stopping = True
            self._phase = "stopping"
            with suppress(TimeoutError):
                async with asyncio.timeout(STOP_SECONDS):
                    await self._undo.aclose()
            _log.info("auto-recovery stopped")

    async def _start(self) -> None:
        config = self._config
        uri = required_metadata_uri(config)
        memory = MemoryGovernor(config.client_memory_bytes)
        http = await start_http(
            config.http,
            self,
            self._registry,
            self._admin_ports,
            has_bookie=False,
            memory=memory,
            rules=config.access,
        )
        if http is not None:
            self._undo.push_async_callback(http.stop)
        self._phase = "connecting to the metadata service"
        self._metadata = metadata = await open_metadata(config.metadata, uri)
        self._undo.push_async_callback(metadata.close)
        if not await metadata.cluster.exists():
            raise ServerStartFailed(f"there is no cluster at {uri}: create it with `bookie cluster init`")
        name = await asyncio.to_thread(name_of_process, config)
        self._running = running = await start(config, metadata, self._registry, name, embedded=False)
        self._undo.push_async_callback(running.stop)
        self._administration = ProcessAdministration(metadata, config, lambda: self._running)
        self._undo.push_async_callback(self._administration.stop)
        self._phase = "running"
        _log.info("auto-recovery runs", name=name)

    def _admin_ports(self) -> AdminPorts | None:
        return None if self._administration is None or self._stopping else self._administration.ports

    async def _watch(self) -> None:
        assert self._running is not None
        assert self._metadata is not None
        while True:
            reason = await self._running.watch()
            if self._running.dead() is not None:
                raise PartEnded(reason)
            if await others_get_sessions(self._config, self._metadata):
                raise SessionNotRenewed(reason)
            await asyncio.sleep(session_renewal.PROBE_PAUSE_S)

    # --- NodeStatus -------------------------------------------------------------------------------------------

    def state(self) -> NodeState:
        running = self._running is not None and not self._stopping
        return NodeState(
            running, read_only=False, shutting_down=self._stopping, available_for_high_priority_writes=False
        )

    def unhealthy_reason(self) -> str | None:
        return None if self._running is None else self._running.complaint()

    def complaint(self) -> str | None:
        return None

    def unready_reason(self) -> str | None:
        if self._running is None or self._stopping:
            return self._phase
        assert self._metadata is not None
        state = self._metadata.session.state
        return None if state is SessionState.CONNECTED else f"the session with the metadata service is {state.value}"


def name_of_process(config: BookieConfig) -> str:
    """What the auditor's vote says: host and port as those of a bookie here, which Java's tools can read. May block."""
    port = config.network.bookie_port
    try:
        return f"{derive_host(options.address_options(config, port))}:{port}"
    except InvalidConfiguration:  # it is a name for people, nobody connects to it
        return f"{socket.gethostname()}:{port}"


def serve_auto_recovery(config: BookieConfig) -> int:
    """Run until SIGTERM or SIGINT; a second one ends the process at once. Raises `StartupError`."""
    yield_processors(config.auto_recovery.niceness)
    return run_until_signal(lambda: AutoRecoveryProcess(config).run())
