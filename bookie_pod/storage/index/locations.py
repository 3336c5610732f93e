"""The `locations` database: (ledger, entry) to the place of the entry in the entry logs.

Format
    key    16 bytes  ledger id i64, entry id i64, big-endian
    value   8 bytes  location i64, big-endian: (log id << 32) | offset of the entry's first byte

Invariants
- A missing row means "not here", as location 0 does; every fault raises `StorageFault`.
- `write` is durable when it returns. It applies deletions before rows, so that a ledger that was deleted and
  then written again keeps what is new. Batches are small because the binding holds the interpreter lock while
  it writes; a crash between two of them leaves rows that the journal covers too.
- From `delete_ledger` until a `write` has applied that deletion, the ledger's rows are not seen.

Threads: any. Writes take turns on a lock, which look-ups do not need.

Source: reference on-disk formats, section 8.2.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import numpy as np

from bookie_pod.storage.index.store import OrderedStore, StoreBatch
from bookie_protocol.errors import StorageFault

KEY: Final = struct.Struct(">qq")
VALUE: Final = struct.Struct(">q")
assert KEY.size == 16
assert VALUE.size == 8

MAX_ENTRY_ID: Final = (1 << 63) - 1
ROWS_PER_BATCH: Final = 4096
"""Rows that one write of the binding takes at most: about 1 ms under the interpreter lock."""
YIELD_SECONDS: Final = 0.00005
"""Pause after each slice of background work. It has to be longer than nothing: a thread that merely lets go of the
interpreter lock takes it back before a waiting one wakes up."""
SHORT_RUN: Final = 12
"""Rows below which packing one by one is faster than an array."""


class LocationRun(NamedTuple):
    """Entries of one ledger, ascending, and where each one lies."""

    ledger_id: int
    entry_ids: Sequence[int]
    locations: Sequence[int]


class EntryMove(NamedTuple):
    """One entry that compaction copied."""

    ledger_id: int
    entry_id: int
    old: int
    """Location that compaction read it from."""
    new: int
    """Location of the synced copy."""


class LocationIndex:
    """Where each entry of a ledger directory lies."""

    def __init__(self, store: OrderedStore, max_batch: int = 100_000) -> None:
        """`max_batch` is `maxOperationNumbersInSingleRocksdbWriteBatch`."""
        self._store = store
        self._rows_per_batch = max(1, min(max_batch, ROWS_PER_BATCH))
        self._deleted: dict[int, int] = {}
        self._deletions = 0
        self._write_lock = threading.Lock()

    @property
    def path(self) -> str:
        return self._store.path

    # --- look-ups -------------------------------------------------------------------------------------------

    def get(self, ledger_id: int, entry_id: int) -> int:
        """The location, or 0 if this index does not hold the entry."""
        if ledger_id in self._deleted:
            return 0
        value = self._store.get(KEY.pack(ledger_id, entry_id))
        return 0 if value is None else self._location(value, ledger_id, entry_id)

    def last_entry_id(self, ledger_id: int) -> int | None:
        """The highest entry id of the ledger, or None if it has no row."""
        if ledger_id in self._deleted:
            return None
        row = self._store.floor(KEY.pack(ledger_id, MAX_ENTRY_ID))
        if row is None:
            return None
        found, entry_id = self._key(row[0])
        return entry_id if found == ledger_id and entry_id >= 0 else None

    def entry_ids(self, ledger_id: int) -> Iterator[int]:
        """All entry ids of the ledger, ascending."""
        for entry_id, _ in self.rows(ledger_id):
            yield entry_id

    def rows(self, ledger_id: int, first_entry: int = 0) -> Iterator[tuple[int, int]]:
        """(entry id, location) of the ledger's entries from `first_entry` on, ascending."""
        if ledger_id in self._deleted:
            return
        begin, end = KEY.pack(ledger_id, first_entry), KEY.pack(ledger_id, MAX_ENTRY_ID)
        for key, value in self._store.scan(begin, end + b"\0"):
            entry_id = self._key(key)[1]
            yield entry_id, self._location(value, ledger_id, entry_id)

    def is_empty(self) -> bool:
        """True if no row is stored at all."""
        return next(self._store.scan(), None) is None

    def estimated_count(self) -> int:
        return self._store.estimated_count()

    def _key(self, key: bytes) -> tuple[int, int]:
        if len(key) != KEY.size:
            raise StorageFault(f"location index {self.path}: key {key.hex()} does not have 16 bytes")
        ledger_id, entry_id = KEY.unpack(key)
        return ledger_id, entry_id

    def _location(self, value: bytes, ledger_id: int, entry_id: int) -> int:
        if len(value) != VALUE.size:
            name = f"ledger {ledger_id} entry {entry_id}"
            raise StorageFault(f"location index {self.path}: {name} has a value of {len(value)} bytes, not 8")
        location: int = VALUE.unpack(value)[0]
        return location

    # --- deletions ------------------------------------------------------------------------------------------

    def delete_ledger(self, ledger_id: int) -> None:
        """Hide the ledger's rows now; the next `write` that is given `pending_deletions()` removes them."""
        self._deletions += 1
        self._deleted[ledger_id] = self._deletions

    def pending_deletions(self) -> dict[int, int]:
        """Deletions that no `write` has applied: ledger id to the number of the deletion."""
        return dict(self._deleted)

    # --- writing --------------------------------------------------------------------------------------------

    def write(self, runs: Iterable[LocationRun], deletions: Mapping[int, int] | None = None) -> None:
        """Apply `deletions`, then put the rows of all runs; durable on return. `StorageFault` if the store
        fails."""
        with self._write_lock:
            batch = self._store.batch()
            for ledger_id in sorted(deletions or ()):
                batch.delete_range(KEY.pack(ledger_id, 0), KEY.pack(ledger_id, MAX_ENTRY_ID))
                batch.delete(KEY.pack(ledger_id, MAX_ENTRY_ID))
                batch = self._roll(batch)
            for run in runs:
                batch = self._put_run(batch, run)
            batch.commit(sync=False)
            self._store.sync()
            for ledger_id, number in (deletions or {}).items():
                if self._deleted.get(ledger_id) == number:  # else it was deleted once more meanwhile
                    del self._deleted[ledger_id]

    def move(self, moves: Iterable[EntryMove]) -> int:
        """Let rows point to copies that compaction made and synced; durable on return. How many did move.

        A row that does not point to the old place any more stays as it is: the entry was written again, or its ledger
        was deleted, since compaction looked.
        """
        moved = 0
        with self._write_lock:
            batch = self._store.batch()
            for ledger_id, entry_id, old, new in moves:
                if self.get(ledger_id, entry_id) == old:
                    batch.put(KEY.pack(ledger_id, entry_id), VALUE.pack(new))
                    batch = self._roll(batch)
                    moved += 1
            batch.commit(sync=False)
            self._store.sync()
        return moved

    def _put_run(self, batch: StoreBatch, run: LocationRun) -> StoreBatch:
        total, done = len(run.entry_ids), 0
        while done < total:
            upto = min(total, done + self._rows_per_batch - len(batch))
            batch.put_many(*encode_rows(run.ledger_id, run.entry_ids[done:upto], run.locations[done:upto]))
            done = upto
            batch = self._roll(batch)
        return batch

    def _roll(self, batch: StoreBatch) -> StoreBatch:
        """Commit a full batch and start the next."""
        if len(batch) < self._rows_per_batch:
            return batch
        batch.commit(sync=False)
        time.sleep(YIELD_SECONDS)
        return self._store.batch()

    def compact(self) -> None:
        """Rewrite the database without its dead rows (`entryLocationCompactionInterval`); slow."""
        self._store.compact()

    def close(self) -> None:
        self._store.close()


def encode_rows(ledger_id: int, entry_ids: Sequence[int], locations: Sequence[int]) -> tuple[list[bytes], list[bytes]]:
    """Keys and values of a run. One array each, then slices: a fifth of the time of packing row by row."""
    count = len(entry_ids)
    if count < SHORT_RUN:
        return [KEY.pack(ledger_id, entry_id) for entry_id in entry_ids], list(map(VALUE.pack, locations))
    rows = np.empty((count, 2), dtype=">i8")
    rows[:, 0] = ledger_id
    rows[:, 1] = entry_ids
    keys = rows.tobytes()
    values = np.asarray(locations, dtype=">i8").tobytes()
    return (
        [keys[at : at + 16] for at in range(0, 16 * count, 16)],
        [values[at : at + 8] for at in range(0, 8 * count, 8)],
    )
