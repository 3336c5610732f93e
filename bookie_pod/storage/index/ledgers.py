"""The `ledgers` database: which ledgers a directory knows, their keys, fences and explicit LACs.

Format
    key    8 bytes   ledger id i64 big-endian (or 16: the same and eight zeros, written by a repair tool)
    value  `LedgerData`, see `ledger_data`
    key    ff ff ff ff ff ff 11 03 (-0xeefd): 8 bytes of flags, in the directory that owns ledger 0

Invariants
- All ledgers are in memory; the database follows at each checkpoint. The journal covers the gap.
- Changes come from the event loop; `take_dirty` runs there too, so no change falls between it and the write.
- `write` is durable when it returns, and what it takes is the newest record of each ledger: being durable
  early harms nothing. A failed write is repeated with the same ids.

Threads: changes and `take_dirty` on the event loop (or on the replaying thread, before the loop serves);
`get` and `ledger_ids` from any thread; `write` from one thread at a time.

Source: reference on-disk formats, section 8.3.
"""

from __future__ import annotations

import struct
from collections.abc import Collection
from dataclasses import replace
from typing import Final

from bookie_pod.storage.index.ledger_data import LedgerRecord, decode, encode
from bookie_pod.storage.index.store import OrderedStore
from bookie_protocol.errors import StorageFault, Unauthorized

_ID: Final = struct.Struct(">q")
assert _ID.size == 8
_PADDING: Final = bytes(8)
FLAGS_KEY: Final = _ID.pack(-0xEEFD)
NEEDS_INTEGRITY_CHECK: Final = 0x1
_KNOWN_FLAGS: Final = NEEDS_INTEGRITY_CHECK
_SHARED_RECORDS: Final = 4096
"""Distinct records that ledgers share; beyond that each ledger has its own."""
_ROWS_PER_BATCH: Final = 4096


def is_unknown_key(key: bytes) -> bool:
    """True for a key that stands for "nobody has presented one yet": empty or all zero."""
    return not any(key)


class LedgerIndex:
    """The ledgers of one directory."""

    def __init__(self, store: OrderedStore) -> None:
        """Load all ledgers. Raises `StorageFault` if a row cannot be understood."""
        self._store = store
        self._ledgers: dict[int, LedgerRecord] = {}
        self._shared: dict[LedgerRecord, LedgerRecord] = {}
        self._dirty: set[int] = set()
        self._long_keys: set[int] = set()
        self._load()
        self.flags()

    @property
    def path(self) -> str:
        return self._store.path

    def _load(self) -> None:
        for key, value in self._store.scan(b"", b"\x80"):  # negative ids sort behind: flags, nothing else
            if len(key) not in (8, 16):
                raise StorageFault(f"ledger index {self.path}: key of {len(key)} bytes, expected 8 or 16: {key.hex()}")
            ledger_id = _ID.unpack_from(key)[0]
            if len(key) == 16:
                self._long_keys.add(ledger_id)
                if ledger_id in self._ledgers:
                    continue  # the short row, which sorts first, is the one that is kept up to date
            try:
                self._ledgers[ledger_id] = self._share(decode(value))
            except StorageFault as error:
                raise StorageFault(f"ledger index {self.path}: ledger {ledger_id}: {error}") from error

    def _share(self, record: LedgerRecord) -> LedgerRecord:
        """One object for equal records: ledgers of one application differ in nothing but their ids."""
        if record.explicit_lac is not None:
            return record
        known = self._shared.get(record)
        if known is not None:
            return known
        if len(self._shared) < _SHARED_RECORDS:
            self._shared[record] = record
        return record

    # --- look-ups -------------------------------------------------------------------------------------------

    def get(self, ledger_id: int) -> LedgerRecord | None:
        """The ledger's record, or None if this directory does not know it."""
        return self._ledgers.get(ledger_id)

    def ledger_ids(self) -> list[int]:
        """Ids of all ledgers, in no order."""
        return list(self._ledgers)

    def __len__(self) -> int:
        return len(self._ledgers)

    # --- changes --------------------------------------------------------------------------------------------

    def put(self, ledger_id: int, record: LedgerRecord) -> None:
        """Replace the record in memory; durable with the next checkpoint."""
        self._ledgers[ledger_id] = self._share(record)
        self._dirty.add(ledger_id)

    def set_master_key(self, ledger_id: int, key: bytes) -> LedgerRecord:
        """Check or take note of the key that somebody presents; makes the ledger if it is unknown.

        An unknown stored key is replaced, an unknown given key changes nothing, and two keys that differ
        raise `Unauthorized` (the reference's storage reports an I/O error there).
        """
        record = self._ledgers.get(ledger_id)
        if record is None:
            record = LedgerRecord(key)
        elif record.key == key or is_unknown_key(key):
            return record
        elif is_unknown_key(record.key):
            record = replace(record, key=key)
        else:
            raise Unauthorized(f"ledger {ledger_id}: the master key differs from the ledger's")
        self.put(ledger_id, record)
        return record

    def delete(self, ledger_id: int) -> None:
        """Forget the ledger; its row goes with the next checkpoint."""
        if self._ledgers.pop(ledger_id, None) is not None:
            self._dirty.add(ledger_id)

    def take_dirty(self) -> set[int]:
        """Ids of ledgers changed or deleted since the last call. Event loop."""
        dirty, self._dirty = self._dirty, set()
        return dirty

    # --- writing --------------------------------------------------------------------------------------------

    def write(self, ledger_ids: Collection[int]) -> None:
        """Write the records these ledgers have now, delete the rows of those that are gone; durable on
        return."""
        batch = self._store.batch()
        for ledger_id in ledger_ids:
            key, record = _ID.pack(ledger_id), self._ledgers.get(ledger_id)
            if record is None:
                batch.delete(key)
            else:
                batch.put(key, encode(record))
            if ledger_id in self._long_keys:
                batch.delete(key + _PADDING)
            if len(batch) >= _ROWS_PER_BATCH:
                batch.commit(sync=False)
                batch = self._store.batch()
        batch.commit(sync=False)
        self._store.sync()
        self._long_keys.difference_update(ledger_ids)

    # --- flags ----------------------------------------------------------------------------------------------

    def flags(self) -> int:
        """Flags of the storage; 0 if none was ever set. Raises `StorageFault` for a flag of a newer
        release."""
        value = self._store.get(FLAGS_KEY)
        if value is None:
            return 0
        if len(value) != 8:
            raise StorageFault(f"ledger index {self.path}: the flags row has {len(value)} bytes, expected 8")
        flags: int = _ID.unpack(value)[0] & 0xFFFFFFFF
        if flags & ~_KNOWN_FLAGS:
            raise StorageFault(f"ledger index {self.path}: unknown storage flags {flags:#x}; use a newer release")
        return flags

    def set_flags(self, flags: int) -> None:
        """Replace the flags; durable on return."""
        batch = self._store.batch()
        batch.put(FLAGS_KEY, _ID.pack(flags))
        batch.commit()

    def close(self) -> None:
        self._store.close()
