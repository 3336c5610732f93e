"""Logs of transactional compaction, beside the normal ones (reference on-disk formats, section 5).

What lies on disk tells how far a compaction of log S into log D came::

    D.log.compacting          live entries are being copied; worthless after a crash
    D.log.S.compacted         complete and durable; the index may know nothing of it
    D.log                     second name of the same file; readable
    only D.log                the index points to it, S can go

Invariants
- Each step is durable (data and names) before it returns, so a later step never survives an earlier one.
- Until `make_available` no reader sees D; until `finish` a crash leaves the `.compacted` name, and recovery repeats
  the index update.

Threads: one compaction at a time, on the garbage collection thread; recovery on the same thread.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from functools import partial

import structlog

from bookie_pod.config.model import BookieConfig
from bookie_pod.storage.entry_log.catalog import LogCatalog
from bookie_pod.storage.entry_log.directories import COMPACTION, LedgerDirs, candidate_directories, check_room
from bookie_pod.storage.entry_log.format import HARD_LOG_SIZE, SIZE_BYTES
from bookie_pod.storage.entry_log.names import (
    compacted_name,
    compacting_name,
    log_file_name,
    parse_compaction,
)
from bookie_pod.storage.entry_log.writer import LogWriter
from bookie_pod.storage.files import Files, storage_fault
from bookie_protocol.errors import NoWritableDirectory, StorageFault

logger = structlog.get_logger(__name__)


class CopyOutgrown(NoWritableDirectory):
    """The disk has no room for a copy, because more lives in the source than was expected."""


def _unlimited(nbytes: int) -> None:
    """Do not look at the disk."""


class CompactionLog:
    """The new log of one compaction. Steps in this order, each repeatable after a crash: `append_run` (live entries),
    `mark_compacted`, `make_available`, index update by the caller, `finish`, then `EntryLogger.delete` of the source.
    `abort` instead of `mark_compacted` gives up. `writer` is None if it was found complete at recovery."""

    def __init__(
        self,
        files: Files,
        catalog: LogCatalog,
        directory: str,
        log_id: int,
        source_id: int,
        writer: LogWriter | None,
        live_bytes: int = 0,
        check_room: Callable[[int], None] = _unlimited,
    ) -> None:
        """`check_room` raises `CopyOutgrown` where so many bytes do not fit; not asked for the first `live_bytes`."""
        self.log_id = log_id
        self.source_id = source_id
        self._files = files
        self._catalog = catalog
        self._directory = directory
        self._writer = writer
        self._expected = live_bytes
        self._check_room = check_room
        self._compacting = posixpath.join(directory, compacting_name(log_id))
        self._compacted = posixpath.join(directory, compacted_name(log_id, source_id))
        self._final = posixpath.join(directory, log_file_name(log_id))

    def append_run(self, ledger_id: int, entries: Sequence[bytes]) -> list[int]:
        """Append; the locations that the entries will have. `CopyOutgrown`, another `StorageFault`."""
        writer = self._open_writer()
        nbytes = sum(map(len, entries)) + SIZE_BYTES * len(entries)
        self._expected -= nbytes
        if self._expected < 0:
            self._check_room(nbytes)
        locations: list[int] = []
        done = 0
        while done < len(entries):
            try:
                count = writer.append(ledger_id, entries, done, HARD_LOG_SIZE, locations)
            except OSError as error:
                raise storage_fault(f"cannot write compaction log {self._compacting}", error) from error
            if count == 0:
                raise StorageFault(f"compaction log {self._compacting} would exceed {HARD_LOG_SIZE} bytes")
            done += count
        return locations

    def _open_writer(self) -> LogWriter:
        if self._writer is None:
            raise StorageFault(f"compaction log {self._final} is complete and takes no more entries")
        return self._writer

    def mark_compacted(self) -> None:
        """Close the log with its map and make it durable under the name `<log>.log.<source>.compacted`."""
        writer = self._open_writer()
        try:
            writer.write_map()
            writer.sync()
            self._link(self._compacting, self._compacted)
            self._remove(self._compacting)
            self._files.sync_directory(self._directory)
            writer.close()
        except OSError as error:
            raise storage_fault(f"cannot complete compaction log {self._compacting}", error) from error
        self._writer = None

    def make_available(self) -> None:
        """Give it its final name, durably: from now on its locations can be read."""
        try:
            self._link(self._compacted, self._final)
            self._files.sync_directory(self._directory)
        except OSError as error:
            raise storage_fault(f"cannot make compaction log {self._final} available", error) from error
        self._catalog.add_flushed(self.log_id, self._directory)

    def finish(self) -> None:
        """The index is updated and durable: remove the second name."""
        try:
            self._remove(self._compacted)
            self._files.sync_directory(self._directory)
        except OSError as error:
            raise storage_fault(f"cannot remove {self._compacted}", error) from error

    def abort(self) -> None:
        """Remove the incomplete file. One that cannot be removed now is removed at recovery."""
        writer, self._writer = self._writer, None
        try:
            if writer is not None:
                writer.close()
            self._remove(self._compacting)
        except OSError as error:
            logger.warning("cannot remove an incomplete compaction log", path=self._compacting, error=str(error))

    def _link(self, source: str, target: str) -> None:
        try:
            self._files.link(source, target)
        except FileExistsError:
            pass  # done before a crash

    def _remove(self, path: str) -> None:
        try:
            self._files.unlink(path)
        except FileNotFoundError:
            pass


class Compactions:
    """Begins and recovers compactions in the directories of one logger."""

    def __init__(self, files: Files, dirs: LedgerDirs, catalog: LogCatalog, config: BookieConfig) -> None:
        self._files = files
        self._dirs = dirs
        self._catalog = catalog
        self._usable_bytes_afterwards = config.disks.min_usable_after_compaction_bytes
        self._buffer_bytes = config.ledger_storage.write_buffer_size_bytes

    def begin(self, source_id: int, live_bytes: int) -> CompactionLog:
        """A new, empty compaction log for about `live_bytes`. `NoWritableDirectory`, `StorageFault`."""
        usable = live_bytes + self._usable_bytes_afterwards
        directory = candidate_directories(self._files, self._dirs, usable, COMPACTION)[0]
        log_id = self._catalog.allocate()
        path = posixpath.join(directory, compacting_name(log_id))
        try:
            file = self._files.create(path)
        except OSError as error:
            raise storage_fault(f"cannot create compaction log {path}", error) from error
        writer = LogWriter(log_id, directory, file, self._buffer_bytes)
        check = partial(self._check_room, directory)
        return CompactionLog(self._files, self._catalog, directory, log_id, source_id, writer, live_bytes, check)

    def _check_room(self, directory: str, nbytes: int) -> None:
        try:
            check_room(self._files, self._dirs, directory, nbytes + self._usable_bytes_afterwards, COMPACTION)
        except NoWritableDirectory as error:
            raise CopyOutgrown(str(error)) from error

    def recover(self) -> list[CompactionLog]:
        """Remove what is incomplete or misnamed; what is complete, in the order of directories and names."""
        found: list[CompactionLog] = []
        for directory in self._dirs.all():
            try:
                names = self._files.listdir(directory)
            except OSError as error:
                raise storage_fault(f"cannot list {directory}", error) from error
            for name in names:
                pair = parse_compaction(name)
                if pair is not None:
                    found.append(CompactionLog(self._files, self._catalog, directory, *pair, None))
                elif name.endswith((".log.compacting", ".compacted")):
                    self._remove(posixpath.join(directory, name))
        return found

    def _remove(self, path: str) -> None:
        logger.info("removing an incomplete compaction log", path=path)
        try:
            self._files.unlink(path)
        except OSError as error:
            logger.warning("cannot remove an incomplete compaction log", path=path, error=str(error))
