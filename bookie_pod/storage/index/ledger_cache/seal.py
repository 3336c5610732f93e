"""Whether the index files are complete: `index-files-seal` in an index directory.

    8 bytes    "PKSEAL03"
    8 bytes    number, i64: of several such files the highest counts
    8 bytes    how many ledgers, i64
    8 bytes    `pageSize`, i64
    8 bytes    for each: its id, i64
    8 bytes    for each, in the same order: the length of its index file, i64
    8 bytes    for each, in the same order: how many pages it has below, i64
    2 bytes    for each of these, ledger by ledger: how many locations the page holds, u16
    4 bytes    CRC32C of all that is before it

What lies behind the end of an index file reads as absent, a ledger without a file as unknown, and so does a slot that
is zero: a file that was cut, lost, or zeroed in the middle would deny entries that were acknowledged. So every
checkpoint writes down how long each file is, and how many locations each of its pages holds. At the start a file that
is shorter, or not there, puts its ledger in limbo: nothing of it is denied until it was healed. A page with fewer
locations denies nothing until it has as many again.

Invariants
- What is noted was durable before, and it is noted before a mark moves. So no crash leaves less: a slot that has held a
  location is never emptied while its ledger lives.
- A file without a row is accepted: of an older release, of tools, of Apache BookKeeper, which does not know the seal.
  So is a ledger that was deleted meanwhile: garbage collection deletes it again. So is a page of a file that was never
  written by this bookie, and every page after a change of `pageSize`, until it is written.
- Pages far apart from the others are not counted: a stranger chooses entry ids, and so where pages lie.
- Where the seal goes is of no account: the first directory that takes it.

Threads: any.
"""

from __future__ import annotations

import errno
import struct
import sys
import threading
from array import array
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final, Literal

import google_crc32c
import structlog

from bookie_pod.storage.files import Files, storage_fault
from bookie_protocol.errors import NoWritableDirectory

_log = structlog.get_logger(__name__)

NAME: Final = "index-files-seal"
_HEAD: Final = struct.Struct(">8sqqq")
_MAGIC: Final = b"PKSEAL03"
_WITHOUT_PAGES: Final = b"PKSEAL02"
"""What releases before wrote: the same, but for `pageSize` and all that is about pages."""
_PAGE_SIZE_AT: Final = 24
_CRC: Final = struct.Struct(">I")
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_MOST: Final = 0xFFFF
_COUNT_BYTES: Final = 2
_PAGES_AHEAD: Final = 64
"""How far behind the other pages, and four times as far as they are many, a page is counted."""


