"""The appending half of an entry logger: active logs, rotation, durability.

Two locks, always taken in this order:

- `_sync_lock`: one `sync` or `checkpoint` at a time.
- `_append_lock`: active logs, rotated logs, fault. Held over writes, never over the sync of a checkpoint.

Threads: see `logger`.

Sources: docs/internals/on-disk-formats.md, sections 4.4 and 13; docs/internals/bookie-behaviour.md, sections 5 and
13.1.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Iterable, Sequence

import structlog

from bookie_pod.config.model import BookieConfig
from bookie_pod.storage.entry_log.active import ActiveLogs
from bookie_pod.storage.entry_log.allocator import LogAllocator
from bookie_pod.storage.entry_log.catalog import LogCatalog
from bookie_pod.storage.entry_log.directories import DiskState
from bookie_pod.storage.entry_log.format import HARD_LOG_SIZE
from bookie_pod.storage.entry_log.interface import EntryLogStats, LedgerGone, RotationListener
from bookie_pod.storage.entry_log.writer import LogWriter
from bookie_pod.storage.files import directory_fault, storage_fault
from bookie_pod.storage.log_ids import is_before
from bookie_protocol.errors import DirectoryFault, StorageFault

logger = structlog.get_logger(__name__)


def _always() -> bool:
    """Return True: the caller deals with deletions itself."""
    return True


class RotatedLogs:
    """The logs that are rotated and not known to be durable.

    A log that takes no more entries is closed with its ledgers map, synced, and handed to garbage collection.
    `writers`: see `LogAppender`.

    Invariants
    - A log is marked as flushed, and so may be collected, only once all of it is durable, or its owner has given it up.
    - A log that could not get its map is closed without: code that needs the map scans the log.

    Threads: the holder of the appender's append lock; listeners are called with it held.
    """

    def __init__(self, catalog: LogCatalog, writers: dict[int, LogWriter], stats: EntryLogStats) -> None:
        self._catalog = catalog
        self._writers = writers
        self._stats = stats
        self._logs: list[LogWriter] = []
        self._listeners: list[RotationListener] = []

    def add_listener(self, listener: RotationListener) -> None:
        self._listeners.append(listener)

    def all(self) -> list[LogWriter]:
        """The oldest first."""
        return list(self._logs)

    def add(self, log: LogWriter) -> None:
        """Close the contents of a flushed log that is active no more. Cannot fail: the map may be missing."""
        end = log.position
        try:
            log.write_map()
        except OSError as error:
            logger.warning("entry log closed without its ledgers map", log_id=log.log_id, error=str(error))
            log.cut(end)
        self._writers.pop(log.log_id, None)
        self._logs.append(log)
        self._stats.logs_rotated += 1
        for listener in self._listeners:
            listener(log.log_id)

    def settle(self, logs: Iterable[LogWriter]) -> None:
        """Close these logs, which are durable now, and leave them to the garbage collector."""
        for log in logs:
            if log in self._logs:
                self._logs.remove(log)
                self._catalog.mark_flushed(log.log_id)
                log.close()

    def give_up(self, logs: Iterable[LogWriter]) -> None:
        """Cut these logs after their last synced entry and close them; the rest is appended again elsewhere.

        The cut keeps failing tries from filling the disk.
        """
        for log in logs:
            log.take_back()
            if log not in self._logs:
                self._logs.append(log)
        self.settle(logs)

    def forget(self, log: LogWriter) -> None:
        """Its owner sees to it; no error if it is not rotated."""
        if log in self._logs:
            self._logs.remove(log)

    def close(self) -> None:
        """Close every file without writing anything."""
        for log in self._logs:
            log.close()
        self._logs.clear()


class LogAppender:
    """The appending half of an `EntryLogger`: it appends entries and makes them durable.

    `writers` is filled with the logs that have a buffer, for readers; only the appender changes it.
    """

    def __init__(
        self,
        catalog: LogCatalog,
        allocator: LogAllocator,
        active: ActiveLogs,
        writers: dict[int, LogWriter],
        config: BookieConfig,
        isolates: bool,
        stats: EntryLogStats,
    ) -> None:
        self._allocator = allocator
        self._active = active
        self._writers = writers
        self._log_size_limit = config.ledger_storage.log_size_limit_bytes
        self._flush_interval_bytes = config.ledger_storage.flush_entry_log_bytes
        self._isolates = isolates
        self._stats = stats
        self._rotated = RotatedLogs(catalog, writers, stats)
        self._lost: list[LogWriter] = []
        """Logs on disks that failed: read as far as that goes, and never written again."""
        self._disk_states: dict[str, DiskState] = {}
        self._fault: StorageFault | None = None
        self._closed = False
        self.generation = 0
        """Grows when `abandon_unsynced` or `give_up` gave up a log.

        A thread that appends beside the owner (compaction) reads it before its first append and again after its `sync`
        returned. If it differs, its locations may be void, although that `sync` succeeded.
        """
        self._log_before_memtable_flush: int | None = None
        self._append_lock = threading.Lock()
        self._sync_lock = threading.Lock()

    # --- appending ------------------------------------------------------------------------------------------

    def append_run(
        self,
        ledger_id: int,
        entry_ids: Sequence[int],
        entries: Sequence[bytes],
        *,
        roll: bool = True,
        first_log: int = 0,
        lives: Callable[[], bool] = _always,
    ) -> list[int]:
        """Append `entries` of one ledger to logs that are not older than `first_log`; their locations, in order.

        With `roll` a new log is begun where `logSizeLimit` would be exceeded; without, only at 2^31 - 1
        bytes (memtable flush). `StorageFault` if a write fails, `NoWritableDirectory` if no directory may
        take a new log; then none of the entries counts as appended, though some may lie in the log
        unreferenced.

        `lives` is asked whenever a log was chosen: the ledger may be deleted and made again meanwhile, and its next
        life may begin in that log. If it is False, `LedgerGone` is raised and nothing more is appended.
        """
        if len(entry_ids) != len(entries):
            raise ValueError(f"{len(entry_ids)} entry ids for {len(entries)} entries of ledger {ledger_id}")
        limit = self._log_size_limit if roll else HARD_LOG_SIZE
        locations: list[int] = []
        with self._append_lock:
            self._check_usable()
            done = 0
            while done < len(entries):
                done += self._append_slice(ledger_id, entries, done, limit, locations, first_log, lives)
        return locations

    def _append_slice(
        self,
        ledger_id: int,
        entries: Sequence[bytes],
        start: int,
        limit: int,
        locations: list[int],
        first_log: int,
        lives: Callable[[], bool],
    ) -> int:
        log = self._active.get(ledger_id)
        if log is None or self._must_leave(log) or is_before(log.log_id, first_log):
            log = self._begin(ledger_id, first_log)
        if not lives():
            raise LedgerGone
        try:
            count = log.append(ledger_id, entries, start, limit, locations)
            if count == 0:
                log = self._begin(ledger_id) if not log.is_empty else log
                if not lives():
                    raise LedgerGone
                count = log.append(ledger_id, entries, start, limit, locations) or log.append(
                    ledger_id, entries[start : start + 1], 0, HARD_LOG_SIZE, locations
                )
        except OSError as error:
            raise _write_fault(log, error) from error
        if count == 0:
            raise StorageFault(
                f"entry of {len(entries[start])} bytes of ledger {ledger_id} fits in no entry log: "
                f"a log has at most {HARD_LOG_SIZE} bytes"
            )
        self._stats.entries_appended += count
        self._force_if_due(log)
        return count

    def _must_leave(self, log: LogWriter) -> bool:
        """Return whether the disk of a log got worse since the log was begun there."""
        if log.is_empty or not self._disk_states:
            return False
        return self._disk_states.get(log.directory, DiskState.WRITABLE) > log.disk_state

    def _force_if_due(self, log: LogWriter) -> None:
        interval = self._flush_interval_bytes
        if interval and log.position - log.synced_to >= interval:
            _flush(log)
            self._sync_log(log)

    def _begin(self, ledger_id: int, first_log: int = 0) -> LogWriter:
        """Open a new log for this ledger, not older than `first_log`, and rotate the one it replaces. Nothing changes
        if that fails."""
        old = self._active.get(ledger_id)
        if old is not None:
            _flush(old)
        new = self._allocator.create(first_log)
        new.disk_state = self._disk_states.get(new.directory, DiskState.WRITABLE)
        self._writers[new.log_id] = new
        self._active.put(ledger_id, new)
        if self._log_before_memtable_flush is None:
            # None was open: the flush begins in this one. (The reference opens the next log when it rotates one.)
            self._log_before_memtable_flush = new.log_id
        if old is not None:
            self._rotated.add(old)
        for surplus in self._active.surplus():
            self._rotate_log(surplus)
        return new

    # --- rotation -------------------------------------------------------------------------------------------

    def rotate(self, log_ids: Container[int] | None = None) -> None:
        """Close the current logs, or those of them that are named, with their ledgers map; the next append begins a new
        one."""
        with self._append_lock:
            self._check_usable()
            for log in self._active.all():
                if not log.is_empty and (log_ids is None or log.log_id in log_ids):
                    self._rotate_log(log)

    def current_sizes(self) -> dict[int, dict[int, int]]:
        """Bytes by ledger of each current log that is not empty."""
        with self._append_lock:
            return {log.log_id: dict(log.ledgers) for log in self._active.all() if not log.is_empty}

    def _rotate_log(self, log: LogWriter) -> None:
        _flush(log)
        self._active.remove(log)
        self._rotated.add(log)

    def add_listener(self, listener: RotationListener) -> None:
        self._rotated.add_listener(listener)

    def disk_state(self, directory: str, state: DiskState) -> None:
        """A disk's state was reported: a log on a disk that got worse is rotated at the next append."""
        self._disk_states[directory] = state

    def prepare_memtable_flush(self) -> None:
        """Before a memtable flush with `roll=False`: remember the current log."""
        self._log_before_memtable_flush = self.current_log_id()

    def commit_memtable_flush(self) -> bool:
        """After it: rotate if the log is full or another than before; whether that is so (checkpoint
        wanted).
        """
        with self._append_lock:
            self._check_usable()
            due = [log for log in self._active.all() if log.position >= self._log_size_limit]
            if not due and not self._active.checkpoint_all:
                due = [log for log in self._active.all() if log.log_id != self._log_before_memtable_flush]
            for log in due:
                self._rotate_log(log)
            return bool(due) and not self._active.checkpoint_all

    # --- durability -----------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Hand buffered bytes to the operating system. Makes nothing durable."""
        with self._append_lock:
            self._check_usable()
            self._flush_active()

    def _flush_active(self) -> list[LogWriter]:
        for log in self._active.surplus():
            self._rotate_log(log)
        active = [log for log in self._active.all() if not log.is_empty]
        for log in active:
            _flush(log)
        return active

    def sync(self) -> None:
        """Make everything appended so far durable, rotated logs and the current ones. `StorageFault`."""
        self._sync(include_active=True)

    def checkpoint(self) -> None:
        """Make rotated logs durable, not the current one (with one log per ledger: all of them)."""
        self._sync(include_active=self._active.checkpoint_all)

    def _sync(self, *, include_active: bool) -> None:
        with self._sync_lock:
            with self._append_lock:
                self._check_usable()
                active = self._flush_active() if include_active else []
                ends = [log.written_to for log in active]
                rotated = self._rotated.all()
            for log in rotated:
                self._sync_log(log)
            for log in active:
                if log.synced_to < log.written_to:
                    self._sync_log(log)
            with self._append_lock:
                for log, end in zip(active, ends, strict=True):
                    log.kept_to = end
                self._rotated.settle(rotated)

    def _sync_log(self, log: LogWriter) -> None:
        try:
            log.sync()
        except OSError as error:
            what = (
                f"cannot sync entry log {log.file.path} (what was appended since the last checkpoint may be lost and "
                "must be appended again: restart the bookie to replay the journal)"
            )
            # Where the directory is given up for it, no sync of this file succeeds until then: files see to that.
            fault = directory_fault(what, error, log.directory) if self._isolates else storage_fault(what, error)
            if not isinstance(fault, DirectoryFault):
                self._fault = fault
            raise fault from error
        self._stats.syncs += 1

    def abandon_unsynced(self) -> None:
        """After a failed `sync`: take back what was appended since the last one that succeeded, and go on in new logs.
        Where nothing failed, nothing is taken back.

        The caller must throw away every location it got since the last successful `sync` and append again. One
        owner only (the flush of the write cache) calls this; others look at `generation`.
        """
        with self._sync_lock, self._append_lock:
            logs = [log for log in (*self._active.all(), *self._rotated.all()) if log.failed or not log.is_empty]
            if any(log.failed for log in logs):
                self._give_up([log for log in logs if log.failed or log.position > log.kept_to])
                self.generation += 1
            self._fault = None

    def _give_up(self, logs: Sequence[LogWriter]) -> None:
        for log in logs:
            self._active.remove(log)
            self._writers.pop(log.log_id, None)
            if not log.kept_to:
                self._rotated.forget(log)
                self._allocator.discard(log)
        self._rotated.give_up([log for log in logs if log.kept_to])

    def give_up(self, directory: str) -> None:
        """Stop writing to this directory, whose disk failed.

        The contents of its open logs will never be durable, so the owner of the journal's marks must not move them.
        Reads go on as long as the disk allows.
        """
        with self._sync_lock, self._append_lock:
            self._allocator.give_up(directory)
            lost = [log for log in (*self._active.all(), *self._rotated.all()) if log.directory == directory]
            for log in lost:
                self._active.remove(log)
                self._rotated.forget(log)
                self._lost.append(log)
            self.generation += bool(lost)

    @property
    def sync_failed(self) -> bool:
        """Return whether a sync has failed and no log was given up since.

        Until `abandon_unsynced` every append and sync fails.
        """
        return self._fault is not None

    def _check_usable(self) -> None:
        if self._closed:
            raise StorageFault("the entry logger is closed")
        if self._fault is not None:
            raise type(self._fault)(str(self._fault)) from self._fault

    def current_log_id(self, ledger_id: int = 0) -> int | None:
        """Return the log that the next entry (of this ledger) goes to, if one is open."""
        with self._append_lock:
            log = self._active.get(ledger_id)
            return None if log is None else log.log_id

    # --- the end --------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Rotate and sync what is open, stop background work, close every file.

        `StorageFault` if something could not be made durable; every file is closed all the same.
        """
        try:
            if self._fault is None and not self._closed:
                self.rotate()
                self._sync(include_active=False)
        finally:
            self.force_close()

    def force_close(self) -> None:
        """Close every file and stop background work without writing anything."""
        with self._sync_lock, self._append_lock:
            for log in self._active.all():
                self._active.remove(log)
                self._writers.pop(log.log_id, None)
                if log.is_empty:
                    self._allocator.discard(log)
                else:
                    log.close()
            self._rotated.close()
            for log in self._lost:
                self._writers.pop(log.log_id, None)
                log.close()
            self._closed = True
            self._allocator.close()


def _flush(log: LogWriter) -> None:
    try:
        log.flush()
    except OSError as error:
        raise _write_fault(log, error) from error


def _write_fault(log: LogWriter, error: OSError) -> StorageFault:
    return directory_fault(f"cannot write entry log {log.file.path} at {log.written_to}", error, log.directory)
