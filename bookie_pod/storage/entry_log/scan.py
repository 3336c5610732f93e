"""One pass over the records of a log, what it found, and how far it can be trusted (reference disk formats, 4.6, 6.1).

The reference's scan steps over what it does not understand and calls a short read the end. This one stops
at the first byte that is no record and says so (`ScanEnd`), because logs are unlinked on the result.

Padding is understood in both forms: 0xF0 up to a multiple of 4096 (direct I/O), and zeros up to the end of
the file (preallocated space, or a size that grew before a crash without its data).

Memory is bounded: one chunk, plus one entry of at most `max_entry_bytes`.

Invariants
- A scan says how it ended. Only a clean end vouches that the log holds nothing else; on the word of any other nothing
  is deleted.
- The ledgers map of a log is its own, read from its tail, or counted by a scan; `LedgersMap.end` tells which.

Threads: one thread per scan; any number of scans beside readers and the appender. `ScanEnd` and `LedgersMap` are
values.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar, cast

from bookie_pod.storage.entry_log.format import (
    BLOCK,
    ENTRY_HEAD,
    HEADER_SIZE,
    MAP_LEDGER_ID,
    MIN_ENTRY_SIZE,
    PAD_BYTE,
    SIZE,
    SIZE_BYTES,
    make_location,
    next_block,
)
from bookie_pod.storage.entry_log.ledger_sizes import LedgerSizes
from bookie_pod.storage.files import File, Files, storage_fault

T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T", bytes, int)

CHUNK_BYTES = 1 << 20

SANE_ENTRY_BYTES = 64 << 20
"""Bytes of an entry above which a scan takes its size for damage, unless the configured maximum is larger."""


class ScanOutcome(Enum):
    """The outcome of the scan of a log."""

    CLEAN = "clean"
    """The last record ends where the file ends (or only padding follows)."""
    TORN = "torn"
    """The last record reaches beyond the end: normal for a log that was active at a crash, damage
    otherwise.
    """
    DAMAGED = "damaged"
    """Bytes that are no record; what follows them was not read."""


@dataclass(frozen=True, slots=True)
class ScanEnd:
    """The position and the outcome of a scan. Nothing may be deleted on the word of a scan that is not `clean`."""

    outcome: ScanOutcome
    position: int
    """Offset in the file of the first byte that was not understood; the end of the records if clean."""
    detail: str
    """The finding at that position, for a message."""

    @property
    def clean(self) -> bool:
        return self.outcome is ScanOutcome.CLEAN


@dataclass(frozen=True, slots=True)
class LedgersMap:
    """Bytes per ledger in one log, including the 4-byte size of each entry."""

    ledgers: LedgerSizes
    end: ScanEnd | None
    """None: read from the log's own map. Otherwise counted by a scan, which ended thus."""
    map_offset: int | None = None
    """The offset at which the entries of a once complete log end, by its header; None if it names no map."""
    checked: bool = False
    """The log's own map, and a check sum proves it."""

    @property
    def closed(self) -> bool:
        """The log's header names a map, so the log was once complete."""
        return self.map_offset is not None

    @property
    def complete(self) -> bool:
        """Return whether the log is in good order: complete, or with the torn end of a log that was active at a crash.

        See `missing_from` for how far that can be trusted.
        """
        if self.missing_from is None:
            return True
        return self.end is not None and self.end.outcome is ScanOutcome.TORN and not self.closed

    @property
    def missing_from(self) -> int | None:
        """Return where entries may begin that the scan did not see, or None if every entry of the log is accounted for.

        A log that was active at a crash may end in the middle of an entry to which no index row points, and one that
        was not synced may have lost parts of it. Only the index can tell whether that is so, or the log is damaged.
        """
        if self.end is None:
            return None
        if not self.end.clean:
            return self.end.position
        if self.map_offset is not None and self.end.position < self.map_offset:
            return self.end.position  # cut between two entries
        return None


