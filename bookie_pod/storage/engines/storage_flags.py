"""The storage flags of InterleavedLedgerStorage and SortedLedgerStorage: `storage-flags` in the first index directory.

    8 bytes  the flags, i64, big-endian, as DbLedgerStorage has them in its `ledgers` database
    4 bytes  CRC32C of these

The reference keeps flags with DbLedgerStorage only, and looks at no file of this name. A file that is missing stands
for no flag; one that is damaged for `NEEDS_INTEGRITY_CHECK`: a check too many harms nothing.

Threads: any one at a time.
"""

from __future__ import annotations

import struct
from typing import Final

import google_crc32c
import structlog

from bookie_pod.storage.files import Files, storage_fault
from bookie_pod.storage.index.ledgers import NEEDS_INTEGRITY_CHECK, checked_flags

_log = structlog.get_logger(__name__)

NAME: Final = "storage-flags"
_FLAGS: Final = struct.Struct(">q")
_CRC: Final = struct.Struct(">I")


class StorageFlags:
    """The file in one `current` folder."""

    def __init__(self, files: Files, folder: str) -> None:
        self._files = files
        self._path = f"{folder}/{NAME}"

    def read(self) -> int:
        """`StorageFault`: the file cannot be read, or holds a flag of a newer release."""
        try:
            data = self._files.read_bytes(self._path)
        except FileNotFoundError:
            return 0
        except OSError as error:
            raise storage_fault(f"cannot read {self._path}", error) from error
        flags, crc = data[: _FLAGS.size], data[_FLAGS.size :]
        if len(flags) < _FLAGS.size or crc != _CRC.pack(google_crc32c.value(flags)):
            _log.warning("the storage flags are damaged: what the bookie holds will be checked", path=self._path)
            return NEEDS_INTEGRITY_CHECK
        return checked_flags(flags, self._path)

    def write(self, flags: int) -> None:
        """Durable on return. `StorageFault`."""
        data = _FLAGS.pack(flags)
        try:
            self._files.write_bytes_atomic(self._path, data + _CRC.pack(google_crc32c.value(data)))
        except OSError as error:
            raise storage_fault(f"cannot write {self._path}", error) from error
