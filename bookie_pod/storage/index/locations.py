"""The `locations` database: (ledger, entry) to the place of the entry in the entry logs.

Format of a row
    key    16 bytes  ledger id i64, entry id i64, big-endian
    value   8 bytes  location i64, big-endian: (log id << 32) | offset of the entry's first byte

Invariants
- A missing row means "not here", as location 0 does; every fault raises `StorageFault`.
- `write` is durable when it returns. It applies deletions before rows, so that a ledger that was deleted and
  then written again keeps what is new. Batches are small because the binding holds the interpreter lock while
  it writes; a crash between two of them leaves rows that the journal covers too.
- From `delete_ledger` until a `write` has applied that deletion, the ledger's rows are not seen.
- While a twin is attached (see `Twin`), every change is made to both stores. `adopt` puts the twin in the place of the
  store; a look-up that meets the change waits for it, and is made again.

Threads: any. Writes take turns on a lock, which look-ups do not need.

Sources: docs/internals/on-disk-formats.md, section 8.2; docs/internals/bookie-behaviour.md, section 12.
"""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Final, NamedTuple, TypeVar

import numpy as np

from bookie_pod.storage.index.seal import put_seal
from bookie_pod.storage.index.store import OrderedStore, StoreBatch
from bookie_protocol.columns import byte_column
from bookie_protocol.errors import ResourcesShort, StorageFault

KEY: Final = struct.Struct(">qq")
VALUE: Final = struct.Struct(">q")
assert KEY.size == 16
assert VALUE.size == 8

MAX_ENTRY_ID: Final = (1 << 63) - 1
SHORT_RUN: Final = 12
"""Rows below which packing one by one is faster than an array."""
_T = TypeVar("_T")
NEGATIVE: Final = b"\x80"
"""Rows of negative ledger ids begin here: the seal, and no entry's."""
ROWS_PER_BATCH: Final = 4096
"""Rows that one write of the binding takes at most: about 1 ms under the interpreter lock."""
ROWS_AT_ONCE: Final = 1024
"""Rows that a scan takes at once: the store may be replaced between two of these."""
YIELD_SECONDS: Final = 0.00005
"""Pause after each slice of background work. It has to be longer than nothing: a thread that merely lets go of the
interpreter lock takes it back before a waiting one wakes up."""


class LocationRun(NamedTuple):
    """Entries of one ledger, ascending, and where each one lies."""

    ledger_id: int
    entry_ids: Sequence[int]
    locations: Sequence[int]


class EntryMove(NamedTuple):
    """One entry that compaction copied; or that stays where it is (`old` is `new`), and is put there once more."""

    ledger_id: int
    entry_id: int
    old: int
    """Location that compaction read it from."""
    new: int
    """Location of the synced copy."""


def encode_rows(ledger_id: int, entry_ids: Sequence[int], locations: Sequence[int]) -> tuple[list[bytes], list[bytes]]:
    """Keys and values of a run. One array each: a tenth of the time of packing row by row."""
    count = len(entry_ids)
    if count < SHORT_RUN:
        return [KEY.pack(ledger_id, entry_id) for entry_id in entry_ids], list(map(VALUE.pack, locations))
    rows = np.empty((count, 2), dtype=">i8")
    rows[:, 0] = ledger_id
    rows[:, 1] = np.fromiter(entry_ids, np.int64, count)
    values = np.fromiter(locations, np.int64, count).astype(">i8")
    return (
        byte_column(rows.tobytes(), 0, KEY.size, KEY.size, count),
        byte_column(values.tobytes(), 0, VALUE.size, VALUE.size, count),
    )


def chosen(rows: Iterable[tuple[int, int]], used: Sequence[int], built: Callable[[int], int]) -> dict[int, int]:
    """Return those of the (entry id, location) that a log offers which a new index takes, as a mapping.

    `used` are the places that the old index names for these entries, 0 if none. `built` tells what the new index has
    of an entry. A place that both name stays: its log has confirmed it, or it is newer than what is offered.
    """
    taken: dict[int, int] = {}
    for (entry_id, location), place in zip(rows, used, strict=True):
        if place in (0, location) or (taken.get(entry_id) or built(entry_id)) != place:
            taken[entry_id] = location
    return taken


