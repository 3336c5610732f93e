"""Ledger storage: what all engines share, DbLedgerStorage, the other two engines, and checks of what is stored.

Frozen; any thread may read.

Sources: docs/internals/bookie-behaviour.md, sections 1.5, 1.6, 1.7 and 1.10; RocksDB options:
docs/internals/on-disk-formats.md, section 8.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from bookie_pod.config.keys import INT_MAX, LONG_MAX, MIB, key

MAX_LOG_SIZE = 1_073_741_824


class StorageEngine(Enum):
    """The storage engines, by the class names that Apache BookKeeper's configuration uses."""

    DB = "org.apache.bookkeeper.bookie.storage.ldb.DbLedgerStorage"
    SORTED = "org.apache.bookkeeper.bookie.SortedLedgerStorage"
    INTERLEAVED = "org.apache.bookkeeper.bookie.InterleavedLedgerStorage"


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerStorageConfig:
    """Ledger storage, common"""

    storage_class: str = key(
        "ledgerStorageClass", StorageEngine.DB.value, choices=tuple(e.value for e in StorageEngine)
    )
    """Storage engine. Apache BookKeeper's own default is SortedLedgerStorage: for directories that such a
    bookie wrote without this key, set it. Directories of another engine are refused at start-up, not
    converted."""
    sorted_enabled: bool = key("sortedLedgerStorageEnabled", True)
    """Older switch, still honoured: false turns SortedLedgerStorage into InterleavedLedgerStorage; without
    `ledgerStorageClass` it selects one of these two."""
    flush_interval_ms: int = key("flushInterval", 10_000, at_least=1, at_most=INT_MAX)
    """Time between checkpoints, in ms. Longer: fewer writes, longer replay after a crash. InterleavedLedgerStorage and
    SortedLedgerStorage make a checkpoint when an entry log is full instead, unless each ledger has its own; one that
    failed is repeated after this time."""
    flush_entry_log_bytes: int = key("flushEntrylogBytes", 0, at_least=0)
    """Sync an entry log (`fdatasync`) every this many bytes, so that the sync at a checkpoint is short. 0: off."""
    log_size_limit_bytes: int = key("logSizeLimit", MAX_LOG_SIZE, at_least=0, at_most=MAX_LOG_SIZE)
    """Size at which a new entry log begins, in bytes. The granularity at which compaction gives space back. On a small
    disk logs are smaller: at most half of what `diskUsageThreshold` keeps free, so that compaction finds room when the
    disk is full."""
    entry_log_preallocation: bool = key("entryLogFilePreallocationEnabled", True)
    """Create the next entry log in advance. Leaves empty `.log` files after a crash, which are harmless."""
    read_buffer_size_bytes: int = key("readBufferSizeBytes", 512, at_least=1, at_most=INT_MAX)
    """Minimum bytes that a read of a single entry asks an entry log for, before the entry's size is known; a
    larger entry takes a second read. A scan has buffers of its own."""
    write_buffer_size_bytes: int = key("writeBufferSizeBytes", 65_536, at_least=1, at_most=INT_MAX)
    """Write buffer of an entry log, in bytes. The direct-I/O logger (`dbStorage_directIOEntryLogger`) has one of 1 MiB
    instead."""
    entry_log_per_ledger: bool = key("entryLogPerLedgerEnabled", False)
    """One entry log per ledger (InterleavedLedgerStorage and SortedLedgerStorage). For few, large ledgers."""
    max_active_entry_logs: int = key("maximumNumberOfActiveEntryLogs", 500, at_least=1, at_most=INT_MAX)
    """Maximum number of open entry logs, with one log per ledger."""
    entry_log_map_expiry_seconds: int = key("entrylogMapAccessExpiryTimeInSeconds", 300, at_least=1, at_most=INT_MAX)
    """Seconds after which a log without writes is closed, with one log per ledger."""
    memtable_flush_threads: int = key("numOfMemtableFlushThreads", 8, at_least=1, at_most=4096)
    """Threads that flush the memtable of SortedLedgerStorage with one log per ledger."""

    @property
    def engine(self) -> StorageEngine:
        """The storage engine that `storage_class` names."""
        return StorageEngine(self.storage_class)

    @property
    def log_per_ledger(self) -> bool:
        """Return True if each ledger has its own entry log: a choice of two engines."""
        return self.entry_log_per_ledger and self.engine is not StorageEngine.DB


