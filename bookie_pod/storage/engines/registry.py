"""The registry that opens a storage engine for a configuration.

`open_storage` looks at every directory before it opens or makes anything, so a refused start leaves the disks
as they were. If a later directory fails to open, the earlier ones are closed again.

Threads: the start of the bookie.

Source: docs/internals/on-disk-formats.md, sections 1, 8.1 and 14; docs/internals/bookie-behaviour.md, sections 1.11 and
13.7.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import structlog

from bookie_pod.config.model import BookieConfig
from bookie_pod.metrics.db_storage import DbStorageMetrics
from bookie_pod.metrics.memtable_storage import MemTableMetrics
from bookie_pod.metrics.registry import Registry
from bookie_pod.storage.engines.db import DbLedgerStorage
from bookie_pod.storage.engines.detection import (
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
from bookie_pod.storage.files import Files, storage_fault
from bookie_pod.storage.index.ledger_cache import LedgerCache
from bookie_pod.storage.index.ledgers import LedgerIndex
from bookie_pod.storage.index.locations import LocationIndex
from bookie_pod.storage.index.rocksdb_store import RocksStores
from bookie_pod.storage.index.seal import IndexSeal
from bookie_pod.storage.index.store import OrderedStore, StoreFactory, StoreKind
from bookie_protocol.errors import InvalidConfiguration, StorageFault

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class StorageParts:
    """The folders of an engine, and the parts of it that tests and the node may replace."""

    files: Files
    on_loop: OnLoop
    ledger_folders: Sequence[str]
    """The `current` folder of each ledger directory, in the order of the configuration."""
    index_folders: Sequence[str] = ()
    """The `current` folder of each index directory; empty: those of the ledger directories."""
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
    logger: Callable[[Files, LedgerDirs, BookieConfig], EntryLogger] = EntryLogger
    """Opens the entry logs of one or more ledger directories."""

    def pairs(self) -> list[tuple[str, str]]:
        """(ledger folder, index folder) one by one; `InvalidConfiguration` if they do not match."""
        index_folders = self.index_folders or self.ledger_folders
        if len(index_folders) != len(self.ledger_folders):
            raise InvalidConfiguration(
                f"indexDirectories has {len(index_folders)} and ledgerDirectories {len(self.ledger_folders)} "
                "directories: DbLedgerStorage needs as many of one as of the other"
            )
        return list(zip(self.ledger_folders, index_folders, strict=True))


def open_storage(config: BookieConfig, parts: StorageParts) -> LedgerStorage:
    """Open the configured engine.

    Raises `InvalidConfiguration`, `WrongStorageEngine`, or `StorageFault` if a file or database cannot be
    read.
    """
    engine = check_name(config.ledger_storage.storage_class)
    if not parts.ledger_folders:
        raise InvalidConfiguration("ledgerDirectories is empty: name at least one directory")
    stores = parts.stores or RocksStores(parts.files, config.rocksdb)
    if is_db(engine):
        for ledger_folder, index_folder in parts.pairs():
            check_engine(parts.files, stores, [ledger_folder], [index_folder], engine)
        return _open_db(config, parts, stores)
    index_folders = list(parts.index_folders or parts.ledger_folders)
    check_engine(parts.files, stores, parts.ledger_folders, index_folders, engine)
    return _open_memtable(config, parts, index_folders)


def _open_memtable(config: BookieConfig, parts: StorageParts, index_directories: Sequence[str]) -> LedgerStorage:
    """One storage over all directories."""
    name, memtable_bytes = config.ledger_storage.storage_class, config.sorted_storage.skip_list_size_limit_bytes
    try:
        for directory in parts.ledger_folders:
            parts.files.makedirs(directory)
        stamp_index(parts.files, index_directories)
    except OSError as error:
        raise storage_fault(f"cannot make directory {error.filename}", error) from error
    ledger_dirs = {directory: parts.ledger_dirs(directory) for directory in parts.ledger_folders}
    index_dirs = parts.index_dirs or (lambda directory: ledger_dirs.get(directory) or LedgerDirStates([directory]))
    metrics = parts.memtable_metrics()
    logs = parts.logger(parts.files, JoinedLedgerDirs(ledger_dirs.values()), config)
    try:
        cache = LedgerCache(
            parts.files,
            JoinedLedgerDirs(map(index_dirs, index_directories)),
            config,
            lambda: sync_for_index(logs),
            metrics,
        )
    except BaseException:
        logs.close()
        raise
    _log.info(
        "ledger storage opened",
        engine=short_name(name),
        ledgers=len(cache.records),
        open_file_limit=config.sorted_storage.open_file_limit,
        page_size_bytes=config.sorted_storage.page_size_bytes,
        page_limit=config.index_page_limit,
        memtable_bytes=memtable_bytes,
    )
    flags = StorageFlags(parts.files, index_directories[0])
    engine = InterleavedLedgerStorage if name == INTERLEAVED_LEDGER_STORAGE else SortedLedgerStorage
    return engine(
        logs,
        cache,
        parts.on_loop,
        metrics,
        flags=flags,
        folders=parts.ledger_folders,
        memtable_bytes=memtable_bytes,
        log_per_ledger=config.ledger_storage.log_per_ledger,
        flush_threads=config.ledger_storage.memtable_flush_threads,
    )


def _open_db(config: BookieConfig, parts: StorageParts, stores: StoreFactory) -> DbLedgerStorage:
    directories: list[SingleDirectoryStorage] = []
    try:
        for ledger_directory, index_directory in parts.pairs():
            directories.append(_open_directory(config, parts, stores, ledger_directory, index_directory))
    except BaseException:
        for directory in directories:
            directory.close()
        raise
    flush_bytes = config.db_storage.flush_threshold_bytes // len(directories)
    return DbLedgerStorage(directories, parts.on_loop, flush_bytes=flush_bytes)


def _open_directory(
    config: BookieConfig,
    parts: StorageParts,
    stores: StoreFactory,
    ledger_directory: str,
    index_directory: str,
) -> SingleDirectoryStorage:
    db, count = config.db_storage, len(parts.ledger_folders)
    opened: list[OrderedStore | EntryLogger] = []
    is_new = True
    try:
        parts.files.makedirs(index_directory)
        parts.files.makedirs(ledger_directory)
        databases: dict[StoreKind, OrderedStore] = {}
        for kind in StoreKind:
            databases[kind] = store = stores.open(f"{index_directory}/{kind.value}", kind)
            opened.append(store)
            is_new &= check_not_lost(parts.files, store, ledger_directory)
        seal = IndexSeal(parts.files, ledger_directory)
        if not seal.check(databases):
            _log.info("the index is not sealed yet: what it may have lost before is not known", index=index_directory)
        ledgers = LedgerIndex(databases[StoreKind.LEDGERS])
        logs = parts.logger(parts.files, parts.ledger_dirs(ledger_directory), config)
        opened.append(logs)
        _log.info("ledger directory opened", directory=ledger_directory, index=index_directory, ledgers=len(ledgers))
        directory = SingleDirectoryStorage(
            logs,
            LocationIndex(databases[StoreKind.LOCATIONS], db.max_operations_per_write_batch),
            ledgers,
            seal,
            parts.on_loop,
            half_bytes=db.write_cache_max_bytes // count // 2,
            read_cache_bytes=db.read_cache_max_bytes // count,
            read_ahead_entries=db.read_ahead_batch_size,
            read_ahead_bytes=db.read_ahead_batch_bytes,
            metrics=parts.metrics(ledger_directory, index_directory),
        )
        if is_new:
            with suppress(StorageFault):  # then the first checkpoint seals it
                directory.prove_index(0)
                directory.seal()
        return directory
    except BaseException:
        for part in opened:
            part.close()
        raise
