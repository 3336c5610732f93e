"""One journal file while it is written (reference on-disk formats, sections 2.2, 2.4, 2.5).

Invariants
- The header and the name are durable before the first record.
- Every group ends at an aligned offset (versions 5 and 6).
- The file grows ahead of the data in preallocated steps, which read as zeros. (The reference writes one block at the
  end of each step and leaves a hole before it; allocating the step halves the work of each sync.)

Threads: `create`, `write_group` on the journal thread (`create` also on the thread that prepares the next file);
`sync` and `close` on the sync thread.
"""

from __future__ import annotations

import errno
import mmap
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Final

import structlog

from bookie_pod.config.keys import MIB
from bookie_pod.config.sections.journal import JournalConfig
from bookie_pod.storage.files import Buffer, File, Files
from bookie_pod.storage.journal.batch_queue import slices
from bookie_pod.storage.journal.directory import journal_path
from bookie_pod.storage.journal.format import (
    FIRST_VERSION_WITH_PADDING,
    NO_FILE,
    GroupCheck,
    checked_header_bytes,
    crc32c,
    header_bytes,
    header_length,
    padding,
)

_log = structlog.get_logger(__name__)

BLOCK: Final = 4096
BUFFER_BYTES: Final = 1024 * 1024
WRITE_BYTES = 1024 * 1024
"""Bytes that are copied together for one write, at most. It bounds how long one copy keeps other threads waiting."""
_REFUSALS: Final = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)
CACHE_LAG = 8 * MIB
"""Synced bytes that stay in the page cache."""
_PAGE = 4096


def create_journal_file(files: Files, path: str, *, direct: bool) -> File:
    """A new file; an ordinary one if `direct` is not wanted or the file system refuses it. Raises `OSError`."""
    if not direct:
        return files.create(path)
    try:
        return DirectFile(files, path)
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise
        _log.info("this file system has no direct I/O, the journal goes through the page cache", path=path)
        return files.create(path)


