"""Reads entries by location, from the file or from the buffer of a log that is being written.

Every read proves what it found: the entry carries its ledger id and entry id, and both must be those asked
for (reference disk formats, 4.3). A location that leads elsewhere is damage, never "no such entry".

Threads: any number of readers.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping

import structlog

from bookie_pod.config.model import BookieConfig
from bookie_pod.storage.entry_log.catalog import LogCatalog
from bookie_pod.storage.entry_log.format import (
    BLOCK,
    ENTRY_HEAD,
    FIRST_POSITION,
    MIN_ENTRY_SIZE,
    PAD_BYTE,
    SIZE_BYTES,
    make_location,
    next_block,
    split_location,
)
from bookie_pod.storage.entry_log.interface import EntryCheck, EntryLogStats, Row
from bookie_pod.storage.entry_log.scan import SANE_ENTRY_BYTES
from bookie_pod.storage.entry_log.writer import LogWriter
from bookie_pod.storage.files import File, Files, storage_fault
from bookie_protocol.errors import EntryDamaged, StorageFault

logger = structlog.get_logger(__name__)
MAX_OPEN_FILES = 256
"""Read handles that are kept open; those in use come on top."""
GUESS_LIMIT = 68 << 10
"""Bytes that the first read of an entry of unknown size fetches, at most: a little more than 64 KiB."""
CHUNK_LIMIT = 1 << 20
"""Bytes of one read-ahead read, at most, unless one entry is larger."""


class ReadHandle:
    """One open log. `users` and `dropped` belong to `ReadHandles`."""

    __slots__ = ("dropped", "file", "log_id", "users")

    def __init__(self, log_id: int, file: File) -> None:
        self.log_id = log_id
        self.file = file
        self.users = 0
        self.dropped = False


class ReadHandles:
    """Open files of the logs that are being read. Any thread.

    Invariants
    - A handle is closed only when no reader uses it. At most `capacity` idle ones stay open; the least recently used is
      closed first. Handles in use come on top of that.
    - After `drop` no new handle for that log can appear: opening checks under the lock that the log still exists.
    """

    def __init__(self, files: Files, catalog: LogCatalog, capacity: int) -> None:
        self._files = files
        self._catalog = catalog
        self._capacity = capacity
        self._lock = threading.Lock()
        self._open: OrderedDict[int, ReadHandle] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def acquire(self, log_id: int) -> ReadHandle:
        """The log's handle, to be given back with `release`. `StorageFault` if there is no such file."""
        with self._lock:
            handle = self._open.get(log_id)
            if handle is not None:
                handle.users += 1
                self._open.move_to_end(log_id)
                return handle
        return self._adopt(log_id, self._open_file(log_id))

    def _open_file(self, log_id: int) -> File:
        path = self._catalog.path(log_id)
        try:
            return self._files.open(path)
        except OSError as error:
            raise storage_fault(f"cannot open entry log {path}", error) from error

    def _adopt(self, log_id: int, file: File) -> ReadHandle:
        surplus: list[File] = []
        with self._lock:
            handle = self._open.get(log_id)
            if handle is not None:
                surplus.append(file)
            elif self._catalog.exists(log_id):
                handle = self._open[log_id] = ReadHandle(log_id, file)
            if handle is not None:
                handle.users += 1
                surplus += self._evict()
        if handle is None:
            file.close()
            raise StorageFault(f"entry log {file.path} was deleted meanwhile")
        for unused in surplus:
            unused.close()
        return handle

    def _evict(self) -> list[File]:
        excess = len(self._open) - self._capacity
        if excess <= 0:
            return []
        idle = [handle for handle in self._open.values() if handle.users == 0][:excess]
        for handle in idle:
            del self._open[handle.log_id]
        return [handle.file for handle in idle]

    def release(self, handle: ReadHandle) -> None:
        with self._lock:
            handle.users -= 1
            if handle.users:
                return
            files = [handle.file] if handle.dropped else self._evict()
        for file in files:
            file.close()

    def drop(self, log_id: int) -> None:
        """Forget a log that is being deleted; readers in the middle of it finish first."""
        with self._lock:
            handle = self._open.pop(log_id, None)
            if handle is None:
                return
            handle.dropped = True
            idle = handle.users == 0
        if idle:
            handle.file.close()

    def close(self) -> None:
        """Drop everything."""
        for log_id in list(self._open):
            self.drop(log_id)


