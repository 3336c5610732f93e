"""The parts of a bookie, put together from its configuration.

Threads: event loop, but for `open_storage_parts`, which may run on the start-up thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import structlog

from bookie_pod.audit import Audit
from bookie_pod.client_memory import MemoryGovernor
from bookie_pod.config.model import BookieConfig
from bookie_pod.config.sections.journal import current_folders
from bookie_pod.ledgers.operations import LedgerOperations
from bookie_pod.ledgers.registry import STATES_MAX, Ledgers
from bookie_pod.metrics.bookie import BookieMetrics
from bookie_pod.metrics.db_storage import DbStorageMetrics, export_limits
from bookie_pod.metrics.journal import JournalMetrics
from bookie_pod.metrics.memtable_storage import MemTableMetrics
from bookie_pod.metrics.registry import Registry
from bookie_pod.metrics.requests import RequestMetrics
from bookie_pod.node.upkeep import under_pressure
from bookie_pod.server.tcp.admission import PARKED_BYTES_MAX, WriteAdmission
from bookie_pod.server.tcp.authentication import server_authentication
from bookie_pod.server.tcp.clients import Clients
from bookie_pod.server.tcp.context import ServerContext
from bookie_pod.server.tcp.handlers import RequestHandlers
from bookie_pod.server.tcp.long_poll import POLL_BYTES, WAITING_MAX, LongPolls
from bookie_pod.server.tcp.read_lanes import BatchPace, ReadLanes
from bookie_pod.server.tcp.reads import Reads
from bookie_pod.server.tcp.strangers import MOST as STRANGERS_MAX
from bookie_pod.server.tcp.tls import server_tls
from bookie_pod.storage.disks import disk_space
from bookie_pod.storage.engines.db import DbLedgerStorage
from bookie_pod.storage.engines.interface import LedgerStorage, OnLoop
from bookie_pod.storage.engines.memtable_storage import MemTableStorage
from bookie_pod.storage.engines.registry import StorageParts, open_storage
from bookie_pod.storage.engines.single_directory import SingleDirectoryStorage
from bookie_pod.storage.entry_log.directories import LedgerDirStates
from bookie_pod.storage.files import Files
from bookie_pod.storage.gc.fenced_deleted import FencedAndDeleted, fenced_files
from bookie_pod.storage.journal.batch_queue import JournalBatch
from bookie_pod.storage.journal.journal import Journal

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class StorageSide:
    """The storage engine and the disk states that its entry logs look at."""

    storage: LedgerStorage
    dirs: dict[str, LedgerDirStates]
    """The states by `current` folder of each ledger directory."""
    index_dirs: dict[str, LedgerDirStates]
    """The states by `current` folder of each index directory that is not a ledger directory."""
    throttled: Callable[[int, float, bool], None] | None = None
    """Counts an add that waited for its directory's write cache: ledger, seconds, whether in vain."""

    def writable(self) -> list[str]:
        """Folders that take marks and new entry logs."""
        return [folder for states in self.dirs.values() for folder in states.writable()]


def open_storage_side(config: BookieConfig, files: Files, on_loop: OnLoop, registry: Registry) -> StorageSide:
    """Open the configured engine on its directories. Raises StartupError or StorageFault."""
    dirs = {folder: LedgerDirStates([folder]) for folder in current_folders(config.directories.ledger)}

    index_folders = current_folders(config.directories.index)
    index_dirs = {folder: LedgerDirStates([folder]) for folder in index_folders if folder not in dirs}
    instruments: list[DbStorageMetrics] = []

    def metrics(ledger_folder: str, index_folder: str) -> DbStorageMetrics:
        instruments.append(
            DbStorageMetrics(registry, ledger_folder.removesuffix("/current"), index_folder.removesuffix("/current"))
        )
        return instruments[-1]

    memtable_metrics: list[MemTableMetrics] = []

    def for_memtable() -> MemTableMetrics:
        memtable_metrics.append(MemTableMetrics(registry))
        return memtable_metrics[0]

    parts = StorageParts(
        files=files,
        on_loop=on_loop,
        ledger_folders=list(dirs),
        index_folders=index_folders,
        ledger_dirs=dirs.__getitem__,
        index_dirs=(dirs | index_dirs).__getitem__,
        metrics=metrics,
        memtable_metrics=for_memtable,
    )
    storage = open_storage(config, parts)
    if isinstance(storage, MemTableStorage):
        memtable = storage.memtable
        memtable_metrics[0].bind_gauges(
            pages=storage.cache.pages.__len__,
            handles=storage.cache.handles.counts,
            memtable=lambda: (memtable.nbytes, memtable.count),
            memtable_max_bytes=memtable.limit,
            ledgers=lambda: len(storage.ledger_ids()),
            damaged_reads=lambda: storage.logs.stats.damaged_reads,
        )
    if isinstance(storage, DbLedgerStorage):
        for directory, instrument in zip(storage.directories, instruments, strict=True):
            _bind_directory(instrument, directory)
        db = config.db_storage
        half_bytes = db.write_cache_max_bytes // len(storage.directories)
        export_limits(registry, half_bytes, db.read_ahead_batch_size, db.read_cache_max_bytes)
        return StorageSide(
            storage, dirs, index_dirs, lambda ledger, s, vain: instruments[ledger % len(dirs)].throttled(s, 1, vain)
        )
    return StorageSide(storage, dirs, index_dirs)


