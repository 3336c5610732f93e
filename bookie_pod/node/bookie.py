"""One bookie: the order in which its parts start, and the order in which they stop.

Start (a failure ends it there, with everything that was started stopped again):
 1. identity; the port is taken, connections are dropped until step 9
 2. HTTP probes: alive, not ready
 3. metadata service; cookies checked, new directories stamped
 4. storage opened (the right engine, or refused); what it may have lost is put in limbo
 5. journals replayed into the storage
 6. everything flushed, marks written
 7. journals start (a new file each), checkpoints, disk monitor
 8. registration, garbage collection, administration
 9. `DIRTY` written; requests are served; gRPC: health, gateway; auto-recovery, if it is asked for

Stop: deregister, no more requests, answer what is under way, flush, marks, journals, files, `DIRTY` removed.
After a failure (`abort`) nothing is flushed: the journals hold what was acknowledged.
A stop during the start waits for the blocking step that runs (a replay ends early): nothing is closed under its feet.

Threads: event loop; blocking steps run on threads of their own.

Source: reference on-disk formats, section 14; bookie behaviour, section 9.
"""

from __future__ import annotations

import asyncio
import gc
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING, Final

import structlog

from bookie_pod.config.model import BookieConfig
from bookie_pod.gateway.start import start_gateway
from bookie_pod.metrics.bookie import BookieMetrics
from bookie_pod.metrics.process import ProcessCollector
from bookie_pod.metrics.registry import Registry
from bookie_pod.node import options
from bookie_pod.node.admin.ports import Administration, RunningBookie
from bookie_pod.node.auto_recovery import start_auto_recovery
from bookie_pod.node.background import BackgroundTasks, collect_cycles
from bookie_pod.node.blocking_steps import BlockingSteps
from bookie_pod.node.bookie_id import (
    BookieAddressOptions,
    derive_bookie_id,
    derive_host,
)
from bookie_pod.node.consistency_check import check_consistency
from bookie_pod.node.dirty import DirtyMarker
from bookie_pod.node.disk_watch import start_disk_watch
from bookie_pod.node.durability import Durability
from bookie_pod.node.identity import service_info
from bookie_pod.node.integrity.service import check_cookies_and_find_losses, check_losses
from bookie_pod.node.loop_bridge import LoopBridge
from bookie_pod.node.memory import give_back_memory, trimmer
from bookie_pod.node.metadata import open_metadata
from bookie_pod.node.mode import BookieMode
from bookie_pod.node.parts import ServerSide, StorageSide, make_journals, make_server, open_storage_side
from bookie_pod.node.recovery import replay_journals
from bookie_pod.node.registration import RegistrationManager, ServerStatus
from bookie_pod.node.start_errors import as_start_errors, required_metadata_uri
from bookie_pod.node.status_file import StatusFiles
from bookie_pod.node.upkeep import Upkeep, make_upkeep
from bookie_pod.server.grpc.start import start_grpc
from bookie_pod.server.http.admin.ports import AdminPorts
from bookie_pod.server.http.start import start_http
from bookie_pod.server.status import NodeState
from bookie_pod.server.tcp.listener import TcpListener
from bookie_pod.storage.checkpoint import CheckpointHandlers
from bookie_pod.storage.files_posix import PosixFiles
from bookie_pod.storage.journal.journal import Journal
from bookie_pod.storage.journal.marks import MarkFiles
from bookie_protocol.errors import PodkeeperError, StorageFault

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bookie_pod.autorecovery.start import RunningAutoRecovery
    from bookie_pod.gateway.gateway import Gateway
    from bookie_protocol.metadata_service.interface import MetadataService

_log = structlog.get_logger(__name__)

DRAIN_S: Final = 5.0
"""How long a stop waits for requests under way, in seconds."""


class Bookie:
    """The node. `failed` resolves with the error that ends it."""

    def __init__(self, config: BookieConfig) -> None:
        self.config = config
        self.loop = asyncio.get_running_loop()
        self.failed: asyncio.Future[PodkeeperError] = self.loop.create_future()
        self.registry = Registry(config.metrics.latency_rollover_seconds)
        self._metrics = BookieMetrics(self.registry)
        self._metrics.bind_status(lambda: self._status().value)
        self._metrics.bind_journals(len(config.directories.journal), config.journal.queue_size)
        self.registry.add_collector(ProcessCollector())
        self.phase = "starting"
        self._files = PosixFiles()
        self._bridge = LoopBridge(self.loop)
        self._undo = AsyncExitStack()
        self._dirty = DirtyMarker(self._files, options.current_folders(config.directories.ledger))
        self._running = False
        self._stopping = False
        self._clean = False
        self._server: ServerSide
        self._listener: TcpListener | None = None
        self._storage: StorageSide
        self._journals: list[Journal] = []
        self._metadata: MetadataService
        self._registration: RegistrationManager | None = None
        self.upkeep: Upkeep
        self._durability: Durability
        self._mode: BookieMode | None = None
        self._administration: Administration | None = None
        self._auto_recovery: asyncio.Task[RunningAutoRecovery | None] | None = None
        self._tasks = BackgroundTasks(self.loop, self.fail)
        self._steps = BlockingSteps()

    # --- start ----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Bring everything up. Raises StartupError."""
        began = self.loop.time()
        with as_start_errors(self.config):
            await self._start()
        _log.info("bookie serves", bookie_id=self.bookie_id, port=self.port, seconds=round(self.loop.time() - began, 3))

    async def _start(self) -> None:
        config = self.config
        uri = required_metadata_uri(config)
        await self._bind()
        http = asyncio.create_task(start_http(config.http, self, self.registry, self._admin_ports))
        self._undo.push_async_callback(_stop_server, http)
        self._phase("connecting to the metadata service")
        self._metadata = await open_metadata(config.metadata, uri)
        self._undo.push_async_callback(self._metadata.close)
        self.bookie_id = await asyncio.to_thread(derive_bookie_id, self._address())
        self._phase("checking cookies")
        lost = await check_cookies_and_find_losses(config, self._metadata, self._files, self.bookie_id, self._address())
        self._phase("opening the storage")
        await self._open_storage()
        await check_losses(
            config,
            self._metadata,
            self._files,
            self._storage.storage,
            self.bookie_id,
            lost,
            unclean=self._dirty.is_set(),
        )
        self._phase("replaying journals")
        marks, journaled_keys = await self._replay()
        await self._check_consistency()
        self._phase("starting")
        self._start_journals(marks)
        self._make_server(journaled_keys)
        await self._make_upkeep()
        self._start_disks()
        await http
        await self._register()
        self._start_upkeep()
        self._start_administration()
        await asyncio.to_thread(self._dirty.write)
        self._server.context.accepting = True
        self._running = True
        self._phase("serving")
        grpc = asyncio.create_task(start_grpc(config.grpc, self, self._gateway))
        self._undo.push_async_callback(_stop_server, grpc)
        self._tasks.watch(grpc)
        self._start_auto_recovery()
        self._tasks.run(collect_cycles())
        self._tasks.run(give_back_memory(lambda: [journal.last_mark() for journal in self._journals], trimmer()))
        gc.collect()
        gc.freeze()

    def _start_auto_recovery(self) -> None:
        starting = asyncio.create_task(
            start_auto_recovery(self.config, self._metadata, self.registry, self.bookie_id, self._tasks.run)
        )
        self._undo.push_async_callback(_stop_server, starting)
        self._tasks.watch(starting)
        self._auto_recovery = starting

    async def _gateway(self) -> Sequence[Gateway]:
        return await start_gateway(self.config, self._metadata, self.registry)

    async def _open_storage(self) -> None:
        def close() -> None:
            if hasattr(self, "_storage"):
                self._storage.storage.close()

        def open_it() -> None:
            self._storage = open_storage_side(self.config, self._files, self._bridge.run, self.registry)

        self._undo.push_async_callback(asyncio.to_thread, close)
        await self._steps.run(self.phase, open_it)

    async def _replay(self) -> tuple[list[MarkFiles], set[int]]:
        def replay() -> tuple[list[MarkFiles], set[int]]:
            return replay_journals(
                self._files,
                self._storage.storage,
                journal_folders=options.current_folders(self.config.directories.journal),
                ledger_folders=options.current_folders(self.config.directories.ledger),
                skip_invalid_records=self.config.journal.skip_invalid_record,
                cancelled=self._steps.cancelled,
            )

        return await self._steps.run(self.phase, replay)

    async def _check_consistency(self) -> None:
        if self.config.integrity.consistency_check_on_startup:
            self._phase("checking the storage")
            await self._steps.run(self.phase, lambda: check_consistency(self._storage.storage, self._steps.cancelled))

    def _start_journals(self, marks: list[MarkFiles]) -> None:
        config = self.config
        self._journals = make_journals(config, self._files, self.registry, self.loop, self.fail)
        handlers = CheckpointHandlers(
            on_no_writable_directory=self._tasks.on_loop(self._no_writable_directory),
            on_failure=self._tasks.on_loop(self.fail),
        )
        self._durability = durability = Durability(
            self._journals, self._storage, marks, handlers, config.ledger_storage.flush_interval_ms
        )

        async def stop() -> None:
            self._clean = await durability.stop(clean=self._clean)

        self._undo.push_async_callback(stop)
        durability.start()

    def _make_server(self, journaled_keys: set[int]) -> None:
        self._server = make_server(
            self.config,
            self._files,
            self._storage.storage,
            self._journals,
            self.loop,
            self.registry,
            journaled_keys,
            self._metrics,
        )
        self._undo.push_async_callback(asyncio.to_thread, self._server.stop_lanes)
        assert self._listener is not None
        self._listener.serve(self._server.context)
        self._undo.push_async_callback(self._drain, self._listener)
        status = None
        if self.config.disks.persist_status:
            status = StatusFiles(self._files, options.current_folders(self.config.directories.ledger))
        self._mode = BookieMode(
            options.mode_options(self.config),
            self._server.admission,
            self._tasks.run,
            self.fail,
            remembered=status.read() if status is not None else None,
            store=status,
        )

    async def _bind(self) -> None:
        network = self.config.network
        host = None
        if network.listening_interface:
            host = await asyncio.to_thread(derive_host, options.address_options(self.config, network.bookie_port))
        self._listener = TcpListener(self.loop, host, network.bookie_port)
        await self._listener.bind()
        self._undo.push_async_callback(self._listener.stop, 0)

    async def _drain(self, listener: TcpListener) -> None:
        """A clean stop answers what is under way; after a failure nothing will be, so nobody waits for it."""
        await listener.stop(DRAIN_S if self._clean else 0)

    def _address(self) -> BookieAddressOptions:
        return options.address_options(self.config, self.port)

    async def _make_upkeep(self) -> None:
        self.upkeep = await make_upkeep(
            self.config,
            self._files,
            self._storage.storage,
            self._server.context.operations,
            self._journals,
            self._metadata,
            self.bookie_id,
            self.registry,
            self._tasks,
            writable=lambda: self._mode_of().high_priority_writes,
        )

    def _start_upkeep(self) -> None:
        self.upkeep.start()
        self._undo.push_async_callback(self.upkeep.stop)

    def _start_administration(self) -> None:
        assert self._registration is not None, "it registered before"
        host, port = self._registration.address or ("", self.port)
        self._administration = Administration(
            RunningBookie(
                config=self.config,
                files=self._files,
                metadata=self._metadata,
                bookie_id=self.bookie_id,
                port=self.port,
                address=f"{host}:{port}",
                storage=self._storage.storage,
                journals=self._journals,
                gc=self.upkeep.collection,
                integrity=self.upkeep.integrity,
                mode=self._mode_of(),
                registration=self._registration,
                status=self,
            )
        )
        self._undo.push_async_callback(self._administration.stop)

    def _admin_ports(self) -> AdminPorts | None:
        """What the admin API reaches; None while the bookie does not serve."""
        return self._administration.ports if self._running and self._administration is not None else None

    def _start_disks(self) -> None:
        monitor = start_disk_watch(
            self.config,
            self._files,
            self._storage,
            self._mode_of(),
            self._tasks,
            self.fail,
            self._metrics,
            self.upkeep.collection.on_disk,
        )
        self._undo.push_async_callback(asyncio.to_thread, monitor.stop)

    async def _register(self) -> None:
        info = await service_info(self.config, self._address())
        self._registration = RegistrationManager(self._metadata, self.bookie_id, info, self.fail)
        read_only = self._mode_of().read_only
        await self._registration.register(read_only=read_only)
        self._undo.push_async_callback(self._registration.deregister)
        self._mode_of().attach(self._registration, announced_read_only=read_only)
        self._undo.callback(self._mode_of().detach)

    # --- stop -----------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Drain, flush, deregister. What was acknowledged is in synced entry logs afterwards."""
        self._phase("stopping")
        self._stopping = True
        self._clean = self._running
        await self._unwind()
        if self._clean:
            await asyncio.to_thread(self._dirty.remove)
        _log.info("bookie stopped", clean=self._clean)

    async def flush(self) -> None:
        """A checkpoint now: what was acknowledged so far is in synced entry logs when it returns."""
        await self._durability.checkpoint()

    async def abort(self) -> None:
        """End after a failure: close everything, flush nothing."""
        self._stopping = True
        self._clean = False
        await self._unwind()

    async def _unwind(self) -> None:
        self._running = False
        if self._server_accepts():
            self._server.context.accepting = False
        self._tasks.cancel()
        with suppress(Exception):
            await self._undo.aclose()

    def fail(self, error: BaseException) -> None:
        """A part cannot go on: the bookie ends."""
        if not self.failed.done():
            known = error if isinstance(error, PodkeeperError) else StorageFault(f"unexpected fault: {error!r}")
            _log.critical("bookie fails", reason=str(known))
            self.failed.set_result(known)

    # --- state (NodeStatus) ---------------------------------------------------------------------------------

    @property
    def port(self) -> int:
        assert self._listener is not None
        return self._listener.port

    def state(self) -> NodeState:
        read_only = self._mode is not None and self._mode.read_only
        return NodeState(
            self._running, read_only, self._stopping, self._mode is None or self._mode.high_priority_writes
        )

    def unhealthy_reason(self) -> str | None:
        return str(self.failed.result()) if self.failed.done() else None

    def complaint(self) -> str | None:
        running = self.auto_recovery
        return None if running is None else running.complaint()

    @property
    def auto_recovery(self) -> RunningAutoRecovery | None:
        """What runs of it here; None: nothing, or not yet."""
        starting = self._auto_recovery
        if starting is None or not starting.done() or starting.cancelled() or starting.exception() is not None:
            return None
        return starting.result()

    def unready_reason(self) -> str | None:
        if not self._running:
            return self.phase
        return None if self._status() is not ServerStatus.UNREGISTERED else "not registered in the metadata service"

    def _status(self) -> ServerStatus:
        return ServerStatus.UNREGISTERED if self._registration is None else self._registration.status

    def _mode_of(self) -> BookieMode:
        assert self._mode is not None
        return self._mode

    def _server_accepts(self) -> bool:
        return hasattr(self, "_server")

    def _no_writable_directory(self, error: BaseException) -> None:
        self._mode_of().no_writable_directory(error)

    def _phase(self, phase: str) -> None:
        self.phase = phase
        _log.info("phase", phase=phase)


async def _stop_server(starting: asyncio.Task[object]) -> None:
    """Stop an HTTP or gRPC server that is starting or has started."""
    if not starting.done():
        starting.cancel()
    with suppress(asyncio.CancelledError, PodkeeperError):
        server = await starting
        if server is not None:
            await server.stop()  # type: ignore[attr-defined]
