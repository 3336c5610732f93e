"""`InterleavedLedgerStorage` and `SortedLedgerStorage`, each with one memtable.

All directories share the memtable, one set of entry logs and one ledger cache.

Stamps. A stamp is the marks of the journals at the moment when a map was frozen: everything below was put before, so it
is in that map or in an older one. `_drained_stamp`: everything below is in entry logs and ledger cache.
`_rotated_stamp`: everything below is in rotated logs; a checkpoint is requested with this stamp.

Invariants
- Maps are drained by the storage thread, one after another; the next is frozen only when the one before is drained. A
  drain that failed goes on with the same map.
- A checkpoint is, in this order: memtable drained as far as the marks need it; index pages and headers of all ledgers;
  entry logs; the seal of the index files. Any failure fails the whole.
- After a failed sync of an entry log every flush and checkpoint raises `StorageFailed`: the bookie has to stop. Where
  directories are isolated, the sync counts as a failed write of its directory.
- A directory whose writes fail again and again is given up. Its logs and index files are read as far as that goes; new
  logs, and the index files of its ledgers, are made in others. Every flush and checkpoint raises from then on.

Threads: see `LedgerStorage`; drains on the storage thread, checkpoints on the thread of their caller, one at a time.
Readers may write index pages, when the ledger cache has no clean page left.

Source: docs/internals/bookie-behaviour.md, sections 4 and 13.1; docs/internals/on-disk-formats.md, sections 4.4 and 13.
"""

from __future__ import annotations

import struct
import threading
import time
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from typing import ClassVar, Final

import google_crc32c
import structlog

from bookie_pod.metrics.memtable_storage import MemTableMetrics
from bookie_pod.storage.engines.interface import (
    FLUSH_TRIES,
    Checkpointer,
    DirectoryGivenUp,
    ListenedStorage,
    OnLoop,
    each_alone,
)
from bookie_pod.storage.engines.memtable_flush import BackgroundFlush, Drain, checked
from bookie_pod.storage.engines.memtable_reads import MemTableReads
from bookie_pod.storage.entry_log.logger import EntryLogger
from bookie_pod.storage.files import Files, storage_fault
from bookie_pod.storage.index.ledger_cache import LedgerCache
from bookie_pod.storage.index.ledger_data import FirstLogs, LedgerRecord, LedgerRecords
from bookie_pod.storage.index.ledgers import NEEDS_INTEGRITY_CHECK, checked_flags
from bookie_pod.storage.journal.marks import LogMark
from bookie_pod.storage.write_cache import EntryMemTable
from bookie_protocol.errors import DirectoryFault, StorageFault

STORAGE_FLAGS: Final = "storage-flags"
_FLAGS: Final = struct.Struct(">q")
_CRC: Final = struct.Struct(">I")
Stamp = tuple[LogMark, ...]

GATHER_SECONDS: Final = 0.05

_log = structlog.get_logger(__name__)


class StorageFlags:
    """The storage flags of these engines: `storage-flags` in the `current` folder of the first index directory.

        8 bytes  the flags, i64, big-endian, as DbLedgerStorage has them in its `ledgers` database
        4 bytes  CRC32C of these

    The reference keeps flags with DbLedgerStorage only, and looks at no file of this name. A file that is missing
    stands for no flag; one that is damaged for `NEEDS_INTEGRITY_CHECK`: a check too many harms nothing.

    Threads: any one at a time.
    """

    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self._path = f"{folder}/{STORAGE_FLAGS}"

    def read(self) -> int:
        """`StorageFault`: the file cannot be read, or holds a flag of a newer release."""
        try:
            data = self._files.read_bytes(self._path)
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise storage_fault(f"cannot read {self._path}", error) from error
        flags, crc = data[: _FLAGS.size], data[_FLAGS.size :]
        if len(flags) < _FLAGS.size or crc != _CRC.pack(google_crc32c.value(flags)):
            _log.warning("the storage flags are damaged: what the bookie holds will be checked", path=self._path)
            return NEEDS_INTEGRITY_CHECK
        return checked_flags(flags, self._path)

    def write(self, flags: int) -> None:
        """Durable on return. `StorageFault`."""
        data = _FLAGS.pack(flags)
        try:
            self._files.write_bytes_atomic(self._path, data + _CRC.pack(google_crc32c.value(data)))
        except OSError as error:
            raise storage_fault(f"cannot write {self._path}", error) from error


