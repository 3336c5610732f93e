"""Which logs exist, in which directory, and which id comes next.

Invariants
- An id is never given out again, whatever a crash leaves: rows of a ledger whose deletion was not durable, and what is
  kept by log id, would speak of another log. `lastId` in all directories names the newest id before its file is made;
  it is overwritten in place, which never leaves less than it said before, and durable before a log's file goes. No
  existing file is opened for writing.
- A later process gives out no id before `later_processes_begin_at`, once `secure_ids` has returned: `lastId` names the
  id before that one, if it is newer.
- A log is in the catalog from its creation until `forget`. Logs that this process created count as unflushed,
  in the order of their creation, until they are rotated and synced; logs found at start-up never do.

Threads: any; one lock around the maps. Allocation holds a lock of its own while it touches disks.
"""

from __future__ import annotations

import posixpath
import threading

import structlog

from bookie_pod.storage.entry_log.directories import LedgerDirs
from bookie_pod.storage.entry_log.names import (
    LAST_ID_FILE,
    last_id_in_directory,
    log_file_name,
    parse_compacted_name,
    parse_log_name,
)
from bookie_pod.storage.files import Files, storage_fault
from bookie_pod.storage.log_ids import MAX_LOG_ID, following_id, is_before, later_of
from bookie_protocol.errors import StorageFault

logger = structlog.get_logger(__name__)


