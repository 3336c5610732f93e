"""The services of a bookie beside its own protocol: HTTP, the gRPC process, and auto-recovery if it runs inside.

Each starts in the background, and is stopped in its turn, whether it has started by then or not.

Invariants
- Nothing of gRPC runs in the bookie's process (`gateway_beside`).
- Auto-recovery shares the bookie's metadata service and event loop, and reaches bookies, this one among them, by
  connections of its own, as any client does.
- It never ends the bookie that it runs in: a part that fails is restarted, and the probes, logs and metrics report it.
- It is stopped before the bookie leaves the metadata service, so that locks and the vote are given back.

Threads: event loop.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import structlog

from bookie_pod.admin.console import CONSOLE
from bookie_pod.admin.rooms import BookieRooms
from bookie_pod.admin.routes import RESOURCES
from bookie_pod.callers import Callers
from bookie_pod.client_memory import MemoryGovernor
from bookie_pod.config.model import BookieConfig
from bookie_pod.config.sections.service import GrpcConfig
from bookie_pod.metrics.registry import Registry
from bookie_pod.node.gateway_beside import GatewayBeside
from bookie_pod.node.live_status import LiveStatus
from bookie_pod.node.processes.background import BackgroundTasks
from bookie_pod.node.processes.memory import guard_memory
from bookie_pod.server.http.start import start_http
from bookie_pod.server.tokens import Tokens
from bookie_pod.storage.files import storage_fault, storage_fault_of_library
from bookie_protocol.errors import MetadataError, PodkeeperError, ResourcesShort
from bookie_protocol.metadata_service.tree.service import MetadataService

if TYPE_CHECKING:
    from bookie_pod.autorecovery.start import RunningAutoRecovery
    from bookie_pod.server.http.server import HttpServer

_log = structlog.get_logger(__name__)

T = TypeVar("T")

ROOM_RETRY_S: Final = 5.0
"""Seconds between two attempts to start a service that lacks descriptors or memory."""
RETRY_S: Final = 5.0


class SideServices:
    """`undo` stops them; `tasks` hears of one that cannot start."""

    def __init__(
        self,
        config: BookieConfig,
        status: LiveStatus,
        registry: Registry,
        undo: AsyncExitStack,
        tasks: BackgroundTasks,
    ) -> None:
        self._config = config
        self._status = status
        self._registry = registry
        self._undo = undo
        self._tasks = tasks
        self.gateway: GatewayBeside | None = None
        """Once it was begun."""
        self.memory = MemoryGovernor(config.client_memory_bytes)
        """The memory of the clients of this process, on all its ports."""

    def start_http(self, find_admin: Callable[[], BookieRooms | None]) -> asyncio.Task[HttpServer | None]:
        """The caller awaits it."""
        starting = asyncio.create_task(
            start_http(
                self._config.http,
                self._status,
                self._registry,
                find_admin,
                table=RESOURCES,
                pages=CONSOLE,
                memory=self.memory,
                rules=self._config.access,
            )
        )
        self._undo.push_async_callback(_stop_started, starting)
        return starting

    def guard_memory(self, written: Callable[[], int]) -> None:
        """`written`: as `guard_memory` has it."""
        budget = self._config.memory.budget_bytes
        self._tasks.assist("guard memory", lambda: guard_memory(Callers(self.memory), budget, written=written))

    async def start_grpc(self) -> None:
        """Begin the process that serves gRPC. `InvalidConfiguration`: it could not start with these files."""
        config = self._config
        if not config.grpc.server_enabled:
            return
        await asyncio.to_thread(check_grpc, config.grpc)
        beside = self.gateway = GatewayBeside(config, self._status, self._registry)
        self._undo.push_async_callback(beside.stop)
        beside.start()

    def start_auto_recovery(self, metadata: MetadataService, bookie_id: str) -> None:
        """Start auto-recovery if the configuration asks for it."""
        starting = asyncio.create_task(
            _once_there_is_room(
                "auto-recovery",
                lambda: start_auto_recovery(self._config, metadata, self._registry, bookie_id, self._tasks.run),
            )
        )
        self._undo.push_async_callback(_stop_started, starting)
        self._tasks.watch(starting)
        self._status.starting_auto_recovery = starting


def check_grpc(config: GrpcConfig) -> None:
    """Raise `InvalidConfiguration` for files with which no gRPC server starts."""
    if config.auth_token_file is not None:
        Tokens.holders("grpcServerAuthTokenFile", config.auth_token_file)
    if config.tls_enable:
        from bookie_pod.server.grpc.tls import server_credentials

        server_credentials(config)


async def _once_there_is_room(service: str, start: Callable[[], Coroutine[None, None, T]]) -> T:
    """Start a service once there are descriptors and memory for it: a lack of them must not end a serving bookie."""
    while True:
        try:
            return await start()
        except (OSError, ImportError, PodkeeperError) as error:
            if not _lacks_resources(error):
                raise
            _log.warning("a service of the bookie waits for resources", service=service, reason=str(error))
        await asyncio.sleep(ROOM_RETRY_S)


def _lacks_resources(error: BaseException | None) -> bool:
    """Return whether the machine lacks resources.

    That may also show as a file of ours that cannot be read, or as a library that cannot be loaded.
    """
    while error is not None:
        if isinstance(error, OSError) and isinstance(storage_fault("", error), ResourcesShort):
            return True
        if isinstance(error, ImportError) and isinstance(storage_fault_of_library("", error), ResourcesShort):
            return True
        error = error.__cause__
    return False


async def _stop_started(starting: asyncio.Task[Any]) -> None:
    """Stop a server that is starting or has started."""
    if not starting.done():
        starting.cancel()
    # The reason why it did not start is reported already.
    with suppress(asyncio.CancelledError, PodkeeperError, OSError, ImportError):
        server = await starting
        if server is not None:
            await server.stop()


async def start_auto_recovery(
    config: BookieConfig,
    metadata: MetadataService,
    registry: Registry,
    bookie_id: str,
    run: Callable[[Awaitable[None]], None],
) -> RunningAutoRecovery | None:
    """None if the configuration asks for none. What it needs takes a while to load. `run` gets its watching."""
    if not config.auto_recovery.daemon_enabled:
        return None
    await asyncio.to_thread(importlib.import_module, "bookie_pod.autorecovery.start")
    from bookie_pod.autorecovery.start import start

    while True:
        try:
            running = await start(config, metadata, registry, bookie_id, embedded=True)
        except MetadataError as error:
            _log.warning("auto-recovery cannot start yet", reason=str(error))
            await asyncio.sleep(RETRY_S)
            continue
        run(_watch(running))
        return running


async def _watch(running: RunningAutoRecovery) -> None:
    """The session is the bookie's: what becomes of it the registration decides."""
    while True:
        await running.watch()
        await asyncio.sleep(1.0)