class LogScan(Generic[T]):
    """One pass over a log up to `limit` bytes: iterate it, then look at `end`. Opens the file when iterated and closes
    it at the end."""

    def __init__(
        self,
        files: Files,
        path: str,
        log_id: int,
        *,
        limit: int | None,
        max_entry_bytes: int,
        ledgers: Container[int] | None,
        bodies: bool,
        start: int = HEADER_SIZE,
    ) -> None:
        """`start` is where a record begins, or padding."""
        self._files = files
        self._path = path
        self._log_id = log_id
        self._limit = limit
        self._max_entry_bytes = max(max_entry_bytes, SANE_ENTRY_BYTES)
        self._ledgers = ledgers
        self._bodies = bodies
        self._start = start
        self._end: ScanEnd | None = None

    @property
    def end(self) -> ScanEnd:
        """Return how the pass ended. Raises `RuntimeError` before it was exhausted."""
        if self._end is None:
            raise RuntimeError(f"the scan of {self._path} was not run to its end")
        return self._end

    def __iter__(self) -> Iterator[tuple[int, int, int, T]]:
        """(location, ledger id, entry id, bytes or size) in file order. `StorageFault` if the file cannot
        be read.
        """
        self._end = None
        try:
            file = self._files.open(self._path)
            try:
                size = file.size()
                window = _Window(file, size if self._limit is None else min(size, self._limit))
                yield from self._records(window)
            finally:
                file.close()
        except OSError as error:
            raise storage_fault(f"cannot scan entry log {self._path}", error) from error

    def _records(self, window: _Window) -> Iterator[tuple[int, int, int, T]]:
        position = self._start
        while (start := self._skip_padding(window, position)) is not None:
            data, offset = window.at(start, ENTRY_HEAD.size)
            if len(data) - offset < ENTRY_HEAD.size:
                self._finish_short(start, data[offset:])
                return
            size, ledger_id, entry_id = ENTRY_HEAD.unpack_from(data, offset)
            if not self._is_record(start, size, ledger_id, entry_id):
                return
            position = start + SIZE_BYTES + size
            if position > window.limit:
                self._finish(ScanOutcome.TORN, start, f"a record of {size} bytes in a file of {window.limit} bytes")
                return None
            if ledger_id == MAP_LEDGER_ID or (self._ledgers is not None and ledger_id not in self._ledgers):
                continue
            location = make_location(self._log_id, start + SIZE_BYTES)
            body = window.read(start + SIZE_BYTES, size) if self._bodies else size
            if self._bodies and len(cast("bytes", body)) < size:
                self._finish(ScanOutcome.TORN, start, "the file became shorter during the scan")
                return None
            yield location, ledger_id, entry_id, cast("T", body)
        return None

    def _is_record(self, start: int, size: int, ledger_id: int, entry_id: int) -> bool:
        """Return whether this can be the head of a record; end the scan if not."""
        map_batch = ledger_id == MAP_LEDGER_ID
        if size < MIN_ENTRY_SIZE or (size > self._max_entry_bytes and not map_batch):
            self._finish(ScanOutcome.DAMAGED, start, f"a size of {size}")
        elif not map_batch and (ledger_id < 0 or entry_id < 0):
            self._finish(ScanOutcome.DAMAGED, start, f"entry {entry_id} of ledger {ledger_id}, size {size}")
        else:
            return True
        return False

    def _skip_padding(self, window: _Window, position: int) -> int | None:
        """Return the offset of the next record at or after `position`; None if the scan ended here."""
        while position < window.limit:
            data, offset = window.at(position, SIZE_BYTES)
            word = data[offset : offset + SIZE_BYTES]
            if word == bytes(SIZE_BYTES):
                self._finish_zeros(window, position)
                return None
            if word[0] != PAD_BYTE[0]:
                return position
            length = min(next_block(position), window.limit) - position
            if not position % BLOCK or window.read(position, length) != PAD_BYTE * length:
                self._finish(ScanOutcome.DAMAGED, position, f"bytes {word.hex()}, no record")
                return None
            position += length
        if position == window.limit or window.limit == 0:
            self._finish(ScanOutcome.CLEAN, position if window.limit else 0, "end of file")
            return None
        self._finish(ScanOutcome.TORN, window.limit, f"the file ends at {window.limit}, in the header")
        return None

    def _finish_zeros(self, window: _Window, position: int) -> None:
        at = position
        while at < window.limit:
            data = window.read(at, min(CHUNK_BYTES, window.limit - at))
            if not data:
                break
            if data.count(0) != len(data):
                found = at + len(data) - len(data.lstrip(b"\0"))
                self._finish(ScanOutcome.DAMAGED, position, f"zeros, then other bytes at {found}")
                return
            at += len(data)
        self._finish(ScanOutcome.CLEAN, position, "zeros up to the end of the file")
        return

    def _finish_short(self, start: int, rest: bytes) -> None:
        (size,) = SIZE.unpack(rest.ljust(SIZE_BYTES, b"\0")[:SIZE_BYTES])
        self._finish(ScanOutcome.TORN, start, f"{len(rest)} bytes, the head of a record of size {size}")

    def _finish(self, outcome: ScanOutcome, position: int, detail: str) -> None:
        self._end = ScanEnd(outcome, position, f"{self._path} at {position}: {detail}")


class _Window:
    """Reads a file forwards in chunks; never beyond `limit`."""

    def __init__(self, file: File, limit: int) -> None:
        self._file = file
        self.limit = limit
        self._start = 0
        self._chunk = b""

    def at(self, position: int, length: int) -> tuple[bytes, int]:
        """A chunk and the offset of `position` in it, with `length` bytes behind that unless the file
        ends.
        """
        offset = position - self._start
        if offset < 0 or offset + length > len(self._chunk):
            self._start = position
            self._chunk = self._file.pread(max(0, min(CHUNK_BYTES, self.limit - position)), position)
            offset = 0
        return self._chunk, offset

    def read(self, position: int, length: int) -> bytes:
        """`length` bytes, fewer at the limit. Lengths above the chunk's do not disturb it."""
        length = min(length, self.limit - position)
        if length > CHUNK_BYTES:
            return self._file.pread(length, position)
        data, offset = self.at(position, length)
        return data[offset : offset + length]
