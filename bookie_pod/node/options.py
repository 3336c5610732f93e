"""The options of each part, made from the configuration: the one place that knows both.

Pure functions; any thread.
"""

from __future__ import annotations

import os
from dataclasses import replace

from bookie_pod.config.keys import MIB
from bookie_pod.config.model import BookieConfig
from bookie_pod.node.identity.cookies import CURRENT_FOLDER, BookieDirectories
from bookie_pod.storage.engines.registry import DbStorageOptions, MemTableOptions, StorageSettings
from bookie_pod.storage.entry_log.options import EntryLogOptions
from bookie_pod.storage.index.ledger_cache.cache import LedgerCacheOptions, default_page_limit
from bookie_pod.storage.index.rocksdb_store import LEDGERS_DB, Compression, RocksOptions


def current_folders(directories: tuple[str, ...]) -> list[str]:
    """The `current` folder of each configured directory."""
    return [os.path.join(directory, CURRENT_FOLDER) for directory in directories]


def bookie_directories(config: BookieConfig) -> BookieDirectories:
    return BookieDirectories(config.directories.journal, config.directories.ledger, config.directories.index or None)


def storage_settings(config: BookieConfig) -> StorageSettings:
    db, common = config.db_storage, config.ledger_storage
    return StorageSettings(
        ledger_directories=current_folders(config.directories.ledger),
        index_directories=current_folders(config.directories.index),
        engine=common.storage_class,
        memtable=_memtable_options(config),
        db=DbStorageOptions(
            write_cache_bytes=db.write_cache_max_bytes,
            flush_bytes=db.flush_threshold_mb * MIB,
            read_cache_bytes=db.read_cache_max_bytes,
            read_ahead_entries=db.read_ahead_batch_size,
            read_ahead_bytes=db.read_ahead_batch_bytes,
            max_rows_per_batch=db.max_operations_per_write_batch,
            locations_db=_locations_db(config),
            ledgers_db=replace(
                LEDGERS_DB, checksum=config.rocksdb.checksum_type, log_directory=config.rocksdb.log_path
            ),
            entry_log=_entry_log_options(config),
        ),
    )


def _locations_db(config: BookieConfig) -> RocksOptions:
    rocksdb = config.rocksdb
    return RocksOptions(
        block_size=rocksdb.block_size_bytes,
        block_cache_size=rocksdb.block_cache_size_bytes,
        bloom_bits_per_key=rocksdb.bloom_filter_bits_per_key,
        compression=Compression.LZ4 if rocksdb.lz4_compression else Compression.NONE,
        write_buffer_size=rocksdb.write_buffer_size_mb * MIB,
        sst_size=rocksdb.sst_size_mb * MIB,
        level0_files=rocksdb.files_in_level0,
        level1_size=rocksdb.max_size_in_level1_mb * MIB,
        num_levels=rocksdb.num_levels,
        format_version=rocksdb.format_version,
        checksum=rocksdb.checksum_type,
        log_directory=rocksdb.log_path,
    )


def _memtable_options(config: BookieConfig) -> MemTableOptions:
    own = config.sorted_storage
    limit = own.page_limit
    return MemTableOptions(
        memtable_bytes=own.skip_list_size_limit_bytes,
        flush_threads=config.ledger_storage.memtable_flush_threads,
        cache=LedgerCacheOptions(
            page_bytes=own.page_size_bytes,
            page_limit=default_page_limit(config.memory.budget_bytes, own.page_size_bytes) if limit <= 0 else limit,
            open_files=max(1, own.open_file_limit),  # 0 is checked against the engine when the configuration is read
            idle_seconds=own.file_info_max_idle_seconds,
            version=own.file_info_format_version,
            min_usable_bytes=config.disks.min_usable_for_index_file_bytes,
        ),
        entry_log=replace(
            _entry_log_options(config),
            direct_io=False,  # a choice of DbLedgerStorage
            isolates=config.disks.isolate_failed_ledger_directories and len(config.directories.ledger) > 1,
        ),
    )


def _entry_log_options(config: BookieConfig) -> EntryLogOptions:
    common = config.ledger_storage
    return EntryLogOptions(
        log_size_limit=common.log_size_limit_bytes,
        write_buffer_bytes=common.write_buffer_size_bytes,
        read_buffer_bytes=common.read_buffer_size_bytes,
        flush_interval_bytes=common.flush_entry_log_bytes,
        preallocate=common.entry_log_preallocation,
        min_usable_bytes=config.disks.min_usable_for_entry_log_bytes,
        usable_bytes_after_compaction=config.disks.min_usable_after_compaction_bytes,
        full_share=config.disks.usage_threshold,
        # Clients leave 500 bytes of a frame to its head, but the binary protocol needs 28 only, and every
        # entry that was acknowledged has to be readable.
        max_entry_bytes=config.network.max_frame_size_bytes,
        per_ledger=common.log_per_ledger,
        max_active_logs=common.max_active_entry_logs,
        active_log_idle_seconds=common.entry_log_map_expiry_seconds,
        direct_io=config.db_storage.direct_io_entry_logger,
    )
