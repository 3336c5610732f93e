"""From the configuration to the options of the storage engines."""

from __future__ import annotations

from bookie_pod.config.load import load_config
from bookie_pod.node import options
from bookie_pod.storage.engines.detection import DEFAULT_ENGINE, INTERLEAVED_LEDGER_STORAGE, SORTED_LEDGER_STORAGE
from bookie_pod.storage.engines.registry import StorageSettings


def settings(**keys: str) -> StorageSettings:
    return options.storage_settings(load_config(environ={}, overrides={"memoryBudgetMb": "96", **keys}))


def test_the_engine_is_chosen_by_its_class_name_or_by_the_older_switch() -> None:
    assert settings().engine == DEFAULT_ENGINE
    assert settings(ledgerStorageClass=SORTED_LEDGER_STORAGE).engine == SORTED_LEDGER_STORAGE
    assert settings(sortedLedgerStorageEnabled="false").engine == INTERLEAVED_LEDGER_STORAGE
    both = {"ledgerStorageClass": SORTED_LEDGER_STORAGE, "sortedLedgerStorageEnabled": "false"}
    assert settings(**both).engine == INTERLEAVED_LEDGER_STORAGE


def test_keys_of_the_memtable_engines_reach_them() -> None:
    made = settings(
        ledgerStorageClass=SORTED_LEDGER_STORAGE,
        skipListSizeLimit="1000000",
        numOfMemtableFlushThreads="3",
        pageSize="4096",
        pageLimit="77",
        openFileLimit="55",
        fileInfoMaxIdleTime="9",
        minUsableSizeForIndexFileCreation="123",
        logSizeLimit="5000000",
        entryLogPerLedgerEnabled="true",
        indexDirectories="/x,/y,/z",
    )
    memtable = made.memtable
    assert (memtable.memtable_bytes, memtable.flush_threads) == (1_000_000, 3)
    cache = memtable.cache
    assert (cache.page_bytes, cache.page_limit, cache.open_files, cache.idle_seconds) == (4096, 77, 55, 9)
    assert (cache.version, cache.min_usable_bytes) == (1, 123)
    assert (memtable.entry_log.log_size_limit, memtable.entry_log.per_ledger) == (5_000_000, True)
    assert list(made.index_directories) == ["/x/current", "/y/current", "/z/current"]


def test_pages_take_a_third_of_the_memory_unless_told() -> None:
    assert settings().memtable.cache.page_limit == 32 * 1024 * 1024 // 8192
    assert settings(pageLimit="0").memtable.cache.page_limit == 32 * 1024 * 1024 // 8192


def test_keys_of_rocksdb_reach_the_databases() -> None:
    made = settings(
        dbStorage_rocksDB_numLevels="3",
        dbStorage_rocksDB_format_version="4",
        dbStorage_rocksDB_checksum_type="kCRC32c",
        dbStorage_rocksDB_logPath="/logs",
    ).db
    locations, ledgers = made.locations_db, made.ledgers_db
    assert (locations.num_levels, locations.format_version) == (3, 4)
    assert (locations.checksum, locations.log_directory) == ("kCRC32c", "/logs")
    assert (ledgers.checksum, ledgers.log_directory) == ("kCRC32c", "/logs")
    assert (ledgers.block_size, ledgers.format_version) == (4096, 5)


def test_logs_of_one_ledger_each_are_no_choice_of_the_default_engine() -> None:
    """A file that is shared may ask for them: the start names the key as one without effect."""
    assert not settings(entryLogPerLedgerEnabled="true").db.entry_log.per_ledger