class MemTableStorage(ListenedStorage):
    """The part of `LedgerStorage` that does not depend on when the memtable is drained."""

    def __init__(
        self,
        logs: EntryLogger,
        cache: LedgerCache,
        on_loop: OnLoop,
        metrics: MemTableMetrics,
        *,
        flags: StorageFlags,
        folders: Sequence[str],
        memtable_bytes: int,
        log_per_ledger: bool,
        flush_threads: int,
    ) -> None:
        """`folders` are the ledger directories, in the order of the configuration. `memtable_bytes`: what adds may be
        ahead of the entry log, twice as much while a drain is running. `flush_threads` > 1 drains ledgers in parallel,
        where each has its log."""
        super().__init__(on_loop)
        self._folders = list(folders)
        self._failed_flushes: Counter[str] = Counter()
        """The number of consecutive failed flushes, by the directory that failed them."""
        self._failures: dict[str, StorageFault] = {}
        """Directories that have failed, and why."""
        self._given_up: set[str] = set()
        self._on_directory_failure: Callable[[int, StorageFault], None] = lambda index, failure: None
        self._flags = flags
        self.logs = logs
        self.cache = cache
        cache.records.name_logs(
            FirstLogs(logs.first_log_of_new_ledgers, lambda: logs.newest_log_id, logs.later_processes_begin_at)
        )
        cache.compare_logs(logs.has_foreign, logs.later_logs_begin_at)
        self.memtable = EntryMemTable(memtable_bytes)
        self.checkpoints_by_interval = log_per_ledger
        """True with one log per ledger: no rotation is certain then. Else a rotation asks for a checkpoint."""
        self.max_entry_id = cache.max_entry_id
        self.write_caches = 1
        self._metrics = metrics
        self._log_per_ledger = log_per_ledger
        self._reads = MemTableReads(self.memtable, cache, logs, metrics)
        self._flusher: Executor | None = None
        if flush_threads > 1 and log_per_ledger and self._in_order:
            self._flusher = ThreadPoolExecutor(flush_threads, "memtable-flush")
        self._background = BackgroundFlush("storage-0", self._drain_in_background, self._gather_seconds)
        self._checkpointer: Checkpointer | None = None
        self._checkpoint_lock = threading.Lock()
        self._drain: Drain | None = None
        self._active_stamp: Stamp | None = None
        self._frozen_stamp: Stamp | None = None
        self._drained_stamp: Stamp | None = None
        self._rotated_stamp: Stamp | None = None
        self._requested_stamp: Stamp | None = None
        self._full_since: float | None = None
        logs.add_listener(self._log_rotated)

    _in_order: ClassVar[bool]
    """True if a map is drained by ledger and entry, beyond the size of a log if need be; False: in order of arrival."""
    _gather_seconds: ClassVar[float] = 0
    """Seconds from the request for a drain until it begins."""

    # --- what the two engines do differently ----------------------------------------------------------------

    @abstractmethod
    def _run_drain(self, drain: Drain) -> None:
        """Drain it, and whatever belongs to it. Storage thread; may be called again after a failure."""

    # --- event loop -----------------------------------------------------------------------------------------

    def start(self, checkpointer: Checkpointer) -> None:
        self._checkpointer = checkpointer
        self.cache.end_replay()

    def ledger(self, ledger_id: int) -> LedgerRecord | None:
        return self.cache.records.get(ledger_id)

    def set_ledger(self, ledger_id: int, record: LedgerRecord) -> None:
        self.cache.records.put(ledger_id, record)

    def set_master_key(self, ledger_id: int, key: bytes) -> LedgerRecord:
        return self.cache.records.set_master_key(ledger_id, key)

    def active_entries(self, ledger_id: int) -> dict[int, bytes]:
        self.cache.check_taken(ledger_id)
        self._untouched.discard(ledger_id)
        return self.memtable.active.entries_of(ledger_id)

    def account(self, ledger_id: int, nbytes: int, count: int) -> bool:
        self._metrics.memtable_put(count)
        full = self.memtable.active.account(nbytes, count)
        if full and self._full_since is None:
            self._full_since = time.perf_counter()
        return full

    def is_full(self, ledger_id: int) -> bool:
        return self.memtable.active.is_full

    def request_flush(self, ledger_id: int) -> None:
        self._background.request(hurry=True)

    def flushing(self) -> list[tuple[str, object | None]]:
        began = self._background.began
        return [("storage-0", None if began is None else (began, self.written()))]

    def written(self) -> int:
        return self.logs.stats.written + self.cache.flushed

    def on_flush_failure(self, callback: Callable[[BaseException], None]) -> None:
        self._background.on_failure(callback)

    def on_directory_failure(self, callback: Callable[[int, StorageFault], None]) -> None:
        self._on_directory_failure = callback

    def fail_directory(self, index: int, failure: StorageFault) -> None:
        self._failures.setdefault(self._folders[index], failure)
        self._background.request(hurry=True)

    def cached(self, ledger_id: int, entry_id: int) -> bytes | None:
        return self._reads.in_memory(ledger_id, entry_id)

    def cached_each(self, ledger_id: int, entry_ids: Sequence[int]) -> list[bytes | None]:
        return [self.cached(ledger_id, entry_id) for entry_id in entry_ids]

    def cached_run(self, ledger_id: int, entry_ids: range) -> list[bytes]:
        return list(iter(map(partial(self.cached, ledger_id), entry_ids).__next__, None))

    def _swap(self) -> None:
        """Freeze the active map, if it holds anything, and the headers that changed. There is no frozen map now."""
        begin = time.perf_counter()
        self._background.begun()
        self.cache.take_dirty_headers()
        stamp = tuple(self._checkpointer.marks()) if self._checkpointer is not None else None
        self._active_stamp = self._frozen_stamp = stamp
        if not self.memtable.freeze():
            self._drained_stamp = stamp
            return
        assert self.memtable.frozen is not None
        self._drain = Drain(
            self.memtable.frozen,
            self.logs,
            self.cache,
            in_order=self._in_order,
            roll=not self._in_order,
            on_unindexable=self._keep_in_limbo,
        )
        if self._full_since is not None:
            self._metrics.throttled(begin - self._full_since)
            self._full_since = None
        self._tell_swapped()
        self._metrics.frozen(time.perf_counter() - begin)

    def _delete(self, ledger_id: int) -> None:
        record = self.cache.records.get(ledger_id)
        # First: a reader that looks meanwhile finds no ledger, not a part of one.
        next_log = self.cache.delete(ledger_id)
        handed_out = self.memtable.delete(ledger_id)
        fenced = record is not None and record.fenced
        self._tell_deleted(ledger_id, handed_out=handed_out, fenced=fenced, next_log=next_log)

    def _records(self) -> LedgerRecords:
        return self.cache.records

    def _put_lately(self) -> Collection[int]:
        return self.memtable.active.ledgers

    # --- reader threads -------------------------------------------------------------------------------------

    def read(self, ledger_id: int, entry_id: int) -> bytes:
        return self._reads.read(ledger_id, entry_id)

    def read_each(
        self, ledger_id: int, entry_ids: Sequence[int], *, apart: bool = False
    ) -> Iterator[bytes | Exception]:
        return each_alone(self._reads.read, ledger_id, entry_ids)

    def read_apart(self, ledger_id: int, first: int, count: int, max_bytes: int) -> list[bytes]:
        # There is no read cache here, nor read-ahead.
        return [self._reads.read(ledger_id, first)]

    def last_entry_id(self, ledger_id: int) -> int:
        return self._reads.last_entry_id(ledger_id)

    def entry_ids(self, ledger_id: int, *, in_logs: bool = False) -> Iterator[int]:
        return self._reads.entry_ids(ledger_id, in_logs=in_logs)

    def refuse(self, locations: Collection[int]) -> None:
        """Serve no entries at these locations from now on; the collection may change later. Any thread."""
        self._reads.damaged = locations

    # --- any thread -----------------------------------------------------------------------------------------

    def ledger_ids(self) -> list[int]:
        return self.cache.records.ledger_ids()

    def deleted_before(self, ledger_id: int, next_log: int) -> None:
        """See `LedgerStorage`. An index file, record and rows, is of one life."""
        self.cache.records.deleted_before(ledger_id, next_log)

    def flags(self) -> int:
        return self._flags.read()

    def set_flags(self, flags: int) -> None:
        self._flags.write(flags)

    def clear_flags(self, flags: int, doubts: int) -> bool:
        """See `LedgerStorage`. Nothing sets a flag while the bookie serves."""
        if self.doubts != doubts:
            return False
        self._flags.write(self._flags.read() & ~flags)
        return True

    # --- storage thread -------------------------------------------------------------------------------------

    def _keep_in_limbo(self, ledger_id: int) -> None:
        """An entry of this ledger is not stored. Storage thread."""
        self.put_in_limbo([ledger_id])
        self._on_loop(self.cache.take_dirty_headers)  # durable with the checkpoint that lets go of the entry

    def _drain_up_to(self, marks: Sequence[LogMark] | None) -> None:
        """Drain everything that was put before the call, or at least what lies below `marks`."""
        for folder in self._failures.keys() - self._given_up:
            self.logs.give_up(folder)
            self.cache.give_up(folder)
            self._given_up.add(folder)
        if self._drain is not None:
            self._finish(self._drain)
        if marks is None or not covers(self._active_stamp, marks):
            self._on_loop(self._swap)
            if self._drain is not None:
                self._finish(self._drain)

    def _finish(self, drain: Drain) -> None:
        began = time.perf_counter()
        try:
            self._run_drain(drain)
        except StorageFault as error:
            self._metrics.flush_failed()
            raise self._failed(error) from error
        self._metrics.flushed(time.perf_counter() - began, drain.nbytes)

    def _failed(self, error: StorageFault) -> StorageFault:
        """Count a failed flush and return the error to raise for it."""
        if isinstance(error, DirectoryFault):
            folder = error.directory
            if folder not in self._folders:
                return StorageFault(str(error))
            self._failed_flushes[folder] += 1
            if self._failed_flushes[folder] == FLUSH_TRIES:
                failure = StorageFault(f"{FLUSH_TRIES} flushes failed one after the other, the last: {error}")
                self._on_directory_failure(self._folders.index(folder), failure)
        return checked(self.logs, error)

    def _drained(self) -> None:
        """Logs and ledger cache hold the frozen map: let go of it."""
        self._drained_stamp = self._frozen_stamp
        self.memtable.release()
        self._drain = None

    def _drain_in_background(self) -> None:
        self._drain_up_to(None)
        stamp = self._rotated_stamp
        if self._checkpointer is not None and stamp is not None and stamp != self._requested_stamp:
            self._requested_stamp = stamp
            self._checkpointer.request(stamp)

    def _log_rotated(self, log_id: int) -> None:
        """Every map that is drained lies in rotated logs now; the one that is being drained may not."""
        self._rotated_stamp = self._drained_stamp

    # --- background threads ---------------------------------------------------------------------------------

    def flush(self) -> None:
        with self._checkpoint_lock:
            self._background.run(lambda: self._drain_up_to(None))
            self._make_durable()

    def checkpoint(self, marks: Sequence[LogMark]) -> None:
        with self._checkpoint_lock:
            self._background.run(lambda: self._drain_up_to(marks))
            self._make_durable()

    def _make_durable(self) -> None:
        """Sync what was drained. Where a page was dirty, the entry logs are durable before it."""
        try:
            self.cache.flush()
            self.logs.sync()
            self.logs.secure_next_process()
        except StorageFault as error:
            raise self._failed(error) from error
        self._failed_flushes.clear()
        for failure in self._failures.values():
            raise DirectoryGivenUp(str(failure))
        self.cache.seal()

    def close(self) -> None:
        self._background.close()
        if self._flusher is not None:
            self._flusher.shutdown()
        try:
            self.logs.close()
        finally:
            self.cache.close()


