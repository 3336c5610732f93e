"""`bookie autorecovery`: auditor and replication worker as a process of their own.

Invariants
- A session that expires is followed by another one, which the driver opens, and the work begins again in it. If none
  can be had although others get one, the process ends (`service`): it is never alive and idle.
- The admin API serves what is about the cluster, and nothing that is about a bookie.
- At its end locks and the vote are given back.

Threads: the main thread runs the event loop.

Source: docs/internals/auto-recovery.md, section 1.
"""

from __future__ import annotations

import asyncio
import socket
from typing import TYPE_CHECKING

import structlog

from bookie_client.cpu_priority import yield_processors
from bookie_pod.admin.console import CONSOLE
from bookie_pod.admin.rooms import ClusterRooms
from bookie_pod.admin.routes import CLUSTER
from bookie_pod.autorecovery.start import RunningAutoRecovery, start
from bookie_pod.client_memory import MemoryGovernor
from bookie_pod.config.model import BookieConfig
from bookie_pod.node.identity.bookie_id import derive_host
from bookie_pod.node.processes import service
from bookie_pod.node.processes.service import ClusterProcess, SessionNotRenewed, others_get_sessions
from bookie_pod.node.processes.until_signal import run_until_signal
from bookie_pod.node.processes.watch import PartEnded
from bookie_pod.server.http.start import start_http
from bookie_protocol.errors import InvalidConfiguration
from bookie_protocol.metadata_service.tree.service import MetadataService

if TYPE_CHECKING:
    from bookie_pod.server.http.server import HttpServer

_log = structlog.get_logger(__name__)


class AutoRecoveryProcess(ClusterProcess):
    """Auditor and worker, what is administered of them, and their order of starting."""

    name = "auto-recovery"

    def __init__(self, config: BookieConfig) -> None:
        super().__init__(config)
        self._running: RunningAutoRecovery | None = None
        self._administration: ClusterRooms | None = None

    async def _start_http(self) -> HttpServer | None:
        config = self._config
        return await start_http(
            config.http,
            self,
            self._registry,
            self._admin,
            table=CLUSTER,
            pages=CONSOLE,
            memory=MemoryGovernor(config.client_memory_bytes),
            rules=config.access,
        )

    async def _start_in(self, metadata: MetadataService) -> None:
        config = self._config
        name = await asyncio.to_thread(name_of_process, config)
        self._running = running = await start(config, metadata, self._registry, name, embedded=False)
        self._undo.push_async_callback(running.stop)
        self._administration = ClusterRooms(metadata, config, lambda: self._running)
        self._undo.push_async_callback(self._administration.stop)
        _log.info("auto-recovery runs", name=name)

    def _admin(self) -> ClusterRooms | None:
        return self._administration if self._serves else None

    async def _serve(self) -> None:
        assert self._running is not None
        assert self._metadata is not None
        while True:
            reason = await self._running.watch()
            if self._running.dead() is not None:
                raise PartEnded(reason)
            if await others_get_sessions(self._config, self._metadata):
                raise SessionNotRenewed(reason)
            await asyncio.sleep(service.PROBE_PAUSE_S)

    def unhealthy_reason(self) -> str | None:
        return None if self._running is None else self._running.complaint()


def name_of_process(config: BookieConfig) -> str:
    """Return the name in the auditor's vote: host and port as those of a bookie here, which Java's tools can read.

    May block.
    """
    port = config.network.bookie_port
    try:
        return f"{derive_host(config.network)}:{port}"
    except InvalidConfiguration:  # the name is only shown, never connected to
        return f"{socket.gethostname()}:{port}"


def serve_auto_recovery(config: BookieConfig) -> int:
    """Run until SIGTERM or SIGINT; a second one ends the process at once. Raises `StartupError`."""
    yield_processors(config.auto_recovery.niceness)
    return run_until_signal(lambda: AutoRecoveryProcess(config).run())
