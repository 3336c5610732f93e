"""A small file of rows of two integers that garbage collection keeps: replaced whole, empty when it is damaged.

    8 bytes    what it is
    16 bytes each: two i64, big-endian
    4 bytes    CRC32C of all that is before it

Not thread-safe.
"""

from __future__ import annotations

import posixpath
from struct import Struct
from typing import Final

import google_crc32c
import numpy as np
import structlog

from bookie_pod.storage.files import Files
from bookie_pod.storage.gc.packed_ids import Array, empty
from bookie_protocol.errors import StorageFault

_log = structlog.get_logger(__name__)

_CRC: Final = Struct(">I")


class RowsFile:
    """`name` in `folder`, beginning with the 8 bytes of `magic`. `lost` says what follows if it cannot be read."""

    def __init__(self, files: Files, folder: str, name: str, magic: bytes, lost: str) -> None:
        self._files = files
        self._path = posixpath.join(folder, name)
        self._magic = magic
        self._lost = lost

    def read(self) -> tuple[Array, Array]:
        """First and second integer of every row, in the order of the file; none if it is missing, or damaged, which is
        told."""
        try:
            data = self._files.read_bytes(self._path)
        except FileNotFoundError:
            return empty(), empty()
        except OSError as error:
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
            raise StorageFault(f"cannot write {self._path}: {error}") from error
