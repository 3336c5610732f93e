"""Writing index files, each whole, beside the ones in use (reference on-disk formats, section 9).

Invariants
- A file is complete and synced, pages whole, when `finish` returns; its name is durable once its folder was synced.
- Slots are put in runs; memory does not depend on the number of entries.

Threads: one.
"""

from __future__ import annotations

import posixpath
import struct
from collections.abc import Iterable
from types import TracebackType
from typing import Final

from bookie_pod.storage.files import File, Files
from bookie_pod.storage.index.index_file import (
    CURRENT_VERSION,
    HEADER_BYTES,
    MAX_ENTRY_ID,
    SLOT_BYTES,
    encode_header,
    relative_path,
    slot_offset,
)
from bookie_pod.storage.index.ledger_data import LedgerRecord
from bookie_protocol.errors import StorageFault

PAGE_BYTES: Final = 8192
"""`pageSize` of the reference: it cannot find the last entry of a file whose last page is not whole."""
_RUN: Final = PAGE_BYTES // SLOT_BYTES


class IndexFileWriter:
    """One new index file at `path`; a context manager that closes it. `OSError`, `StorageFault`."""

    def __init__(self, files: Files, path: str) -> None:
        self.path = path
        self._file: File = files.overwrite(path)
        self._end = HEADER_BYTES
        self._first = 0
        self._run: list[int] = []

    def __enter__(self) -> IndexFileWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def put(self, entry_id: int, location: int) -> None:
        """Note where an entry lies; a later location of the same entry counts."""
        if not 0 <= entry_id <= MAX_ENTRY_ID:
            raise StorageFault(f"{self.path}: entry {entry_id} has no slot in an index file (at most {MAX_ENTRY_ID})")
        if not self._run or entry_id != self._first + len(self._run) or len(self._run) == _RUN:
            self.write_out()
            self._first = entry_id
        self._run.append(location)

    def write_out(self) -> None:
        """Hand what was noted to the operating system."""
        if self._run:
            offset = slot_offset(self._first)
            self._file.pwrite(struct.pack(f">{len(self._run)}q", *self._run), offset)
            self._end = max(self._end, offset + SLOT_BYTES * len(self._run))
            self._run = []

    def finish(self, record: LedgerRecord, version: int = CURRENT_VERSION) -> None:
        """Header, whole pages, sync."""
        self.write_out()
        self._file.pwrite(encode_header(record, version), 0)
        pages = -(-(self._end - HEADER_BYTES) // PAGE_BYTES)
        self._file.truncate(HEADER_BYTES + pages * PAGE_BYTES)
        self._file.sync()


def write_index_file(
    files: Files, folder: str, ledger_id: int, record: LedgerRecord, rows: Iterable[tuple[int, int]]
) -> int:
    """The file of a ledger below `folder`, durable but for its name; its entries. `OSError`, `StorageFault`."""
    path = f"{folder}/{relative_path(ledger_id)}"
    files.makedirs(posixpath.dirname(path))
    entries = 0
    with IndexFileWriter(files, path) as writer:
        for entry_id, location in rows:
            writer.put(entry_id, location)
            entries += 1
        writer.finish(record)
    return entries
