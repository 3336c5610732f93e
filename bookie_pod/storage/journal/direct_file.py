"""A journal file written past the page cache.

A journal is written once and read only by a replay, so its pages in the page cache serve nobody, and copying, dirtying,
writing back and dropping them costs more CPU than everything else a bookie does with an entry.

Direct I/O takes whole blocks of 4096 bytes; groups end at multiples of `journalAlignmentSize` (512). The last block, if
it is not full, stays in the buffer and is written again with the next group: its first part with the same bytes as
before, so that a torn write cannot change what was synced.

Invariants
- The bytes of the file are those that a buffered file would have; behind the position stand zeros.
- Space is allocated in steps ahead of the data, so a sync has no blocks to find.

Threads: as `File`: one thread writes, another may sync.
"""

from __future__ import annotations

import errno
import mmap
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

import structlog

from bookie_pod.storage.files import Buffer, File, Files

_log = structlog.get_logger(__name__)

BLOCK: Final = 4096
BUFFER_BYTES: Final = 1024 * 1024
_REFUSALS: Final = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)


def create_journal_file(files: Files, path: str, *, direct: bool) -> File:
    """A new file; an ordinary one if `direct` is not wanted or the file system refuses it. Raises `OSError`."""
    if not direct:
        return files.create(path)
    try:
        return DirectFile(files.create_direct(path))
    except OSError as error:
        if error.errno not in _REFUSALS:
            raise
        _log.info("this file system has no direct I/O, the journal goes through the page cache", path=path)
        return files.create(path)


class DirectFile:
    """A `File` for appending, on top of one that takes whole blocks only."""

    def __init__(self, file: File) -> None:
        self._file = file
        self._buffer = mmap.mmap(-1, BUFFER_BYTES)
        self._view = memoryview(self._buffer)
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
        self._file.pwrite(view[:end], self._position - held)
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
        """Nothing is in the page cache."""

    def size(self) -> int:
        return self._file.size()

    def close(self) -> None:
        # After a failed write its traceback may still hold a piece of the buffer, which goes with it then.
        with suppress(BufferError):
            self._view.release()
            self._buffer.close()
        self._file.close()
