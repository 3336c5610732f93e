"""Bytes per ledger of one entry log, 16 bytes a ledger.

A log may hold a million ledgers; a dict of them would take a hundred times its map on disk. This is two sorted arrays.

Invariants
- Ledger ids are ascending and unique, so a look-up is a binary search.
- `LedgerSizesBuilder` holds at most `CHUNK` ledgers as Python objects, and of a ledger that it meets again and again
  not many pairs: they are merged as they come.

Immutable once built; any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np
import numpy.typing as npt

CHUNK: Final = 32_768
LOOSE_SHARE: Final = 4
"""Pairs that are not merged yet are merged when they are a quarter of the merged ones, and `LOOSE_SHARE` chunks."""

Array = npt.NDArray[np.int64]


class LedgerSizes(Mapping[int, int]):
    """Ledger id to bytes, 4-byte sizes of the entries included."""

    __slots__ = ("_ids", "_sizes")

    def __init__(self, ids: Array, sizes: Array) -> None:
        """The pairs in any order; an id that occurs several times counts with the sum."""
        if len(ids) > 1:
            order = np.argsort(ids, kind="stable")
            ids, sizes = ids[order], sizes[order]
            first = np.flatnonzero(np.concatenate(([True], ids[1:] != ids[:-1])))
            ids, sizes = ids[first], np.add.reduceat(sizes, first)
        self._ids, self._sizes = ids, sizes

    @property
    def total(self) -> int:
        """Bytes of all ledgers."""
        return int(self._sizes.sum())

    @property
    def nbytes(self) -> int:
        """What this takes in memory, in bytes."""
        return self._ids.nbytes + self._sizes.nbytes

    def __len__(self) -> int:
        return len(self._ids)

    def __iter__(self) -> Iterator[int]:
        for at in range(0, len(self._ids), CHUNK):
            yield from self._ids[at : at + CHUNK].tolist()

    def __getitem__(self, ledger_id: int) -> int:
        at = int(np.searchsorted(self._ids, ledger_id))
        if at == len(self._ids) or self._ids[at] != ledger_id:
            raise KeyError(ledger_id)
        return int(self._sizes[at])

    def pairs(self) -> Iterator[tuple[int, int]]:
        """(ledger id, bytes), ascending."""
        for at in range(0, len(self._ids), CHUNK):
            yield from zip(self._ids[at : at + CHUNK].tolist(), self._sizes[at : at + CHUNK].tolist(), strict=True)

    def same_as(self, other: LedgerSizes) -> bool:
        """Whether both hold the same ledgers with the same bytes; `==` goes ledger by ledger."""
        return np.array_equal(self._ids, other._ids) and np.array_equal(self._sizes, other._sizes)


class LedgerSizesBuilder:
    """Adds up sizes in the order in which a scan meets them."""

    def __init__(self) -> None:
        self._chunk: dict[int, int] = {}
        self._packed: list[LedgerSizes] = []
        self._loose = 0
        """Pairs behind the first of `_packed`."""

    def add(self, ledger_id: int, nbytes: int) -> None:
        """Count `nbytes` more of this ledger."""
        chunk = self._chunk
        chunk[ledger_id] = chunk.get(ledger_id, 0) + nbytes
        if len(chunk) >= CHUNK:
            self._pack()

    def add_array(self, pairs: Array) -> None:
        """Count an array of shape (n, 2): ledger ids and bytes."""
        self._packed.append(LedgerSizes(pairs[:, 0].astype(np.int64), pairs[:, 1].astype(np.int64)))

    def build(self) -> LedgerSizes:
        """Everything that was added."""
        self._pack()
        if not self._packed:
            return LedgerSizes(np.empty(0, np.int64), np.empty(0, np.int64))
        return LedgerSizes(
            np.concatenate([part._ids for part in self._packed]), np.concatenate([part._sizes for part in self._packed])
        )

    def _pack(self) -> None:
        if self._chunk:
            count = len(self._chunk)
            self._packed.append(
                LedgerSizes(
                    np.fromiter(self._chunk.keys(), np.int64, count), np.fromiter(self._chunk.values(), np.int64, count)
                )
            )
            self._chunk = {}
            self._loose += count
            if self._loose >= max(LOOSE_SHARE * CHUNK, len(self._packed[0]) // LOOSE_SHARE):
                self._merge()

    def _merge(self) -> None:
        packed, self._packed, self._loose = self._packed, [], 0
        ids = np.concatenate([part._ids for part in packed])
        sizes = np.concatenate([part._sizes for part in packed])
        del packed
        self._packed.append(LedgerSizes(ids, sizes))
