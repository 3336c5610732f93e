"""Settings of the engines, already converted from the configuration file's units."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from bookie_pod.storage.entry_log.options import EntryLogOptions
from bookie_pod.storage.index.ledger_cache import LedgerCacheOptions
from bookie_pod.storage.index.rocksdb_options import LEDGERS_DB, RocksOptions
from bookie_protocol.errors import InvalidConfiguration

MIB: Final = 1 << 20
MIN_HALF_BYTES: Final = 4096


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


MAX_MEMTABLE_BYTES: Final = (1 << 30) - 1
"""Largest `skipListSizeLimit` that the reference takes: twice as much has to fit into 31 bits."""


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