class EntryReader:
    """`writers` maps the ids of logs with a buffer to their writers; others change it while we read."""

    def __init__(
        self,
        files: Files,
        catalog: LogCatalog,
        writers: Mapping[int, LogWriter],
        config: BookieConfig,
        stats: EntryLogStats,
        max_open_files: int = MAX_OPEN_FILES,
    ) -> None:
        self.check: EntryCheck | None = None
        """Looks at what is served."""
        self.handles = ReadHandles(files, catalog, max_open_files)
        self._writers = writers
        self._stats = stats
        self._stats_lock = threading.Lock()
        self._guess = self._least_read = config.ledger_storage.read_buffer_size_bytes
        self.max_entry_bytes = config.network.max_frame_size_bytes
        self._largest = max(self.max_entry_bytes, SANE_ENTRY_BYTES)
        """Bytes of an entry above which its size is damage, as in a scan."""

    def read(self, location: int, ledger_id: int, entry_id: int) -> bytes:
        """See `EntryLogger.read`."""
        return self._read_run(location, ledger_id, entry_id, 0, 0)[0][1]

    def read_run(self, location: int, ledger_id: int, entry_id: int, more: int, max_bytes: int) -> list[Row]:
        """See `EntryLogger.read_run`."""
        rows = self._read_run(location, ledger_id, entry_id, more, max_bytes)
        if (check := self.check) is None:
            return rows
        if (problem := check.served(location, ledger_id, entry_id, rows[0][1])) is not None:
            self._count_damage()
            raise EntryDamaged(f"at {location} (log << 32 | position): {problem}")
        return [rows[0], *check.sound(ledger_id, rows[1:])]

    def _read_run(self, location: int, ledger_id: int, entry_id: int, more: int, max_bytes: int) -> list[Row]:
        """One file read if the sizes are about that of the entry read before."""
        log_id, position = split_location(location)
        handle = self.handles.acquire(log_id)
        try:
            start = position - SIZE_BYTES
            entry, chunk = self._read(handle, position, ledger_id, entry_id, more, max_bytes)
            rows = [(entry_id, entry, location)]
            if more:
                behind = position + len(entry)
                try:
                    self._read_behind(handle, behind, ledger_id, entry_id + 1, more, max_bytes, rows, chunk, start)
                except OSError as error:
                    logger.warning("read-ahead failed", path=handle.file.path, error=str(error))
            return rows
        except OSError as error:
            what = f"cannot read entry {entry_id} of ledger {ledger_id} at {position} of {handle.file.path}"
            raise storage_fault(what, error) from error
        except EntryDamaged:
            self._count_damage()
            raise
        finally:
            self.handles.release(handle)

    def _count_damage(self) -> None:
        with self._stats_lock:
            self._stats.damaged_reads += 1

    def _read(
        self, handle: ReadHandle, position: int, ledger_id: int, entry_id: int, more: int, max_bytes: int
    ) -> tuple[bytes, bytes]:
        """The entry, and what was read from its size word on: that may hold some of the `more` entries behind it."""
        if position < FIRST_POSITION:
            raise EntryDamaged(
                f"entry {entry_id} of ledger {ledger_id} cannot be at {position} of {handle.file.path}: "
                f"entries begin at {FIRST_POSITION}"
            )
        start = position - SIZE_BYTES
        guess = max(self._guess, ENTRY_HEAD.size)
        data = self._fetch(handle, start, max(guess, min(guess * (1 + more), guess + max_bytes, CHUNK_LIMIT)))
        if len(data) < ENTRY_HEAD.size:
            raise EntryDamaged(
                f"{handle.file.path} ends at {start + len(data)}, in the head of entry {entry_id} of ledger "
                f"{ledger_id} at {position}"
            )
        size, found_ledger, found_entry = ENTRY_HEAD.unpack_from(data)
        if size < MIN_ENTRY_SIZE or found_ledger != ledger_id or found_entry != entry_id:
            raise EntryDamaged(
                f"expected entry {entry_id} of ledger {ledger_id} at {position} of {handle.file.path}, "
                f"found size {size}, entry {found_entry} of ledger {found_ledger}"
            )
        if size > self._largest:
            raise EntryDamaged(
                f"entry {entry_id} of ledger {ledger_id} at {position} of {handle.file.path} has a size of {size}, and "
                f"no entry has more than {self._largest} bytes"
            )
        if size > self.max_entry_bytes:
            logger.warning("oversized entry", ledger_id=ledger_id, entry_id=entry_id, size=size)
        self._guess = min(max(size + SIZE_BYTES, self._least_read), GUESS_LIMIT)
        end = SIZE_BYTES + size
        if end > len(data):
            data = b"".join((data, self._fetch_rest(handle, start + len(data), end - len(data))))
        if end > len(data):
            raise EntryDamaged(
                f"{handle.file.path} ends within entry {entry_id} of ledger {ledger_id} at {position}: "
                f"its size is {size}, {len(data) - SIZE_BYTES} bytes are there"
            )
        return data[SIZE_BYTES:end], data

    def _fetch(self, handle: ReadHandle, start: int, length: int) -> bytes:
        writer = self._writers.get(handle.log_id)
        if writer is not None and (data := writer.buffered(start, length)) is not None:
            return data
        return handle.file.pread(length, start)

    def _fetch_rest(self, handle: ReadHandle, start: int, length: int) -> bytes:
        """Fetch as `_fetch` does, but believe a large length only if the file is that long: it may be damage."""
        if length > CHUNK_LIMIT and handle.log_id not in self._writers:
            length = min(length, max(0, handle.file.size() - start))
        return self._fetch(handle, start, length)

    def _read_behind(
        self,
        handle: ReadHandle,
        start: int,
        ledger_id: int,
        entry_id: int,
        more: int,
        max_bytes: int,
        found: list[Row],
        chunk: bytes,
        at: int,
    ) -> None:
        """Add to `found` up to `more` entries, of `max_bytes` together, with ascending ids from `entry_id` on. `start`
        is the offset of a size word; `chunk` holds the file's bytes from offset `at` on.

        The loop is one for speed: it is what a bookie does for each entry of a batch that comes from disk.
        """
        size = self._guess
        most = len(found) + more
        location_of = make_location(handle.log_id, SIZE_BYTES)
        unpack_head, head_size = ENTRY_HEAD.unpack_from, ENTRY_HEAD.size
        while len(found) < most:
            offset = start - at
            if offset + head_size > len(chunk):
                wanted = (size + SIZE_BYTES) * (most - len(found))
                window = max(head_size, min(wanted, max_bytes + SIZE_BYTES, CHUNK_LIMIT))
                chunk, at, offset = self._fetch(handle, start, window), start, 0
                if len(chunk) < head_size:
                    return
            size, found_ledger, found_entry = unpack_head(chunk, offset)
            if found_ledger != ledger_id or found_entry < entry_id or not MIN_ENTRY_SIZE <= size <= max_bytes:
                if chunk[offset] == PAD_BYTE[0] and start % BLOCK:
                    start, size = next_block(start), self._guess
                    continue
                return
            end = offset + SIZE_BYTES + size
            if end > len(chunk):
                if offset:
                    chunk, at = b"", start
                    continue
                chunk += self._fetch_rest(handle, at + len(chunk), end - len(chunk))
                if end > len(chunk):
                    return
            found.append((found_entry, chunk[offset + SIZE_BYTES : end], location_of + start))
            max_bytes -= size
            entry_id = found_entry + 1
            start += SIZE_BYTES + size