class LogCatalog:
    """The entry logs in the directories of one logger."""

    def __init__(self, files: Files, dirs: LedgerDirs) -> None:
        self._files = files
        self._dirs = dirs
        self._lock = threading.Lock()
        self._allocation = threading.Lock()
        self._directory: dict[int, str] = {}
        self._reserved: set[int] = set()
        self._unflushed: dict[int, None] = {}
        self._last_id = -1
        self._noting = list(dirs.all())
        """Directories in which the last id is noted."""
        self._texts: dict[str, bytes] = {}
        """The contents of `lastId`, by directory."""
        self._noted_durably = -1
        """The id that `lastId` names, whatever crash comes; -1 if that is not known."""
        self._next_process = 0
        """The id that a later process may begin with; 0: any. The event loop changes it."""
        self._inherited: set[int] = set()
        """Logs of earlier processes, which may be in the page cache alone."""
        for directory in dirs.all():
            self._load(directory)

    def _load(self, directory: str) -> None:
        try:
            names = self._files.listdir(directory)
            text = self._last_id_text(directory) if LAST_ID_FILE in names else None
        except OSError as error:
            raise storage_fault(f"cannot list the entry logs in {directory}", error) from error
        for name in names:
            if (log_id := parse_log_name(name)) is not None:
                self._add_found(log_id, directory)
            elif (log_id := parse_compacted_name(name)) is not None:
                self._reserved.add(log_id)
        self._last_id = max(self._last_id, last_id_in_directory(names, text))

    def _add_found(self, log_id: int, directory: str) -> None:
        if log_id in self._directory:
            raise StorageFault(
                f"entry log {log_file_name(log_id)} is in {self._directory[log_id]} and in {directory}: "
                "move the wrong one away"
            )
        self._directory[log_id] = directory
        self._inherited.add(log_id)

    def _last_id_text(self, directory: str) -> str:
        data = self._texts[directory] = self._files.read_bytes(self._text_path(directory))
        return data.decode("ascii", "replace")

    @property
    def last_id(self) -> int:
        """The id that was given out last, -1 if none was."""
        return self._last_id

    def allocate(self, first: int = 0) -> int:
        """The next free id from `first` on (0: any), noted in `lastId` of every directory."""
        with self._allocation:
            log_id = self._last_id
            if is_before(following_id(log_id), first):
                log_id = first - 1
            for _ in range(MAX_LOG_ID + 1):
                log_id = following_id(log_id)
                if not self._taken(log_id):
                    break
                logger.warning("entry log id is taken, skipped", log_id=log_id, file=log_file_name(log_id))
            else:
                raise StorageFault("every entry log id is taken")
            self._last_id = log_id
            noted = self._to_note()
            for directory in self._noting:
                try:
                    self._write_last_id(directory, noted, sync=False)
                except OSError as error:
                    path = self._text_path(directory)
                    logger.warning("cannot write the last entry log id", path=path, error=str(error))
            if noted != self._noted_durably:
                self._noted_durably = -1
            return log_id

    def later_processes_begin_at(self, log_id: int) -> None:
        """Let later processes give out no id before this one, once `secure_ids` has returned."""
        self._next_process = later_of(self._next_process, log_id)

    def _to_note(self) -> int:
        first = self._next_process
        return first - 1 if is_before(following_id(self._last_id), first) else self._last_id

    def _taken(self, log_id: int) -> bool:
        with self._lock:
            if log_id in self._directory or log_id in self._reserved:
                return True
        name = log_file_name(log_id)
        return any(self._files.exists(posixpath.join(path, name)) for path in self._dirs.all())

    def secure_ids(self) -> None:
        """Let no crash give out an id again, from now on, whose log is gone. To be called before a log's file is
        removed; costs nothing but after an allocation, or `later_processes_begin_at`. `StorageFault`."""
        with self._allocation:
            noted = self._to_note()
            if noted == self._noted_durably:
                return
            failure: OSError | None = None
            for directory in self._noting:
                try:
                    self._write_last_id(directory, noted, sync=True)
                    self._noted_durably = noted
                except OSError as error:
                    failure = error
            if failure is not None and self._noted_durably != noted:
                raise storage_fault("cannot make the last entry log id durable", failure) from failure

    def secure_next_process(self) -> None:
        """Make the number given to `later_processes_begin_at` durable. `StorageFault`."""
        if self._next_process:
            self.secure_ids()

    def give_up(self, directory: str) -> None:
        """Write nothing there any more."""
        with self._allocation:
            self._noting = [each for each in self._noting if each != directory]
            self._noted_durably = -1  # it may have been the only one that took it

    def _write_last_id(self, directory: str, log_id: int, *, sync: bool) -> None:
        text = f"{log_id:x}\n".encode()
        path = self._text_path(directory)
        if len(text) != len(self._texts.pop(directory, b"")):
            self._files.write_bytes_atomic(path, text)
        else:
            # In place: it takes no room on a full disk, and of a higher number each part that is written is higher too.
            file = self._files.open(path, writable=True)
            try:
                file.pwrite(text, 0)
                if sync:
                    file.datasync()
            finally:
                file.close()
        self._texts[directory] = text

    def _text_path(self, directory: str) -> str:
        return posixpath.join(directory, LAST_ID_FILE)

    def add_created(self, log_id: int, directory: str) -> None:
        """A log that this process made: unflushed from now on."""
        with self._lock:
            self._directory[log_id] = directory
            self._unflushed[log_id] = None

    def mark_flushed(self, log_id: int) -> None:
        with self._lock:
            self._unflushed.pop(log_id, None)

    def is_flushed(self, log_id: int) -> bool:
        return log_id not in self._unflushed

    def make_durable(self, log_id: int) -> None:
        """Make the bytes durable that an earlier process wrote into the log, before a row leads there.

        Raises `StorageFault`.
        """
        if log_id not in self._inherited:
            return
        path = self.path(log_id)
        try:
            file = self._files.open(path)
            try:
                file.datasync()
            finally:
                file.close()
        except OSError as error:
            raise storage_fault(f"cannot sync entry log {path}", error) from error
        self._inherited.discard(log_id)

    def least_unflushed_id(self) -> int:
        """Return the unflushed log that was created first; without any, the id that comes next."""
        with self._lock:
            return next(iter(self._unflushed), following_id(self._last_id))

    def first_of_new_ledgers(self) -> int:
        """The first log that may hold entries of a ledger that becomes known now; 0: any may, as none is older.

        If that is log 0 and the ids have wrapped, it is the last one before: 0 would say that any may.
        """
        oldest = self.least_unflushed_id()
        if oldest == 0:
            with self._lock:
                return MAX_LOG_ID if max(self._directory, default=0) > MAX_LOG_ID // 2 else 0
        return oldest

    def forget(self, log_id: int) -> str | None:
        """Strike a log from the list; its directory."""
        with self._lock:
            self._unflushed.pop(log_id, None)
            return self._directory.pop(log_id, None)

    def add_flushed(self, log_id: int, directory: str) -> None:
        """Enter a log that is complete and durable: one whose removal failed, or the result of a compaction."""
        with self._lock:
            self._directory[log_id] = directory

    def ids(self) -> list[int]:
        with self._lock:
            return sorted(self._directory)

    def exists(self, log_id: int) -> bool:
        return log_id in self._directory

    def path(self, log_id: int) -> str:
        """The log's file. `StorageFault` if it is in none of the directories."""
        directory = self._directory.get(log_id)
        if directory is None:
            raise StorageFault(
                f"entry log {log_file_name(log_id)} is in none of {', '.join(self._dirs.all())}: "
                "it was deleted, or a disk is missing"
            )
        return posixpath.join(directory, log_file_name(log_id))