class IndexFilesSeal:
    """The lengths of all index files, what their pages hold, and the file that this is written to."""

    def __init__(self, files: Files, folders: Iterable[str], page_bytes: int) -> None:
        """`StorageFault`: a seal cannot be read."""
        self._files = files
        self._page_bytes = page_bytes
        self._number = 0
        self._sealed: Mapping[int, int] = {}
        self._lengths: dict[int, int] = {}
        self._counts: dict[int, bytes] = {}
        """Locations in the pages of each ledger, from its first page on; as bytes, because there may be millions."""
        self._changed = False
        self._owed: dict[int, int] = {}
        """How long files were that are shorter now, or gone, until the limbo of their ledgers is durable."""
        self._forgotten: set[int] = set()
        """Deleted ledgers that the last seal which was written still has."""
        self._taking = threading.Lock()
        """Held while what will be written is taken, and by `forget`."""
        self._writing = threading.Lock()
        for folder in folders:
            self._read(f"{folder}/{NAME}")

    def check(self, found: Mapping[int, int]) -> list[int]:
        """The ledgers whose files have been cut or lost since; `found` are the lengths of all files. From now on these
        are the lengths that count."""
        self._lengths = dict(found)
        self._changed = self._lengths != self._sealed
        self._counts = {ledger_id: counts for ledger_id, counts in self._counts.items() if ledger_id in found}
        owed = {ledger_id: length for ledger_id, length in self._sealed.items() if found.get(ledger_id, -1) < length}
        self._owed, self._sealed = owed, {}
        return list(owed)

    def note(self, ledger_id: int, length: int, pages: Iterable[tuple[int, int]] = ()) -> None:
        """The file is durably so long at least, and these pages of it, ascending, hold so many locations."""
        if self._lengths.get(ledger_id, -1) < length:
            self._lengths[ledger_id] = length
            self._changed = True
        before = self._counts.get(ledger_id, b"")
        counts = array("H", before)
        most = _PAGES_AHEAD + 4 * (len(counts) - counts.count(0))
        for page, held in pages:
            if page >= len(counts):
                if page >= most:
                    continue
                counts.frombytes(bytes(_COUNT_BYTES * (page + 1 - len(counts))))
                most += 4
            counts[page] = max(counts[page], min(held, _MOST))
        after = counts.tobytes()
        if after != before:
            self._counts[ledger_id] = after
            self._changed = True

    def counts(self, ledger_id: int) -> bytes:
        """For `locations_due`. Another object after each change, and after a deletion."""
        return self._counts.get(ledger_id, b"")

    def pages(self, ledger_id: int) -> int:
        """How many pages of a ledger are counted."""
        return len(self._counts.get(ledger_id, b"")) // _COUNT_BYTES

    def forget(self, ledger_id: int) -> None:
        """The ledger was deleted."""
        with self._taking:
            self._counts.pop(ledger_id, None)
            known = (self._lengths.pop(ledger_id, None), self._owed.pop(ledger_id, None))
            if known != (None, None):
                self._forgotten.add(ledger_id)
                self._changed = True

    def prepare(self, ledger_id: int, folders: Sequence[str]) -> None:
        """A file is about to be made for a ledger, or the one of its life before removed: from now on no seal asks what
        that one held. Raises as `renew`."""
        if ledger_id in self._forgotten:
            self.renew(folders, flushed=False)

    def renew(self, folders: Sequence[str], *, flushed: bool = True) -> None:
        """Write down what was noted, to one of these folders; durable on return. `flushed`: so are the headers of all
        ledgers that were in limbo since the start. `NoWritableDirectory` on full disks, `StorageFault`."""
        with self._writing:
            if not self._changed and not (flushed and self._owed):
                return
            with self._taking:
                self._changed, forgotten = False, self._forgotten.copy()
                lengths, known = self._lengths.copy(), self._counts.copy()
                self._forgotten.clear()
                if not flushed:
                    lengths |= self._owed
            try:
                self._write(folders, lengths, known)
            except BaseException:
                self._forgotten |= forgotten
                self._changed = True
                raise
            if flushed:
                self._owed.clear()

    def _write(self, folders: Sequence[str], lengths: Mapping[int, int], known: Mapping[int, bytes]) -> None:
        counts = [known.get(ledger_id, b"") for ledger_id in lengths]
        self._number += 1
        head = _HEAD.pack(_MAGIC, self._number, len(lengths), self._page_bytes)
        pages = _packed("q", (len(each) // _COUNT_BYTES for each in counts))
        numbers = array("H", b"".join(counts))
        data = b"".join((head, _packed("q", lengths), _packed("q", lengths.values()), pages, _packed("H", numbers)))
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
        if not content.startswith((_MAGIC, _WITHOUT_PAGES)) or crc != _CRC.pack(google_crc32c.value(content)):
            _log.warning("the seal of the index files is damaged: nobody knows whether they are complete", path=path)
            return
        if content.startswith(_WITHOUT_PAGES):
            content = content[:_PAGE_SIZE_AT] + bytes(8) + content[_PAGE_SIZE_AT:]
        _, number, count, page_bytes = _HEAD.unpack_from(content)
        if number > self._number:
            rows = _HEAD.size + 3 * 8 * count
            numbers = _unpacked("q", content[_HEAD.size : rows])
            ledger_ids, lengths, pages = numbers[:count], numbers[count : 2 * count], numbers[2 * count :]
            self._number, self._sealed = number, dict(zip(ledger_ids, lengths, strict=True))
            self._counts = {}
            if page_bytes == self._page_bytes:
                counts, at = _unpacked("H", content[rows:]), 0
                for ledger_id, many in zip(ledger_ids, pages, strict=True):
                    self._counts[ledger_id] = counts[at : at + many].tobytes()
                    at += many


def locations_due(counts: bytes, page: int) -> int:
    """How many locations a page held durably at some time of its ledger's life; 0: nobody knows."""
    if page < 0:  # of an entry that a stranger asks for
        return 0
    return int.from_bytes(counts[_COUNT_BYTES * page : _COUNT_BYTES * (page + 1)], sys.byteorder)


def drop_seals(files: Files, folders: Iterable[str]) -> None:
    """A tool puts other index files in the place of those that were sealed. `OSError`."""
    for folder in folders:
        with suppress(FileNotFoundError):
            files.unlink(f"{folder}/{NAME}")


def _packed(kind: Literal["q", "H"], numbers: Iterable[int]) -> bytes:
    """Big-endian, 8 bytes each or 2."""
    packed = array(kind, numbers)
    if sys.byteorder == "little":
        packed.byteswap()
    return packed.tobytes()


def _unpacked(kind: Literal["q", "H"], data: bytes) -> array[int]:
    numbers = array(kind, data)
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers
