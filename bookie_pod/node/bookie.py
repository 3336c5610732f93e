"""One bookie: the order in which its parts start, and the order in which they stop.

Start (a failure ends it there, with everything that was started stopped again):
 1. identity; the port is taken, connections are dropped until step 9; that of gRPC is held
 2. HTTP probes: alive, not ready
 3. metadata service; the directories locked, cookies checked, new directories stamped
 4. each directory is the one that it is configured as; storage opened (the right engine, or refused); what it, or an
    earlier bookie of its id, may have lost is put in limbo, also where a directory is of an earlier time
 5. journals replayed into the storage
 6. everything flushed, marks written
 7. journals start (a new file each), checkpoints, disk monitor
 8. `DIRTY` written; connections are served, because the first clients come the moment that it is registered
 9. registration, with every port taken (read-only if it is being decommissioned), garbage collection, administration;
    gRPC: health, gateway; auto-recovery, if it is asked for

Stop: deregister, no more requests, answer what is under way, flush, marks, journals, files, `DIRTY` removed.
After a failure the connections of clients are closed before anything else, and nothing is flushed (`abort`): the
journals hold what was acknowledged.
A stop during the start waits for the blocking step that runs (a replay ends early): nothing is closed under its feet.

Threads: event loop; blocking steps run on threads of their own.

Source: docs/internals/on-disk-formats.md, section 14; docs/internals/bookie-behaviour.md, section 9.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import AsyncExitStack, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, TypeVar

import structlog

from bookie_pod.admin.bookie import RunningBookie
from bookie_pod.admin.rooms import BookieRooms
from bookie_pod.admin.sanity import SanityWatch
from bookie_pod.config.model import BookieConfig
from bookie_pod.config.sections.journal import current_folders
from bookie_pod.config.sections.network import NetworkConfig
from bookie_pod.metrics.bookie import BookieMetrics
from bookie_pod.metrics.registry import ProcessCollector, Registry
from bookie_pod.node.disk_watch import start_disk_watch
from bookie_pod.node.durability import DirtyMarker, Durability
from bookie_pod.node.identity.bookie_id import derive_bookie_id
from bookie_pod.node.identity.cookie_check import StoredCookie
from bookie_pod.node.identity.cookies import BookieDirectories
from bookie_pod.node.identity.disk_age import DiskAge
from bookie_pod.node.identity.earlier_life import metadata_questions
from bookie_pod.node.identity.ownership import check_distinct, check_partitions, hold_directories
from bookie_pod.node.identity.published import directory_places
from bookie_pod.node.integrity.service import check_cookies_and_find_losses, check_losses, doubt_everything
from bookie_pod.node.listening import bind_listener, hold_grpc_port
from bookie_pod.node.live_status import LiveStatus, join_cluster
from bookie_pod.node.metadata import open_metadata, with_patience
from bookie_pod.node.mode import BookieMode, open_mode
from bookie_pod.node.parts import ServerSide, StorageSide, make_journals, make_server
from bookie_pod.node.processes.background import BackgroundTasks, LoopBridge, collect_cycles
from bookie_pod.node.processes.service import watch_session
from bookie_pod.node.processes.watch import Step, Watch
from bookie_pod.node.recovery import ReplayedJournals
from bookie_pod.node.registration import RegistrationManager
from bookie_pod.node.side_services import SideServices
from bookie_pod.node.start_errors import as_no_cluster, as_start_errors, required_metadata_uri
from bookie_pod.node.storage_start import StorageStart
from bookie_pod.node.upkeep import Upkeep, make_upkeep
from bookie_pod.server.tcp.listener import TcpListener
from bookie_pod.storage.checkpoint import CheckpointHandlers
from bookie_pod.storage.disks import DiskMonitor
from bookie_pod.storage.files_posix import PosixFiles
from bookie_pod.storage.journal.journal import Journal
from bookie_pod.telemetry.start import start_telemetry

if TYPE_CHECKING:
    from bookie_protocol.metadata_service.tree.service import MetadataService

T = TypeVar("T")
_log = structlog.get_logger(__name__)

JOURNAL_STEP_S: Final = 180.0
"""A group that is not written and synced after so long never will be: the disk hangs. Disks behind a network may well
be away for two minutes, and come back."""
DISK_CHECK_S: Final = 180.0
"""The same of a look at all disks, which only asks for figures."""
FLUSH_S: Final = 1800.0
"""The same of one step of a flush: of the indexes of a whole write cache, on the slowest disk. How long all of it takes
is not limited: the files of very many ledgers take their time."""
READ_S: Final = 600.0
"""The same of one piece of work of a read lane: the longest is a list of all entries of a ledger."""
DRAIN_S: Final = 5.0
"""Seconds that a stop waits for requests under way."""


class Bookie:
    """The node; `status.failed` resolves with the error that ends it."""

    def __init__(self, config: BookieConfig) -> None:
        self.config = config
        self.loop = asyncio.get_running_loop()
        self.status = LiveStatus(self.loop.create_future())
        self.fail = self.status.fail
        self.registry = Registry(config.metrics.latency_rollover_seconds)
        self._metrics = BookieMetrics(self.registry)
        self._metrics.bind_status(lambda: self.status.server_status.value)
        self._metrics.bind_slow_parts(lambda: len(self.status.slow_parts()))
        self._metrics.bind_journals(len(config.directories.journal), config.journal.queue_size)
        if config.metrics.expose_jvm_metrics:
            self.registry.add_collector(ProcessCollector())
        self._files = PosixFiles()
        self._storage_start = StorageStart(config, self._files, LoopBridge(self.loop).run, self.registry)
        self._undo = AsyncExitStack()
        self._closing: asyncio.Task[None] | None = None
        self._owned: set[str] = set()
        self._dirty = DirtyMarker(self._files, current_folders(config.directories.ledger))
        self._clean = False
        self._is_replayed = False
        """Clients may write from here on, registered or not, and a stop has something to flush."""
        self._unwinding: Callable[[], None] = lambda: None
        self._server: ServerSide
        self._listener: TcpListener | None = None
        self._storage: StorageSide
        self._journals: list[Journal] = []
        self._metadata: MetadataService
        self._registration: RegistrationManager
        self.upkeep: Upkeep
        self._durability: Durability
        self._monitor: DiskMonitor | None = None
        self._mode: BookieMode
        self._administration: BookieRooms | None = None
        self._tasks = BackgroundTasks(self.loop, self.fail)
        self._services = SideServices(config, self.status, self.registry, self._undo, self._tasks)

    # --- watched from outside -------------------------------------------------------------------------------

    def watch(self, watch: Watch) -> None:
        """Be watched from now on: what is found ends the bookie."""
        self.status.slow_parts = lambda: watch.slow
        self._unwinding = watch.ending
        self._tasks.watch(self.loop.create_task(watch.run()))

    def steps(self) -> Iterator[Step]:
        """Yield the current step of each of its threads."""
        yield Step("start-up", self._storage_start.step(), FLUSH_S)
        for journal in self._journals:
            yield Step(f"journal-{journal.index}", journal.step(), JOURNAL_STEP_S)
        if hasattr(self, "_durability"):
            yield Step("checkpoint", self._durability.checkpoint_step(), FLUSH_S, needs="storage-*")
            for thread, at in self._storage.storage.flushing():
                yield Step(thread, at, FLUSH_S)
        if hasattr(self, "upkeep"):
            written = self._storage.storage.written()  # what they wait for may be a flush
            for thread, at in self.upkeep.steps():
                yield Step(thread, None if at is None else (at, written), FLUSH_S)
        if hasattr(self, "_server"):
            for thread, at in self._server.steps():
                yield Step(thread, at, READ_S)
        if self._monitor is not None:
            yield Step("disk-monitor", self._monitor.check_began, DISK_CHECK_S)

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
        http = self._services.start_http(self._admin)
        self.status.enter("connecting to the metadata service")
        with as_no_cluster(config):
            self._metadata = await self._patiently(lambda: open_metadata(config.metadata, uri))
        self._undo.push_async_callback(self._metadata.close)
        self.bookie_id = await asyncio.to_thread(derive_bookie_id, self._address())
        self.status.enter("checking cookies")
        await asyncio.to_thread(check_partitions, config.directories, self._files)
        directories = BookieDirectories.of(config.directories)
        await asyncio.to_thread(check_distinct, directories)
        self._own(folder for folder in directories.current_folders() if self._files.is_dir(folder))
        lost, own = await self._patiently(
            lambda: check_cookies_and_find_losses(config, self._metadata, self._files, self.bookie_id, self._address())
        )
        self._own(folder for folder in directories.current_folders() if folder not in self._owned)
        places = directory_places(config, self._files)
        await asyncio.to_thread(places.check)
        self._undo.push_async_callback(self._note_clean_stop)
        self.status.enter("opening the storage")
        self._undo.push_async_callback(asyncio.to_thread, self._storage_start.close)
        self._storage = await self._storage_start.open(self.status.phase)
        await asyncio.to_thread(places.check_contents, self._storage.storage)
        age = DiskAge(self._files, directories.current_folders(), self._metadata, self.bookie_id)
        newest_older = await check_losses(
            config,
            self._metadata,
            self._files,
            self._storage.storage,
            self.bookie_id,
            lost,
            await self._patiently(age.earlier),
            unclean=self._dirty.is_set(),
        )
        self.status.enter("replaying journals")

        async def doubt(reason: str) -> None:
            nonlocal newest_older
            newest_older = await doubt_everything(
                config, self._metadata, self._files, self._storage.storage, self.bookie_id, reason
            )

        replayed = await self._storage_start.replay(self.status.phase, doubt)
        await asyncio.to_thread(places.record)
        await self._storage_start.check(self.status.enter)
        self.status.enter("starting")
        self._start_journals(replayed)
        self._make_server(replayed.keys)
        if replayed.unflushed is not None:
            self._mode.no_writable_directory(replayed.unflushed)
        telemetry = await start_telemetry(config.telemetry, self.registry, "podkeeper-bookie", self.bookie_id)
        if telemetry is not None:
            self._undo.push_async_callback(telemetry.stop)
            self._server.context.tracer, self.registry.has_exemplars = telemetry.tracer, True
        self._server.clients.handlers.questions = metadata_questions(
            self._server.context.operations.ledgers,
            newest_older,
            self._metadata.ledgers,
            self.bookie_id,
            lambda: self.upkeep.check_service(),
        )
        self._tasks.assist("age of the disks", age.follow)
        await self._make_upkeep(own.cookie.instance_id)
        self._start_disks()
        server = await http
        await asyncio.to_thread(self._dirty.write)
        self._is_replayed = self._server.clients.accepting = True
        await self._join(own, None if server is None else server.port)
        self._tasks.run(watch_session(config, self._metadata))
        self.upkeep.start()
        self._undo.push_async_callback(self.upkeep.stop)
        self.status.running = True
        self._start_administration()
        self.status.enter("serving")
        if self._serves_grpc:
            await self._services.start_grpc()
        self._services.start_auto_recovery(self._metadata, self.bookie_id)
        self._tasks.assist("collect cycles", collect_cycles)
        self._services.guard_memory(lambda: sum(journal.appended_bytes for journal in self._journals))
        gc.collect()
        gc.freeze()

    async def _patiently(self, ask: Callable[[], Awaitable[T]]) -> T:
        """See `with_patience`."""
        return await with_patience(self.config.metadata, ask, self.status.wait_for_metadata)

    async def _join(self, own: StoredCookie, http_port: int | None) -> None:
        try:
            self._registration = await join_cluster(
                self.config,
                metadata=self._metadata,
                own=own,
                address=self._address(),
                http_port=http_port,
                mode=self._mode,
                status=self.status,
                tasks=self._tasks,
                undo=self._undo,
            )
        except Exception:
            # Whatever the error is, the stored data is intact, else `fail` had been called. It is left as any stop
            # leaves it, so that the next start need not doubt it.
            self._clean = not self.status.failed.done()
            await self._unwind()
            raise

    def _own(self, folders: Iterable[str]) -> None:
        """Lock these directories: no other process changes them from here on."""
        new = list(folders)
        self._undo.enter_context(hold_directories(new))
        self._owned.update(new)

    def _start_journals(self, replayed: ReplayedJournals) -> None:
        config = self.config
        self._journals = make_journals(config, self._files, self.registry, self.loop, self.fail)
        flushed = self._tasks.on_loop(lambda: self._mode.flushed())

        def checkpointed(seconds: float) -> None:
            self._metrics.sync_thread_time.add(seconds * 1000)
            if self._is_replayed:
                self._dirty.write()  # where the disk was full
            flushed()

        handlers = CheckpointHandlers(
            on_no_writable_directory=self._tasks.on_loop(lambda error: self._mode.no_writable_directory(error)),
            on_failure=self._tasks.on_loop(self.fail),
            on_checkpoint=checkpointed,
            on_flushed=flushed,
        )
        self._durability = durability = Durability(
            self._journals, self._storage, replayed, handlers, config.ledger_storage.flush_interval_ms
        )

        async def stop() -> None:
            clean, self._clean = self._clean, False
            self._clean = await durability.stop(clean=clean)

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
            self._storage.throttled,
            memory=self._services.memory,
        )
        self._undo.push_async_callback(asyncio.to_thread, self._server.stop_lanes)
        assert self._listener is not None
        self._listener.serve(self._server.clients)
        self._undo.push_async_callback(self._drain, self._listener)
        self._mode = self.status.mode = open_mode(
            self.config, self._files, self._server.admission, self._tasks.run, self.fail, self._durability.request
        )

    async def _bind(self) -> None:
        self._listener = await bind_listener(self.config)
        self._undo.push_async_callback(self._listener.stop, 0)
        # A configuration that was written for Apache BookKeeper names no gRPC, so gRPC cannot end its bookie.
        asked_for = any(key.startswith("grpcServer") for key in self.config.set_keys)
        held = await hold_grpc_port(self.config.grpc, asked_for=asked_for)
        self._serves_grpc = held is not None
        if held is not None:
            self._undo.enter_context(held)

    async def _drain(self, listener: TcpListener) -> None:
        """Stop the listener: a clean stop answers requests under way, and after a failure there will be no answers to
        wait for.
        """
        await listener.stop(DRAIN_S if self._clean else 0)

    def _address(self) -> NetworkConfig:
        return replace(self.config.network, bookie_port=self.port)

    async def _make_upkeep(self, instance_id: str | None) -> None:
        self.upkeep = await make_upkeep(
            self.config,
            self._files,
            self._storage.storage,
            self._server.context.operations,
            self._journals,
            self._server.lanes,
            self._metadata,
            self.bookie_id,
            instance_id,
            self.registry,
            self._tasks,
            writable=lambda: self._mode.high_priority_writes,
        )

    def _start_administration(self) -> None:
        host, port = self._registration.address or ("", self.port)
        self._administration = BookieRooms(
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
                witness=self.upkeep.witness,
                integrity=self.upkeep.integrity,
                mode=self._mode,
                registration=self._registration,
                status=self.status,
                flush=self.flush,
                find_auto_recovery=lambda: self.status.auto_recovery,
            )
        )
        self._undo.push_async_callback(self._administration.stop)
        if self.config.metrics.sanity_check_metrics:
            watch = SanityWatch(self._administration.node.check_sanity, lambda: self._mode.read_only)
            self._metrics.bind_sanity(lambda: watch.value)
            self._tasks.assist("sanity check", watch.run)

    def _admin(self) -> BookieRooms | None:
        """Return the rooms of the admin API; None while the bookie does not serve."""
        return self._administration if self.status.running else None

    def _start_disks(self) -> None:
        monitor = self._monitor = start_disk_watch(
            self.config,
            self._files,
            self._storage,
            self._mode,
            self._tasks,
            self.fail,
            self._metrics,
            self.upkeep.collection.on_disk,
        )
        self._undo.push_async_callback(asyncio.to_thread, monitor.stop)

    # --- stop -----------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Deregister, drain, flush. What was acknowledged is in synced entry logs afterwards."""
        self.status.enter("stopping")
        self.status.stopping = True
        if self._closing is None:  # else the result of the failed start's shutdown is reported already
            self._clean = self._is_replayed
        try:
            if self.status.running:
                self._mode.detach()
                await self._registration.deregister()
        finally:
            await self._unwind()  # whatever becomes of the registration, which ends with the session too
        _log.info("bookie stopped", clean=self._clean)

    async def _note_clean_stop(self) -> None:
        """The last thing while the directories are still ours."""
        if self._clean:
            await asyncio.to_thread(self._dirty.remove)

    async def flush(self) -> None:
        """A checkpoint now: what was acknowledged so far is in synced entry logs when it returns."""
        await self._durability.checkpoint()

    def drop_clients(self) -> None:
        """Drop all clients after a failure, so that they learn at once that no answer will come."""
        self.status.running = False
        if self._listener is not None:
            self._listener.drop()

    async def abort(self) -> None:
        """End after a failure: close everything, flush nothing."""
        self.status.stopping = True
        self._clean = False
        await self._unwind()

    async def _unwind(self) -> None:
        self._unwinding()
        self.status.running = False
        if hasattr(self, "_server"):
            self._server.clients.accepting = False
        self._tasks.cancel()
        if self._closing is None:
            self._closing = self.loop.create_task(self._undo.aclose())
        with suppress(Exception):  # one after the other, though a stop that goes on is overtaken by a failure
            await asyncio.shield(self._closing)

    @property
    def port(self) -> int:
        assert self._listener is not None
        return self._listener.port
