"""`OrderedStore` on RocksDB, in the format that Apache BookKeeper's RocksDB 7.10 reads and writes.

Invariants
- Default column family, bytewise order, raw byte strings, table format version 5, xxHash checksums, LZ4 or
  Snappy.
- What was synced is there, or the database does not open (`bookie_protocol.rocksdb`); of the end of the log in use the
  `seal` tells.
- RocksDB takes an end of its manifest that it cannot read for a crash, and opens without the tables that were named
  there, but with the log behind them. So each memory table begins with a row that has its number, and
  `has_all_tables` looks whether one is missing. What is in front of such a row is durable before it is written.
- These rows have keys of a negative ledger id: Apache BookKeeper skips them in `ledgers`, and asks `locations` only for
  entries of ledgers that it knows. Its own tables have none.
- The library leaves a small `rocksdict-config.json` in the directory; RocksDB ignores files that it does not
  know.

The binding holds the interpreter lock during `write`, a `get` of one key, `seek` and opening, but releases it during a
`get` of a list, `flush`, `flush_wal`, `compact_range` and `close`. Hence: look-ups are lists, of one if need be, and a
write goes to memory only. Before it `_make_way`, without the lock, empties the buffer of the write-ahead log, begins
another memory table while there is room in this one, and waits while RocksDB stalls. So a disk that holds up writing
holds up its writer alone.

What that does not cover: a disk that holds up a read of `floor` or `scan`, which seek, or the opening. Writers seek
once after each opening, for the number of the last memory table.

Source: docs/internals/on-disk-formats.md, sections 8.1 and 8.4.
"""

from __future__ import annotations

import contextlib
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final, TypeVar

from rocksdict import (
    BlockBasedOptions,
    Cache,
    ChecksumType,
    DBCompressionType,
    Options,
    Rdict,
    WriteBatch,
    WriteOptions,
)

from bookie_pod.config.keys import MIB
from bookie_pod.config.sections.ledger_storage import RocksDbConfig
from bookie_pod.storage.files import Files, storage_fault, storage_fault_of_library
from bookie_pod.storage.index.store import OrderedStore, StoreKind
from bookie_protocol.errors import StorageFault
from bookie_protocol.rocksdb import common_options

KIB = 1 << 10
IDENTITY_FILE = "IDENTITY"
SCAN_CHUNK = 1024
"""Rows that a scan takes at once. An iterator lives no longer than that: it would keep the database from reopening."""
WAL_FLUSH_BYTES = 1 << 20
"""Bytes of the write-ahead log that may wait in its buffer, besides the last batch."""
STALL_PAUSE = 0.01
REOPEN_TRIES, REOPEN_PAUSE = 100, 0.02
"""The number of tries, and the seconds between them.

A reopening uses them to get the lock of the closed database, and a closing to wait for look-ups under way.
"""

_TABLE: Final = struct.Struct(">qQ")
_TABLES: Final = -0xEEFF
_LAST_TABLE: Final = (1 << 64) - 1

_T = TypeVar("_T")
CHECKSUMS: dict[str, Callable[[], ChecksumType]] = {
    "kNoChecksum": ChecksumType.no_checksum,
    "kCRC32c": ChecksumType.crc32c,
    "kxxHash": ChecksumType.xxhash,
    "kxxHash64": ChecksumType.xxhash64,
    "kXXH3": ChecksumType.xxh3,
}


_LEDGERS_DB: Final[Mapping[str, Any]] = {
    "block_size_bytes": 4 * KIB,
    "block_cache_size_bytes": 8 * MIB,
    "bloom_filter_bits_per_key": 0,
    "write_buffer_size_bytes": 64 * MIB,
    "sst_size_bytes": 64 * MIB,
    "files_in_level0": 4,
    "max_size_in_level1_bytes": 256 * MIB,
    "num_levels": -1,
    "format_version": 5,
}
"""The options of the `ledgers` database, whose rows are few. The keys are about `locations`."""
_WRITE_BUFFERS: Final = {StoreKind.LOCATIONS: 4, StoreKind.LEDGERS: 2}
"""Memory tables at most."""
_BACKGROUND_JOBS: Final = {StoreKind.LOCATIONS: 4, StoreKind.LEDGERS: 2}
"""Flushes and compactions at a time. Apache's bookie has 32; a pod has few cores."""
_MAX_WAL_BYTES: Final = 512 * MIB
"""Bytes of write-ahead log that force a flush of a memory table."""


