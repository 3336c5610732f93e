"""`EntryLogger`: the entry logs of one engine, put together from the parts of this package.

Threads
- `append_run`, `rotate`, `flush`, `sync`, `checkpoint`, `abandon_unsynced`: the flush thread, and later the
  compaction thread; calls take turns on one lock. Syncing itself does not hold that lock, so that appends
  go on meanwhile.
- `read`, `read_ahead`: any number of reader threads at once.
- `scan*`, `is_*`, `ledgers_map`, `delete`: the garbage collection thread, beside all others.

What always holds
- An entry is never split between two logs, and a location is handed out only after its bytes are buffered
  whole.
- After `sync` returned, everything appended before the call survives a crash. After a failed *write*
  nothing is lost: the same call can be repeated. After a failed *sync* the kernel may have dropped the
  bytes, so every later `append_run`, `sync` and `checkpoint` fails until `abandon_unsynced` is called by
  someone who appends those entries again.
- A log that is not yet rotated and synced is never deleted.
"""

from __future__ import annotations

import posixpath
import time
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Any, Final, TypeVar

import structlog

from bookie_pod.config.model import BookieConfig
from bookie_pod.storage.entry_log.active import ActiveLogs, PerLedgerLogs, SharedLog
from bookie_pod.storage.entry_log.allocator import LogAllocator, WriterFactory, make_writer
from bookie_pod.storage.entry_log.appender import LogAppender
from bookie_pod.storage.entry_log.catalog import LogCatalog
from bookie_pod.storage.entry_log.compaction import CompactionLog, Compactions
from bookie_pod.storage.entry_log.direct import DIRECT_WRITE_BUFFER_BYTES, DirectWriterFactory
from bookie_pod.storage.entry_log.directories import LedgerDirs
from bookie_pod.storage.entry_log.fitting import fitted
from bookie_pod.storage.entry_log.format import SIZE_BYTES, split_location
from bookie_pod.storage.entry_log.interface import EntryCheck, EntryLogStats, Row
from bookie_pod.storage.entry_log.ledger_sizes import (
    LedgerSizesBuilder,
    any_foreign,
    is_pointer_torn,
    map_offset,
    may_be_foreign,
    read_ledgers_map,
    synced_end,
)
from bookie_pod.storage.entry_log.reader import MAX_OPEN_FILES, EntryReader
from bookie_pod.storage.entry_log.scan import LedgersMap, LogScan
from bookie_pod.storage.entry_log.writer import LogWriter
from bookie_pod.storage.files import File, Files, storage_fault
from bookie_pod.storage.log_ids import following_id, is_before
from bookie_protocol.errors import StorageFault

logger = structlog.get_logger(__name__)
_T = TypeVar("_T")

PAY_ENTRIES: Final = 1024
PAY_BYTES: Final = 1 << 20
"""Entries, or bytes, of a counting scan between two calls of `pay`."""


def _unnoticed(location: int, ledger_id: int, entry_id: int, size: int) -> None:
    """Do nothing with an entry that a scan met."""


