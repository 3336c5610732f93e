"""The seam below the indexes: an ordered map of byte strings with durable batches.

Invariants
- `commit` applies a batch atomically. With `sync=True`, and after `sync()`, that batch and every batch before
  it survive a crash; without, a crash keeps some prefix of the batches committed since.
- "The key is absent" is an answer (None, or the end of a scan). Every fault raises `StorageFault`.
- A scan gives every row that is there all the while it runs, once and in order; rows that come or go meanwhile may be
  given or not.

Threads: any; commits come from one thread at a time per store.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from typing import Protocol


class StoreKind(Enum):
    """The purpose of a store; the value is the name of its folder."""

    LOCATIONS = "locations"
    LEDGERS = "ledgers"


class StoreBatch(Protocol):
    """Operations that are applied together, in the order in which they were put here.

    The stores on RocksDB import this module; tests have a store in memory.
    """

    def __len__(self) -> int:
        """Operations so far."""
        ...

    def put(self, key: bytes, value: bytes) -> None: ...
    def put_many(self, keys: Iterable[bytes], values: Iterable[bytes]) -> None:
        """Put pairs; the two must be of one length."""
        ...

    def delete(self, key: bytes) -> None: ...
    def delete_range(self, begin: bytes, end: bytes) -> None:
        """Delete every key in [begin, end)."""
        ...

    def commit(self, *, sync: bool = True) -> None:
        """Apply the operations; a batch is committed once. `StorageFault` if the store refuses."""
        ...


class OrderedStore(Protocol):
    """An ordered map of byte strings. Every method raises `StorageFault` if the store fails or is damaged."""

    @property
    def path(self) -> str: ...
    def identity(self) -> bytes:
        """Return what distinguishes this store from every other one that was ever made, also at the same path."""
        ...

    def get(self, key: bytes) -> bytes | None: ...
    def get_each(self, keys: Sequence[bytes]) -> Sequence[bytes | None]:
        """Return the value of each key."""
        ...

    def floor(self, key: bytes) -> tuple[bytes, bytes] | None:
        """Return the row with the greatest key that is not above `key`."""
        ...

    def scan(self, begin: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes]]:
        """Rows with keys in [begin, end), ascending; `end=None` means to the last row."""
        ...

    def batch(self) -> StoreBatch: ...
    def sync(self) -> None:
        """Make everything committed so far durable."""
        ...

    def has_all_tables(self) -> bool:
        """False: a part of what was durable is missing, and what was written behind it is there. `StorageFault`."""
        ...

    def was_written(self) -> bool:
        """Return whether anything was ever committed to this store, even if no row is left of it."""
        ...

    def estimated_count(self) -> int:
        """Roughly how many rows there are; cheap."""
        ...

    def compact(self) -> None:
        """Rewrite the whole store without its dead rows; slow."""
        ...

    def close(self) -> None:
        """Close for good; no error if closed before."""
        ...


class StoreFactory(Protocol):
    """Opens the stores of a bookie."""

    def exists(self, path: str) -> bool:
        """Return whether a store was made at `path`. `StorageFault` if that is unknown."""
        ...

    def open(self, path: str, kind: StoreKind) -> OrderedStore:
        """Open the store, or make it in the existing parent folder. `StorageFault` if it is damaged or
        locked."""
        ...