@dataclass(slots=True)
class Offered:
    """The result of rows that were offered."""

    put: int = 0
    """Rows that the twin has now from this offer."""
    same: int = 0
    """The number of these rows that the index in use has too."""


class Twin:
    """A second store of location rows that is built beside the one in use, and becomes it.

    Invariants
    - Whatever changes the index in use changes the twin too, in the same turn of the index's write lock
      (`LocationIndex`).
    - A row that a scan of the entry logs offers yields to one that both stores hold: that one was confirmed by its
      log, or is newer than the scan.
    - A ledger that was deleted since the twin is there gets no row by an offer: what a scan finds of it is garbage,
      and what is new of it comes with the flushes.
    - A fault of the twin ends the rebuild and nothing else.

    The store that is built. `failure`: why nothing more is written to it.

    Threads: as `LocationIndex`: everything under its write lock, but `deleted`, to which any thread may add.
    """

    def __init__(self, store: OrderedStore) -> None:
        self.store = store
        self.deleted: set[int] = set()
        self.failure: StorageFault | None = None

    def check(self) -> None:
        """`StorageFault` if a change could not be followed."""
        if self.failure is not None:
            raise StorageFault(f"the new index could not follow a change: {self.failure}") from self.failure

    def get(self, ledger_id: int, entry_id: int) -> int:
        """The location, or 0. `StorageFault`."""
        value = self.store.get(KEY.pack(ledger_id, entry_id))
        return 0 if value is None else int(VALUE.unpack(value)[0])

    def put(self, ledger_id: int, rows: Sequence[tuple[int, int]]) -> None:
        """(entry id, location) of one ledger; durable when the twin is adopted. `StorageFault`."""
        batch = self.store.batch()
        for entry_id, location in rows:
            batch.put(KEY.pack(ledger_id, entry_id), VALUE.pack(location))
        batch.commit(sync=False)