def covers(stamp: Stamp | None, marks: Sequence[LogMark]) -> bool:
    """Return whether everything below `marks` is below `stamp`."""
    return stamp is not None and all(own >= mark for own, mark in zip(stamp, marks, strict=True))


class InterleavedLedgerStorage(MemTableStorage):
    """Entries go to the entry log as they come, their locations into index files.

    The reference appends each add to the log at once. Here the event loop must not write, so adds go into a memtable
    that the storage thread drains all the time (`GATHER_SECONDS` after the first add, in one go for all that came
    meanwhile): entries lie in the log in the order in which they came, ledger by ledger within one drain.

    A checkpoint is asked for when a log was rotated, with the stamp of what the rotated logs hold for certain.
    """

    _in_order = False
    _gather_seconds = GATHER_SECONDS

    def account(self, ledger_id: int, nbytes: int, count: int) -> bool:
        if self._checkpointer is not None:  # the replay puts from a thread of its own and flushes by itself
            self._background.request()
        return super().account(ledger_id, nbytes, count)

    def _run_drain(self, drain: Drain) -> None:
        drain.run()
        self._drained()


class SortedLedgerStorage(MemTableStorage):
    """A memtable of `skipListSizeLimit` bytes in front of what `InterleavedLedgerStorage` does.

    A full memtable is frozen and drained in (ledger, entry) order. A drain may grow the current log beyond
    `logSizeLimit`; the log is rotated behind it if it is full, or another than before, and a checkpoint is asked for
    with the stamp of the map. A checkpoint that needs more than the rotated logs hold rotates the current one first.

    With one log per ledger the frozen map is cut into ledgers, drained on `numOfMemtableFlushThreads` threads; a
    checkpoint syncs all logs, every `flushInterval`.
    """

    _in_order = True
    _prepared: Drain | None = None

    def _run_drain(self, drain: Drain) -> None:
        if self._prepared is not drain:  # a second try must not take the log of the first for the one before
            self.logs.prepare_memtable_flush()
            self._prepared = drain
        drain.run(self._flusher)
        self._prepared = None  # it would keep the entries of the map
        self._drained()
        self.logs.commit_memtable_flush()

    def checkpoint(self, marks: Sequence[LogMark]) -> None:
        with self._checkpoint_lock:
            self._background.run(lambda: self._prepare_logs(marks))
            self._make_durable()

    def _prepare_logs(self, marks: Sequence[LogMark]) -> None:
        self._drain_up_to(marks)
        if not self._log_per_ledger and not covers(self._rotated_stamp, marks):
            self.logs.rotate()
