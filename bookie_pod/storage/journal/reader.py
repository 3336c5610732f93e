"""Reading records out of a journal file of any version (reference on-disk formats, section 2.6).

`RecordWalk` steps from record to record and says why it stopped; it judges nothing (`journal.survey` does).
`records_between` hands out those of a range that was surveyed.

Memory is bounded by one chunk and one record; a record's length is compared with the bytes left before it is read.

Threads: any, one at a time per object.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from bookie_pod.storage.files import File
from bookie_pod.storage.journal.format import (
    FIRST_VERSION_WITH_PADDING,
    LENGTH,
    PADDING_HEAD,
    PADDING_MARKER,
    RECORD_HEAD,
    SMALLEST_RECORD,
    RecordKind,
    kind_of,
)

CHUNK = 1024 * 1024


class FileWindow:
    """Positional reads of one file up to `size`, through one chunk that moves forward."""

    def __init__(self, file: File, size: int) -> None:
        self.size = size
        self._file = file
        self._base = 0
        self._data = b""

    def chunk_at(self, offset: int, needed: int) -> tuple[bytes, int]:
        """A chunk and its offset, such that `needed` bytes at `offset` are in it if the file has them."""
        if offset < self._base or offset + needed > self._base + len(self._data):
            self._data = self._file.pread(max(0, min(CHUNK, self.size - offset)), offset)
            self._base = offset
        return self._data, self._base

    def read(self, offset: int, length: int) -> bytes:
        """Bytes of the file, fewer at its end; does not move the chunk."""
        begin = offset - self._base
        if begin >= 0 and begin + length <= len(self._data):
            return self._data[begin : begin + length]
        return self._file.pread(max(0, min(length, self.size - offset)), offset)

    def chunks(self, begin: int, end: int) -> Iterator[bytes]:
        """The bytes between two offsets, at most `CHUNK` at a time."""
        for offset in range(begin, end, CHUNK):
            yield self.read(offset, min(CHUNK, end - offset))


class Stop(Enum):
    """The reason why a walk ended."""

    END_OF_FILE = "end of file"
    ZERO = "zero length word"
    CUT = "record longer than the rest of the file"
    SHORT = "record shorter than its ledger id and entry id"
    NEGATIVE = "negative length"


class Step(NamedTuple):
    """A record or a padding record. `length` counts the bytes behind the length word, or inside the padding."""

    offset: int
    body_offset: int
    length: int
    end: int
    ledger_id: int = 0
    entry_id: int = 0
    is_padding: bool = False


class RecordWalk:
    """Iterates over the records and paddings of `window` from `start`; afterwards `stop` and `offset` say more.

    `skip_entries` leaves out entries that lie in one chunk, for a caller that needs only the other records; records of
    ledger 0, entry 0 are not left out.
    """

    def __init__(self, window: FileWindow, version: int, start: int, *, skip_entries: bool = False) -> None:
        self.offset = start
        self.stop = Stop.END_OF_FILE
        self.stop_length = 0
        """The length word that ended the walk, if one did."""
        self._window = window
        self._has_padding = version >= FIRST_VERSION_WITH_PADDING
        self._skip_entries = skip_entries

    def __iter__(self) -> Iterator[Step]:
        while (step := self._next()) is not None:
            yield step
            self.offset = step.end
            if self._skip_entries:
                self._skip()

    def _skip(self) -> None:
        """Go to the first record in the chunk that is not a plain entry, or to the end of the chunk."""
        data, base = self._window.chunk_at(self.offset, RECORD_HEAD.size)
        unpack = RECORD_HEAD.unpack_from
        at = self.offset - base
        last = len(data) - RECORD_HEAD.size
        size = self._window.size - base - LENGTH.size
        while at <= last:
            length, ledger_id, entry_id = unpack(data, at)
            if length < SMALLEST_RECORD or entry_id < 0 or length > size - at or ledger_id == entry_id == 0:
                break
            at += LENGTH.size + length
        self.offset = base + at

    def _next(self) -> Step | None:
        offset = self.offset
        left = self._window.size - offset
        if left < LENGTH.size:
            return self._stopped(Stop.END_OF_FILE)
        data, base = self._window.chunk_at(offset, RECORD_HEAD.size)
        at = offset - base
        (length,) = LENGTH.unpack_from(data, at)
        if length >= SMALLEST_RECORD:
            if length > left - LENGTH.size:
                return self._stopped(Stop.CUT, length)
            _, ledger_id, entry_id = RECORD_HEAD.unpack_from(data, at)
            body_offset = offset + LENGTH.size
            return Step(offset, body_offset, length, body_offset + length, ledger_id, entry_id)
        if length == 0:
            return self._stopped(Stop.ZERO)
        if length == PADDING_MARKER and self._has_padding:
            return self._padding(data, at, left)
        return self._stopped(Stop.SHORT if length > 0 else Stop.NEGATIVE, length)

    def _padding(self, data: bytes, at: int, left: int) -> Step | None:
        if left < PADDING_HEAD.size:
            return self._stopped(Stop.CUT, PADDING_MARKER)
        _, length = PADDING_HEAD.unpack_from(data, at)
        if length < 0:
            return self._stopped(Stop.NEGATIVE, length)
        if length > left - PADDING_HEAD.size:
            return self._stopped(Stop.CUT, length)
        body_offset = self.offset + PADDING_HEAD.size
        return Step(self.offset, body_offset, length, body_offset + length, is_padding=True)

    def _stopped(self, stop: Stop, length: int = 0) -> Step | None:
        self.stop, self.stop_length = stop, length
        return None


class JournalRecord(NamedTuple):
    """One record. `offset` is that of its length word, `body` starts with ledger id and entry id."""

    offset: int
    kind: RecordKind
    ledger_id: int
    entry_id: int
    body: bytes


def records_between(window: FileWindow, version: int, start: int, end: int) -> Iterator[JournalRecord]:
    """The records from `start` to `end`, both known to be record boundaries (see `journal.survey`)."""
    for step in RecordWalk(window, version, start):
        if step.offset >= end:
            return
        if not step.is_padding:
            body = window.read(step.body_offset, step.length)
            yield JournalRecord(step.offset, kind_of(step.entry_id), step.ledger_id, step.entry_id, body)