class LocationIndex:
    """The location index: the place of each entry of a ledger directory."""

    def __init__(self, store: OrderedStore, max_batch: int = 100_000) -> None:
        """`max_batch` is `maxOperationNumbersInSingleRocksdbWriteBatch`."""
        self._store = store
        self._rows_per_batch = max(1, min(max_batch, ROWS_PER_BATCH))
        self._deleted: dict[int, int] = {}
        self._deletions = 0
        self.unsealed = True
        """Something may have been written since the last `seal`."""
        self.before_write: Callable[[], None] = lambda: None
        """Called before anything is written; what it raises is raised."""
        self._in_doubt = False
        """True while a write is under way or after it failed: rows may be seen that are not durable."""
        self._write_lock = threading.Lock()
        self._compacting = threading.Lock()
        self._adopting = threading.Lock()
        self._twin: Twin | None = None

    @property
    def path(self) -> str:
        return self._store.path

    def _ask(self, look: Callable[[OrderedStore], _T]) -> _T:
        """Look something up; again, if the store was replaced meanwhile."""
        store = self._store
        try:
            return look(store)
        except StorageFault:
            with self._adopting:
                now = self._store
            if now is store:
                raise
        return look(now)

    # --- look-ups -------------------------------------------------------------------------------------------

    def get(self, ledger_id: int, entry_id: int) -> int:
        """The location, or 0 if this index does not hold the entry."""
        return self.get_each(ledger_id, (entry_id,))[0]

    def get_each(self, ledger_id: int, entry_ids: Sequence[int]) -> list[int]:
        """Return what `get` returns for each. Raises `StorageFault` if one of them cannot be determined."""
        if ledger_id in self._deleted:
            return [0] * len(entry_ids)
        keys = [KEY.pack(ledger_id, entry_id) for entry_id in entry_ids]
        values = self._ask(lambda store: store.get_each(keys))
        return [
            0 if value is None else self._location(value, ledger_id, entry_id)
            for entry_id, value in zip(entry_ids, values, strict=True)
        ]

    def last_entry_id(self, ledger_id: int) -> int | None:
        """The highest entry id of the ledger, or None if it has no row."""
        if ledger_id in self._deleted:
            return None
        row = self._ask(lambda store: store.floor(KEY.pack(ledger_id, MAX_ENTRY_ID)))
        if row is None:
            return None
        found, entry_id = self._key(row[0])
        return entry_id if found == ledger_id and entry_id >= 0 else None

    def entry_ids(self, ledger_id: int) -> Iterator[int]:
        """All entry ids of the ledger, ascending."""
        for entry_id, _ in self.rows(ledger_id):
            yield entry_id

    def rows(self, ledger_id: int, first_entry: int = 0) -> Iterator[tuple[int, int]]:
        """(entry id, location) of the ledger's entries from `first_entry` on, ascending; none behind the last id."""
        if ledger_id in self._deleted:
            return
        end = KEY.pack(ledger_id, MAX_ENTRY_ID) + b"\0"
        while first_entry <= MAX_ENTRY_ID:  # a caller that continues after the last id asks for more than there can be
            begin = KEY.pack(ledger_id, first_entry)
            rows = self._ask(lambda store, begin=begin: list(islice(store.scan(begin, end), ROWS_AT_ONCE)))  # type: ignore[misc]
            for key, value in rows:
                entry_id = self._key(key)[1]
                yield entry_id, self._location(value, ledger_id, entry_id)
            if len(rows) < ROWS_AT_ONCE:
                return
            first_entry = entry_id + 1

    def is_empty(self) -> bool:
        """True if no row is stored at all."""
        return self._ask(lambda store: next(store.scan(b"", NEGATIVE), None)) is None

    def estimated_count(self) -> int:
        return self._ask(lambda store: store.estimated_count())

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
        if (twin := self._twin) is not None:
            twin.deleted.add(ledger_id)

    def pending_deletions(self) -> dict[int, int]:
        """Deletions that no `write` has applied: ledger id to the number of the deletion."""
        return dict(self._deleted)

    # --- writing --------------------------------------------------------------------------------------------

    def write(self, runs: Iterable[LocationRun], deletions: Mapping[int, int] | None = None) -> None:
        """Apply `deletions`, then put the rows of all runs; durable on return. `StorageFault` if the store
        fails."""
        runs, deletions = tuple(runs), deletions or {}
        with self._write_lock:
            self._write_through(runs, deletions)
            self._follow(lambda twin: self._apply(twin.store, runs, deletions))
            for ledger_id, number in deletions.items():
                if self._deleted.get(ledger_id) == number:  # else it was deleted once more meanwhile
                    del self._deleted[ledger_id]

    def seal(self, number: int) -> OrderedStore:
        """See `seal.Sealed`."""
        with self._write_lock:
            put_seal(self._store, number)
            self.unsealed = False
            return self._store

    def _write_through(self, runs: Iterable[LocationRun], deletions: Iterable[int]) -> None:
        self.before_write()
        self._in_doubt = self.unsealed = True
        self._apply(self._store, runs, deletions)
        self._store.sync()
        self._in_doubt = False

    def settle(self) -> None:
        """After a write or move that failed: what rows say from now on is durable. `StorageFault`."""
        with self._write_lock:
            if self._in_doubt:
                self._write_through((), ())

    def _apply(self, store: OrderedStore, runs: Iterable[LocationRun], deletions: Iterable[int]) -> None:
        batch = store.batch()
        for ledger_id in sorted(deletions):
            batch.delete_range(KEY.pack(ledger_id, 0), KEY.pack(ledger_id, MAX_ENTRY_ID))
            batch.delete(KEY.pack(ledger_id, MAX_ENTRY_ID))
            batch = self._roll(store, batch)
        for run in runs:
            batch = self._put_run(store, batch, run)
        batch.commit(sync=False)

    def drop(self, ledger_id: int, entry_ids: Iterable[int]) -> None:
        """Remove the rows of these entries; durable on return. In the replay, when there is no twin. `StorageFault`."""
        with self._write_lock:
            self.before_write()
            batch = self._store.batch()
            for entry_id in entry_ids:
                batch.delete(KEY.pack(ledger_id, entry_id))
                batch = self._roll(self._store, batch)
            batch.commit(sync=False)
            self._write_through((), ())

    def move(self, moves: Iterable[EntryMove]) -> int:
        """Let rows point to copies that compaction made and synced; durable on return. How many did move.

        A row that does not point to the old place any more stays as it is: the entry was written again, or its ledger
        was deleted, since compaction looked.
        """
        with self._write_lock:
            moved = [
                LocationRun(ledger_id, (entry_id,), (new,))
                for ledger_id, entry_id, old, new in moves
                if self.get(ledger_id, entry_id) == old
            ]
            try:
                self._write_through(moved, ())
            except StorageFault as error:
                # The new rows may be seen, and remain after `settle`: unlike a flush, a failed move is not repeated.
                if (twin := self._twin) is not None:
                    twin.failure = error
                raise
            self._follow(lambda twin: self._apply(twin.store, moved, ()))
        return len(moved)

    def _put_run(self, store: OrderedStore, batch: StoreBatch, run: LocationRun) -> StoreBatch:
        total, done = len(run.entry_ids), 0
        while done < total:
            upto = min(total, done + self._rows_per_batch - len(batch))
            batch.put_many(*encode_rows(run.ledger_id, run.entry_ids[done:upto], run.locations[done:upto]))
            done = upto
            batch = self._roll(store, batch)
        return batch

    def _roll(self, store: OrderedStore, batch: StoreBatch) -> StoreBatch:
        """Commit a full batch and start the next."""
        if len(batch) < self._rows_per_batch:
            return batch
        batch.commit(sync=False)
        time.sleep(YIELD_SECONDS)
        return store.batch()

    # --- a rebuild ------------------------------------------------------------------------------------------

    def attach(self, store: OrderedStore) -> Twin:
        """Let every change go to this new store too, from now on."""
        with self._write_lock:
            self._twin = twin = Twin(store)
            twin.deleted.update(self._deleted)  # after the line before: none falls between the two
        return twin

    def detach(self) -> None:
        """Forget the twin."""
        with self._write_lock:
            self._twin = None

    def _follow(self, change: Callable[[Twin], None]) -> None:
        if (twin := self._twin) is not None and twin.failure is None:
            try:
                change(twin)
            except StorageFault as error:
                twin.failure = error

    def offer(
        self, twin: Twin, ledger_id: int, rows: Sequence[tuple[int, int]], is_known: Callable[[int], bool]
    ) -> Offered:
        """Put (entry id, location) that a log holds into the twin, unless it has better rows. `StorageFault`.

        `is_known`: whether the ledger is there now.
        """
        with self._write_lock:
            twin.check()
            if ledger_id in twin.deleted or not is_known(ledger_id):
                return Offered()
            used = [self._used(ledger_id, entry_id) for entry_id, _ in rows]
            taken = chosen(rows, used, lambda entry_id: twin.get(ledger_id, entry_id))
            twin.put(ledger_id, list(taken.items()))
            same = sum(taken.get(entry_id) == place for (entry_id, _), place in zip(rows, used, strict=True))
            return Offered(len(taken), same)

    def _used(self, ledger_id: int, entry_id: int) -> int:
        try:
            return self.get(ledger_id, entry_id)
        except ResourcesShort:
            raise  # a lack of resources proves nothing
        except StorageFault:
            return 0  # the index in use is damaged there

    def keep(self, twin: Twin, ledger_id: int, entry_id: int, location: int) -> bool:
        """Take over a row of the index in use that no log confirmed; False if it has changed meanwhile."""
        with self._write_lock:
            twin.check()
            if self.get(ledger_id, entry_id) != location or twin.get(ledger_id, entry_id) != 0:
                return False
            twin.put(ledger_id, [(entry_id, location)])
        return True

    def adopt(self, twin: Twin, switch: Callable[[], OrderedStore]) -> None:
        """Close both stores and use what `switch` opens: the twin in the place of the store. `StorageFault`: the store
        is used as before, or, if `switch` failed, none."""
        with self._compacting, self._write_lock:
            twin.check()
            twin.store.sync()
            with self._adopting:
                self._twin = None
                self.unsealed = True
                twin.store.close()
                self._store.close()
                self._store = switch()

    def compact(self) -> None:
        """Rewrite the database without its dead rows (`entryLocationCompactionInterval`); slow."""
        with self._compacting:
            self._store.compact()

    def close(self) -> None:
        self._store.close()
