"""`DefaultEntryLogger`: appending, rotating, syncing, reading and deleting entry logs.

See `interface` for threads and what always holds. Two locks, always taken in this order:

- `_sync_lock`: one `sync` or `checkpoint` at a time.
- `_append_lock`: active logs, rotated logs, fault. Held over writes, never over the sync of a checkpoint.

Reference disk formats, 4.4 and 13; reference behaviour, 5 and 13.5.
"""

from __future__ import annotations

import posixpath
import threading
import time
from collections.abc import Callable, Container, Sequence
from typing import Any

import structlog

from bookie_pod.storage.entry_log.active import ActiveLogs, SharedLog
from bookie_pod.storage.entry_log.allocator import LogAllocator, WriterFactory, make_writer
from bookie_pod.storage.entry_log.catalog import LogCatalog
from bookie_pod.storage.entry_log.direct import DirectWriterFactory
from bookie_pod.storage.entry_log.directories import DiskState, LedgerDirs
from bookie_pod.storage.entry_log.interface import EntryLogStats, LedgersMap, RotationListener, Scan
from bookie_pod.storage.entry_log.ledgers_map import read_ledgers_map
from bookie_pod.storage.entry_log.options import HARD_LOG_SIZE, EntryLogOptions
from bookie_pod.storage.entry_log.per_ledger import PerLedgerLogs
from bookie_pod.storage.entry_log.reader import EntryReader
from bookie_pod.storage.entry_log.scan import LogScan
from bookie_pod.storage.entry_log.writer import LogWriter
from bookie_pod.storage.files import Files
from bookie_protocol.errors import StorageFault

logger = structlog.get_logger(__name__)


