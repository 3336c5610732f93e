"""The seal that shows whether the databases of a ledger directory are complete: `index-seal` in that directory.

    8 bytes    "PKSEAL02"
    16 bytes   for each database: first 8 bytes of the SHA-256 of its identity, and the number of its last seal, i64
    8 bytes    0: it is not known whether `locations` is complete, see below. Else it is, unless another program has
               made one of the entry logs from this number - 1 on. i64
    4 bytes    CRC32C of all that is before it

An older release wrote "PKSEAL01" and nothing of completeness, which is not known then. It takes this file for damaged.

A crash leaves a torn end of RocksDB's write-ahead log, so RocksDB drops an end that it cannot read without a word. If
the log was damaged, or cut, rows that had been synced go with it: entries would be denied, and fences forgotten, while
the mark says that they are in the index. So every checkpoint seals the databases: a row with the next number, behind
everything else that it wrote, and, once that is synced, the same number in this file, which no damage of the database
reaches. A database whose seal is older than the file says has lost its end. One that misses a table in front of it says
so itself (`OrderedStore.has_all_tables`).

Invariants
- The row is durable before the file; so a crash leaves a row that is as new as the file, or newer.
- `locations` is complete if it surely names every entry that was durable here, but for those in journals behind the
  mark: it was never without its seal since the directory was new, or a rebuild has read all logs without a fault, while
  no ledger was in limbo. It is not known any more once a ledger is in limbo, or an entry without a row was found,
  whatever comes later. That is durable before anything else is written to either database (`tell_withdrawn`).
- Nor is it known once another program has used the directory, which does not know this file: it makes entry logs, and
  they do not say that they are ours. Nor behind a file that is older than the last two seals in its databases: it was
  left here while the directory was elsewhere.
- A database of another identity is another one (rebuilt, by our tools or those of Apache BookKeeper), and is accepted;
  so is one without a file, of an older release, and a file that is damaged, which is logged.
- The row has the key of a negative ledger id: Apache BookKeeper skips such rows of `ledgers`, and asks `locations` only
  for entries of ledgers that it knows. It does not change them, nor the file, when it uses the directory for a while.

Threads: `check` at the start; `withdraw`, `prove` and `tell_withdrawn` any; everything else one at a time.
"""

from __future__ import annotations

