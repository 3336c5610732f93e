"""The index of a stopped bookie as one thing to ask, whichever engine wrote it.

Nothing is kept in memory but the ledger at hand, so the size of an index does not matter.

Invariants
- "Not there" is an answer (None, 0, no rows); whatever cannot be read raises `StorageFault`, and a lack of
  descriptors or memory `ResourcesShort`.
- Ledgers and entries come in ascending order from databases; index files come folder by folder.

Threads: one at a time per object.

Source: docs/internals/on-disk-formats.md, sections 8 and 9.
"""

from __future__ import annotations

import posixpath
import struct
from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from bookie_pod.storage.files import File, Files, storage_fault
from bookie_pod.storage.index.index_file import (
    HEADER_BYTES,
    MAX_ENTRY_ID,
    MOVING_SUFFIX,
    SLOT_BYTES,
    SUFFIX,
    decode_header,
    parse_name,
    relative_path,
    slot_offset,
)
from bookie_pod.storage.index.ledger_cache.directories import index_folders
from bookie_pod.storage.index.ledger_cache.page_table import entries_of
from bookie_pod.storage.index.ledger_data import LedgerRecord, decode
from bookie_pod.storage.index.ledgers import FLAGS_KEY
from bookie_pod.storage.index.locations import LocationIndex
from bookie_pod.storage.index.store import OrderedStore, StoreKind
from bookie_protocol.errors import StorageFault

_ID: Final = struct.Struct(">q")
_LONG_KEY_TAIL: Final = bytes(8)
CHUNK_BYTES: Final = 64 << 10
"""Slots of an index file that are read at once."""


class IndexFileDamaged(StorageFault):
    """The header of an index file was read and does not parse."""


class StoredIndex(Protocol):
    """Which ledgers a disk knows, and where their entries lie."""

    def ledger_ids(self) -> Iterator[int]:
        """Ids of all ledgers, each once."""
        ...

    def record(self, ledger_id: int) -> LedgerRecord | None:
        """Key, fence, limbo, explicit LAC; None: unknown here."""
        ...

    def rows(self, ledger_id: int, first_entry: int = 0) -> Iterator[tuple[int, int]]:
        """(entry id, location) from `first_entry` on, ascending; nothing of a ledger without entries."""
        ...

    def location_of(self, ledger_id: int, entry_id: int) -> int:
        """The entry's location, 0 if the index has none."""
        ...

    def close(self) -> None: ...


# --- DbLedgerStorage ----------------------------------------------------------------------------------------


class LedgerRows:
    """The `ledgers` database, row by row instead of all in memory."""

    def __init__(self, store: OrderedStore) -> None:
        self.store = store

    def ids(self) -> Iterator[int]:
        last: int | None = None
        for ledger_id, _ in self._rows():
            if ledger_id != last:  # a long key follows the short one of the same ledger
                yield ledger_id
            last = ledger_id

    def _rows(self) -> Iterator[tuple[int, bytes]]:
        for key, value in self.store.scan(b"", b"\x80"):  # negative ids sort behind
            if len(key) not in (8, 16):
                raise StorageFault(f"ledger index {self.store.path}: key {key.hex()} has neither 8 nor 16 bytes")
            yield _ID.unpack_from(key)[0], value

    def records(self) -> Iterator[tuple[int, LedgerRecord | None]]:
        """Every ledger with its record; None instead of one that does not parse."""
        last: int | None = None
        for ledger_id, value in self._rows():
            if ledger_id == last:
                continue
            last = ledger_id
            try:
                yield ledger_id, decode(value)
            except StorageFault:
                yield ledger_id, None

    def record(self, ledger_id: int) -> LedgerRecord | None:
        key = _ID.pack(ledger_id)
        value = self.store.get(key)
        if value is None:
            value = self.store.get(key + _LONG_KEY_TAIL)
        if value is None:
            return None
        try:
            return decode(value)
        except StorageFault as error:
            raise StorageFault(f"ledger index {self.store.path}: ledger {ledger_id}: {error}") from error

    def has(self, ledger_id: int) -> bool:
        """Return whether there is a row, readable or not."""
        key = _ID.pack(ledger_id)
        return self.store.get(key) is not None or self.store.get(key + _LONG_KEY_TAIL) is not None

    def flags_row(self) -> bytes | None:
        """The storage's flags as they are stored."""
        return self.store.get(FLAGS_KEY)


class DatabaseIndex:
    """The two databases of one ledger directory."""

    def __init__(self, ledgers: OrderedStore, locations: OrderedStore) -> None:
        self.stores = {StoreKind.LEDGERS: ledgers, StoreKind.LOCATIONS: locations}
        self.ledgers = LedgerRows(ledgers)
        self.locations = LocationIndex(locations)

    def ledger_ids(self) -> Iterator[int]:
        return self.ledgers.ids()

    def record(self, ledger_id: int) -> LedgerRecord | None:
        return self.ledgers.record(ledger_id)

    def rows(self, ledger_id: int, first_entry: int = 0) -> Iterator[tuple[int, int]]:
        return self.locations.rows(ledger_id, first_entry)

    def location_of(self, ledger_id: int, entry_id: int) -> int:
        return self.locations.get(ledger_id, entry_id)

    def close(self) -> None:
        self.ledgers.store.close()
        self.locations.close()


