"""The `ledgers` database: which ledgers a directory knows, their keys, fences and explicit LACs.

Format
    key    8 bytes   ledger id i64 big-endian (or 16: the same and eight zeros, written by a repair tool)
    value  `LedgerData`, see `ledger_data`
    key    ff ff ff ff ff ff 11 03 (-0xeefd): 8 bytes of flags, in the directory that owns ledger 0

Invariants
- All ledgers are in memory; the database follows at each checkpoint. The journal covers the gap.
- Changes come from the event loop; `take_dirty` runs there too, so no change falls between it and the write.
- `write` is durable when it returns, and what it takes is a newer record of each ledger than the flush asks for: being
  durable early harms nothing, as long as the ledger's rows are not of another life. A failed write is repeated.
- A new database that is filled (`fill`) and put in the place of the old one (`adopt`) holds what is in memory then:
  nothing that this process knows can be lost by it.

Threads: changes and `take_dirty` on the event loop (or on the replaying thread, before the loop serves);
`get` and `ledger_ids` from any thread; `write`, `change_flags`, `fill` and `adopt` take turns on a lock.

Source: docs/internals/on-disk-formats.md, section 8.3.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from bookie_pod.storage.index.ledger_data import LedgerRecord, LedgerRecords, decode, encode
from bookie_pod.storage.index.seal import put_seal
from bookie_pod.storage.index.store import OrderedStore
from bookie_protocol.errors import StorageFault

_ID: Final = struct.Struct(">q")
assert _ID.size == 8
_PADDING: Final = bytes(8)
FLAGS_KEY: Final = _ID.pack(-0xEEFD)
NEEDS_INTEGRITY_CHECK: Final = 0x1
_KNOWN_FLAGS: Final = NEEDS_INTEGRITY_CHECK
_ROWS_PER_BATCH: Final = 4096


class LedgerIndex(LedgerRecords):
    """The ledgers of one directory."""

    def __init__(self, store: OrderedStore) -> None:
        """Load all ledgers. Raises `StorageFault` if a row cannot be understood."""
        super().__init__()
        self._store = store
        self._long_keys: set[int] = set()
        self._write_lock = threading.Lock()
        self._written: set[int] | None = None
        self._new: set[int] = set()
        """Ledgers of which the database has no record yet."""
        self.unsealed = True
        """Something may have been written since the last `seal`."""
        self.before_write: Callable[[], None] = lambda: None
        """Called before anything is written, or a new database is used; what it raises is raised."""
        self._load()
        self.flags()

    @property
    def path(self) -> str:
        return self._store.path

    def _load(self) -> None:
        for key, value in self._store.scan(b"", b"\x80"):  # negative ids sort behind: flags and seal
            if len(key) not in (8, 16):
                raise StorageFault(f"ledger index {self.path}: key of {len(key)} bytes, expected 8 or 16: {key.hex()}")
            ledger_id = _ID.unpack_from(key)[0]
            if len(key) == 16:
                self._long_keys.add(ledger_id)
                if ledger_id in self._ledgers:
                    continue  # the short row, which sorts first, is the one that is kept up to date
            try:
                self._loaded(ledger_id, decode(value))
            except StorageFault as error:
                raise StorageFault(f"ledger index {self.path}: ledger {ledger_id}: {error}") from error

    # --- changes --------------------------------------------------------------------------------------------

    def put(self, ledger_id: int, record: LedgerRecord) -> None:
        """See `LedgerRecords`."""
        if ledger_id not in self._ledgers:
            self._new.add(ledger_id)
        super().put(ledger_id, record)

    def delete(self, ledger_id: int) -> int:
        """See `LedgerRecords`."""
        self._new.discard(ledger_id)
        return super().delete(ledger_id)

    # --- writing --------------------------------------------------------------------------------------------

    def records(self, ledger_ids: Collection[int]) -> dict[int, LedgerRecord | None]:
        """Return the present records of these ledgers for `write`; None for those that are gone."""
        return {ledger_id: self._ledgers.get(ledger_id) for ledger_id in ledger_ids}

    def new_among(self, ledger_ids: Collection[int]) -> set[int]:
        """Return those of which the database has no record yet."""
        return self._new.intersection(ledger_ids)

    def write(self, records: Mapping[int, LedgerRecord | None]) -> None:
        """Write these records, and delete the rows of ledgers that have none; durable on return."""
        with self._write_lock:
            self.before_write()
            self.unsealed = True
            self._put(self._store, records)
            self._store.sync()
            self._long_keys.difference_update(records)
            self._new.difference_update(records)
            if self._written is not None:
                self._written.update(records)

    def _put(self, store: OrderedStore, records: Mapping[int, LedgerRecord | None]) -> None:
        batch = store.batch()
        for ledger_id, record in records.items():
            key = _ID.pack(ledger_id)
            if record is None:
                batch.delete(key)
            else:
                batch.put(key, encode(record))
            if ledger_id in self._long_keys:
                batch.delete(key + _PADDING)
            if len(batch) >= _ROWS_PER_BATCH:
                batch.commit(sync=False)
                batch = store.batch()
        batch.commit(sync=False)

    def seal(self, number: int) -> OrderedStore:
        """See `seal.Sealed`."""
        with self._write_lock:
            put_seal(self._store, number)
            self.unsealed = False
            return self._store

    # --- a rebuild ------------------------------------------------------------------------------------------

    def fill(self, store: OrderedStore) -> Iterator[int]:
        """Write every record that is in memory into a new database; yields after each batch how many they were.
        `StorageFault`."""
        with self._write_lock:
            self._written = set()
        ledger_ids = self.ledger_ids()
        for at in range(0, len(ledger_ids), _ROWS_PER_BATCH):
            some = ledger_ids[at : at + _ROWS_PER_BATCH]
            self._put(store, self.records(some))
            yield len(some)

    def abandon(self) -> None:
        """The new database is not wanted any more."""
        with self._write_lock:
            self._written = None

    def adopt(self, store: OrderedStore, switch: Callable[[], OrderedStore]) -> None:
        """Bring a filled database up to date, close it and the one in use, and use what `switch` opens. `StorageFault`:
        the one in use stays, or, if `switch` failed, none is in use."""
        with self._write_lock:
            written, self._written = self._written or set(), None
            records = self.records(written)
            self.before_write()  # behind the look: what these records hide was withdrawn before
            self.unsealed = True
            self._put(store, records)
            flags = self._store.get(FLAGS_KEY)
            if flags is not None:
                batch = store.batch()
                batch.put(FLAGS_KEY, flags)
                batch.commit(sync=False)
            store.sync()
            store.close()
            self._store.close()
            self._store = switch()
            self._long_keys.clear()

    # --- flags ----------------------------------------------------------------------------------------------

    def flags(self) -> int:
        """Flags of the storage; 0 if none was ever set. Raises `StorageFault` for a flag of a newer
        release."""
        with self._write_lock:
            return self._flags()

    def _flags(self) -> int:
        value = self._store.get(FLAGS_KEY)
        return 0 if value is None else checked_flags(value, f"ledger index {self.path}")

    def set_flags(self, flags: int) -> None:
        """Replace the flags; durable on return."""
        self.change_flags(lambda known: flags)

    def change_flags(self, change: Callable[[int], int]) -> None:
        """Replace the flags by what `change` makes of them, which is asked under the lock; durable on return."""
        with self._write_lock:
            flags = change(self._flags())
            self.before_write()
            self.unsealed = True
            batch = self._store.batch()
            batch.put(FLAGS_KEY, _ID.pack(flags))
            batch.commit()

    def close(self) -> None:
        self._store.close()


def checked_flags(value: bytes, source: str) -> int:
    """Return the flags in 8 bytes; raises `StorageFault` if there are others, or a flag of a newer release."""
    if len(value) != _ID.size:
        raise StorageFault(f"{source}: the storage flags have {len(value)} bytes, expected {_ID.size}")
    flags: int = _ID.unpack(value)[0] & 0xFFFFFFFF
    if flags & ~_KNOWN_FLAGS:
        raise StorageFault(f"{source}: unknown storage flags {flags:#x}; use a newer release")
    return flags