class DirectFile:
    """A `File` for appending that writes past the page cache, on top of one that takes whole blocks only.

    A journal is written once and read only by a replay, so its pages in the page cache are useless, and copying,
    dirtying, writing back and dropping them costs more CPU than everything else a bookie does with an entry.

    Direct I/O takes whole blocks of 4096 bytes; groups end at multiples of `journalAlignmentSize` (512). The last
    block, if it is not full, stays in the buffer and is written again with the next group: its first part with the same
    bytes as before, so that a torn write cannot change what was synced.

    Invariants
    - The bytes of the file are those that a buffered file would have; behind the position are zeros.
    - Space is allocated in steps ahead of the data, so a sync has no blocks to find.
    - `close` forgets the buffer and does not free it: whatever still refers to it cannot make that fail.

    Threads: as `File`: one thread writes, another may sync.
    """

    def __init__(self, files: Files, path: str) -> None:
        self._view = memoryview(mmap.mmap(-1, BUFFER_BYTES))  # before the file, which an error would leave open
        self._file = files.create_direct(path)
        self._position = 0
        self._held = 0
        """Bytes of the last block that are in the buffer's front: `position` modulo the block size."""

    @property
    def path(self) -> str:
        return self._file.path

    @property
    def position(self) -> int:
        return self._position

    def write(self, data: Buffer) -> None:
        rest = memoryview(data)
        while rest:
            taken = min(len(rest), BUFFER_BYTES - self._held)
            self._append(rest[:taken])
            rest = rest[taken:]

    def writev(self, pieces: Sequence[Buffer]) -> None:
        self.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))

    def _append(self, data: memoryview) -> None:
        view, held = self._view, self._held
        filled = held + len(data)
        view[held:filled] = data
        end = -(-filled // BLOCK) * BLOCK
        view[filled:end] = bytes(end - filled)
        with view[:end] as blocks:
            self._file.pwrite(blocks, self._position - held)
        self._position += len(data)
        self._held = filled % BLOCK
        last = filled - self._held
        if last:
            view[: self._held] = view[last:filled]

    def pwrite(self, data: Buffer, offset: int) -> None:
        raise OSError(errno.EINVAL, "a directly written journal is only appended to", self.path)

    def pread(self, length: int, offset: int) -> bytes:
        raise OSError(errno.EINVAL, "a directly written journal is not read while it is written", self.path)

    def allocate(self, offset: int, length: int) -> None:
        self._file.allocate(offset, length)

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def datasync(self) -> None:
        self._file.datasync()

    def sync(self) -> None:
        self._file.sync()

    def data_from(self, offset: int) -> tuple[int, int] | None:
        return self._file.data_from(offset)

    def drop_cache(self, offset: int, length: int) -> None:
        """Do nothing: none of its bytes are in the page cache."""

    def size(self) -> int:
        return self._file.size()

    def close(self) -> None:
        self._view = memoryview(b"")
        self._file.close()


class JournalFile:
    """An open journal file, written by appending groups."""

    def __init__(self, file: File, journal_id: int, options: JournalConfig) -> None:
        self.journal_id = journal_id
        self.synced = 0
        self.before = 0
        """The predecessor that the next group names; set by the code that begins to use the file."""
        self._file = file
        self._options = options
        self._aligned = options.format_version >= FIRST_VERSION_WITH_PADDING
        self._checked = options.group_checks and self._aligned
        self._preallocated = 0
        self._dropped = 0

    @classmethod
    def create(
        cls, files: Files, directory: str, journal_id: int, options: JournalConfig, previous: int = NO_FILE
    ) -> JournalFile:
        """A new file, its header and its name durable; `previous` is the id of the file that was written before it.

        One that could not be made is removed again, as far as the disk lets us.
        """
        file = create_journal_file(files, journal_path(directory, journal_id), direct=options.direct_io)
        try:
            journal_file = cls(file, journal_id, options)
            journal_file._write_header(previous)
            files.sync_directory(directory)
        except Exception:
            file.close()
            with suppress(OSError):
                files.unlink(file.path)
            raise
        return journal_file

    def _write_header(self, previous: int) -> None:
        version = self._options.format_version
        header = checked_header_bytes(version, self.journal_id, previous) if self._checked else header_bytes(version)
        self._preallocate(len(header))
        self._file.write(header)
        self._file.sync()
        self.synced = self._file.position

    @property
    def path(self) -> str:
        return self._file.path

    @property
    def position(self) -> int:
        return self._file.position

    def write_group(self, batches: Iterable[tuple[list[bytes], int]], nbytes: int) -> int:
        """Append the pieces of all batches (`nbytes` together) and the padding. Returns the bytes written."""
        start = self._file.position
        self._preallocate(nbytes + 2 * self._options.alignment_size_bytes)
        crc = 0
        held = b""
        for run in slices(batches, WRITE_BYTES):
            if held:
                self._file.write(held)
            held = run[0] if len(run) == 1 else b"".join(run)
            if self._checked:
                crc = crc32c(held, crc)
        tail = self._padding(start, start + nbytes, crc)
        self._file.writev([held, tail] if tail else [held])
        return self._file.position - start

    def _padding(self, start: int, position: int, crc: int) -> bytes:
        if self._checked:
            check = GroupCheck(start, self.synced, self.before, crc)
            self.before = start
            return check.padding(self.journal_id, position, self._options.alignment_size_bytes)
        return padding(position, self._options.alignment_size_bytes) if self._aligned else b""

    def close_group(self) -> None:
        """Append an empty group that vouches for everything synced, if this file holds records and has checks."""
        if self._checked and self.position > header_length(self._options.format_version):
            self.write_group([], 0)

    def _preallocate(self, size: int) -> None:
        needed = self._file.position + size
        if needed <= self._preallocated:
            return
        alignment, start = self._options.alignment_size_bytes, self._preallocated
        step = self._options.pre_alloc_size_bytes // alignment * alignment
        self._preallocated += -(-(needed - start) // step) * step
        try:
            self._file.allocate(start, self._preallocated - start)
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            # Less than a step is left: the writes themselves find out when it is used up.

    def sync(self, end: int) -> None:
        """Make everything durable; `end` is a position that was written before this call."""
        self._file.datasync()
        self.synced = max(self.synced, end)
        if self._options.remove_from_page_cache:
            self._drop_cache()

    def _drop_cache(self) -> None:
        target = (self.synced - CACHE_LAG) // _PAGE * _PAGE
        if target > self._dropped:
            self._file.drop_cache(self._dropped, target - self._dropped)
            self._dropped = target

    def close(self) -> None:
        self._file.close()