# --- Sorted and Interleaved ---------------------------------------------------------------------------------


class FileIndex:
    """The index files below some index folders. A move that a crash cut short counts as the bookie will finish it."""

    def __init__(self, files: Files, folders: Sequence[str]) -> None:
        self._files = files
        self.folders = tuple(folders)
        self._last: tuple[int, File] | None = None
        """The file of the ledger that was asked for last: look-ups come in runs."""

    def ledger_ids(self) -> Iterator[int]:
        try:
            for folder in self.folders:
                for tree in index_folders(self._files, folder):
                    yield from self._ids_in(folder, tree)
        except OSError as error:
            raise storage_fault(f"cannot list index files in {error.filename}", error) from error

    def _ids_in(self, folder: str, tree: str) -> Iterator[int]:
        for name in self._files.listdir(tree):
            if not name.endswith((SUFFIX, MOVING_SUFFIX)):
                continue
            try:
                ledger_id = parse_name(name)
            except ValueError:
                raise StorageFault(
                    f"{tree}/{name} is not an index file: its name is not a ledger id; move it away"
                ) from None
            if tree != posixpath.dirname(f"{folder}/{relative_path(ledger_id)}"):
                raise StorageFault(f"{tree}/{name} is not where the index file of ledger {ledger_id} belongs; move it")
            if self.path(ledger_id) == f"{tree}/{name}":  # else the rest of a move that was finished
                yield ledger_id

    def path(self, ledger_id: int) -> str | None:
        """The ledger's file. `StorageFault` if there are two."""
        relative = relative_path(ledger_id)
        return self._only(ledger_id, relative) or self._only(ledger_id, relative.removesuffix(SUFFIX) + MOVING_SUFFIX)

    def _only(self, ledger_id: int, relative: str) -> str | None:
        try:
            found = [f"{folder}/{relative}" for folder in self.folders if self._files.exists(f"{folder}/{relative}")]
        except OSError as error:
            raise storage_fault(f"cannot look for the index file of ledger {ledger_id}", error) from error
        if len(found) > 1:
            raise StorageFault(f"ledger {ledger_id} has two index files, {found[0]} and {found[1]}: move one away")
        return found[0] if found else None

    def record(self, ledger_id: int) -> LedgerRecord | None:
        """See `StoredIndex`. A header that was never written reads as a ledger in limbo. Raises `IndexFileDamaged`."""
        path = self.path(ledger_id)
        if path is None:
            return None
        header = self._read(path, HEADER_BYTES, 0)
        try:
            decoded = decode_header(header)
        except StorageFault as error:
            raise IndexFileDamaged(f"index file {path} {error}") from error
        return LedgerRecord(b"", limbo=True) if decoded is None else decoded[1]

    def rows(self, ledger_id: int, first_entry: int = 0) -> Iterator[tuple[int, int]]:
        path = self.path(ledger_id)
        if path is None:
            return
        file = self._open(path)
        try:
            yield from _slots(file, first_entry)
        except OSError as error:
            raise storage_fault(f"cannot read index file {path}", error) from error
        finally:
            file.close()

    def location_of(self, ledger_id: int, entry_id: int) -> int:
        if not 0 <= entry_id <= MAX_ENTRY_ID:
            return 0
        if self._last is None or self._last[0] != ledger_id:
            self.close()
            path = self.path(ledger_id)
            if path is None:
                return 0
            self._last = (ledger_id, self._open(path))
        file = self._last[1]
        try:
            slot = file.pread(SLOT_BYTES, slot_offset(entry_id))
        except OSError as error:
            raise storage_fault(f"cannot read index file {file.path}", error) from error
        return int.from_bytes(slot, "big", signed=True) if len(slot) == SLOT_BYTES else 0

    def _open(self, path: str) -> File:
        try:
            return self._files.open(path)
        except OSError as error:
            raise storage_fault(f"cannot open index file {path}", error) from error

    def _read(self, path: str, length: int, offset: int) -> bytes:
        file = self._open(path)
        try:
            return file.pread(length, offset)
        except OSError as error:
            raise storage_fault(f"cannot read index file {path}", error) from error
        finally:
            file.close()

    def close(self) -> None:
        """Close the file that is kept open; the next look-up opens one again."""
        last, self._last = self._last, None
        if last is not None:
            last[1].close()


def _slots(file: File, first_entry: int) -> Iterator[tuple[int, int]]:
    offset = slot_offset(first_entry)
    while (found := file.data_from(offset)) is not None:
        begin = max(offset, found[0] // SLOT_BYTES * SLOT_BYTES)
        data = file.pread(min(CHUNK_BYTES, found[1] - begin), begin)
        yield from entries_of(data, (begin - HEADER_BYTES) // SLOT_BYTES)
        offset = begin + CHUNK_BYTES if begin + CHUNK_BYTES < found[1] else found[1]
