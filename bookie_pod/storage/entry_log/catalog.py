"""Which logs exist, in which directory, and which id comes next.

Invariants
- An id is written to `lastId` in all directories before its file is made; an id whose file exists in any
  directory is never given out again, and no existing file is opened for writing.
- A log is in the catalog from its creation until `forget`. Logs that this process created count as unflushed,
  in the order of their creation, until they are rotated and synced; logs found at start-up never do.

Threads: any; one lock around the maps. Allocation holds a lock of its own while it touches disks.
"""

from __future__ import annotations

import posixpath
import threading

import structlog

from bookie_pod.storage.entry_log.directories import LedgerDirs
from bookie_pod.storage.entry_log.format import MAX_LOG_ID
from bookie_pod.storage.entry_log.names import (
    LAST_ID_FILE,
    following_id,
    last_id_in_directory,
    log_file_name,
    parse_compacted_name,
    parse_log_name,
)
from bookie_pod.storage.files import Files
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
        for directory in dirs.all():
            self._load(directory)

    def _load(self, directory: str) -> None:
        try:
            names = self._files.listdir(directory)
            text = self._last_id_text(directory) if LAST_ID_FILE in names else None
        except OSError as error:
            raise StorageFault(f"cannot list the entry logs in {directory}: {error}") from error
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

    def _last_id_text(self, directory: str) -> str:
        return self._files.read_bytes(posixpath.join(directory, LAST_ID_FILE)).decode("ascii", "replace")

    def allocate(self) -> int:
        """The next free id, noted in `lastId` of every directory."""
        with self._allocation:
            log_id = self._last_id
            for _ in range(MAX_LOG_ID + 1):
                log_id = following_id(log_id)
                if not self._taken(log_id):
                    break
                logger.warning("entry log id is taken, skipped", log_id=log_id, file=log_file_name(log_id))
            else:
                raise StorageFault("every entry log id is taken")
            self._last_id = log_id
            self._write_last_id(log_id)
            return log_id

    def _taken(self, log_id: int) -> bool:
        with self._lock:
            if log_id in self._directory or log_id in self._reserved:
                return True
        name = log_file_name(log_id)
        return any(self._files.exists(posixpath.join(path, name)) for path in self._dirs.all())

    def _write_last_id(self, log_id: int) -> None:
        for directory in self._dirs.all():
            path = posixpath.join(directory, LAST_ID_FILE)
            try:
                self._files.write_bytes(path, f"{log_id:x}\n".encode())
            except OSError as error:
                logger.warning("cannot write the last entry log id", path=path, error=str(error))

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

    def least_unflushed_id(self) -> int:
        """The unflushed log that was created first; without any, the id that comes next."""
        with self._lock:
            return next(iter(self._unflushed), following_id(self._last_id))

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
