"""One log that is being written.

Invariants
- Bytes reach the file in whole entries, each write at the offset where the last complete one ended. A failed write
  changes nothing here: it is simply repeated at the same offset.
- `tail` = (bytes in the file, pieces behind them) is replaced as one object after the file holds the bytes, so readers
  see an entry in the buffer or in the file, never in neither.
- The header stays in the buffer until the first write: an unused log is an empty file.
- The header points to the ledgers map only once everything before it is synced: a power cut leaves a log that is closed
  and whole, or one that was never closed, which may end anywhere.

Threads: appending and closing: the holder of the logger's append lock. `buffered`: any thread. `sync`: the holder of
the sync lock, beside an appender.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate

import structlog

from bookie_pod.storage.entry_log.directories import DiskState
from bookie_pod.storage.entry_log.format import (
    HEADER_SIZE,
    MAP_POINTER_OFFSET,
    SIZE,
    SIZE_BYTES,
    encode_header,
    encode_ledgers_map,
    encode_map_pointer,
    make_location,
)
from bookie_pod.storage.files import File

logger = structlog.get_logger(__name__)

SLICE_ENTRIES = 4096
SLICE_BYTES = 1 << 20
"""One slice of a run is framed in one go, which holds the interpreter lock: both bounds keep it below about
a millisecond."""


class LogWriter:
    """Append side of one log in the ordinary format."""

    first_position = HEADER_SIZE

    def __init__(self, log_id: int, directory: str, file: File, write_buffer_bytes: int) -> None:
        self.log_id = log_id
        self.directory = directory
        self.file = file
        self.position = self.first_position
        self.ledgers: dict[int, int] = {}
        self.disk_state = DiskState.WRITABLE
        self.synced_to = 0
        self.kept_to = 0
        """Bytes in the file when the last successful sync of all logs began: no caller was promised what lies behind.
        """
        self._map_pointer: bytes | None = None
        """The pointer that the header gets once the ledgers map is synced."""
        self._has_map = False
        self._write_failed = False
        self._sync_failed = False
        self._syncing = threading.Lock()
        self._base = make_location(log_id, SIZE_BYTES)
        self._capacity = write_buffer_bytes
        self._buffered = self.first_position
        self.tail: tuple[int, list[bytes]] = (0, [self._header()])

    def _header(self) -> bytes:
        return encode_header()

    @property
    def is_empty(self) -> bool:
        return self.position == self.first_position

    @property
    def written_to(self) -> int:
        """Bytes handed to the operating system."""
        return self.tail[0]

    @property
    def failed(self) -> bool:
        """Return whether the last write failed, or any sync."""
        return self._write_failed or self._sync_failed

    def append(self, ledger_id: int, entries: Sequence[bytes], start: int, limit: int, out: list[int]) -> int:
        """Append entries from index `start` on, as many as fit below `limit` bytes and into one slice.

        Their locations go to `out`; returns how many were appended, 0 if the first does not fit.
        """
        batch = entries[start : start + SLICE_ENTRIES]
        sizes = [length + SIZE_BYTES for length in map(len, batch)]
        first = self._base + self.position
        locations = list(accumulate(sizes, initial=first))
        last = min(self._base + limit, first + max(SLICE_BYTES, sizes[0]))
        if locations[-1] > last:
            count = bisect_right(locations, last) - 1
            if count <= 0:
                return 0
            del locations[count + 1 :]
            batch, sizes = batch[:count], sizes[:count]
        nbytes = locations.pop() - first
        self._put(batch, sizes, nbytes)
        self.ledgers[ledger_id] = self.ledgers.get(ledger_id, 0) + nbytes
        out += locations
        return len(locations)

    def _put(self, batch: Sequence[bytes], sizes: list[int], nbytes: int) -> None:
        if self._buffered + nbytes < self._capacity:
            self.tail[1].append(_frame(b"", batch, sizes))
            self._buffered += nbytes
            self.position += nbytes
        else:
            self._write(_frame(b"".join(self.tail[1]), batch, sizes))

    def _write(self, data: bytes) -> None:
        """Write `data`, which holds everything buffered and perhaps more, behind what the file has."""
        written = self.tail[0]
        self._write_failed = True
        self._write_bytes(data, written)
        self._write_failed = False
        self.position = written + len(data)
        self._buffered = 0
        self.tail = (self.position, [])

    def _write_bytes(self, data: bytes, offset: int) -> None:
        self.file.pwrite(data, offset)

    def flush(self) -> None:
        """Hand the buffer to the operating system. `OSError`; may be repeated."""
        if self._buffered:
            self._write(b"".join(self.tail[1]))

    def write_map(self) -> None:
        """Close the log's contents: append the ledgers map, to which the next `sync` points the header. `OSError`."""
        self.flush()
        offset = self.position
        ledgers_map = b"".join(encode_ledgers_map(self.ledgers))
        self._write(ledgers_map)
        self._map_pointer = encode_map_pointer(offset, len(self.ledgers), ledgers_map)

    def _write_map_pointer(self, pointer: bytes) -> None:
        self.file.pwrite(pointer, MAP_POINTER_OFFSET)

    def cut(self, end: int) -> None:
        """Remove what a failed write left behind `end`. Best effort: a scan steps over it or reports
        it.
        """
        try:
            self.file.truncate(end)
        except OSError as error:
            logger.warning("cannot cut the broken end of an entry log", path=self.file.path, error=str(error))
        self.position = end
        self.tail = (end, [])
        self._map_pointer = None
        self._write_failed = False

    def take_back(self) -> None:
        """Remove the bytes that no caller was promised.

        A log that has its map stays whole: after a crash a map that is named and gone would be damage.
        """
        self.cut(self.written_to if self._has_map else self.kept_to)

    def sync(self) -> None:
        """Make what was handed over durable. `OSError`."""
        with self._syncing:  # of two at once the kernel would tell only one that bytes were lost
            pointer, target = self._map_pointer, self.written_to  # before: a map that comes meanwhile may not be synced
            self._sync_failed, failed_before = True, self._sync_failed
            self.file.datasync()
            self.synced_to = max(self.synced_to, target)
            self._sync_failed = failed_before
            if pointer is not None and pointer is self._map_pointer:
                self._map_pointer = None
                self._point_to_map(pointer)

    def _point_to_map(self, pointer: bytes) -> None:
        """Point the header to the map.

        The entries are durable already: without a pointer, code that needs the map scans the log.
        """
        self._has_map = True
        try:
            self._write_map_pointer(pointer)
            self.file.datasync()
        except OSError as error:
            logger.warning("the header of an entry log may not name its map", path=self.file.path, error=str(error))

    def buffered(self, position: int, length: int) -> bytes | None:
        """Up to `length` bytes at `position` if they are still in the buffer, None if the file has them."""
        written, pieces = self.tail
        if position < written:
            return None
        return b"".join(pieces)[position - written : position - written + length]

    def close(self) -> None:
        """Close the file. What had to be durable was synced before, so a failure is only logged."""
        try:
            self.file.close()
        except OSError as error:
            logger.warning("cannot close an entry log", path=self.file.path, error=str(error))


def _frame(head: bytes, batch: Sequence[bytes], sizes: list[int]) -> bytes:
    """`head`, then each entry behind its size word, in one allocation."""
    distinct = set(sizes)
    if len(distinct) == 1:
        return SIZE.pack(sizes[0] - SIZE_BYTES).join((head, *batch))
    words = {size: SIZE.pack(size - SIZE_BYTES) for size in distinct}
    pieces = [head] * (2 * len(sizes) + 1)
    pieces[1::2] = [words[size] for size in sizes]
    pieces[2::2] = batch
    return b"".join(pieces)
