"""The durable extent of a store: `podkeeper-seal` in its folder, which no damage of the database reaches.

    two records, each at the beginning of a block of its own, written in turn:
    8 bytes    "PKMETA01"
    8 bytes    RocksDB's sequence number, u64
    4 bytes    CRC32C of all that is before it

A crash leaves a torn end of RocksDB's write-ahead log, so RocksDB drops an end that it cannot read without a word. One
that was cut, emptied or lost looks the same, and would open as the tree that was before. Bookies would then delete the
entries of ledgers that are missing in it.

Invariants
- A number is written here when everything up to it is durable in the database, and before any caller is answered. So a
  crash leaves a database that is as new as its seal, or newer.
- Writing costs no second sync, since a process that is killed loses nothing that it has written. A power cut may take
  the numbers of the last `SYNC_SECONDS`, or of an idle store those that the kernel had not written yet.
- No file: the store is of an older release, or an operator removed the seal, and so accepted the store as it is.

Threads: one at a time.
"""

from __future__ import annotations

import os
import struct
import time
from typing import Final

import google_crc32c

from bookie_protocol.errors import MetadataUnavailable

NAME: Final = "podkeeper-seal"
SYNC_SECONDS: Final = 1.0
_MAGIC: Final = b"PKMETA01"
_RECORD: Final = struct.Struct(">8sQ")
_CRC: Final = struct.Struct(">I")
_SIZE: Final = _RECORD.size + _CRC.size
_BLOCK: Final = 4096


class StoreSeal:
    """The seal of the store in a folder."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._path = os.path.join(folder, NAME)
        self._file = -1
        self._next_block = 0
        self._synced_at = 0.0

    def read(self) -> int | None:
        """Return the number; None: there is no seal. `MetadataUnavailable`."""
        try:
            with open(self._path, "rb") as file:
                data = file.read(2 * _BLOCK)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise MetadataUnavailable(
                f"cannot read {self._path}: {error.strerror}; is metadataServiceUri right, and may this process"
                " read it?"
            ) from error
        sealed = max(_decode(data[at : at + _SIZE]) for at in (0, _BLOCK))
        if sealed < 0:
            raise self.lost("its seal is damaged")
        return sealed

    def lost(self, what: str) -> MetadataUnavailable:
        """Return the error that acknowledged changes may be lost."""
        return MetadataUnavailable(
            f"the embedded metadata store in {self._folder} may have lost changes that were acknowledged: {what}. Its"
            " files were cut or lost, or are an older copy. Put back a whole copy of the folder. To go on with what is"
            f" left instead, remove {self._path}; bookies then delete the ledgers that are not listed any more"
        )

    def renew(self, number: int) -> None:
        """Record that everything up to `number` is durable. Raises `OSError`."""
        if self._file < 0:
            self._open(number)
        data = _encode(number)
        if os.pwrite(self._file, data, self._next_block * _BLOCK) != len(data):
            raise OSError(f"{self._path} took a part of a record")
        self._next_block ^= 1
        if (now := time.monotonic()) - self._synced_at >= SYNC_SECONDS:
            os.fdatasync(self._file)
            self._synced_at = now

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _open(self, number: int) -> None:
        """Write a new file with both records; a reader meanwhile, or after a crash, finds the former file or this
        one."""
        made = f"{self._path}.new"
        self._file = os.open(made, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
        data = _encode(number).ljust(_BLOCK, b"\0") * 2
        if os.write(self._file, data) != len(data):
            raise OSError(f"{made} took a part of two records")
        os.fsync(self._file)
        os.rename(made, self._path)
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
        self._synced_at = time.monotonic()


def _encode(number: int) -> bytes:
    record = _RECORD.pack(_MAGIC, number)
    return record + _CRC.pack(google_crc32c.value(record))


def _decode(data: bytes) -> int:
    """Return the number, or -1: these are not the bytes of a record."""
    record, crc = data[: _RECORD.size], data[_RECORD.size :]
    if not record.startswith(_MAGIC) or crc != _CRC.pack(google_crc32c.value(record)):
        return -1
    return int(_RECORD.unpack(record)[1])
