"""The registry that opens a storage engine for a configuration.

`open_storage` looks at every directory before it opens or makes anything, so a refused start leaves the disks
as they were. If a later directory fails to open, the earlier ones are closed again.

Threads: the start of the bookie.

Source: docs/internals/on-disk-formats.md, sections 1, 8.1 and 14; docs/internals/bookie-behaviour.md, sections 1.11 and
13.7.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from bookie_pod.config.keys import MIB
from bookie_pod.metrics.db_storage import DbStorageMetrics
from bookie_pod.metrics.memtable_storage import MemTableMetrics
from bookie_pod.metrics.registry import Registry
from bookie_pod.storage.engines.db import DbLedgerStorage
from bookie_pod.storage.engines.detection import (
    DEFAULT_ENGINE,
    INTERLEAVED_LEDGER_STORAGE,
    check_engine,
    check_name,
    check_not_lost,
    is_db,
    short_name,
    stamp_index,
)
from bookie_pod.storage.engines.interface import LedgerStorage, OnLoop
from bookie_pod.storage.engines.memtable_flush import sync_for_index
from bookie_pod.storage.engines.memtable_storage import InterleavedLedgerStorage, SortedLedgerStorage, StorageFlags
from bookie_pod.storage.engines.single_directory import SingleDirectoryStorage
from bookie_pod.storage.entry_log import EntryLogger, LedgerDirs, LedgerDirStates
from bookie_pod.storage.entry_log.directories import JoinedLedgerDirs
from bookie_pod.storage.entry_log.options import EntryLogOptions
from bookie_pod.storage.files import Files
from bookie_pod.storage.index.ledger_cache import LedgerCache, LedgerCacheOptions
from bookie_pod.storage.index.ledgers import LedgerIndex
from bookie_pod.storage.index.locations import LocationIndex
from bookie_pod.storage.index.rocksdb_store import LEDGERS_DB, RocksOptions, RocksStores
from bookie_pod.storage.index.seal import IndexSeal
from bookie_pod.storage.index.store import OrderedStore, StoreFactory, StoreKind
from bookie_protocol.errors import InvalidConfiguration, StorageFault

MIN_HALF_BYTES: Final = 4096
_log = structlog.get_logger(__name__)
MAX_MEMTABLE_BYTES: Final = (1 << 30) - 1
"""Largest `skipListSizeLimit` that the reference takes: twice as much has to fit into 31 bits."""


@dataclass(frozen=True, slots=True)
class DbStorageOptions:
    """Every field names its configuration key, its unit and its default.

    Where the reference takes shares of the JVM's direct memory, the configuration takes shares of `memoryBudgetMb`.
    Sizes are for the whole bookie and are divided by the number of ledger directories.
    """

    write_cache_bytes: int = 256 * MIB
    """`dbStorage_writeCacheMaxSizeMb`, bytes, default 25 % of the memory budget: both halves of all
    directories."""

    flush_bytes: int = 0
    """`writeCacheFlushThresholdMb`, bytes, 0 = only when a half is full: all directories together begin a flush when
    their active halves hold this much."""

    read_cache_bytes: int = 256 * MIB
    """`dbStorage_readAheadCacheMaxSizeMb`, bytes, default 25 % of the memory budget."""

    read_ahead_entries: int = 100
    """`dbStorage_readAheadCacheBatchSize`, entries, default 100: the most that one read-ahead fetches."""

    read_ahead_bytes: int = -1
    """`dbStorage_readAheadCacheBatchBytesSize`, bytes, default -1 (off): further limit of one read-ahead.
    Half of the directory's read cache is a limit in any case."""

    max_rows_per_batch: int = 100_000
    """`maxOperationNumbersInSingleRocksdbWriteBatch`, operations, default 100 000."""

    entry_log: EntryLogOptions = field(default_factory=EntryLogOptions)
    """Options of each directory's entry logger."""

    locations_db: RocksOptions = field(default_factory=RocksOptions)
    """`dbStorage_rocksDB_*`: options of each `locations` database."""

    ledgers_db: RocksOptions = LEDGERS_DB
    """Options of each `ledgers` database."""

    def __post_init__(self) -> None:
        if self.write_cache_bytes < 2 * MIN_HALF_BYTES:
            raise InvalidConfiguration(
                f"dbStorage_writeCacheMaxSizeMb: {self.write_cache_bytes} bytes, need at least 1 MB"
            )
        if self.read_cache_bytes < 0:
            raise InvalidConfiguration(
                f"dbStorage_readAheadCacheMaxSizeMb: {self.read_cache_bytes} bytes; must not be negative"
            )
        if self.read_ahead_entries < 0:
            raise InvalidConfiguration(
                f"dbStorage_readAheadCacheBatchSize={self.read_ahead_entries} must not be negative (0 is off)"
            )
        if self.max_rows_per_batch < 1:
            raise InvalidConfiguration(
                f"maxOperationNumbersInSingleRocksdbWriteBatch={self.max_rows_per_batch} must be at least 1"
            )


