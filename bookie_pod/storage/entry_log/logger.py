"""`DefaultEntryLogger`: the entry logs of one engine, put together from the parts of this package.

See `interface` for what each call promises and which thread may use it.
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import Callable, Container, Sequence
from typing import Any, Final

import structlog

from bookie_pod.storage.entry_log.active import ActiveLogs, PerLedgerLogs, SharedLog
from bookie_pod.storage.entry_log.allocator import LogAllocator, WriterFactory, make_writer
from bookie_pod.storage.entry_log.appender import LogAppender
from bookie_pod.storage.entry_log.catalog import LogCatalog
from bookie_pod.storage.entry_log.compaction import CompactionLog, Compactions
from bookie_pod.storage.entry_log.direct import DirectWriterFactory
from bookie_pod.storage.entry_log.directories import LedgerDirs
from bookie_pod.storage.entry_log.format import SIZE_BYTES
from bookie_pod.storage.entry_log.interface import EntryCheck, EntryLogStats, RotationListener, Row
from bookie_pod.storage.entry_log.ledger_sizes import LedgerSizesBuilder
from bookie_pod.storage.entry_log.ledgers_map import map_offset, read_ledgers_map
from bookie_pod.storage.entry_log.options import EntryLogOptions
from bookie_pod.storage.entry_log.reader import EntryReader
from bookie_pod.storage.entry_log.scan import LogScan
from bookie_pod.storage.entry_log.scanned import LedgersMap, Scan
from bookie_pod.storage.entry_log.writer import LogWriter
from bookie_pod.storage.files import Files, storage_fault
from bookie_protocol.errors import StorageFault

logger = structlog.get_logger(__name__)

PAY_ENTRIES: Final = 1024
PAY_BYTES: Final = 1 << 20
"""Entries, or bytes, of a counting scan between two calls of `pay`."""


class DefaultEntryLogger:
    """The `EntryLogger` of `dirs`. `StorageFault` at once if the directories cannot be listed."""

    def __init__(
        self,
        files: Files,
        dirs: LedgerDirs,
        options: EntryLogOptions | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._files = files
        self._options = options = _fitted(files, dirs, options or EntryLogOptions())
        self.stats = EntryLogStats()
        self._catalog = LogCatalog(files, dirs)
        active: ActiveLogs = SharedLog()
        if options.per_ledger:
            active = PerLedgerLogs(options.max_active_logs, options.active_log_idle_seconds, clock)
        factory: WriterFactory = DirectWriterFactory() if options.direct_io else make_writer
        self._allocator = LogAllocator(files, dirs, self._catalog, options, factory, active.order)
        self._writers: dict[int, LogWriter] = {}
        self._appender = LogAppender(files, self._catalog, self._allocator, active, self._writers, options, self.stats)
        self._reader = EntryReader(files, self._catalog, self._writers, options, self.stats)
        self._compactions = Compactions(files, dirs, self._catalog, options)
        dirs.add_listener(self._appender)

    @property
    def log_size_limit(self) -> int:
        return self._options.log_size_limit

    # --- appending ------------------------------------------------------------------------------------------------

    def append_run(
        self, ledger_id: int, entry_ids: Sequence[int], entries: Sequence[bytes], *, roll: bool = True
    ) -> list[int]:
        return self._appender.append_run(ledger_id, entry_ids, entries, roll=roll)

    def flush(self) -> None:
        self._appender.flush()

    def sync(self) -> None:
        self._appender.sync()

    def checkpoint(self) -> None:
        self._appender.checkpoint()

    def rotate(self, log_ids: Container[int] | None = None) -> None:
        self._appender.rotate(log_ids)

    def abandon_unsynced(self) -> None:
        self._appender.abandon_unsynced()

    def give_up(self, directory: str) -> None:
        self._appender.give_up(directory)

    @property
    def generation(self) -> int:
        return self._appender.generation

    @property
    def sync_failed(self) -> bool:
        return self._appender.sync_failed

    def prepare_memtable_flush(self) -> None:
        self._appender.prepare_memtable_flush()

    def commit_memtable_flush(self) -> bool:
        return self._appender.commit_memtable_flush()

    def current_log_id(self, ledger_id: int = 0) -> int | None:
        return self._appender.current_log_id(ledger_id)

    def add_listener(self, listener: RotationListener) -> None:
        self._appender.add_listener(listener)

    # --- reading --------------------------------------------------------------------------------------------

    def read(self, location: int, ledger_id: int, entry_id: int) -> bytes:
        return self._reader.read(location, ledger_id, entry_id)

    def read_run(self, location: int, ledger_id: int, entry_id: int, more: int, max_bytes: int) -> list[Row]:
        return self._reader.read_run(location, ledger_id, entry_id, more, max_bytes)

    def check_with(self, check: EntryCheck) -> None:
        self._reader.check = check

    def scan(self, log_id: int, ledgers: Container[int] | None = None) -> Scan[bytes]:
        return self._scan(log_id, ledgers, bodies=True)

    def scan_sizes(self, log_id: int, ledgers: Container[int] | None = None) -> Scan[int]:
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

    def ledgers_map(
        self, log_id: int, pay: Callable[[int, int], None] | None = None, *, scan: bool = False
    ) -> LedgersMap:
        handle = self._reader.handles.acquire(log_id)
        try:
            closed_at = map_offset(handle.file)
            if not scan:
                stored = read_ledgers_map(handle.file)
                return LedgersMap(stored.ledgers, None, closed_at, stored.checked)
        except ValueError as reason:
            logger.debug("no ledgers map, counting by a scan", log_id=log_id, reason=str(reason))
        except OSError as error:
            raise storage_fault(f"cannot read entry log {handle.file.path}", error) from error
        finally:
            self._reader.handles.release(handle)
        counted = self.scan_sizes(log_id)
        ledgers = LedgerSizesBuilder()
        entries = nbytes = 0
        for _, ledger_id, _, size in counted:
            ledgers.add(ledger_id, SIZE_BYTES + size)
            entries += 1
            nbytes += SIZE_BYTES + size
            if pay is not None and (entries >= PAY_ENTRIES or nbytes >= PAY_BYTES):
                pay(entries, nbytes)
                entries = nbytes = 0
        if pay is not None:
            pay(entries, nbytes)
        return LedgersMap(ledgers.build(), counted.end, closed_at)

    # --- logs as a whole ------------------------------------------------------------------------------------

    def log_ids(self) -> list[int]:
        return self._catalog.ids()

    def is_flushed(self, log_id: int) -> bool:
        return self._catalog.is_flushed(log_id)

    def least_unflushed_log_id(self) -> int:
        return self._catalog.least_unflushed_id()

    def current_sizes(self) -> dict[int, dict[int, int]]:
        return self._appender.current_sizes()

    def exists(self, log_id: int) -> bool:
        return self._catalog.exists(log_id)

    def path(self, log_id: int) -> str:
        return self._catalog.path(log_id)

    def size(self, log_id: int) -> int:
        path = self._catalog.path(log_id)
        try:
            return self._files.size(path)
        except OSError as error:
            raise storage_fault(f"cannot tell the size of entry log {path}", error) from error

    def written_ms(self, log_id: int) -> int:
        path = self._catalog.path(log_id)
        try:
            return self._files.modified_ms(path)
        except OSError as error:
            raise storage_fault(f"cannot tell the age of entry log {path}", error) from error

    def delete(self, log_id: int) -> bool:
        if not self._catalog.is_flushed(log_id):
            raise StorageFault(f"entry log {log_id:x}.log is not rotated and synced, so it cannot be deleted")
        if not self._catalog.exists(log_id):
            return False
        path = self._catalog.path(log_id)
        self._catalog.secure_ids()
        self._catalog.forget(log_id)
        self._reader.handles.drop(log_id)
        try:
            self._files.unlink(path)
        except FileNotFoundError:
            return False
        except OSError as error:
            self._catalog.add_flushed(log_id, posixpath.dirname(path))
            raise StorageFault(f"cannot delete entry log {path}: {error}") from error
        self.stats.logs_deleted += 1
        return True

    # --- transactional compaction ---------------------------------------------------------------------------------

    def begin_compaction(self, source_id: int, live_bytes: int) -> CompactionLog:
        return self._compactions.begin(source_id, live_bytes)

    def recover_compactions(self) -> list[CompactionLog]:
        return self._compactions.recover()

    # --- the end --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        try:
            self._appender.close()
        finally:
            self._reader.handles.close()

    def force_close(self) -> None:
        self._appender.force_close()
        self._reader.handles.close()


def _fitted(files: Files, dirs: LedgerDirs, options: EntryLogOptions) -> EntryLogOptions:
    """Logs that suit the smallest of the disks."""
    try:
        smallest = min((files.usage(path).total for path in dirs.all()), default=0)
    except OSError:
        return options  # it is told by whoever uses that directory first
    fitted = options.fitted(smallest)
    if fitted is not options:
        logger.info(
            "entry logs are smaller than logSizeLimit, so that compaction has room for one when the disk is full",
            bytes=fitted.log_size_limit,
            configured=options.log_size_limit,
            directories=list(dirs.all()),
        )
    return fitted
