"""The entry logs of a stopped bookie, without the machinery that writes them.

Memory is bounded by one chunk and one entry per scan. Threads: any; each iterator belongs to one.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final, TypeVar

import numpy as np

from bookie_pod.config.model import BookieConfig
from bookie_pod.storage.entry_log.catalog import LogCatalog
from bookie_pod.storage.entry_log.directories import LedgerDirStates
from bookie_pod.storage.entry_log.format import (
    ENTRY_HEAD,
    HEADER_SIZE,
    MAP_LEDGER_ID,
    MIN_ENTRY_SIZE,
    SIZE_BYTES,
    LogHeader,
    decode_header,
)
from bookie_pod.storage.entry_log.interface import EntryLogStats
from bookie_pod.storage.entry_log.ledger_sizes import (
    LedgerSizesBuilder,
    any_foreign,
    may_be_foreign,
    read_ledgers_map,
    synced_end,
)
from bookie_pod.storage.entry_log.reader import EntryReader
from bookie_pod.storage.entry_log.scan import SANE_ENTRY_BYTES, LedgersMap, LogScan, ScanEnd
from bookie_pod.storage.files import File, Files, storage_fault
from bookie_pod.storage.log_ids import is_before

_T = TypeVar("_T")
_SIZE_WORD = 4
CHUNK: Final = 1 << 20
RECORDS_IN_A_ROW: Final = 3
"""Plausible records that make a run."""
_LAC: Final = Struct(">q")
_CLIENT_HEAD: Final = 32
"""Ledger id, entry id, LAC, length: what every client's entry begins with (reference wire protocol, entry payload)."""


class StoredLogs:
    """The logs in some ledger folders (`current`) with one space of ids. `StorageFault` if one cannot be listed."""

    def __init__(self, files: Files, folders: Sequence[str], config: BookieConfig | None = None) -> None:
        self._files = files
        self._config = config or BookieConfig()
        self._catalog = LogCatalog(files, LedgerDirStates(folders))
        self._reader = EntryReader(files, self._catalog, {}, self._config, EntryLogStats())
        self.folders = tuple(folders)

    def log_ids(self) -> list[int]:
        return self._catalog.ids()

    def exists(self, log_id: int) -> bool:
        return self._catalog.exists(log_id)

    def path(self, log_id: int) -> str:
        """The log's file. `StorageFault` if it is in none of the folders."""
        return self._catalog.path(log_id)

    def size(self, log_id: int) -> int:
        """Bytes of the log's file."""
        path = self.path(log_id)
        try:
            return self._files.size(path)
        except OSError as error:
            raise storage_fault(f"cannot tell the size of entry log {path}", error) from error

    def written_ms(self, log_id: int) -> int:
        """See `EntryLogger.written_ms`."""
        path = self.path(log_id)
        try:
            return self._files.modified_ms(path)
        except OSError as error:
            raise storage_fault(f"cannot tell the age of entry log {path}", error) from error

    def read(self, location: int, ledger_id: int, entry_id: int) -> bytes:
        """See `EntryLogger.read`."""
        return self._reader.read(location, ledger_id, entry_id)

    def scan(self, log_id: int, ledgers: Container[int] | None = None) -> LogScan[bytes]:
        """See `EntryLogger.scan`."""
        return scan_log(self._files, self.path(log_id), log_id, self._config, ledgers=ledgers)

    def scan_sizes(self, log_id: int, ledgers: Container[int] | None = None) -> LogScan[int]:
        """See `EntryLogger.scan_sizes`."""
        return scan_log(self._files, self.path(log_id), log_id, self._config, ledgers=ledgers, bodies=False)

    def make_durable(self, log_id: int) -> None:
        """See `EntryLogger.make_durable`."""
        self._catalog.make_durable(log_id)

    def header(self, log_id: int) -> LogHeader | None:
        return read_header(self._files, self.path(log_id))

    def is_proved_synced(self, log_id: int) -> bool:
        """See `EntryLogger.is_proved_synced`."""
        return self.entries_end(log_id) is not None

    def entries_end(self, log_id: int) -> int | None:
        """See `EntryLogger.entries_end`."""
        return self._look(log_id, synced_end)

    def has_foreign(self, first: int) -> bool:
        """See `EntryLogger.has_foreign`."""
        logs = [log_id for log_id in self.log_ids() if not is_before(log_id, first)]
        return any_foreign(logs, lambda log_id: self._look(log_id, may_be_foreign))

    def _look(self, log_id: int, look: Callable[[File], _T]) -> _T:
        try:
            file = self._files.open(self.path(log_id))
            try:
                return look(file)
            finally:
                file.close()
        except OSError as error:
            raise storage_fault(f"cannot read entry log {self.path(log_id)}", error) from error

    def ledgers_map(self, log_id: int) -> LedgersMap:
        """See `EntryLogger.ledgers_map`."""
        header = self.header(log_id)
        closed_at = header.map_offset if header is not None and header.has_map else None
        if closed_at is not None:
            with suppress(ValueError):  # then it is counted by a scan, whose end says how far it came
                stored = self._look(log_id, read_ledgers_map)
                return LedgersMap(stored.ledgers, None, closed_at, stored.checked)
        scan, ledgers = self.scan_sizes(log_id), LedgerSizesBuilder()
        for _, ledger_id, _, size in scan:
            ledgers.add(ledger_id, _SIZE_WORD + size)
        return LedgersMap(ledgers.build(), scan.end, closed_at)

    def close(self) -> None:
        self._reader.handles.close()


