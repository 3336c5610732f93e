"""Whether the index files are complete: `index-files-seal` in an index directory.

    8 bytes    "PKSEAL02"
    8 bytes    number, i64: of several such files the highest counts
    8 bytes    how many ledgers, i64
    8 bytes    for each: its id, i64
    8 bytes    for each, in the same order: the length of its index file, i64
    4 bytes    CRC32C of all that is before it

What lies behind the end of an index file reads as absent, and a ledger without a file as unknown: one that was cut, or
lost, would deny entries that were acknowledged. So every checkpoint writes down how long each file is. At the start a
file that is shorter, or not there, puts its ledger in limbo: nothing of it is denied until it was healed.

Invariants
- A length is durable before it is noted, and noted before a mark moves. So no crash leaves a file that is shorter.
- A file without a row is accepted: of an older release, of tools, of Apache BookKeeper, which does not know the seal.
  So is a ledger that was deleted meanwhile: garbage collection deletes it again.
- Where the seal goes is of no account: the first directory that takes it.

Threads: `note` and `forget` from any thread; `renew` from one at a time.
"""

from __future__ import annotations

import errno
import struct
import sys
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

import google_crc32c
import structlog

from bookie_pod.storage.files import Files, storage_fault
from bookie_protocol.errors import NoWritableDirectory

_log = structlog.get_logger(__name__)

NAME: Final = "index-files-seal"
_HEAD: Final = struct.Struct(">8sqq")
_MAGIC: Final = b"PKSEAL02"
_CRC: Final = struct.Struct(">I")
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class IndexFilesSeal:
    """The lengths of all index files, and the file that they are written to."""

    def __init__(self, files: Files, folders: Iterable[str]) -> None:
        """`StorageFault`: a seal cannot be read."""
        self._files = files
        self._number = 0
        self._sealed: Mapping[int, int] = {}
        for folder in folders:
            self._read(f"{folder}/{NAME}")
        self._lengths: dict[int, int] = {}
        self._changed = False

    def check(self, found: Mapping[int, int]) -> list[int]:
        """The ledgers whose files have been cut or lost since; `found` are the lengths of all files. From now on these
        are the lengths that count."""
        self._lengths = dict(found)
        self._changed = self._lengths != self._sealed
        short = [ledger_id for ledger_id, length in self._sealed.items() if found.get(ledger_id, -1) < length]
        self._sealed = {}
        return short

    def note(self, ledger_id: int, length: int) -> None:
        """The file is durably so long at least."""
        if self._lengths.get(ledger_id, -1) < length:
            self._lengths[ledger_id] = length
            self._changed = True

    def forget(self, ledger_id: int) -> None:
        """The ledger was deleted."""
        if self._lengths.pop(ledger_id, None) is not None:
            self._changed = True

    def renew(self, folders: Sequence[str]) -> None:
        """Write down what was noted, to one of these folders; durable on return. `NoWritableDirectory` on full disks,
        `StorageFault`."""
        if not self._changed:
            return
        self._changed = False
        try:
            self._write(folders)
        except BaseException:
            self._changed = True
            raise

    def _write(self, folders: Sequence[str]) -> None:
        lengths = self._lengths.copy()  # in one step: it changes on other threads
        self._number += 1
        data = b"".join((_HEAD.pack(_MAGIC, self._number, len(lengths)), _packed(lengths), _packed(lengths.values())))
        data += _CRC.pack(google_crc32c.value(data))
        for left, folder in enumerate(folders, 1 - len(folders)):
            path = f"{folder}/{NAME}"
            try:
                self._files.write_bytes_atomic(path, data)
                return
            except OSError as error:
                if left < 0:
                    _log.warning("the lengths of the index files are noted elsewhere", path=path, reason=str(error))
                elif error.errno in _FULL:
                    raise NoWritableDirectory(f"cannot write {path}: {error.strerror}") from error
                else:
                    raise storage_fault(f"cannot write {path}", error) from error

    def _read(self, path: str) -> None:
        try:
            data = self._files.read_bytes(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise storage_fault(f"cannot read {path}", error) from error
        content, crc = data[: -_CRC.size], data[-_CRC.size :]
        magic, number, count = _HEAD.unpack_from(content.ljust(_HEAD.size, b"\0"))
        if magic != _MAGIC or crc != _CRC.pack(google_crc32c.value(content)):
            _log.warning("the seal of the index files is damaged: nobody knows whether they are complete", path=path)
            return
        if number > self._number:
            numbers = _unpacked(content[_HEAD.size :])
            self._number, self._sealed = number, dict(zip(numbers[:count], numbers[count:], strict=True))


def drop_seals(files: Files, folders: Iterable[str]) -> None:
    """A tool puts other index files in the place of those that were sealed. `OSError`."""
    for folder in folders:
        with suppress(FileNotFoundError):
            files.unlink(f"{folder}/{NAME}")


def _packed(numbers: Iterable[int]) -> bytes:
    """Big-endian, 8 bytes each."""
    packed = array("q", numbers)
    if sys.byteorder == "little":
        packed.byteswap()
    return packed.tobytes()


def _unpacked(data: bytes) -> array[int]:
    numbers = array("q", data)
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers
