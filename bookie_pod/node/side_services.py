"""What a bookie serves beside its own protocol: HTTP, gRPC with the gateway, and auto-recovery if it runs inside.

Each starts in the background, and is stopped in its turn, whether it has started by then or not.

Invariants
- The gateway reaches this bookie without the kernel between, others over TCP (`own_connector`). It goes by the
  published address, as connecting over TCP would, so it is never another bookie that is reached. With TLS it is TCP
  throughout, because the handshake needs a socket.
- Auto-recovery shares the bookie's metadata service and event loop, and reaches bookies, this one among them, by
  connections of its own, as any client does.
- It never ends the bookie that it runs in: what does not work is begun again, and told by the probes, logs and
  metrics.
- It is stopped before the bookie leaves the metadata service, so that locks and the vote are given back.

Threads: event loop.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import structlog

from bookie_pod.admin.rooms import BookieRooms
from bookie_pod.admin.routes import RESOURCES
from bookie_pod.callers import Callers
from bookie_pod.client_memory import MemoryGovernor
from bookie_pod.config.model import BookieConfig
from bookie_pod.gateway.start import start_gateway
from bookie_pod.metrics.registry import Registry
from bookie_pod.node.live_status import LiveStatus
from bookie_pod.node.processes.background import BackgroundTasks
from bookie_pod.node.processes.memory import guard_memory
from bookie_pod.server.grpc.start import start_grpc
from bookie_pod.server.http.start import start_http
from bookie_pod.server.tcp.listener import TcpListener
from bookie_pod.storage.files import storage_fault, storage_fault_of_library
from bookie_protocol.errors import MetadataError, PodkeeperError, ResourcesShort
from bookie_protocol.metadata_service.interface import MetadataService

if TYPE_CHECKING:
    from bookie_client.connection.pool import Connector
    from bookie_pod.autorecovery.start import RunningAutoRecovery
    from bookie_pod.gateway.gateway import Gateway
    from bookie_pod.server.grpc.server import GrpcServer
    from bookie_pod.server.http.server import HttpServer

_log = structlog.get_logger(__name__)

T = TypeVar("T")

ROOM_RETRY_S: Final = 5.0
"""Between two attempts to start what lacks descriptors or memory, in seconds."""
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
        self.memory = MemoryGovernor(config.client_memory_bytes)
        """Of the clients of this process, whichever port they come to."""

    def start_http(self, find_admin: Callable[[], BookieRooms | None]) -> asyncio.Task[HttpServer | None]:
        """The caller awaits it."""
        starting = asyncio.create_task(
            start_http(
                self._config.http,
                self._status,
                self._registry,
                find_admin,
                table=RESOURCES,
                memory=self.memory,
                rules=self._config.access,
            )
        )
        self._undo.push_async_callback(_stop_started, starting)
        return starting

    def start_grpc(self, metadata: MetadataService, connector: Callable[[], Connector]) -> None:
        """Health, and the gateway, which reaches bookies by `connector`; that is called when there is one."""

        async def gateway() -> Sequence[Gateway]:
            return await start_gateway(self._config, metadata, self._registry, self.memory, connector)

        callers = Callers(self.memory)
        starting = asyncio.create_task(
            _once_there_is_room(
                "gRPC",
                lambda: start_grpc(
                    self._config.grpc,
                    self._status,
                    gateway,
                    callers,
                    registry=self._registry,
                    rules=self._config.access,
                ),
            )
        )
        self._tasks.assist("guard memory", lambda: guard_memory(callers, self._config.memory.budget_bytes))
        self._undo.push_async_callback(_stop_started, starting)
        self._tasks.watch(starting)
        self._status.opening = "the gRPC port is not served yet"
        starting.add_done_callback(self._grpc_listens)

    def _grpc_listens(self, starting: asyncio.Task[GrpcServer | None]) -> None:
        if starting.cancelled() or starting.exception() is not None:
            return
        self._status.opening = None
        if (server := starting.result()) is not None:
            server.refresh()

    def start_auto_recovery(self, metadata: MetadataService, bookie_id: str) -> None:
        """If the configuration asks for it."""
        starting = asyncio.create_task(
            _once_there_is_room(
                "auto-recovery",
                lambda: start_auto_recovery(self._config, metadata, self._registry, bookie_id, self._tasks.run),
            )
        )
        self._undo.push_async_callback(_stop_started, starting)
        self._tasks.watch(starting)
        self._status.starting_auto_recovery = starting


async def _once_there_is_room(service: str, start: Callable[[], Coroutine[None, None, T]]) -> T:
    """What starts beside a bookie that serves already waits for descriptors and memory: it must not end the bookie."""
    while True:
        try:
            return await start()
        except (OSError, ImportError, PodkeeperError) as error:
            if not _lacks_resources(error):
                raise
            _log.warning("a service of the bookie waits for resources", service=service, reason=str(error))
        await asyncio.sleep(ROOM_RETRY_S)


def _lacks_resources(error: BaseException | None) -> bool:
    """Whether the machine lacks something: of that a file of ours that cannot be read comes too, and a library that
    cannot be loaded."""
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
    with suppress(asyncio.CancelledError, PodkeeperError, OSError, ImportError):  # why it did not start is told already
        server = await starting
        if server is not None:
            await server.stop()


def own_connector(
    config: BookieConfig, listener: TcpListener, published: Callable[[], tuple[str, int] | None]
) -> Connector:
    """`published`: host and port of this bookie as other clients find them; None while it is not registered."""
    # Here, because the client takes a while to load, and a bookie without a gateway needs none.
    from bookie_client.connection.pool import tcp_connector
    from bookie_pod.client_options import tls_options

    if tls_options(config.tls) is not None:
        return tcp_connector

    async def connect(factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> object:
        if (host, port) == published():
            return listener.connect(factory)
        return await tcp_connector(factory, host, port)

    return connect


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