def scan_log(
    files: Files,
    path: str,
    log_id: int,
    config: BookieConfig | None = None,
    *,
    ledgers: Container[int] | None = None,
    bodies: bool = True,
    start: int = HEADER_SIZE,
) -> LogScan[Any]:
    """A scan of one file from `start`, where a record begins."""
    return LogScan(
        files,
        path,
        log_id,
        limit=None,
        max_entry_bytes=(config or BookieConfig()).network.max_frame_size_bytes,
        ledgers=ledgers,
        bodies=bodies,
        start=start,
    )


def read_header(files: Files, path: str) -> LogHeader | None:
    """Return the header of a log; None if the file is too short for one. `StorageFault`."""
    try:
        file = files.open(path)
        try:
            return decode_header(file.pread(HEADER_SIZE, 0))
        finally:
            file.close()
    except ValueError:
        return None
    except OSError as error:
        raise storage_fault(f"cannot read entry log {path}", error) from error


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One entry in a log; `position` is that of its first byte, `location` what an index has for it."""

    location: int
    ledger_id: int
    entry_id: int
    entry: bytes

    @property
    def position(self) -> int:
        return self.location & 0xFFFFFFFF


def read_log(
    files: Files, path: str, log_id: int, *, ledgers: Container[int] | None = None, resync: bool = False
) -> Iterator[LogRecord | ScanEnd]:
    """The entries of a file, then how it ended.

    With `resync` the reading goes on behind damage, at the next bytes that look like a run of records; each damage is
    given where it was met. `StorageFault` if the file cannot be read.
    """
    start = HEADER_SIZE
    while True:
        scan = scan_log(files, path, log_id, ledgers=ledgers, start=start)
        for location, ledger_id, entry_id, entry in scan:
            yield LogRecord(location, ledger_id, entry_id, entry)
        yield scan.end
        if scan.end.clean or not resync:
            return
        found = next_record(files, path, scan.end.position + 1)
        if found is None:
            return
        start = found


def next_record(files: Files, path: str, begin: int) -> int | None:
    """Finding the next entry of an entry log behind damaged bytes.

    A log has no marks to find a record by, so this goes by likelihood: a plausible head whose record is followed by
    more plausible records, or by the ledgers map, or by the end of the file. A head is plausible if its size is sane,
    its ids are not negative, and the LAC that clients put behind them lies below the entry. What is found is for a
    person to look at; nothing is deleted or indexed on its word alone.

    Memory: one chunk. Pure reading; any thread.

    Offset of the size word of the next run of records at or behind `begin`; None without one. `StorageFault`.
    """
    try:
        file = files.open(path)
        try:
            return _search(file, begin, file.size())
        finally:
            file.close()
    except OSError as error:
        raise storage_fault(f"cannot read entry log {path}", error) from error


def _search(file: File, begin: int, size: int) -> int | None:
    overlap = ENTRY_HEAD.size - 1
    for base in range(begin, size, CHUNK):
        data = file.pread(min(CHUNK + overlap, size - base), base)
        for at in _candidates(data):
            if _is_run(file, base + at, size):
                return base + at
    return None


def _candidates(data: bytes) -> list[int]:
    """Return the offsets at which a head of an entry of a sane size could be."""
    count = len(data) - ENTRY_HEAD.size + 1
    if count <= 0:
        return []
    octets = np.frombuffer(data, np.uint8)
    size = sum(octets[at : at + count].astype(np.uint32) << np.uint32(8 * (3 - at)) for at in range(4))
    sane = (size >= MIN_ENTRY_SIZE) & (size <= SANE_ENTRY_BYTES)
    sane &= (octets[4 : 4 + count] < 0x80) & (octets[12 : 12 + count] < 0x80)
    return [int(at) for at in np.flatnonzero(sane)]


def _is_run(file: File, start: int, size: int) -> bool:
    for _ in range(RECORDS_IN_A_ROW):
        head = file.pread(ENTRY_HEAD.size + _LAC.size, start)
        if not head.strip(b"\0"):
            return True  # the end of the file, or zeros up to it
        if len(head) < ENTRY_HEAD.size:
            return False
        length, ledger_id, entry_id = ENTRY_HEAD.unpack_from(head)
        if ledger_id == MAP_LEDGER_ID and length >= MIN_ENTRY_SIZE:
            return True
        if not MIN_ENTRY_SIZE <= length <= SANE_ENTRY_BYTES or ledger_id < 0 or entry_id < 0:
            return False
        if length >= _CLIENT_HEAD and len(head) == ENTRY_HEAD.size + _LAC.size:
            (lac,) = _LAC.unpack_from(head, ENTRY_HEAD.size)
            if not -1 <= lac < max(entry_id, 0):
                return False
        start += SIZE_BYTES + length
        if start > size:
            return False
    return True