@dataclass(frozen=True, slots=True)
class MemTableOptions:
    """Settings of SortedLedgerStorage and InterleavedLedgerStorage."""

    memtable_bytes: int = 64 * MIB
    """`skipListSizeLimit`, bytes, default 67 108 864: one map of the memtable; there are up to two. With
    InterleavedLedgerStorage: how far adds may be ahead of the entry log."""

    flush_threads: int = 8
    """`numOfMemtableFlushThreads`, threads, default 8; only with one log per ledger."""

    cache: LedgerCacheOptions = field(default_factory=LedgerCacheOptions)
    """Index pages and index files."""

    entry_log: EntryLogOptions = field(default_factory=EntryLogOptions)
    """Options of the one entry logger over all directories."""

    def __post_init__(self) -> None:
        if not 1 <= self.memtable_bytes <= MAX_MEMTABLE_BYTES:
            raise InvalidConfiguration(
                f"skipListSizeLimit={self.memtable_bytes} is not between 1 and {MAX_MEMTABLE_BYTES} bytes"
            )
        if self.flush_threads < 1:
            raise InvalidConfiguration(f"numOfMemtableFlushThreads={self.flush_threads} must be at least 1")


@dataclass(frozen=True, slots=True)
class StorageSettings:
    """The settings of an engine.

    Directories are the `current` folders, in the order of the configuration.
    """

    ledger_directories: Sequence[str]
    """`ledgerDirectories`."""
    index_directories: Sequence[str] = ()
    """`indexDirectories`; empty: the ledger directories."""
    engine: str = DEFAULT_ENGINE
    """`ledgerStorageClass`, an Apache class name."""
    db: DbStorageOptions = field(default_factory=DbStorageOptions)
    """Options of DbLedgerStorage."""
    memtable: MemTableOptions = field(default_factory=MemTableOptions)
    """Options of the other two engines."""

    def __post_init__(self) -> None:
        if not self.ledger_directories:
            raise InvalidConfiguration("ledgerDirectories is empty: name at least one directory")

    def pairs(self) -> list[tuple[str, str]]:
        """(ledger directory, index directory) one by one; `InvalidConfiguration` if they do not match."""
        index_directories = self.index_directories or self.ledger_directories
        if len(index_directories) != len(self.ledger_directories):
            raise InvalidConfiguration(
                f"indexDirectories has {len(index_directories)} and ledgerDirectories "
                f"{len(self.ledger_directories)} directories: DbLedgerStorage needs as many of one as of the other"
            )
        return list(zip(self.ledger_directories, index_directories, strict=True))


@dataclass(frozen=True, slots=True)
class StorageParts:
    """The parts of an engine that tests and the node may replace."""

    files: Files
    on_loop: OnLoop
    stores: StoreFactory | None = None
    """None: RocksDB."""
    ledger_dirs: Callable[[str], LedgerDirs] = lambda directory: LedgerDirStates([directory])
    """The disk states that the entry logger of one ledger directory looks at."""
    metrics: Callable[[str, str], DbStorageMetrics] = lambda ledger_directory, index_directory: DbStorageMetrics(
        Registry(), ledger_directory, index_directory
    )
    """Counters of one (ledger directory, index directory) of DbLedgerStorage."""
    index_dirs: Callable[[str], LedgerDirs] | None = None
    """The disk states of one index directory; None: those of the ledger directory of that name, or, for tools, which
    watch no disks, of an index directory of its own one that is always writable."""
    memtable_metrics: Callable[[], MemTableMetrics] = lambda: MemTableMetrics(Registry())
    """Counters of the other two engines."""


def open_storage(settings: StorageSettings, parts: StorageParts) -> LedgerStorage:
    """Open the configured engine.

    Raises `InvalidConfiguration`, `WrongStorageEngine`, or `StorageFault` if a file or database cannot be
    read.
    """
    check_name(settings.engine)
    stores = parts.stores or RocksStores(parts.files, settings.db.locations_db, settings.db.ledgers_db)
    if is_db(settings.engine):
        for ledger_directory, index_directory in settings.pairs():
            check_engine(parts.files, stores, [ledger_directory], [index_directory], settings.engine)
        return _open_db(settings, parts, stores)
    index_directories = list(settings.index_directories or settings.ledger_directories)
    check_engine(parts.files, stores, settings.ledger_directories, index_directories, settings.engine)
    return _open_memtable(settings, parts, index_directories)