def _bind_directory(instruments: DbStorageMetrics, directory: SingleDirectoryStorage) -> None:
    instruments.bind_gauges(
        write_cache_size=lambda: directory.write_cache_usage()[0],
        write_cache_count=lambda: directory.write_cache_usage()[1],
        read_cache_size=lambda: directory.read_cache.nbytes,
        read_cache_count=lambda: directory.read_cache.count,
        entries_count=directory.locations.estimated_count,
        ledgers_count=lambda: len(directory.ledgers),
    )
    instruments.bind_damaged_reads(lambda: directory.logs.stats.damaged_reads)


def make_journals(
    config: BookieConfig,
    files: Files,
    registry: Registry,
    loop: asyncio.AbstractEventLoop,
    on_failure: Callable[[BaseException], None],
) -> list[Journal]:
    """One journal per journal directory; acknowledged batches reach the event loop in one hop."""

    def deliver(batches: Sequence[JournalBatch], error: BaseException | None) -> None:
        loop.call_soon_threadsafe(_acknowledge, batches, error)

    def failed(error: BaseException) -> None:
        loop.call_soon_threadsafe(on_failure, error)

    journals = []
    folders = current_folders(config.directories.journal)
    share = replace(config.journal, max_memory_bytes=config.journal.max_memory_bytes // len(folders))
    for index, folder in enumerate(folders):
        metrics = JournalMetrics(registry, index)
        journal = Journal(folder, index, files, share, deliver, failed, metrics)
        _bind_levels(metrics, journal)
        journals.append(journal)
    return journals


def make_server(
    config: BookieConfig,
    files: Files,
    storage: LedgerStorage,
    journals: Sequence[Journal],
    loop: asyncio.AbstractEventLoop,
    registry: Registry,
    journaled_keys: set[int],
    bookie_metrics: BookieMetrics | None = None,
    throttled: Callable[[int, float, bool], None] | None = None,
    *,
    memory: MemoryGovernor,
) -> ServerSide:
    """Make everything between the sockets and the storage.

    `memory` is that of the clients of this process. Raises InvalidConfiguration for TLS and authentication.
    """
    folders = current_folders(config.directories.ledger)
    fenced = FencedAndDeleted(fenced_files(files, folders))
    ledgers = Ledgers(storage, len(journals), journaled_keys=journaled_keys, fenced_and_deleted=fenced)
    operations = LedgerOperations(ledgers, journals, write_data=config.journal.write_data)
    storage.on_ledger_deleted(operations.forget)
    admission = WriteAdmission(
        storage,
        journals,
        adds_in_progress_max=config.network.max_adds_in_progress,
        parked_bytes_max=min(PARKED_BYTES_MAX, memory.limit // 2),  # the other half is for frames and answers
    )
    operations.on_full = admission.filled
    operations.on_acknowledged = admission.acknowledged
    metrics = RequestMetrics(registry, bookie_metrics, throttled)
    auth, tls = server_authentication(config.auth), server_tls(config.tls)
    audit = Audit("bookie", registry, config.access.audit_log_file)
    threads, pending = config.threads, config.threads.max_pending_reads_per_thread
    waited = metrics.read_waited
    lanes = long_poll = ReadLanes("read", max(1, threads.read_workers), pending, loop, waited)
    high_priority = ReadLanes("read-high", max(1, threads.high_priority_workers), pending, loop, waited)
    if threads.long_poll_workers:
        long_poll = ReadLanes("long-poll", threads.long_poll_workers, pending, loop, waited)
    online = tuple({id(pool): pool for pool in (lanes, high_priority, long_poll)}.values())
    batch = _batch_lanes(config, under_pressure(journals, online), loop, metrics.batch_read_waited)
    reads = Reads(operations, lanes, high_priority, config.network.max_batch_read_size_bytes, batch)
    polls_max = min(WAITING_MAX, max(1000, memory.limit // 2 // POLL_BYTES))
    polls = LongPolls(ledgers, reads, long_poll, loop, polls_max)
    context = ServerContext(loop, operations, admission, config, metrics=metrics, memory=memory, audit=audit)
    handlers = RequestHandlers(context, reads, polls, lanes, lambda: disk_space(files, folders))
    clients = Clients(context, handlers, auth=auth, tls=tls)
    metrics.bind_levels(
        adds_in_progress=lambda: admission.adds_in_progress,
        adds_blocked=lambda: admission.parked_adds,
        reads_in_progress=lambda: context.reads_in_progress.count,
        reads_blocked=lambda: lanes.pending,
    )
    metrics.bind_bounded(
        {
            "CONNECTIONS": (lambda: len(clients.connections), clients.max_connections),
            "UNAUTHENTICATED_CONNECTIONS": (lambda: len(clients.strangers), STRANGERS_MAX),
            "ENCRYPTED_CONNECTIONS": (lambda: len(clients.encrypted), None),
            "ENCRYPTED_CONNECTION_BYTES": (lambda: clients.encrypted.nbytes, clients.encrypted.limit),
            "LEDGER_STATES": (lambda: len(ledgers.states), STATES_MAX),
            "LONG_POLLS_WAITING": (lambda: polls.waiting, polls_max),
            "CLIENT_MEMORY_BYTES": (lambda: memory.total, memory.limit),
            "ADD_ENTRY_BLOCKED_BYTES": (lambda: admission.parked_bytes, admission.parked_bytes_max),
            "HIGH_PRIORITY_READS_BLOCKED": (lambda: high_priority.pending, None),
            "LONG_POLL_READS_BLOCKED": (lambda: long_poll.pending, None),
            "BATCH_CLASS_READS_BLOCKED": (lambda: batch.pending if batch else 0, None),
        }
    )
    pace = reads.batch_pace
    metrics.bind_batch_class(
        entries=lambda: pace.entries,
        nbytes=lambda: pace.nbytes,
        yielded_s=lambda: pace.yielded_s,
        limited_s=lambda: pace.limited_s,
    )
    metrics.bind_connection_errors(lambda: context.connection_errors)
    metrics.bind_refusals(
        lambda: clients.refusals, lambda: clients.strangers.sent_away, lambda: clients.connections_refused
    )
    metrics.bind_pool("BookieReadThreadPool", max(1, threads.read_workers), pending)
    metrics.bind_pool("BookieWriteThreadPool", 1, threads.max_pending_adds)
    metrics.bind_pool("BookieHighPriorityThread", max(1, threads.high_priority_workers), pending)
    if batch:
        metrics.bind_pool("BookieBatchClassReadThreadPool", threads.batch_class_read_workers, pending)
    return ServerSide(clients, context, admission, online, batch)


def _batch_lanes(
    config: BookieConfig,
    pressure: Callable[[], bool],
    loop: asyncio.AbstractEventLoop,
    waited: Callable[[float], None],
) -> ReadLanes | None:
    """The lanes of the traffic class `batch`; None: it has none of its own."""
    threads = config.threads
    if not threads.batch_class_read_workers:
        return None
    pace = BatchPace(pressure, threads.batch_class_read_rate_bytes)
    pending = threads.max_pending_reads_per_thread
    return ReadLanes("read-batch", threads.batch_class_read_workers, pending, loop, waited, pace)


@dataclass(slots=True)
class ServerSide:
    """The TCP server's shared state and its threads."""

    clients: Clients
    context: ServerContext
    admission: WriteAdmission
    lanes: tuple[ReadLanes, ...]
    """The lanes of ordinary reads: upkeep gives way to them."""
    batch_lanes: ReadLanes | None = None
    """The lanes of the traffic class `batch`, which gives way itself."""

    def _all_lanes(self) -> Iterator[ReadLanes]:
        yield from self.lanes
        if self.batch_lanes is not None:
            yield self.batch_lanes

    def steps(self) -> Iterator[tuple[str, object | None]]:
        """The threads of all lanes, and what each is at; None: nothing."""
        for lanes in self._all_lanes():
            yield from lanes.steps()

    def stop_lanes(self) -> None:
        """Blocks until the reads under way are done."""
        for lanes in self._all_lanes():
            lanes.stop()


def _acknowledge(batches: Sequence[JournalBatch], error: BaseException | None) -> None:
    for batch in batches:
        if batch.on_done is not None:
            try:
                batch.on_done(error)
            except Exception as defect:  # the others wait for theirs
                _log.error("unexpected error while adds were answered", error=repr(defect), exc_info=defect)


def _bind_levels(metrics: JournalMetrics, journal: Journal) -> None:
    metrics.bind_levels(
        queue_size=lambda: journal.queue_size,
        force_write_queue_size=lambda: journal.force_write_queue_size,
        memory_used=lambda: journal.queued_bytes,
        memory_max=lambda: journal.options.max_memory_bytes,
    )