class EntryLogger(LogAppender):
    """Entry logs of one or more ledger directories (`dirs`) with one space of log ids. `StorageFault` at once if the
    directories cannot be listed."""

    def __init__(
        self,
        files: Files,
        dirs: LedgerDirs,
        config: BookieConfig,
        *,
        clock: Callable[[], float] = time.monotonic,
        max_open_files: int = MAX_OPEN_FILES,
        direct_buffer_bytes: int = DIRECT_WRITE_BUFFER_BYTES,
    ) -> None:
        config = _fitted(files, dirs, config)
        self._files = files
        self.stats = EntryLogStats()
        self._catalog = LogCatalog(files, dirs)
        active: ActiveLogs = SharedLog()
        storage = config.ledger_storage
        if storage.log_per_ledger:
            active = PerLedgerLogs(storage.max_active_entry_logs, storage.entry_log_map_expiry_seconds, clock)
        factory: WriterFactory = DirectWriterFactory(direct_buffer_bytes) if config.direct_io_logs else make_writer
        allocator = LogAllocator(files, dirs, self._catalog, config, factory, active.order)
        writers: dict[int, LogWriter] = {}
        isolates = config.disks.isolate_failed_ledger_directories and len(dirs.all()) > 1
        super().__init__(self._catalog, allocator, active, writers, config, isolates, self.stats)
        self._reader = EntryReader(files, self._catalog, writers, config, self.stats, max_open_files)
        self._compactions = Compactions(files, dirs, self._catalog, config)
        dirs.add_listener(self.disk_state)

    @property
    def log_size_limit(self) -> int:
        """Bytes beyond which no log grows: `logSizeLimit`, or less on a small disk."""
        return self._log_size_limit

    # --- reading --------------------------------------------------------------------------------------------

    def read(self, location: int, ledger_id: int, entry_id: int) -> bytes:
        """The entry. `EntryDamaged` if other bytes are there, `StorageFault` if the log is gone or too
        short.
        """
        return self._reader.read(location, ledger_id, entry_id)

    def read_run(self, location: int, ledger_id: int, entry_id: int, more: int, max_bytes: int) -> list[Row]:
        """Return the entry, to serve it, and up to `more` entries that follow it in the log, about `max_bytes` of them.

        Their ids ascend, and may have gaps: other bookies hold the entries between of a striped ledger.

        Raises what `read` does for the first, and `EntryDamaged` if the check of `check_with` refuses it. The others
        end without an error at the first record that is not a later entry of this ledger, or is refused.
        """
        return self._reader.read_run(location, ledger_id, entry_id, more, max_bytes)

    def check_with(self, check: EntryCheck) -> None:
        """Have `check` look at every entry that `read_run` returns from now on."""
        self._reader.check = check

    def is_sound(self, ledger_id: int, entry_id: int, entry: bytes) -> bool:
        """Return whether these are the bytes of the entry, as far as the check of `check_with` can see. Raises
        `DigestUnknown`."""
        check = self._reader.check
        return check is None or check.problem(ledger_id, entry_id, entry) is None

    def scan(self, log_id: int, ledgers: Container[int] | None = None) -> LogScan[bytes]:
        """All entries of a log (of these ledgers only, if given)."""
        return self._scan(log_id, ledgers, bodies=True)

    def scan_sizes(self, log_id: int, ledgers: Container[int] | None = None) -> LogScan[int]:
        """Scan as `scan` does, without reading the entries' bodies."""
        return self._scan(log_id, ledgers, bodies=False)

    def _scan(self, log_id: int, ledgers: Container[int] | None, *, bodies: bool) -> LogScan[Any]:
        writer = self._writers.get(log_id)
        return LogScan(
            self._files,
            self._catalog.path(log_id),
            log_id,
            limit=None if writer is None else writer.written_to,
            max_entry_bytes=self._reader.max_entry_bytes,
            ledgers=ledgers,
            bodies=bodies,
        )

    def is_closed(self, log_id: int) -> bool:
        """Return whether the log was once complete: its header names a ledgers map. Raises `StorageFault`."""
        return self._look(log_id, map_offset) is not None

    def is_proved_synced(self, log_id: int) -> bool:
        """Return whether the log's header proves that a power cut took none of its entries. Raises `StorageFault`."""
        return self.entries_end(log_id) is not None

    def entries_end(self, log_id: int) -> int | None:
        """Return where the entries of a log end of which the header proves that all were synced; None if it does not.

        Raises `StorageFault`.
        """
        return self._look(log_id, synced_end)

    def is_pointer_torn(self, log_id: int) -> bool:
        """Return whether a power cut tore the header's pointer to the ledgers map. Raises `StorageFault`."""
        return self._look(log_id, is_pointer_torn)

    def has_foreign(self, first: int) -> bool:
        """Return whether another program may have written a log from this one on (0: any). Raises `ResourcesShort`."""
        return any_foreign([each for each in self.log_ids() if not is_before(each, first)], self._is_foreign)

    def _is_foreign(self, log_id: int) -> bool:
        try:
            return self._look(log_id, may_be_foreign)
        finally:
            self._reader.handles.drop(log_id)  # the start leaves no log open for it

    def _look(self, log_id: int, look: Callable[[File], _T]) -> _T:
        handle = self._reader.handles.acquire(log_id)
        try:
            return look(handle.file)
        except OSError as error:
            raise storage_fault(f"cannot read entry log {handle.file.path}", error) from error
        finally:
            self._reader.handles.release(handle)

    def ledgers_map(
        self,
        log_id: int,
        pay: Callable[[int, int], None] | None = None,
        *,
        scan: bool = False,
        met: Callable[[int, int, int, int], None] = _unnoticed,
    ) -> LedgersMap:
        """Bytes per ledger, from the tail of the log or else by a scan; with `scan` always by one. `StorageFault` if
        the log is not there. `pay(entries, bytes)` is called now and then in a scan, with what was read since, and
        `met(location, ledger_id, entry_id, size)` for each entry.
        """
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
        for location, ledger_id, entry_id, size in counted:
            ledgers.add(ledger_id, SIZE_BYTES + size)
            met(location, ledger_id, entry_id, size)
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
        """Ids of all logs on disk, ascending, current and preallocated ones included."""
        return self._catalog.ids()

    def is_flushed(self, log_id: int) -> bool:
        """Return whether the log is from an earlier process, or rotated and synced.

        Only such a log may be collected.
        """
        return self._catalog.is_flushed(log_id)

    def make_durable(self, log_id: int) -> None:
        """Make the bytes durable that an earlier process wrote into the log, before a row leads there.

        Raises `StorageFault`.
        """
        self._catalog.make_durable(log_id)

    def least_unflushed_log_id(self) -> int:
        """Return the oldest log of this process that is not rotated and synced; without any, the id that comes
        next.
        """
        return self._catalog.least_unflushed_id()

    def first_log_of_new_ledgers(self) -> int:
        """The first log that may hold entries of a ledger that becomes known now; 0: any may, as none is older."""
        return self._catalog.first_of_new_ledgers()

    @property
    def newest_log_id(self) -> int:
        """The id that was given out last, whatever became of the log; -1 if none was."""
        return self._catalog.last_id

    def later_processes_begin_at(self, log_id: int) -> None:
        """Let later processes begin no log before this one, once `secure_next_process` has returned. Event loop."""
        self._catalog.later_processes_begin_at(log_id)

    def secure_next_process(self) -> None:
        """Make the number given to `later_processes_begin_at` durable. Called before a mark moves. `StorageFault`."""
        self._catalog.secure_next_process()

    def later_logs_begin_at(self) -> int:
        """Return the first log that another program may make from now on, whatever crash comes. `StorageFault`."""
        self._catalog.secure_ids()
        return following_id(self._catalog.last_id)

    def exists(self, log_id: int) -> bool:
        return self._catalog.exists(log_id)

    def only_there(self, rows: Iterable[tuple[int, int]]) -> Iterator[int]:
        """Yield the entries whose logs are here, from index rows of (entry id, location)."""
        return (entry_id for entry_id, location in rows if self._catalog.exists(split_location(location)[0]))

    def path(self, log_id: int) -> str:
        """The log's file. `StorageFault` if it is in none of the directories."""
        return self._catalog.path(log_id)

    def size(self, log_id: int) -> int:
        """Bytes of the log's file."""
        path = self._catalog.path(log_id)
        try:
            return self._files.size(path)
        except OSError as error:
            raise storage_fault(f"cannot tell the size of entry log {path}", error) from error

    def written_ms(self, log_id: int) -> int:
        """Return when the log's file was last written, in ms since the epoch."""
        path = self._catalog.path(log_id)
        try:
            return self._files.modified_ms(path)
        except OSError as error:
            raise storage_fault(f"cannot tell the age of entry log {path}", error) from error

    def delete(self, log_id: int) -> bool:
        """Unlink the log, whose id is never given out again; False if it was gone already. `StorageFault` if it is not
        flushed or cannot be unlinked.
        """
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
            raise storage_fault(f"cannot delete entry log {path}", error) from error
        self.stats.logs_deleted += 1
        return True

    # --- transactional compaction ---------------------------------------------------------------------------------

    def begin_compaction(self, source_id: int, live_bytes: int) -> CompactionLog:
        """A separate log for transactional compaction of log `source_id`, of which about so many bytes live.
        Used by one thread. `NoWritableDirectory` if every directory is full and none has room for them.
        """
        return self._compactions.begin(source_id, live_bytes)

    def recover_compactions(self) -> list[CompactionLog]:
        """Compactions that a crash left complete but perhaps not indexed; incomplete ones are removed.

        Call it when no compaction is running. For each: `make_available`, scan the log and update the index,
        `finish`, delete the source.
        """
        return self._compactions.recover()

    # --- the end --------------------------------------------------------------------------------------------------

    def force_close(self) -> None:
        """Close every file and stop background work without writing anything."""
        super().force_close()
        self._reader.handles.close()


def _fitted(files: Files, dirs: LedgerDirs, config: BookieConfig) -> BookieConfig:
    """Logs that suit the smallest of the disks."""
    try:
        smallest = min((files.usage(path).total for path in dirs.all()), default=0)
    except OSError:
        return config  # the first user of that directory reports it
    suitable = fitted(config, smallest)
    if suitable is not config:
        logger.info(
            "entry logs are smaller than logSizeLimit, so that compaction has room for one when the disk is full",
            bytes=suitable.ledger_storage.log_size_limit_bytes,
            configured=config.ledger_storage.log_size_limit_bytes,
            directories=list(dirs.all()),
        )
    return suitable