@dataclass(frozen=True, slots=True, kw_only=True)
class DbStorageConfig:
    """DbLedgerStorage"""

    write_cache_max_bytes: int = key(
        "dbStorage_writeCacheMaxSizeMb",
        256,
        unit=MIB,
        at_least=1,
        at_most=1_048_576,
        derived="25 % of `memoryBudgetMb`",
    )
    """Write cache in MiB, divided by the number of ledger directories; each part is split into two halves.
    A half must hold the largest entry."""
    flush_threshold_bytes: int = key(
        "writeCacheFlushThresholdMb", 16, unit=MIB, at_least=0, at_most=1_048_576, own=True
    )
    """MiB in the write cache, all ledger directories together, that begin a flush. What is beyond them up to
    `dbStorage_writeCacheMaxSizeMb` takes bursts and slow disks, so a bookie that keeps up uses little memory.
    More of it makes longer sorted runs in the entry logs, which helps readers of many ledgers at once on rotating
    disks. 0: flush only when half of the write cache is full, as Apache's bookie does."""
    read_cache_max_bytes: int = key(
        "dbStorage_readAheadCacheMaxSizeMb",
        256,
        unit=MIB,
        at_least=0,
        at_most=1_048_576,
        derived="25 % of `memoryBudgetMb`",
    )
    """Read cache in MiB, divided by the number of ledger directories. Up to half of it holds what was flushed last, for
    readers that are a little behind the writers; the rest, what was read from the entry logs, and ahead of readers."""
    read_ahead_batch_size: int = key("dbStorage_readAheadCacheBatchSize", 100, at_least=0, at_most=INT_MAX)
    """Entries that are read ahead of a reader that goes through a ledger, at most. 0: no read-ahead."""
    read_ahead_batch_bytes: int = key("dbStorage_readAheadCacheBatchBytesSize", -1, at_least=-1)
    """Bytes read ahead at most. -1: no limit of this kind."""
    max_throttle_time_ms: int = key("dbStorage_maxThrottleTimeMs", 10_000, at_least=0, at_most=INT_MAX)
    """Maximum time that an add waits for room in the write cache, of any engine, in ms, before the answer is
    TOO_MANY_REQUESTS."""
    direct_io_entry_logger: bool = key("dbStorage_directIOEntryLogger", True)
    """Write entry logs past the page cache, where the file system can: a flush costs less CPU time and evicts nothing
    that readers use. Reads still go through the page cache. False: what was flushed stays in the page cache for
    longer than in the read cache, which helps readers that lag by more than that. Apache's default is false; its
    bookies read both."""
    direct_io_write_buffer_mb: int = key(
        "dbStorage_directIOEntryLoggerTotalWriteBufferSizeMB",
        128,
        at_least=1,
        at_most=1_048_576,
        derived="12.5 % of `memoryBudgetMb`",
        no_effect=True,
    )
    """Write buffers of the direct-I/O logger, in MiB. Has no effect here: each open log has one of 1 MiB."""
    direct_io_total_read_buffer_mb: int = key(
        "dbStorage_directIOEntryLoggerTotalReadBufferSizeMB",
        128,
        at_least=1,
        at_most=1_048_576,
        derived="12.5 % of `memoryBudgetMb`",
        no_effect=True,
    )
    """Read buffers of the direct-I/O logger, in MiB. Has no effect here: reads go through the page cache."""
    direct_io_read_buffer_mb: int = key(
        "dbStorage_directIOEntryLoggerReadBufferSizeMB", 8, at_least=1, at_most=4096, no_effect=True
    )
    """One read buffer of the direct-I/O logger, in MiB. Has no effect here: reads go through the page cache."""
    direct_io_fd_cache_seconds: int = key(
        "dbStorage_directIOEntryLoggerMaxFdCacheTimeSeconds", 300, at_least=0, no_effect=True
    )
    """Seconds that the direct-I/O logger keeps an unused file open. Has no effect here: the number of open files
    is bounded instead."""
    max_operations_per_write_batch: int = key(
        "maxOperationNumbersInSingleRocksdbWriteBatch", 100_000, at_least=1, at_most=INT_MAX
    )
    """Index changes in one RocksDB write batch at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RocksDbConfig:
    """RocksDB of DbLedgerStorage"""

    block_size_bytes: int = key("dbStorage_rocksDB_blockSize", 65_536, at_least=1024, at_most=INT_MAX)
    """Block size of the location index, in bytes."""
    block_cache_size_bytes: int = key(
        "dbStorage_rocksDB_blockCacheSize",
        107_374_182,
        at_least=0,
        derived="10 % of `memoryBudgetMb` / number of ledger directories",
    )
    """Block cache of one directory's location index, in bytes."""
    write_buffer_size_bytes: int = key("dbStorage_rocksDB_writeBufferSizeMB", 16, unit=MIB, at_least=1, at_most=65_536)
    """One memtable of the location index, in MiB; there are up to four. Apache's default is 64: rows are small, and
    larger tables only take memory."""
    sst_size_bytes: int = key("dbStorage_rocksDB_sstSizeInMB", 64, unit=MIB, at_least=1, at_most=65_536)
    """Target size of a table file, in MiB."""
    bloom_filter_bits_per_key: int = key("dbStorage_rocksDB_bloomFilterBitsPerKey", 10, at_least=0, at_most=64)
    """Bits per key of the location index's Bloom filter. 0: no filter."""
    num_levels: int = key("dbStorage_rocksDB_numLevels", -1, at_least=-1, at_most=64)
    """Levels of the location index. -1: RocksDB's default."""
    files_in_level0: int = key("dbStorage_rocksDB_numFilesInLevel0", 4, at_least=1, at_most=1_000_000)
    """Files in level 0 that start a compaction."""
    max_size_in_level1_bytes: int = key(
        "dbStorage_rocksDB_maxSizeInLevel1MB", 256, unit=MIB, at_least=1, at_most=1_048_576
    )
    """Size of level 1, in MiB."""
    lz4_compression: bool = key("dbStorage_rocksDB_lz4CompressionEnabled", True)
    """Compress the location index with LZ4."""
    format_version: int = key("dbStorage_rocksDB_format_version", 5, at_least=2, at_most=5)
    """Table format of the location index. Apache BookKeeper reads up to 5."""
    checksum_type: str = key(
        "dbStorage_rocksDB_checksum_type",
        "kxxHash",
        choices=("kNoChecksum", "kCRC32c", "kxxHash", "kxxHash64", "kXXH3"),
    )
    """Block checksum of both databases. `kNoChecksum` lets damage go unseen."""
    log_level: str = key(
        "dbStorage_rocksDB_logLevel", "info", choices=("debug", "info", "warn", "error"), no_effect=True
    )
    """Level of RocksDB's own log. Has no effect here: it is always `info`."""
    log_path: str | None = key("dbStorage_rocksDB_logPath", None, derived="the database directory")
    """Directory of RocksDB's own log."""
    entry_location_conf: str | None = key("entryLocationRocksdbConf", None, no_effect=True)
    """RocksDB options file of the location index. Has no effect here: set the keys of this section."""
    ledger_metadata_conf: str | None = key("ledgerMetadataRocksdbConf", None, no_effect=True)
    """RocksDB options file of the ledger index. Has no effect here."""
    default_conf: str | None = key("defaultRocksdbConf", None, no_effect=True)
    """RocksDB options file of any other database. Has no effect here: there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SortedStorageConfig:
    """SortedLedgerStorage and InterleavedLedgerStorage"""

    skip_list_size_limit_bytes: int = key("skipListSizeLimit", 67_108_864, at_least=1, at_most=1_073_741_823)
    """Memtable of SortedLedgerStorage, in bytes; up to two exist at a time."""
    skip_list_arena_chunk_size_bytes: int = key(
        "skipListArenaChunkSize", 4_194_304, at_least=1, at_most=INT_MAX, no_effect=True
    )
    """Allocation step of the memtable, in bytes. Has no effect here: Python manages this memory."""
    skip_list_arena_max_alloc_bytes: int = key(
        "skipListArenaMaxAllocSize", 131_072, at_least=1, at_most=INT_MAX, no_effect=True
    )
    """Largest allocation from the memtable's arena, in bytes; must not exceed the step. Has no effect here."""
    page_size_bytes: int = key("pageSize", 8192, at_least=8, at_most=INT_MAX)
    """Index page in bytes; each entry takes 8. Must not change once index files exist."""
    page_limit: int = key("pageLimit", -1, at_least=-1, at_most=INT_MAX)
    """Index pages in memory at most. 0 and -1: a third of `memoryBudgetMb`."""
    open_file_limit: int = key("openFileLimit", 20_000, at_least=0, at_most=INT_MAX)
    """Index files open at the same time at most; keep it below the process's file limit. 0 is good for
    DbLedgerStorage only, which has no such files."""
    file_info_initial_capacity: int = key(
        "fileInfoCacheInitialCapacity",
        5000,
        at_least=1,
        at_most=INT_MAX,
        derived="a quarter of `openFileLimit`, at least 64",
        no_effect=True,
    )
    """Initial capacity of the table of open index files. Has no effect here: the table grows as it is used."""
    file_info_max_idle_seconds: int = key("fileInfoMaxIdleTime", 0, at_least=0, at_most=INT_MAX)
    """Seconds after which an unused index file is closed. 0: only `openFileLimit` closes files."""
    file_info_format_version: int = key("fileInfoFormatVersionToWrite", 1, at_least=0, at_most=1)
    """Format of new index files. 0 has no explicit LAC and goes together with a journal format below 6."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegrityConfig:
    """Integrity"""

    data_integrity_checking: bool = key("dataIntegrityChecking", False)
    """After an unclean shutdown compare what is stored with what metadata says, and fetch what is missing."""
    stamp_missing_cookies: bool = key("dataIntegrityStampMissingCookies", False)
    """If True, accept empty directories in place of lost ones and stamp them. Needs `dataIntegrityChecking`."""
    accept_earlier_disks: bool = key("acceptEarlierDisks", False, own=True)
    """If True, take directories that were set back to an earlier time for all that there is. Set it for the first start
    after the volumes of a whole cluster were restored: no open ledger can be closed while all bookies say that they may
    lack entries."""
    local_scrub_interval_s: int = key("localScrubInterval", 0, at_least=0, at_most=INT_MAX)
    """Time between scrubs of the local storage, in seconds. 0: never."""
    local_scrub_rate_limit: float = key("localScrubRateLimit", 60.0, at_least=0)
    """Entries that a scrub reads per second. 0: no limit."""
    local_scrub_rate_bytes: int = key("localScrubRateByBytes", 16_777_216, at_least=0, at_most=LONG_MAX, own=True)
    """Bytes that a scrub reads per second, whatever `localScrubRateLimit` allows. 0: no limit."""
    local_scrub_repair: bool = key("localScrubRepair", True, own=True)
    """After each scrub, and when a read found damage, fetch entries that are damaged here from other bookies."""
    index_rebuild_rate_bytes: int = key("indexRebuildRateByBytes", 33_554_432, at_least=0, at_most=LONG_MAX, own=True)
    """Bytes of entry logs that a rebuild of indexes reads per second while the bookie serves; a tenth of that while
    clients wait for the disks. 0: no limit."""
    consistency_check_on_startup: bool = key("localConsistencyCheckOnStartup", False)
    """Check the whole local storage before the bookie serves. Takes as long as reading every disk."""