class DefaultEntryLogger:
    """The entry logs of `dirs`. `StorageFault` at once if the directories cannot be listed."""

    def __init__(
        self,
        files: Files,
        dirs: LedgerDirs,
        options: EntryLogOptions | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files = files
        self._options = options = options or EntryLogOptions()
        self._clock = clock
        self.stats = EntryLogStats()
        self._catalog = LogCatalog(files, dirs)
        self._active: ActiveLogs = (
            PerLedgerLogs(options.max_active_logs, options.active_log_idle_seconds, clock)
            if options.per_ledger
            else SharedLog()
        )
        factory: WriterFactory = DirectWriterFactory() if options.direct_io else make_writer
        self._allocator = LogAllocator(files, dirs, self._catalog, options, factory, self._active.order)
        self._writers: dict[int, LogWriter] = {}
        self._reader = EntryReader(files, self._catalog, self._writers, options, self.stats)
        self._rotated: list[LogWriter] = []
        self._listeners: list[RotationListener] = []
        self._disk_states: dict[str, DiskState] = {}
        self._fault: StorageFault | None = None
        self._log_before_memtable_flush: int | None = None
        self._append_lock = threading.Lock()
        self._sync_lock = threading.Lock()
        dirs.add_listener(self)

    # --- appending
    # --------------------------------------------------------------------------------------------

    def append_run(
        self, ledger_id: int, entry_ids: Sequence[int], entries: Sequence[bytes], *, roll: bool = True
    ) -> list[int]:
        """See `EntryLogger.append_run`."""
        if len(entry_ids) != len(entries):
            raise ValueError(f"{len(entry_ids)} entry ids for {len(entries)} entries of ledger {ledger_id}")
        limit = self._options.log_size_limit if roll else HARD_LOG_SIZE
        locations: list[int] = []
        with self._append_lock:
            self._check_usable()
            done = 0
            while done < len(entries):
                done += self._append_slice(ledger_id, entries, done, limit, locations)
        return locations

    def _append_slice(
        self, ledger_id: int, entries: Sequence[bytes], start: int, limit: int, locations: list[int]
    ) -> int:
        log = self._active.get(ledger_id)
        if log is None or self._must_leave(log):
            log = self._begin(ledger_id)
        before = log.position
        try:
            count = log.append(ledger_id, entries, start, limit, locations)
            if count == 0:
                log = self._begin(ledger_id) if not log.is_empty else log
                before = log.position
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
        self.stats.entries_appended += count
        self.stats.bytes_appended += log.position - before
        self._force_if_due(log)
        return count

    def _must_leave(self, log: LogWriter) -> bool:
        """Whether the disk of a log got worse since the log was begun there."""
        if log.is_empty or not self._disk_states:
            return False
        return self._disk_states.get(log.directory, DiskState.WRITABLE) > log.disk_state

    def _force_if_due(self, log: LogWriter) -> None:
        interval = self._options.flush_interval_bytes
        if interval and log.position - log.synced_to >= interval:
            try:
                log.flush()
            except OSError as error:
                raise _write_fault(log, error) from error
            self._sync_log(log)

    def _begin(self, ledger_id: int) -> LogWriter:
        """Open a new log for this ledger and rotate the one it replaces. Nothing changes if that fails."""
        old = self._active.get(ledger_id)
        if old is not None:
            try:
                old.flush()
            except OSError as error:
                raise _write_fault(old, error) from error
        new = self._allocator.create()
        new.disk_state = self._disk_states.get(new.directory, DiskState.WRITABLE)
        self._writers[new.log_id] = new
        self._active.put(ledger_id, new)
        self.stats.logs_created += 1
        if old is not None:
            self._retire(old)
        for surplus in self._active.surplus():
            self._rotate_log(surplus)
        return new

    # --- rotation
    # ---------------------------------------------------------------------------------------------

    def rotate(self) -> None:
        """See `EntryLogger.rotate`."""
        with self._append_lock:
            self._check_usable()
            self._rotate_all()

    def _rotate_all(self) -> None:
        for log in self._active.all():
            if not log.is_empty:
                self._rotate_log(log)

    def _rotate_log(self, log: LogWriter) -> None:
        try:
            log.flush()
        except OSError as error:
            raise _write_fault(log, error) from error
        self._active.remove(log)
        self._retire(log)

    def _retire(self, log: LogWriter) -> None:
        """Close the contents of a flushed log that is active no more. Cannot fail: the map may be missing."""
        end = log.position
        try:
            log.write_map()
        except OSError as error:
            logger.warning("entry log closed without its ledgers map", log_id=log.log_id, error=str(error))
            log.cut(end)
        self._writers.pop(log.log_id, None)
        self._rotated.append(log)
        self.stats.logs_rotated += 1
        for listener in self._listeners:
            listener(log.log_id)

    def add_listener(self, listener: RotationListener) -> None:
        self._listeners.append(listener)

    def disk_state(self, directory: str, state: DiskState) -> None:
        """A disk's state was reported: a log on a disk that got worse is rotated at the next append."""
        self._disk_states[directory] = state

    def prepare_memtable_flush(self) -> None:
        """See `EntryLogger.prepare_memtable_flush`."""
        self._log_before_memtable_flush = self.current_log_id()

    def commit_memtable_flush(self) -> bool:
        """See `EntryLogger.commit_memtable_flush`."""
        with self._append_lock:
            self._check_usable()
            due = [log for log in self._active.all() if log.position >= self._options.log_size_limit]
            if not due and not self._active.checkpoint_all:
                due = [log for log in self._active.all() if log.log_id != self._log_before_memtable_flush]
            for log in due:
                self._rotate_log(log)
            return bool(due) and not self._active.checkpoint_all

    # --- durability
    # -------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """See `EntryLogger.flush`."""
        with self._append_lock:
            self._check_usable()
            self._flush_active()

    def _flush_active(self) -> list[LogWriter]:
        for log in self._active.surplus():
            self._rotate_log(log)
        active = [log for log in self._active.all() if not log.is_empty]
        for log in active:
            try:
                log.flush()
            except OSError as error:
                raise _write_fault(log, error) from error
        return active

    def sync(self) -> None:
        """See `EntryLogger.sync`."""
        self._sync(include_active=True)

    def checkpoint(self) -> None:
        """See `EntryLogger.checkpoint`."""
        self._sync(include_active=self._active.checkpoint_all)

    def _sync(self, *, include_active: bool) -> None:
        with self._sync_lock:
            with self._append_lock:
                self._check_usable()
                active = self._flush_active() if include_active else []
                rotated = list(self._rotated)
            for log in rotated:
                self._sync_log(log)
            for log in active:
                if log.synced_to < log.written_to:
                    self._sync_log(log)
            with self._append_lock:
                self._settle(rotated)

    def _sync_log(self, log: LogWriter) -> None:
        begin = self._clock()
        try:
            log.sync(self._files)
        except OSError as error:
            self._fault = StorageFault(
                f"cannot sync entry log {log.file.path}: {error}; what was appended since the last "
                "checkpoint may be lost and must be appended again (restart the bookie to replay the journal)"
            )
            raise self._fault from error
        self.stats.syncs += 1
        self.stats.sync_seconds += self._clock() - begin

    def _settle(self, logs: Sequence[LogWriter]) -> None:
        """These rotated logs are done: close them; the garbage collector may have them."""
        for log in logs:
            if log in self._rotated:
                self._rotated.remove(log)
                self._catalog.mark_flushed(log.log_id)
                log.close()

    def abandon_unsynced(self) -> None:
        """See `EntryLogger.abandon_unsynced`."""
        with self._sync_lock, self._append_lock:
            for log in self._active.all():
                self._active.remove(log)
                self._writers.pop(log.log_id, None)
                self._rotated.append(log)
            self._settle(list(self._rotated))
            self._fault = None

    def _check_usable(self) -> None:
        if self._fault is not None:
            raise StorageFault(str(self._fault)) from self._fault

    # --- reading
    # ----------------------------------------------------------------------------------------------

    def read(self, location: int, ledger_id: int, entry_id: int) -> bytes:
        """See `EntryLogger.read`."""
        return self._reader.read(location, ledger_id, entry_id)

    def read_ahead(
        self, location: int, ledger_id: int, entry_id: int, max_entries: int, max_bytes: int
    ) -> list[tuple[int, bytes, int]]:
        """See `EntryLogger.read_ahead`."""
        return self._reader.read_ahead(location, ledger_id, entry_id, max_entries, max_bytes)

    def scan(self, log_id: int, ledgers: Container[int] | None = None) -> Scan[bytes]:
        """See `EntryLogger.scan`."""
        return self._scan(log_id, ledgers, bodies=True)

    def scan_sizes(self, log_id: int, ledgers: Container[int] | None = None) -> Scan[int]:
        """See `EntryLogger.scan_sizes`."""
        return self._scan(log_id, ledgers, bodies=False)

    def _scan(self, log_id: int, ledgers: Container[int] | None, *, bodies: bool) -> LogScan[Any]:
        writer = self._writers.get(log_id)
        return LogScan(
            self._files,
            self._catalog.path(log_id),
            log_id,
            limit=None if writer is None else writer.written_to,
            max_entry_bytes=self._options.max_entry_bytes,
            ledgers=ledgers,
            bodies=bodies,
        )

    def ledgers_map(self, log_id: int) -> LedgersMap:
        """See `EntryLogger.ledgers_map`."""
        handle = self._reader.handles.acquire(log_id)
        try:
            return LedgersMap(read_ledgers_map(handle.file), None)
        except ValueError as reason:
            logger.debug("no ledgers map, counting by a scan", log_id=log_id, reason=str(reason))
        except OSError as error:
            raise StorageFault(f"cannot read entry log {handle.file.path}: {error}") from error
        finally:
            self._reader.handles.release(handle)
        scan = self.scan_sizes(log_id)
        ledgers: dict[int, int] = {}
        for _, ledger_id, _, size in scan:
            ledgers[ledger_id] = ledgers.get(ledger_id, 0) + 4 + size
        return LedgersMap(ledgers, scan.end)

    # --- logs as a whole
    # --------------------------------------------------------------------------------------

    def log_ids(self) -> list[int]:
        return self._catalog.ids()

    def is_flushed(self, log_id: int) -> bool:
        return self._catalog.is_flushed(log_id)

    def least_unflushed_log_id(self) -> int:
        return self._catalog.least_unflushed_id()

    def current_log_id(self, ledger_id: int = 0) -> int | None:
        with self._append_lock:
            log = self._active.get(ledger_id)
            return None if log is None else log.log_id

    def exists(self, log_id: int) -> bool:
        return self._catalog.exists(log_id)

    def path(self, log_id: int) -> str:
        return self._catalog.path(log_id)

    def size(self, log_id: int) -> int:
        path = self._catalog.path(log_id)
        try:
            return self._files.size(path)
        except OSError as error:
            raise StorageFault(f"cannot tell the size of entry log {path}: {error}") from error

    def delete(self, log_id: int) -> bool:
        """See `EntryLogger.delete`."""
        if not self._catalog.is_flushed(log_id):
            raise StorageFault(f"entry log {log_id:x}.log is not rotated and synced, so it cannot be deleted")
        if not self._catalog.exists(log_id):
            return False
        path = self._catalog.path(log_id)
        self._catalog.forget(log_id)
        self._reader.handles.drop(log_id)
        try:
            self._files.unlink(path)
        except FileNotFoundError:
            return False
        except OSError as error:
            self._catalog.restore(log_id, posixpath.dirname(path))
            raise StorageFault(f"cannot delete entry log {path}: {error}") from error
        self.stats.logs_deleted += 1
        return True

    # --- the end
    # ----------------------------------------------------------------------------------------------

    def close(self) -> None:
        """See `EntryLogger.close`. `StorageFault` if something could not be made durable; all is closed
        then.
        """
        try:
            if self._fault is None:
                with self._append_lock:
                    self._rotate_all()
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
            for log in self._rotated:
                log.close()
            self._rotated.clear()
            self._fault = self._fault or StorageFault("the entry logger is closed")
            self._allocator.close()
            self._reader.handles.close()


def _write_fault(log: LogWriter, error: OSError) -> StorageFault:
    return StorageFault(f"cannot write entry log {log.file.path} at {log.written_to}: {error}")
