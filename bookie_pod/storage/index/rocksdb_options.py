"""Options of the two RocksDB databases of a ledger directory.

Source: reference on-disk formats, section 8.4.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from rocksdict import BlockBasedOptions, Cache, ChecksumType, DBCompressionType, Options

from bookie_protocol.rocksdb import common_options

MIB = 1 << 20
KIB = 1 << 10


class Compression(Enum):
    """Block compression of a database."""

    NONE = "none"
    SNAPPY = "snappy"
    LZ4 = "lz4"


@dataclass(frozen=True, slots=True)
class RocksOptions:
    """What matters of RocksDB's options; the defaults are those of the `locations` database."""

    block_size: int = 64 * KIB
    """Bytes of an uncompressed data block (`dbStorage_rocksDB_blockSize`)."""
    block_cache_size: int = 32 * MIB
    """Bytes of the block cache, index and filter blocks included (`dbStorage_rocksDB_blockCacheSize`)."""
    bloom_bits_per_key: int = 10
    """0 for no filter (`dbStorage_rocksDB_bloomFilterBitsPerKey`)."""
    compression: Compression = Compression.LZ4
    """`dbStorage_rocksDB_lz4CompressionEnabled`; false stands for RocksDB's own default, SNAPPY."""
    write_buffer_size: int = 64 * MIB
    """Bytes of one memtable (`dbStorage_rocksDB_writeBufferSizeMB`)."""
    write_buffers: int = 4
    """Memtables at most."""
    sst_size: int = 64 * MIB
    """Target bytes of a table file (`dbStorage_rocksDB_sstSizeInMB`)."""
    level0_files: int = 4
    """Table files in level 0 that start a compaction (`dbStorage_rocksDB_numFilesInLevel0`)."""
    level1_size: int = 256 * MIB
    """Bytes of level 1 (`dbStorage_rocksDB_maxSizeInLevel1MB`)."""
    max_wal_size: int = 512 * MIB
    """Bytes of write-ahead log that force a memtable flush."""
    num_levels: int = -1
    """-1 for RocksDB's default (`dbStorage_rocksDB_numLevels`)."""
    format_version: int = 5
    """Of table files, 2 to 5 (`dbStorage_rocksDB_format_version`)."""
    checksum: str = "kxxHash"
    """Of blocks, one of `CHECKSUMS` (`dbStorage_rocksDB_checksum_type`)."""
    log_directory: str | None = None
    """Where RocksDB's own log goes; None: beside the data (`dbStorage_rocksDB_logPath`)."""
    background_jobs: int = 4
    """Flushes and compactions at a time. The reference uses 32; a pod has few cores."""


LEDGERS_DB = RocksOptions(
    block_size=4 * KIB,
    block_cache_size=8 * MIB,
    bloom_bits_per_key=0,
    compression=Compression.SNAPPY,
    write_buffers=2,
    background_jobs=2,
)
"""Options of the `ledgers` database."""

CHECKSUMS: dict[str, Callable[[], ChecksumType]] = {
    "kNoChecksum": ChecksumType.no_checksum,
    "kCRC32c": ChecksumType.crc32c,
    "kxxHash": ChecksumType.xxhash,
    "kxxHash64": ChecksumType.xxhash64,
    "kXXH3": ChecksumType.xxh3,
}
_COMPRESSION: dict[Compression, Callable[[], DBCompressionType]] = {
    Compression.NONE: DBCompressionType.none,
    Compression.SNAPPY: DBCompressionType.snappy,
    Compression.LZ4: DBCompressionType.lz4,
}


def build_options(options: RocksOptions) -> Options:
    """The binding's options: ours, and what never changes because the reference reads the files."""
    table = BlockBasedOptions()
    table.set_format_version(options.format_version)
    table.set_checksum_type(CHECKSUMS[options.checksum]())
    table.set_block_size(options.block_size)
    if options.block_cache_size > 0:
        table.set_block_cache(Cache(options.block_cache_size))
        table.set_cache_index_and_filter_blocks(True)
    else:
        table.disable_cache()
    if options.bloom_bits_per_key > 0:
        table.set_bloom_filter(options.bloom_bits_per_key, False)
    built = common_options()
    built.set_block_based_table_factory(table)
    built.set_compression_type(_COMPRESSION[options.compression]())
    built.set_write_buffer_size(options.write_buffer_size)
    built.set_max_write_buffer_number(options.write_buffers)
    built.set_target_file_size_base(options.sst_size)
    built.set_level_zero_file_num_compaction_trigger(options.level0_files)
    built.set_max_bytes_for_level_base(options.level1_size)
    built.set_level_compaction_dynamic_level_bytes(True)
    built.set_max_total_wal_size(options.max_wal_size)
    built.set_max_background_jobs(options.background_jobs)
    built.set_max_open_files(-1)
    if options.num_levels > 0:
        built.set_num_levels(options.num_levels)
    if options.log_directory is not None:
        built.set_db_log_dir(options.log_directory)
    built.set_keep_log_file_num(30)
    built.set_log_file_time_to_roll(24 * 60 * 60)
    return built
