"""The seal that shows whether the databases of a ledger directory are complete: `index-seal` in that directory.

    8 bytes    "PKSEAL01"
    16 bytes   for each database: first 8 bytes of the SHA-256 of its identity, and the number of its last seal, i64
    4 bytes    CRC32C of all that is before it

A crash leaves a torn end of RocksDB's write-ahead log, so RocksDB drops an end that it cannot read without a word. If
the log was damaged, or cut, rows that had been synced go with it: entries would be denied, and fences forgotten, while
the mark says that they are in the index. So every checkpoint seals the databases: a row with the next number, behind
everything else that it wrote, and, once that is synced, the same number in this file, which no damage of the database
reaches. A database whose seal is older than the file says has lost its end. One that misses a table in front of it says
so itself (`OrderedStore.has_all_tables`).

Invariants
- The row is durable before the file; so a crash leaves a row that is as new as the file, or newer.
- A database of another identity is another one (rebuilt, by our tools or those of Apache BookKeeper), and is accepted;
  so is one without a file, of an older release, and a file that is damaged, which is logged.
- The row has the key of a negative ledger id: Apache BookKeeper skips such rows of `ledgers`, and asks `locations` only
  for entries of ledgers that it knows. It does not change them, nor the file, when it uses the directory for a while.

Threads: `check` at the start; `renew` by one thread at a time.
"""

from __future__ import annotations

import errno
import hashlib
import struct
from collections.abc import Callable, Mapping
from typing import Final, Protocol

import google_crc32c
import structlog

from bookie_pod.storage.files import Files, storage_fault
from bookie_pod.storage.index.store import OrderedStore, StoreKind
from bookie_protocol.errors import NoWritableDirectory, ResourcesShort, StorageFault

_log = structlog.get_logger(__name__)

NAME: Final = "index-seal"
SEAL_KEY: Final = struct.pack(">qq", -0xEEFE, 0)
_NUMBER: Final = struct.Struct(">q")
_MAGIC: Final = b"PKSEAL01"
_ROW: Final = struct.Struct(">8sq")
_ROWS_END: Final = len(_MAGIC) + _ROW.size * len(StoreKind)
_CRC: Final = struct.Struct(">I")
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class IndexEndLost(StorageFault):
    """A database has lost rows that were complete in it."""


class Sealed(Protocol):
    """An index in front of one database."""

    unsealed: bool
    """Something was written since the last seal."""

    def seal(self, number: int) -> OrderedStore:
        """Put the row and make it durable; the database it is in. `StorageFault`."""
        ...


def put_seal(store: OrderedStore, number: int) -> None:
    """Put a seal after everything that was written to the store so far; durable on return. Raises `StorageFault`."""
    batch = store.batch()
    batch.put(SEAL_KEY, _NUMBER.pack(number))
    batch.commit()


class IndexSeal:
    """The seal of one ledger directory (its `current` folder)."""

    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self._path = f"{folder}/{NAME}"
        self._number = 0
        self.is_complete = False
        """The databases had surely lost nothing when they were checked: they were sealed, or were never written to."""

    def check(self, stores: Mapping[StoreKind, OrderedStore]) -> bool:
        """Return whether all of them are sealed.

        Raises `IndexEndLost` if one has lost its end, and `StorageFault` if one cannot be read.
        """
        expected = self._read()
        sealed = True
        # Ledgers first, and so they are rebuilt first: locations are rebuilt of ledgers that are known.
        for kind, store in sorted(stores.items(), key=lambda each: each[0] is not StoreKind.LEDGERS):
            row = store.get(SEAL_KEY)
            found = _NUMBER.unpack(row)[0] if row is not None and len(row) == _NUMBER.size else 0
            identity, number = expected.get(kind, (b"", 0))
            self._number = max(self._number, found, number)
            same = identity == _identity(store)
            sealed = sealed and same
            if lost := _lost(store, found, number if same else 0):
                raise IndexEndLost(
                    f"{store.path} has lost {lost}, and entries would be denied, or fences forgotten. Rebuild it with"
                    f" `bookie disk rebuild-{kind.value}`, or empty the bookie's directories"
                    " and let it fetch its entries from others"
                )
        self.is_complete = sealed or not any(store.was_written() for store in stores.values())
        return sealed

    def has_end(self, kind: StoreKind, store: OrderedStore) -> bool:
        """Return whether this database has surely lost nothing; it need not be readable. One that was never written to
        may have been made in the place of one that was lost."""
        try:
            return self.check({kind: store})
        except ResourcesShort:
            raise  # a lack of resources proves nothing
        except StorageFault:
            return False

    def renew(self, indexes: Mapping[StoreKind, Sealed]) -> None:
        """Seal the present contents as complete. Raises `NoWritableDirectory` on a full disk, and `StorageFault`."""
        if not any(index.unsealed for index in indexes.values()):
            return
        self._number += 1  # also if it fails: a number means one state of the databases
        try:
            self._write({kind: indexes[kind].seal(self._number) for kind in StoreKind})
        except BaseException:
            for index in indexes.values():
                index.unsealed = True
            raise

    def seal_new(self, kind: StoreKind, store: OrderedStore) -> Callable[[], None]:
        """Seal a complete database that is to take the place of the one of this kind, where the other one has a seal.

        Return the function that notes it in the file, to be called once the database is in its place. Both raise as
        `renew` does."""
        rows = self._read()
        if not rows:
            return lambda: None
        self._number = max(self._number, *(number for _, number in rows.values())) + 1
        put_seal(store, self._number)
        rows[kind] = (_identity(store), self._number)
        return lambda: self._write_rows(rows)

    def _write(self, stores: Mapping[StoreKind, OrderedStore]) -> None:
        self._write_rows({kind: (_identity(stores[kind]), self._number) for kind in StoreKind})

    def _write_rows(self, rows: Mapping[StoreKind, tuple[bytes, int]]) -> None:
        data = _MAGIC + b"".join(_ROW.pack(*rows[kind]) for kind in StoreKind)
        try:
            self._files.write_bytes_atomic(self._path, data + _CRC.pack(google_crc32c.value(data)))
        except OSError as error:
            if error.errno in _FULL:
                raise NoWritableDirectory(f"cannot write {self._path}: {error.strerror}") from error
            raise storage_fault(f"cannot write {self._path}", error) from error

    def _read(self) -> dict[StoreKind, tuple[bytes, int]]:
        try:
            data = self._files.read_bytes(self._path)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise storage_fault(f"cannot read {self._path}", error) from error
        rows, crc = data[:_ROWS_END], data[_ROWS_END:]
        if not rows.startswith(_MAGIC) or crc != _CRC.pack(google_crc32c.value(rows)):
            _log.warning("the seal of the index is damaged: it is unknown whether its end is there", path=self._path)
            return {}
        return dict(zip(StoreKind, _ROW.iter_unpack(rows[len(_MAGIC) :]), strict=True))


def _lost(store: OrderedStore, found: int, number: int) -> str:
    if found < number:
        return (
            f"its newest rows: checkpoint {number} was complete in it, and now it ends with {found}. Its write-ahead"
            " log was damaged or cut"
        )
    return "" if store.has_all_tables() else "one of its tables: its manifest was damaged or cut"


def _identity(store: OrderedStore) -> bytes:
    return hashlib.sha256(store.identity()).digest()[:8]
