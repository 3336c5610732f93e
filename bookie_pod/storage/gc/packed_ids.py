"""Ledger ids in ascending arrays, and a small file of rows of two integers.

An array takes 8 bytes an id: a set of a million as Python objects takes a hundred megabytes. A row of the file is, for
example, a ledger and a time. The file is replaced whole, and counts as empty when it is damaged.

    8 bytes    what it is
    16 bytes   each row: two i64, big-endian
    4 bytes    CRC32C of all that is before it

Not thread-safe; immutable arrays may be read by any.
"""

from __future__ import annotations

import posixpath
from struct import Struct
from typing import Final

import google_crc32c
import numpy as np
import numpy.typing as npt
import structlog

from bookie_pod.storage.files import Files, refuse_if_short, storage_fault

CHUNK: Final = 32_768
"""Ids that are held as Python objects, or looked up at once."""

Array = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_log = structlog.get_logger(__name__)

_CRC: Final = Struct(">I")


def empty() -> Array:
    return np.empty(0, np.int64)


def place_of(ids: Array, wanted: int) -> int:
    """Return the place of `wanted` in ascending `ids`, or -1 if it is not in them."""
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


class RowsFile:
    """`name` in `folder`, beginning with the 8 bytes of `magic`. `lost` says what follows if it cannot be read."""

    def __init__(self, files: Files, folder: str, name: str, magic: bytes, lost: str) -> None:
        self._files = files
        self._path = posixpath.join(folder, name)
        self._magic = magic
        self._lost = lost

    def read(self) -> tuple[Array, Array]:
        """Return the first and second integer of every row, in the order of the file.

        Both are empty if the file is missing, or damaged, which is logged. Raises `ResourcesShort`.
        """
        try:
            data = self._files.read_bytes(self._path)
        except FileNotFoundError:
            return empty(), empty()
        except OSError as error:
            refuse_if_short(f"cannot read {self._path}", error)
            return self._nothing(str(error))
        body, crc = data[: -_CRC.size], data[-_CRC.size :]
        rows = body[len(self._magic) :]
        if not body.startswith(self._magic) or len(rows) % 16 or _CRC.pack(google_crc32c.value(body)) != crc:
            return self._nothing("the file is damaged")
        words = np.frombuffer(rows, ">i8").astype(np.int64)
        return words[0::2], words[1::2]

    def _nothing(self, reason: str) -> tuple[Array, Array]:
        _log.warning(self._lost, path=self._path, reason=reason)
        return empty(), empty()

    def write(self, first: Array, second: Array) -> None:
        """Replace the file; durable on return. `StorageFault`."""
        words = np.empty(1 + 2 * len(first), ">i8")
        words[0] = int.from_bytes(self._magic)
        words[1::2], words[2::2] = first, second
        body = words.tobytes()
        del words  # each of these may be 16 MB
        try:
            self._files.write_bytes_atomic(self._path, body + _CRC.pack(google_crc32c.value(body)))
        except OSError as error:
            raise storage_fault(f"cannot write {self._path}", error) from error