def build_options(config: RocksDbConfig, kind: StoreKind) -> Options:
    """The binding's options of a database: what is configured, and what never changes because Apache's bookie reads the
    files."""
    table = BlockBasedOptions()
    table.set_format_version(config.format_version)
    table.set_checksum_type(CHECKSUMS[config.checksum_type]())
    table.set_block_size(config.block_size_bytes)
    if config.block_cache_size_bytes > 0:
        table.set_block_cache(Cache(config.block_cache_size_bytes))
        table.set_cache_index_and_filter_blocks(True)
    else:
        table.disable_cache()
    if config.bloom_filter_bits_per_key > 0:
        table.set_bloom_filter(config.bloom_filter_bits_per_key, False)
    built = common_options()
    built.set_block_based_table_factory(table)
    built.set_compression_type(_compression(config, kind))
    built.set_write_buffer_size(config.write_buffer_size_bytes)
    built.set_max_write_buffer_number(_WRITE_BUFFERS[kind])
    built.set_target_file_size_base(config.sst_size_bytes)
    built.set_level_zero_file_num_compaction_trigger(config.files_in_level0)
    built.set_max_bytes_for_level_base(config.max_size_in_level1_bytes)
    built.set_level_compaction_dynamic_level_bytes(True)
    built.set_max_total_wal_size(_MAX_WAL_BYTES)
    built.set_max_background_jobs(_BACKGROUND_JOBS[kind])
    built.set_max_open_files(-1)
    if config.num_levels > 0:
        built.set_num_levels(config.num_levels)
    if config.log_path is not None:
        built.set_db_log_dir(config.log_path)
    built.set_keep_log_file_num(30)
    built.set_log_file_time_to_roll(24 * 60 * 60)
    return built