import errno
import hashlib
import struct
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
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
_MAGIC: Final = b"PKSEAL02"
_OLDER_MAGIC: Final = b"PKSEAL01"
_ROW: Final = struct.Struct(">8sq")
_ROWS_END: Final = len(_MAGIC) + _ROW.size * len(StoreKind)
_COMPLETE: Final = struct.Struct(">q")
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
        self._told = False
        """The file may say that `locations` is complete."""
        self.first_log = 0
        """The first log that the file says nothing of; 0: it says nothing of any."""
        self.later_logs: Callable[[], int] = lambda: self.first_log
        """Returns the first log that another program may make from now on. May raise `StorageFault`."""
        self.is_complete = False
        """`locations` is complete, as far as that is known."""
        self.withdrawals = 0
        """Grows whenever it turns out that `locations` may lack rows."""
        self._proving = threading.Lock()
        self._writing = threading.Lock()
        """Held while the file is written."""

    def check(self, stores: Mapping[StoreKind, OrderedStore]) -> bool:
        """Return whether all of them are sealed.

        Raises `IndexEndLost` if one has lost its end, and `StorageFault` if one cannot be read.
        """
        expected, self._told, self.first_log = self._read()
        sealed = is_newest = True
        # Ledgers first, and so they are rebuilt first: locations are rebuilt of ledgers that are known.
        for kind, store in sorted(stores.items(), key=lambda each: each[0] is not StoreKind.LEDGERS):
            row = store.get(SEAL_KEY)
            found = _NUMBER.unpack(row)[0] if row is not None and len(row) == _NUMBER.size else 0
            identity, number = expected.get(kind, (b"", 0))
            self._number = max(self._number, found, number)
            same = identity == _identity(store)
            sealed, is_newest = sealed and same, is_newest and found <= number + 1
            if lost := _lost(store, found, number if same else 0):
                raise IndexEndLost(
                    f"{store.path} has lost {lost}, and entries would be denied, or fences forgotten. Rebuild it with"
                    f" `bookie disk rebuild-{kind.value}`, or empty the bookie's directories"
                    " and let it fetch its entries from others"
                )
        self.is_complete = sealed and is_newest and self._told
        return sealed

    def proves_complete(self, store: OrderedStore) -> bool:
        """Return whether this is the `locations` database, and complete; it need not be readable. One that was never
        written to may have been made in the place of one that was lost."""
        try:
            return self.check({StoreKind.LOCATIONS: store}) and self.is_complete
        except ResourcesShort:
            raise  # a lack of resources proves nothing
        except StorageFault:
            return False

    def renew(self, indexes: Mapping[StoreKind, Sealed]) -> None:
        """Seal the present contents as complete. Raises `NoWritableDirectory` on a full disk, and `StorageFault`."""
        if not any(index.unsealed for index in indexes.values()) and self._told == self.is_complete:
            return
        self._number += 1  # also if it fails: a number means one state of the databases
        try:
            self._write({kind: indexes[kind].seal(self._number) for kind in StoreKind})
        except BaseException:
            for index in indexes.values():
                index.unsealed = True
            raise

    def withdraw(self) -> None:
        """`locations` may lack rows. Durable with the next `tell_withdrawn` or `renew`."""
        with self._proving:
            self.withdrawals += 1
            self.is_complete = False

    def prove(self, withdrawals: int) -> None:
        """`locations` was found to be complete by a look that began when `withdrawals` was this."""
        with self._proving:
            self.is_complete |= self.withdrawals == withdrawals

    def tell_withdrawn(self) -> None:
        """A database is about to be written to: from now on the file does not say that `locations` is complete if it is
        not. Raises as `renew` does."""
        with self._writing:
            if self._told and not self.is_complete:
                rows = self._read()[0]
                if rows:
                    self._put_rows(rows)
                self._told = False

    def seal_new(self, kind: StoreKind, store: OrderedStore) -> Callable[[], None]:
        """Seal a complete database that is to take the place of the one of this kind, where the other one has a seal.

        Return the function that notes it in the file, to be called once the database is in its place. Both raise as
        `renew` does."""
        rows, self._told, self.first_log = self._read()
        self.is_complete = self._told
        if not rows:
            return lambda: None
        self._number = max(self._number, *(number for _, number in rows.values())) + 1
        put_seal(store, self._number)
        rows[kind] = (_identity(store), self._number)
        return lambda: self._write_rows(rows)

    def _write(self, stores: Mapping[StoreKind, OrderedStore]) -> None:
        self._write_rows({kind: (_identity(stores[kind]), self._number) for kind in StoreKind})

    def _write_rows(self, rows: Mapping[StoreKind, tuple[bytes, int]]) -> None:
        with self._writing:
            self._put_rows(rows)

    def _put_rows(self, rows: Mapping[StoreKind, tuple[bytes, int]]) -> None:
        complete = self.is_complete
        self._told |= complete  # also if the write fails
        if complete:
            with suppress(StorageFault):  # then the next process looks at more logs than it has to
                self.first_log = self.later_logs()
        word = _COMPLETE.pack(1 + self.first_log if complete else 0)
        data = _MAGIC + b"".join(_ROW.pack(*rows[kind]) for kind in StoreKind) + word
        try:
            self._files.write_bytes_atomic(self._path, data + _CRC.pack(google_crc32c.value(data)))
        except OSError as error:
            if error.errno in _FULL:
                raise NoWritableDirectory(f"cannot write {self._path}: {error.strerror}") from error
            raise storage_fault(f"cannot write {self._path}", error) from error
        self._told = complete

    def _read(self) -> tuple[dict[StoreKind, tuple[bytes, int]], bool, int]:
        """The rows; whether `locations` is complete; the first log of which that is not said."""
        try:
            data = self._files.read_bytes(self._path)
        except FileNotFoundError:
            return {}, False, 0
        except OSError as error:
            raise storage_fault(f"cannot read {self._path}", error) from error
        end = _ROWS_END if data.startswith(_OLDER_MAGIC) else _ROWS_END + _COMPLETE.size
        content, crc = data[:end], data[end:]
        if not content.startswith((_MAGIC, _OLDER_MAGIC)) or crc != _CRC.pack(google_crc32c.value(content)):
            _log.warning("the seal of the index is damaged: it is unknown whether its end is there", path=self._path)
            return {}, False, 0
        word = int.from_bytes(content[_ROWS_END:], "big")
        rows = dict(zip(StoreKind, _ROW.iter_unpack(content[len(_MAGIC) : _ROWS_END]), strict=True))
        return rows, word > 0, max(0, word - 1)


def _lost(store: OrderedStore, found: int, number: int) -> str:
    if found < number:
        return (
            f"its newest rows: checkpoint {number} was complete in it, and now it ends with {found}. Its write-ahead"
            " log was damaged or cut"
        )
    return "" if store.has_all_tables() else "one of its tables: its manifest was damaged or cut"


def _identity(store: OrderedStore) -> bytes:
    return hashlib.sha256(store.identity()).digest()[:8]
