"""Ledger ids in ascending arrays, 8 bytes each: a set of a million as Python objects takes a hundred megabytes.

Not thread-safe; immutable arrays may be read by any.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

CHUNK: Final = 32_768
"""Ids that are held as Python objects, or looked up at once."""

Array = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


def empty() -> Array:
    return np.empty(0, np.int64)


def place_of(ids: Array, wanted: int) -> int:
    """Where it is in ascending `ids`; -1: nowhere."""
    if not len(ids):
        return -1
    at = int(ids.searchsorted(wanted))
    return at if at < len(ids) and ids[at] == wanted else -1


def are_in(wanted: Array, ids: Array) -> Mask:
    """Which of `wanted` are in ascending `ids`; both may be large."""
    found = np.zeros(len(wanted), np.bool_)
    if len(ids):
        for begin in range(0, len(wanted), CHUNK):
            some = wanted[begin : begin + CHUNK]
            at = np.minimum(ids.searchsorted(some), len(ids) - 1)
            found[begin : begin + CHUNK] = ids[at] == some
    return found


class PackedIds:
    """A set to which ids are added, and which is read at the end."""

    def __init__(self) -> None:
        self._ids = empty()
        self._new: set[int] = set()

    def add(self, ledger_id: int) -> None:
        self._new.add(ledger_id)
        if len(self._new) >= CHUNK:
            self._pack()

    def clear(self) -> None:
        self._ids = empty()
        self._new.clear()

    def ascending(self) -> Array:
        """All of them."""
        self._pack()
        return self._ids

    def _pack(self) -> None:
        if self._new:
            new = np.sort(np.fromiter(self._new, np.int64, len(self._new)))
            self._new = set()
            new = new[~are_in(new, self._ids)]
            self._ids = np.insert(self._ids, self._ids.searchsorted(new), new)