def _open_memtable(settings: StorageSettings, parts: StorageParts, index_directories: Sequence[str]) -> LedgerStorage:
    """One storage over all directories."""
    options, entry_log = settings.memtable, settings.memtable.entry_log
    try:
        for directory in settings.ledger_directories:
            parts.files.makedirs(directory)
        stamp_index(parts.files, index_directories)
    except OSError as error:
        raise StorageFault(f"cannot make directory {error.filename}: {error.strerror or error}") from error
    ledger_dirs = {directory: parts.ledger_dirs(directory) for directory in settings.ledger_directories}
    index_dirs = parts.index_dirs or (lambda directory: ledger_dirs.get(directory) or LedgerDirStates([directory]))
    metrics = parts.memtable_metrics()
    logs = EntryLogger(parts.files, JoinedLedgerDirs(ledger_dirs.values()), entry_log)
    try:
        cache = LedgerCache(
            parts.files,
            JoinedLedgerDirs(map(index_dirs, index_directories)),
            options.cache,
            lambda: sync_for_index(logs),
            metrics,
        )
    except BaseException:
        logs.close()
        raise
    _log.info(
        "ledger storage opened",
        engine=short_name(settings.engine),
        ledgers=len(cache.records),
        open_file_limit=options.cache.open_files,
        page_size_bytes=options.cache.page_bytes,
        page_limit=options.cache.page_limit,
        memtable_bytes=options.memtable_bytes,
    )
    flags = StorageFlags(parts.files, index_directories[0])
    engine = InterleavedLedgerStorage if settings.engine == INTERLEAVED_LEDGER_STORAGE else SortedLedgerStorage
    return engine(
        logs,
        cache,
        parts.on_loop,
        metrics,
        flags=flags,
        folders=settings.ledger_directories,
        memtable_bytes=options.memtable_bytes,
        log_per_ledger=entry_log.per_ledger,
        flush_threads=options.flush_threads,
    )


def _open_db(settings: StorageSettings, parts: StorageParts, stores: StoreFactory) -> DbLedgerStorage:
    directories: list[SingleDirectoryStorage] = []
    try:
        for ledger_directory, index_directory in settings.pairs():
            directories.append(_open_directory(settings, parts, stores, ledger_directory, index_directory))
    except BaseException:
        for directory in directories:
            directory.close()
        raise
    return DbLedgerStorage(directories, parts.on_loop, flush_bytes=settings.db.flush_bytes // len(directories))


def _open_directory(
    settings: StorageSettings,
    parts: StorageParts,
    stores: StoreFactory,
    ledger_directory: str,
    index_directory: str,
) -> SingleDirectoryStorage:
    options, count = settings.db, len(settings.ledger_directories)
    opened: list[OrderedStore | EntryLogger] = []
    try:
        parts.files.makedirs(index_directory)
        parts.files.makedirs(ledger_directory)
        databases: dict[StoreKind, OrderedStore] = {}
        for kind in StoreKind:
            databases[kind] = store = stores.open(f"{index_directory}/{kind.value}", kind)
            opened.append(store)
            check_not_lost(parts.files, store, ledger_directory)
        seal = IndexSeal(parts.files, ledger_directory)
        if not seal.check(databases):
            _log.info("the index is not sealed yet: what it may have lost before is not known", index=index_directory)
        ledgers = LedgerIndex(databases[StoreKind.LEDGERS])
        logs = EntryLogger(parts.files, parts.ledger_dirs(ledger_directory), options.entry_log)
        opened.append(logs)
        _log.info("ledger directory opened", directory=ledger_directory, index=index_directory, ledgers=len(ledgers))
        return SingleDirectoryStorage(
            logs,
            LocationIndex(databases[StoreKind.LOCATIONS], options.max_rows_per_batch),
            ledgers,
            seal,
            parts.on_loop,
            half_bytes=options.write_cache_bytes // count // 2,
            read_cache_bytes=options.read_cache_bytes // count,
            read_ahead_entries=options.read_ahead_entries,
            read_ahead_bytes=options.read_ahead_bytes,
            metrics=parts.metrics(ledger_directory, index_directory),
        )
    except BaseException:
        for part in opened:
            part.close()
        raise
