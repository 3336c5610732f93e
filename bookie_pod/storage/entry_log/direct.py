"""Logs written past the page cache (`dbStorage_directIOEntryLogger`; reference disk formats, 6.1).

The page cache then belongs to the index and to readers, and a flush of gigabytes evicts nothing. The format
differs from the ordinary one as `format` says: header block of 4096 bytes, each write padded with 0xF0 to a
multiple of 4096. Both kinds of logs can lie in one directory, and either logger reads the other's.

Invariants
- Every write goes out of one page-aligned buffer, at an offset and with a length that are multiples of 4096.
- `close` forgets the buffer and does not free it: whatever still refers to it cannot make that fail.
- The file grows with its writes: nothing is allocated ahead, so a crash leaves no zeros behind the data. (The
  reference allocates `logSizeLimit` at once, and a scan of an unclosed log walks through what is left of it.)

Threads: as `writer`.
"""

from __future__ import annotations

import errno
import mmap
import posixpath
from typing import Final

import structlog

from bookie_pod.storage.entry_log.allocator import make_writer
from bookie_pod.storage.entry_log.format import (
    BLOCK,
    MAP_POINTER_OFFSET,
    PAD_BYTE,
    encode_direct_header,
)
from bookie_pod.storage.entry_log.names import log_file_name
from bookie_pod.storage.entry_log.writer import LogWriter
from bookie_pod.storage.files import File, Files

logger = structlog.get_logger(__name__)

DIRECT_WRITE_BUFFER_BYTES: Final = 1 << 20
"""Bytes of one direct write, a multiple of 4096. Each is padded to 4096 bytes, so small ones waste space."""
_REFUSALS = (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS)


class DirectLogWriter(LogWriter):
    """Append side of one log with direct I/O."""

    first_position = BLOCK

    def __init__(self, log_id: int, directory: str, file: File, aligned: mmap.mmap) -> None:
        self._aligned = memoryview(aligned)
        super().__init__(log_id, directory, file, len(aligned))

    def _header(self) -> bytes:
        return encode_direct_header()

    def _write(self, data: bytes) -> None:
        super()._write(data + PAD_BYTE * (-len(data) % BLOCK))

    def _write_bytes(self, data: bytes, offset: int) -> None:
        with memoryview(data) as source, self._aligned[:] as aligned:
            for start in range(0, len(data), len(aligned)):
                length = min(len(aligned), len(data) - start)
                aligned[:length] = source[start : start + length]
                with aligned[:length] as piece:
                    self.file.pwrite(piece, offset + start)

    def _write_map_pointer(self, pointer: bytes) -> None:
        block = bytearray(encode_direct_header())
        block[MAP_POINTER_OFFSET : MAP_POINTER_OFFSET + len(pointer)] = pointer
        self._write_bytes(bytes(block), 0)

    def close(self) -> None:
        super().close()
        self._aligned = memoryview(b"")


class DirectWriterFactory:
    """Makes direct logs; after the first refusal of the file system, ordinary ones. A `WriterFactory`."""

    def __init__(self, direct_buffer_bytes: int = DIRECT_WRITE_BUFFER_BYTES) -> None:
        if direct_buffer_bytes <= 0 or direct_buffer_bytes % BLOCK:
            raise ValueError(f"a direct write of {direct_buffer_bytes} bytes is not a multiple of {BLOCK}")
        self._direct_buffer_bytes = direct_buffer_bytes
        self._refused = False

    def __call__(self, files: Files, log_id: int, directory: str, buffer_bytes: int) -> LogWriter:
        if self._refused:
            return make_writer(files, log_id, directory, buffer_bytes)
        path = posixpath.join(directory, log_file_name(log_id))
        aligned = mmap.mmap(-1, self._direct_buffer_bytes)  # before the file, which an error would leave open
        try:
            file = files.create_direct(path)
        except OSError as error:
            if error.errno not in _REFUSALS:
                raise
            self._refused = True
            logger.info(
                "this file system refuses direct I/O: entry logs are written through the page cache "
                "(dbStorage_directIOEntryLogger has no effect)",
                directory=directory,
                error=str(error),
            )
            return make_writer(files, log_id, directory, buffer_bytes)
        return DirectLogWriter(log_id, directory, file, aligned)
