"""Makes log files, the next one ahead of time.

Invariants
- A new log lies in a directory chosen at random among the writable ones; if making it there fails, in
  another.
- Its name is durable before anything refers to it: an index may be on the disk before what it leads to, and a log that
  is not there has been deleted, or its disk is missing.
- At most one log is preallocated. It is an empty file until it is used; if its directory has become full
  meanwhile it is removed and its id stays unused.

Threads: `create` and `close` under the logger's append lock; preallocation on one background thread, which
`close` ends.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor

import structlog

from bookie_pod.config.model import BookieConfig
from bookie_pod.storage.entry_log.catalog import LogCatalog
from bookie_pod.storage.entry_log.directories import LedgerDirs, candidate_directories
from bookie_pod.storage.entry_log.names import log_file_name
from bookie_pod.storage.entry_log.writer import LogWriter
from bookie_pod.storage.files import Files, storage_fault
from bookie_pod.storage.log_ids import is_before
from bookie_protocol.errors import PodkeeperError, ResourcesShort, StorageFault

logger = structlog.get_logger(__name__)

DirectoryOrder = Callable[[Sequence[str]], Sequence[str]]
"""Sorts candidate directories, the best first."""

WriterFactory = Callable[[Files, int, str, int], LogWriter]
"""(files, log id, directory, bytes of its buffer): makes the file and its writer; `FileExistsError`, `OSError`."""


def make_writer(files: Files, log_id: int, directory: str, buffer_bytes: int) -> LogWriter:
    """A log in the ordinary format."""
    file = files.create(posixpath.join(directory, log_file_name(log_id)))
    return LogWriter(log_id, directory, file, buffer_bytes)


class LogAllocator:
    """Creates the files of new logs."""

    def __init__(
        self,
        files: Files,
        dirs: LedgerDirs,
        catalog: LogCatalog,
        config: BookieConfig,
        factory: WriterFactory = make_writer,
        order: DirectoryOrder = lambda candidates: candidates,
    ) -> None:
        self._files = files
        self._dirs = dirs
        self._catalog = catalog
        self._storage = config.ledger_storage
        self._usable_bytes = config.disks.min_usable_for_entry_log_bytes
        self._factory = factory
        self._order = order
        self._executor: Executor | None = None
        self._next: Future[LogWriter] | None = None
        self._lost: set[str] = set()

    def give_up(self, directory: str) -> None:
        """Make no log there any more."""
        self._lost.add(directory)
        self._catalog.give_up(directory)

    def create(self, first_id: int = 0) -> LogWriter:
        """A new, empty log that is not older than `first_id`. `NoWritableDirectory`, `StorageFault`."""
        log = self._take_preallocated(first_id) or self._allocate(first_id)
        if self._storage.entry_log_preallocation:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(1, thread_name_prefix="entry-log-allocator")
            self._next = self._executor.submit(self._allocate)
        return log

    def _take_preallocated(self, first_id: int) -> LogWriter | None:
        future, self._next = self._next, None
        if future is None:
            return None
        try:
            log = future.result()
        except PodkeeperError as error:
            logger.warning("preallocation of an entry log failed", error=str(error))
            return None
        if log.directory in self._dirs.writable() and not is_before(log.log_id, first_id):
            return log
        self.discard(log)
        return None

    def _allocate(self, first_id: int = 0) -> LogWriter:
        found = candidate_directories(self._files, self._dirs, self._usable_bytes, lost=self._lost)
        candidates = self._order(found)
        failures: list[StorageFault] = []
        for directory in candidates:
            try:
                return self._allocate_in(directory, first_id)
            except OSError as error:
                failures.append(storage_fault(f"cannot create an entry log in {directory}", error))
                logger.warning("cannot create an entry log", directory=directory, error=str(error))
        short = all(isinstance(failure, ResourcesShort) for failure in failures)
        raise (ResourcesShort if short else StorageFault)("; ".join(map(str, failures)))

    def _allocate_in(self, directory: str, first_id: int) -> LogWriter:
        while True:
            log_id = self._catalog.allocate(first_id)
            try:
                log = self._factory(self._files, log_id, directory, self._storage.write_buffer_size_bytes)
            except FileExistsError:
                logger.warning("entry log exists already, skipped", directory=directory, log_id=log_id)
                continue
            self._catalog.add_created(log_id, directory)
            try:
                self._files.sync_directory(directory)
            except OSError:
                self.discard(log)
                raise
            return log

    def discard(self, log: LogWriter) -> None:
        """Remove a log that holds nothing that counts."""
        self._catalog.forget(log.log_id)
        path = posixpath.join(log.directory, log_file_name(log.log_id))
        try:
            log.close()
            self._files.unlink(path)
        except OSError as error:
            logger.warning("cannot remove an entry log that holds nothing", path=path, error=str(error))

    def close(self) -> None:
        """Stop preallocation and remove the log that was made ahead."""
        future, self._next = self._next, None
        if self._executor is not None:
            self._executor.shutdown(wait=True)
            self._executor = None
        if future is not None and future.exception() is None:
            self.discard(future.result())
