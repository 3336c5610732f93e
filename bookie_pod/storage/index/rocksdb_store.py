"""`OrderedStore` on RocksDB, in the format that Apache BookKeeper's RocksDB 7.10 reads and writes.

Invariants
- Default column family, bytewise order, raw byte strings, table format version 5, xxHash checksums, LZ4 or
  Snappy.
- A torn record at the tail of the write-ahead log is dropped at open (nothing synced can be there); any other
  damage in it fails the open. RocksDB's own default would drop everything behind the damage without a word,
  and the rows lost would read as "no such entry".
- The library leaves a small `rocksdict-config.json` in the directory; RocksDB ignores files that it does not
  know.

The binding holds the interpreter lock during `write`, a `get` of one key, and `seek`, but releases it during
a `get` of a list, `flush` and `flush_wal`. Hence: look-ups are lists of one, writes are small and never
synced by themselves, and `flush_wal` does the waiting for the disk.

Source: reference on-disk formats, sections 8.1 and 8.4.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from rocksdict import (
    BlockBasedOptions,
    Cache,
    ChecksumType,
    DBCompressionType,
    DBRecoveryMode,
    Options,
    Rdict,
    RdictIter,
    WriteBatch,
    WriteOptions,
)

from bookie_pod.storage.files import Files
from bookie_pod.storage.index.store import OrderedStore, StoreKind
from bookie_protocol.errors import StorageFault

MIB = 1 << 20
KIB = 1 << 10

_T = TypeVar("_T")


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
    """`dbStorage_rocksDB_lz4CompressionEnabled`."""
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

_COMPRESSION: dict[Compression, Callable[[], DBCompressionType]] = {
    Compression.NONE: DBCompressionType.none,
    Compression.SNAPPY: DBCompressionType.snappy,
    Compression.LZ4: DBCompressionType.lz4,
}


def _build(options: RocksOptions) -> Options:
    table = BlockBasedOptions()
    table.set_format_version(5)
    table.set_checksum_type(ChecksumType.xxhash())
    table.set_block_size(options.block_size)
    table.set_block_cache(Cache(options.block_cache_size))
    table.set_cache_index_and_filter_blocks(True)
    if options.bloom_bits_per_key > 0:
        table.set_bloom_filter(options.bloom_bits_per_key, False)
    built = Options(raw_mode=True)
    built.create_if_missing(True)
    built.set_paranoid_checks(True)
    built.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
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
    built.set_keep_log_file_num(30)
    built.set_log_file_time_to_roll(24 * 60 * 60)
    return built


class RocksBatch:
    """Operations for one write to a `RocksStore`."""

    __slots__ = ("_store", "raw")

    def __init__(self, store: RocksStore) -> None:
        self.raw = WriteBatch(raw_mode=True)
        self._store = store

    def __len__(self) -> int:
        return len(self.raw)

    def put(self, key: bytes, value: bytes) -> None:
        self.raw.put(key, value)

    def put_many(self, keys: Iterable[bytes], values: Iterable[bytes]) -> None:
        deque(map(self.raw.put, keys, values), maxlen=0)

    def delete(self, key: bytes) -> None:
        self.raw.delete(key)

    def delete_range(self, begin: bytes, end: bytes) -> None:
        self.raw.delete_range(begin, end)

    def commit(self, *, sync: bool = True) -> None:
        self._store.write(self.raw, sync=sync)


class RocksStore:
    """One RocksDB database. See `OrderedStore` for what each method promises."""

    def __init__(self, path: str, options: RocksOptions | None = None) -> None:
        self._path = path
        self._db = self._call("open", lambda: Rdict(path, _build(options or RocksOptions())))
        self._unsynced = WriteOptions()
        self._closed = False

    @property
    def path(self) -> str:
        return self._path

    def _call(self, what: str, operation: Callable[[], _T]) -> _T:
        try:
            return operation()
        except Exception as error:  # the binding raises bare Exception for every RocksDB status
            raise StorageFault(f"RocksDB in {self._path}: {what} failed: {error}") from error

    def get(self, key: bytes) -> bytes | None:
        values = self._call("get", lambda: self._db.get([key]))
        value = values[0] if values is not None else None
        return bytes(value) if value is not None else None

    def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        def seek() -> tuple[bytes, bytes] | None:
            rows = self._db.iter()
            rows.seek_for_prev(key)
            if rows.valid():
                return bytes(rows.key()), bytes(rows.value())
            rows.status()  # raises if it was a fault that ended the search
            return None

        return self._call("seek", seek)

    def scan(self, begin: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        rows = self._call("iterate", self._db.iter)
        self._call("seek", lambda: rows.seek(begin))
        return self._walk(rows, end)

    def _walk(self, rows: RdictIter, end: bytes | None) -> Iterator[tuple[bytes, bytes]]:
        # Compared here: an upper bound in the binding's ReadOptions cut rows off (its memory does not live long
        # enough).
        valid, key_of, value_of, advance = rows.valid, rows.key, rows.value, rows.next
        try:
            while valid():
                key = key_of()
                if end is not None and key >= end:
                    return
                yield key, value_of()
                advance()
            rows.status()  # raises if it was a fault that ended the walk
        except Exception as error:
            raise StorageFault(f"RocksDB in {self._path}: iteration failed: {error}") from error

    def batch(self) -> RocksBatch:
        return RocksBatch(self)

    def write(self, batch: WriteBatch, *, sync: bool) -> None:
        """Apply a batch of the binding. The wait for the disk, if any, is in `sync`, which frees the
        interpreter."""
        if not batch.is_empty():
            self._call("write", lambda: self._db.write(batch, self._unsynced))
        if sync:
            self.sync()

    def sync(self) -> None:
        self._call("sync of the write-ahead log", lambda: self._db.flush_wal(True))

    def was_written(self) -> bool:
        return self._call("sequence number", self._db.latest_sequence_number) > 0

    def estimated_count(self) -> int:
        count = self._call("property", lambda: self._db.property_int_value("rocksdb.estimate-num-keys"))
        return count or 0

    def compact(self) -> None:
        self._call("compaction", lambda: self._db.compact_range(None, None))

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._call("close", self._db.close)


class RocksStores:
    """`StoreFactory` of RocksDB databases."""

    def __init__(self, files: Files, locations: RocksOptions | None = None, ledgers: RocksOptions = LEDGERS_DB) -> None:
        self._files = files
        self._options = {StoreKind.LOCATIONS: locations or RocksOptions(), StoreKind.LEDGERS: ledgers}

    def exists(self, path: str) -> bool:
        return self._files.exists(f"{path}/CURRENT")

    def open(self, path: str, kind: StoreKind) -> OrderedStore:
        return RocksStore(path, self._options[kind])