def _compression(config: RocksDbConfig, kind: StoreKind) -> DBCompressionType:
    if kind is StoreKind.LEDGERS:
        return DBCompressionType.snappy()
    return DBCompressionType.lz4() if config.lz4_compression else DBCompressionType.none()


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
    """One RocksDB database. See `OrderedStore` for what each method promises.

    After a failed write RocksDB refuses every later one, also when the disk has room again. So the next write closes
    the database and opens it again, once the disk has enough room for what opening writes; look-ups that meet the gap
    wait for it and are repeated.
    """

    def __init__(
        self,
        path: str,
        config: RocksDbConfig | None = None,
        usable: Callable[[], int] = lambda: 1 << 62,
        read_identity: Callable[[], bytes] = lambda: b"",
        *,
        kind: StoreKind = StoreKind.LOCATIONS,
    ) -> None:
        """`usable` gives the bytes that may still be written to the disk of `path`, `read_identity` the content of the
        file that RocksDB makes with a new database; asked once it is open."""
        self._path = path
        config = config or RocksDbConfig()
        self._config = replace(config, **_LEDGERS_DB) if kind is StoreKind.LEDGERS else config
        self._kind = kind
        self._usable = usable
        self._db: Rdict | None = self._open()
        try:
            self._identity = read_identity()
        except OSError as error:
            self._db.close()
            raise self._fault("reading the identity", error) from error
        self._unsynced = WriteOptions()
        self._buffered = 0
        """Bytes of batches since the buffer of the write-ahead log was empty."""
        self._last_table: int | None = None
        """The number of the memory table that began last, 0 if there was none; None: to be looked for."""
        self._write_failed = False
        self._reopening = threading.Lock()
        self._closed = False

    @property
    def path(self) -> str:
        return self._path

    def identity(self) -> bytes:
        return self._identity  # as it was opened: by now another database may be in its place

    def _open(self) -> Rdict:
        try:
            return Rdict(self._path, build_options(self._config, self._kind))
        except Exception as error:  # the binding raises bare Exception for every RocksDB status
            raise self._fault("open", error) from error

    def _fault(self, what: str, error: Exception | str) -> StorageFault:
        return storage_fault_of_library(f"RocksDB in {self._path}: {what} failed", error)

    def _call(self, what: str, operation: Callable[[Rdict], _T]) -> _T:
        """Run an operation that changes nothing; again, as often as the database was reopened under it."""
        db = self._db
        while True:
            try:
                if db is not None:
                    return operation(db)
                error: Exception | str = "the database is closed"
            except Exception as caught:
                error = caught
            with self._reopening:
                again = self._db
            if again is None or again is db:
                raise self._fault(what, error) from (error if isinstance(error, Exception) else None)
            db = again

    # --- look-ups -------------------------------------------------------------------------------------------

    def get(self, key: bytes) -> bytes | None:
        return self.get_each([key])[0]

    def get_each(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        # Exactly a list: it is what makes the binding let go of the interpreter.
        values = self._call("get", lambda db: db.get(list(keys)))
        if values is None:
            return [None] * len(keys)
        return [None if value is None else bytes(value) for value in values]

    def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        return self._call("seek", lambda db: _floor(db, key))

    def scan(self, begin: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        while True:
            rows = self._call("iteration", partial(_read_chunk, begin=begin, end=end))
            yield from rows
            if len(rows) < SCAN_CHUNK:
                return
            begin = rows[-1][0] + b"\0"

    def has_all_tables(self) -> bool:
        numbers = [_TABLE.unpack(key)[1] for key, _ in self.scan(_table_key(0), _table_key(_LAST_TABLE))]
        return not numbers or len(numbers) == numbers[-1]

    def was_written(self) -> bool:
        return self._call("sequence number", lambda db: db.latest_sequence_number()) > 0

    def estimated_count(self) -> int:
        return self._call("property", lambda db: db.property_int_value("rocksdb.estimate-num-keys")) or 0

    # --- writing --------------------------------------------------------------------------------------------

    def batch(self) -> RocksBatch:
        return RocksBatch(self)

    def write(self, batch: WriteBatch, *, sync: bool) -> None:
        """Apply a batch of the binding."""
        if not batch.is_empty():
            size = batch.size_in_bytes()
            self._change("write", lambda db: self._make_way(db, size))
            self._change("write", lambda db: db.write(batch, self._unsynced))
        if sync:
            self.sync()

    def _make_way(self, db: Rdict, size: int) -> None:
        """See to it that a batch of this size has to wait for nothing."""
        if self._buffered + size > WAL_FLUSH_BYTES:
            db.flush_wal(False)
            self._buffered = 0
        self._buffered += size
        in_use = db.property_int_value("rocksdb.cur-size-active-mem-table") or 0
        if in_use + 4 * size > self._config.write_buffer_size_bytes * 3 // 4:
            db.flush(False)
        if not db.property_int_value("rocksdb.num-entries-active-mem-table"):
            self._begin_table(db)
        while db.property_int_value("rocksdb.is-write-stopped"):
            if self._closed or db.property_int_value("rocksdb.background-errors"):
                return  # it may be stopped for good then, and the write tells why
            time.sleep(STALL_PAUSE)

    def _begin_table(self, db: Rdict) -> None:
        db.flush_wal(True)
        if self._last_table is None:
            last = _floor(db, _table_key(_LAST_TABLE))
            self._last_table = _TABLE.unpack(last[0])[1] if last is not None and last[0] >= _table_key(0) else 0
        batch = WriteBatch(raw_mode=True)
        batch.put(_table_key(self._last_table + 1), b"")
        db.write(batch, self._unsynced)
        self._last_table += 1

    def sync(self) -> None:
        self._change("sync of the write-ahead log", lambda db: db.flush_wal(True))
        self._buffered = 0

    def _change(self, what: str, operation: Callable[[Rdict], None]) -> None:
        if self._write_failed or self._db is None:
            self._reopen(what)
        assert self._db is not None
        try:
            operation(self._db)
        except Exception as error:
            self._write_failed = True
            raise self._fault(what, error) from error

    def _reopen(self, what: str) -> None:
        """Close and open the database after a failed write. The writer repeats its write, so nothing is missed."""
        if self._closed:
            raise self._fault(what, "the database is closed")
        try:
            usable = self._usable()
        except OSError as error:
            raise self._fault(what, error) from error
        if usable < 2 * self._config.write_buffer_size_bytes:
            raise self._fault(what, "an earlier write failed, and the disk has no room to recover; free some")
        with self._reopening:
            db, self._db = self._db, None
            if db is not None:
                with contextlib.suppress(Exception):  # it repeats the error of the failed write
                    db.close()
                del db
            self._db = self._open_when_free()
            self._buffered = 0
            self._last_table = None  # what failed may have come through
            self._write_failed = False

    def _open_when_free(self) -> Rdict:
        """Open as soon as look-ups on other threads have let go of the closed database, or fail after a while."""
        for _ in range(REOPEN_TRIES):
            try:
                return self._open()
            except StorageFault as fault:
                if "lock hold by current process" not in str(fault):
                    raise
                time.sleep(REOPEN_PAUSE)
        return self._open()

    def compact(self) -> None:
        self._call("compaction", lambda db: db.compact_range(None, None))

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        db, self._db = self._db, None  # new look-ups are refused; those under way are waited for
        if db is None:
            return
        for left in range(REOPEN_TRIES, 0, -1):
            try:
                db.close()
                return
            except Exception as error:
                if left > 1 and "borrowed" in str(error):
                    time.sleep(REOPEN_PAUSE)
                elif self._write_failed:
                    return  # it was reported when it happened
                else:
                    raise self._fault("close", error) from error


def _table_key(number: int) -> bytes:
    return _TABLE.pack(_TABLES, number)


def _floor(db: Rdict, key: bytes) -> tuple[bytes, bytes] | None:
    rows = db.iter()
    rows.seek_for_prev(key)
    if rows.valid():
        return bytes(rows.key()), bytes(rows.value())
    rows.status()  # raises if it was a fault that ended the search
    return None


def _read_chunk(db: Rdict, begin: bytes, end: bytes | None) -> list[tuple[bytes, bytes]]:
    # The end is compared here: with an upper bound in the binding's ReadOptions rows were missing.
    iterator = db.iter()
    iterator.seek(begin)
    valid, key_of, value_of, advance = iterator.valid, iterator.key, iterator.value, iterator.next
    rows: list[tuple[bytes, bytes]] = []
    while valid():
        key = key_of()
        if end is not None and key >= end:
            return rows
        rows.append((key, value_of()))
        if len(rows) == SCAN_CHUNK:
            return rows
        advance()
    iterator.status()  # raises if it was a fault that ended the walk
    return rows


class RocksStores:
    """`StoreFactory` of RocksDB databases."""

    def __init__(self, files: Files, config: RocksDbConfig | None = None) -> None:
        self._files = files
        self._config = config

    def exists(self, path: str) -> bool:
        try:
            return self._files.exists(f"{path}/CURRENT")
        except OSError as error:
            raise storage_fault(f"cannot look into {path}", error) from error

    def open(self, path: str, kind: StoreKind) -> OrderedStore:
        parent = path.rpartition("/")[0]
        return RocksStore(
            path,
            self._config,
            lambda: self._files.usage(parent).usable,
            lambda: self._files.read_bytes(f"{path}/{IDENTITY_FILE}"),
            kind=kind,
        )
