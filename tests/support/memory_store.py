"""`MemoryStores`: ordered stores in memory that lose unsynced batches, fail and die on demand.

What a crash keeps of a store: everything up to its last sync, and of the batches committed since then the first few.
What a write or a sync that failed keeps, once the next change has opened the store anew: no more than was synced.
Commits are `Operation`s named "write", syncs "sync", so one `Faults` shared with a `MemoryFiles` counts both, and
`die_at` reaches every commit of an index.
"""

from __future__ import annotations

import itertools
import random
import threading
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence

from bookie_pod.storage.files import storage_fault_of_library
from bookie_pod.storage.index.store import OrderedStore, StoreKind
from bookie_protocol.errors import StorageFault
from tests.support.memory_faults import Faults, Operation

_Change = tuple[str, bytes, bytes]
_made = itertools.count()


class MemoryBatch:
    """Operations for one commit."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._changes: list[_Change] = []

    def __len__(self) -> int:
        return len(self._changes)

    def put(self, key: bytes, value: bytes) -> None:
        self._changes.append(("put", key, value))

    def put_many(self, keys: Iterable[bytes], values: Iterable[bytes]) -> None:
        self._changes += [("put", key, value) for key, value in zip(keys, values, strict=True)]

    def delete(self, key: bytes) -> None:
        self._changes.append(("delete", key, b""))

    def delete_range(self, begin: bytes, end: bytes) -> None:
        self._changes.append(("delete_range", begin, end))

    def commit(self, *, sync: bool = True) -> None:
        self._store.apply(self._changes)
        if sync:
            self._store.sync()


class _Rows:
    """Sorted rows."""

    def __init__(self) -> None:
        self.keys: list[bytes] = []
        self.values: dict[bytes, bytes] = {}

    def copy(self) -> _Rows:
        rows = _Rows()
        rows.keys, rows.values = list(self.keys), dict(self.values)
        return rows

    def apply(self, changes: Iterable[_Change]) -> None:
        for name, key, value in changes:
            if name == "put":
                if key not in self.values:
                    insort(self.keys, key)
                self.values[key] = value
            elif name == "delete":
                self._remove(key, key + b"\0")
            else:
                self._remove(key, value)

    def _remove(self, begin: bytes, end: bytes) -> None:
        low, high = bisect_left(self.keys, begin), bisect_left(self.keys, end)
        for key in self.keys[low:high]:
            del self.values[key]
        del self.keys[low:high]


class MemoryStore:
    """One `OrderedStore` in memory. Outlives its users: closing only makes it unusable until it is opened again."""

    def __init__(self, path: str, faults: Faults) -> None:
        self._path = path
        self._faults = faults
        self._identity = b"store %d" % next(_made)
        self._rows = _Rows()
        self._durable = _Rows()
        self._pending: list[list[_Change]] = []
        self._written = self._durably_written = self._failed = False
        self._lock = threading.Lock()
        self.is_open = False

    @property
    def path(self) -> str:
        return self._path

    def identity(self) -> bytes:
        return self._identity

    def _before(self, name: str) -> None:
        try:
            self._faults.before(Operation(name, self._path))
        except OSError as error:
            raise storage_fault_of_library(f"store {self._path}", error) from error
        if not self.is_open:
            raise StorageFault(f"store {self._path} is closed")

    def _before_change(self, name: str) -> None:
        self._open_anew()
        try:
            self._before(name)
        except StorageFault:
            self._failed = True
            raise

    def _open_anew(self) -> None:
        with self._lock:
            if self._failed:
                self._rows, self._pending, self._failed = self._durable.copy(), [], False
                self._written = self._durably_written

    def get(self, key: bytes) -> bytes | None:
        self._before("get")
        with self._lock:
            return self._rows.values.get(key)

    def get_each(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [self.get(key) for key in keys]

    def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        self._before("seek")
        with self._lock:
            at = bisect_right(self._rows.keys, key)
            if at == 0:
                return None
            found = self._rows.keys[at - 1]
            return found, self._rows.values[found]

    def scan(self, begin: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        self._before("scan")
        with self._lock:
            keys = self._rows.keys
            high = len(keys) if end is None else bisect_left(keys, end)
            found = [(key, self._rows.values[key]) for key in keys[bisect_left(keys, begin) : high]]
        return iter(found)

    def batch(self) -> MemoryBatch:
        return MemoryBatch(self)

    def apply(self, changes: list[_Change]) -> None:
        if not changes:
            return
        self._before_change("write")
        with self._lock:
            self._rows.apply(changes)
            self._pending.append(changes)
            self._written = True

    def sync(self) -> None:
        self._open_anew()
        with self._lock:
            covers = len(self._pending)
        self._before_change("sync")
        with self._lock:
            for changes in self._pending[:covers]:
                self._durable.apply(changes)
                self._durably_written = True
            del self._pending[:covers]

    def has_all_tables(self) -> bool:
        return True

    def was_written(self) -> bool:
        return self._written

    def estimated_count(self) -> int:
        return len(self._rows.keys)

    def compact(self) -> None:
        self._before("compact")

    def close(self) -> None:
        self.is_open = False

    def after_crash(self, faults: Faults, kept: int) -> MemoryStore:
        """This store as the next process finds it, with the first `kept` of the unsynced batches."""
        after = MemoryStore(self._path, faults)
        after._identity = self._identity
        with self._lock:
            after._durable = self._durable.copy()
            for changes in self._pending[:kept]:
                after._durable.apply(changes)
            after._written = after._durably_written = self._durably_written or bool(self._pending[:kept])
        after._rows = after._durable.copy()
        return after

    @property
    def unsynced(self) -> int:
        return len(self._pending)


class MemoryStores:
    """`StoreFactory` of stores in memory."""

    def __init__(self, faults: Faults | None = None) -> None:
        self.faults = faults or Faults()
        self.stores: dict[str, MemoryStore] = {}

    def exists(self, path: str) -> bool:
        return path in self.stores

    def open(self, path: str, kind: StoreKind) -> OrderedStore:
        if not path.endswith(kind.value):
            raise AssertionError(f"{path} is opened as {kind}")
        store = self.stores.get(path)
        if store is None:
            store = self.stores[path] = MemoryStore(path, self.faults)
        if store.is_open:
            raise StorageFault(f"store {path} is open already")
        store.is_open = True
        return store

    def exchange(self, one: str, other: str) -> None:
        """The stores of two folders change places, while none is open."""
        stores, self.stores = self.stores, {}
        for path, store in stores.items():
            folder, _, name = path.rpartition("/")
            store._path = f"{ {one: other, other: one}.get(folder, folder) }/{name}"
            self.stores[store.path] = store

    def restart(self, faults: Faults) -> MemoryStores:
        """What the process finds that follows a killed one: a database makes what its log holds durable when it is
        opened."""
        after = MemoryStores(faults)
        for path, store in self.stores.items():
            after.stores[path] = store.after_crash(faults, store.unsynced)
        return after

    def crash(self, rng: random.Random, faults: Faults) -> MemoryStores:
        """The stores after a power cut; `faults` is the script of the next process."""
        after = MemoryStores(faults)
        for path, store in self.stores.items():
            after.stores[path] = store.after_crash(faults, rng.randint(0, store.unsynced))
        return after
