"""Whether the index files are complete: `index-files-seal` in an index directory.

    8 bytes    "PKSEAL04"
    8 bytes    number, i64: of several such files the highest counts
    8 bytes    how many ledgers, i64
    8 bytes    `pageSize`, i64
    8 bytes    how many patterns, i64
    8 bytes    for each ledger: its id, i64
    8 bytes    for each, in the same order: the length of its index file, i64
    8 bytes    for each, in the same order: how many pages it has below, i64
    8 bytes    for each of these, ledger by ledger: which page of the ledger it is, i64, ascending
    4 bytes    for each page, in the same order, u32: its pattern, counted from 0; or 2^31 + n: n locations, of which
               nobody knows where they are ("PKSEAL03" said so, and the page was not looked at since)
    n bytes    for each pattern: a bit for each slot of a page (n = pageSize / 64, rounded up), the lowest of the first
               byte first: whether the slot has held a location. Padded with zeros. Pages that are alike share one
    4 bytes    CRC32C of all that is before it

Releases before wrote "PKSEAL03", which counts the locations of a ledger's first pages: the same without the number of
patterns, without which page each is (they are all pages from the first one on), u16 for what it holds, and no patterns;
and "PKSEAL02", which has nothing of pages, `pageSize` neither. Both are read, and what they say holds.

What lies behind the end of an index file reads as absent, a ledger without a file as unknown, and so does a slot that
is zero: a file that was cut, lost, or zeroed in the middle would deny entries that were acknowledged. So every
checkpoint writes down how long each file is, and which slots of each of its pages hold locations. At the start a file
that is shorter, or not there, puts its ledger in limbo: nothing of it is denied until it was healed. A slot that has
held a location and is zero is damage, and no absence, until it is put again.

Invariants
- What is noted was durable before, and it is noted before a mark moves. So no crash leaves less: a slot that has held a
  location is never emptied while its ledger lives.
- A file without a row is accepted: of an older release, of tools, of Apache BookKeeper, which does not know the seal.
  So is a ledger that was deleted meanwhile: garbage collection deletes it again. So is a page of a file that was never
  written by this bookie, and every page after a change of `pageSize`, until it is written.
- Where the seal goes is of no account: the first directory that takes it.

Threads: any.
"""

from __future__ import annotations

import errno
import struct
import sys
import threading
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import repeat
from typing import Final, Literal

import google_crc32c
import structlog

from bookie_pod.storage.files import File, Files, storage_fault
from bookie_pod.storage.index.index_file import SLOT_BYTES, slot_offset
from bookie_pod.storage.index.ledger_cache.held import Held, HeldPages, learnt, slots_in
from bookie_pod.storage.index.ledger_data import Shared
from bookie_protocol.errors import NoWritableDirectory

_log = structlog.get_logger(__name__)

NAME: Final = "index-files-seal"
_HEAD: Final = struct.Struct(">8sqqqq")
_MAGIC: Final = b"PKSEAL04"
_WITH_COUNTS: Final = b"PKSEAL03"
_HEAD_03: Final = struct.Struct(">8sqqq")
_WITHOUT_PAGES: Final = b"PKSEAL02"
_HEAD_02: Final = struct.Struct(">8sqq")
_CRC: Final = struct.Struct(">I")
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_COUNTED: Final = 1 << 31
_LAST_NUMBER: Final = 1 << 62
"""Seals are not that many: it is damage, and would be none behind it."""
_LAST_ENTRY: Final = (1 << 63) - 1
_TOO_LARGE: Final = 1 << 31
"""Bytes, for a page."""
_NO_PAGES: Final = HeldPages()
_LIKE_OTHERS: Final = 1 << 14
"""So many ledgers with other pages than all before are remembered at the start: most have those of another one."""


class IndexFilesSeal:
    """The lengths of all index files, what their pages have held, and the file that this is written to."""

    def __init__(self, files: Files, folders: Iterable[str], page_bytes: int = 0) -> None:
        """`page_bytes` 0: those of the seal, of a single folder. `StorageFault`: a seal cannot be read."""
        self._files = files
        self._page_bytes = page_bytes
        self._number = 0
        self._sealed: Mapping[int, int] = {}
        self._lengths: dict[int, int] = {}
        self._held: dict[int, HeldPages] = {}
        self._shared_pages = Shared[Held]()
        self._shared_ledgers = Shared[HeldPages]()
        self._changed = False
        self._owed: dict[int, int] = {}
        """How long files were that are shorter now, or gone, until the limbo of their ledgers is durable."""
        self._untold: set[int] = set()
        """Ledgers of which the last seal that was written says what holds no more: they were deleted, or a page has
        fewer locations than were counted."""
        self._telling: set[int] = set()
        """Those of them that the seal which is being written tells."""
        self._taking = threading.Lock()
        """Of both, and held while what will be written is taken."""
        self._writing = threading.Lock()
        for folder in folders:
            self._read(f"{folder}/{NAME}")

    def check(self, found: Mapping[int, int], headless: Collection[int] = ()) -> list[int]:
        """The ledgers whose files have been cut or lost since, or their headers; `found` are the lengths of all files,
        `headless` those that look as if their header had never been written. From now on these are the lengths that
        count."""
        self._lengths = dict(found)
        self._changed = self._lengths != self._sealed
        self._held = {ledger_id: pages for ledger_id, pages in self._held.items() if ledger_id in found}
        owed = {
            ledger_id: length
            for ledger_id, length in self._sealed.items()
            if found.get(ledger_id, -1) < length or ledger_id in headless
        }
        self._owed, self._sealed = owed, {}
        return list(owed)

    def note(self, ledger_id: int, length: int, pages: Iterable[tuple[int, bytes]] = ()) -> None:
        """The file is durably so long at least, and these slots of these pages of it hold locations (`held`)."""
        if self._lengths.get(ledger_id, -1) < length:
            self._lengths[ledger_id] = length
            self._changed = True
        self._learn(ledger_id, pages)

    def look(self, ledger_id: int, page: int, found: bytes) -> None:
        """The slots that hold a location in the file: what an older release has only counted is known from now on. To
        be called before anything is put into the page."""
        counted = self.held(ledger_id, page)
        if isinstance(counted, int):
            self._learn(ledger_id, [(page, found)])
            if self.held(ledger_id, page) != found:
                with self._taking:
                    self._untold.add(ledger_id)

    def _learn(self, ledger_id: int, pages: Iterable[tuple[int, bytes]]) -> None:
        before = self._held.get(ledger_id, _NO_PAGES)
        new: list[tuple[int, Held]] = []
        for page, found in pages:
            known = before.get(page)
            held = learnt(known, found, self._slots)
            if held != known:
                new.append((page, self._shared_pages(held)))
        if new:
            self._held[ledger_id] = self._shared(before.replaced(new))
            self._changed = True

    def _shared(self, pages: HeldPages) -> HeldPages:
        return self._shared_ledgers(pages) if len(pages.slots) == 1 else pages

    def held(self, ledger_id: int, page: int) -> Held:
        """Which slots of a page have held a location durably."""
        return self._held.get(ledger_id, _NO_PAGES).get(page)

    def pages(self, ledger_id: int) -> Sequence[int]:
        """The pages of a ledger that have held locations durably, ascending."""
        return self._held.get(ledger_id, _NO_PAGES).pages()

    def has_lost(self, ledger_id: int, page: int, file: File) -> bool:
        """Whether a page of the ledger's file has held locations that are not there now. `OSError`."""
        begin = slot_offset(page * self._slots)
        left = file.size() - begin
        found = slots_in(file.pread(min(self._page_bytes, left), begin) if left > 0 else b"")
        return learnt(self.held(ledger_id, page), found, self._slots) != found

    @property
    def _slots(self) -> int:
        return self._page_bytes // SLOT_BYTES

    def forget(self, ledger_id: int) -> None:
        """The ledger was deleted."""
        with self._taking:
            self._held.pop(ledger_id, None)
            known = (self._lengths.pop(ledger_id, None), self._owed.pop(ledger_id, None))
            if known != (None, None):
                self._untold.add(ledger_id)
                self._changed = True

    def prepare(self, ledger_id: int, folders: Sequence[str]) -> None:
        """A ledger's file is about to be made or written to, or the one of its life before removed: from now on no seal
        asks what that one held, nor for no more than the number of locations of a page that has lost some: by what is
        written they may be as many again. Raises as `renew`."""
        with self._taking:
            untold = ledger_id in self._untold or ledger_id in self._telling
        if untold:
            self.renew(folders, flushed=False)

    def renew(self, folders: Sequence[str], *, flushed: bool = True) -> None:
        """Write down what was noted, to one of these folders; durable on return. `flushed`: so are the headers of all
        ledgers that were in limbo since the start. `NoWritableDirectory` on full disks, `StorageFault`."""
        with self._writing:
            if not self._changed and not (flushed and self._owed):
                return
            with self._taking:
                self._changed = False
                self._telling, self._untold = self._untold, set()
                lengths, held = self._lengths.copy(), self._held.copy()
                if not flushed:
                    lengths |= self._owed
            try:
                self._write(folders, lengths, held)
            except BaseException:
                with self._taking:
                    self._untold |= self._telling
                    self._telling = set()
                self._changed = True
                raise
            with self._taking:
                self._telling = set()
            if flushed:
                self._owed.clear()

    def _write(self, folders: Sequence[str], lengths: Mapping[int, int], held: Mapping[int, HeldPages]) -> None:
        ledgers = list(map(held.get, lengths, repeat(_NO_PAGES)))
        self._number += 1
        patterns = _Patterns()
        which = array("I")
        for _, slots in ledgers:
            which.extend([patterns[each] for each in slots])  # the loop of events has its turns meanwhile
        width = _pattern_bytes(self._slots)
        head = _HEAD.pack(_MAGIC, self._number, len(lengths), self._page_bytes, len(patterns))
        data = b"".join(
            (
                head,
                _packed("q", lengths),
                _packed("q", lengths.values()),
                _packed("q", (len(slots) for _, slots in ledgers)),
                _packed("q", array("q", b"".join([numbers for numbers, _ in ledgers]))),
                _packed("I", which),
                *(pattern.ljust(width, b"\0") for pattern in patterns if isinstance(pattern, bytes)),
            )
        )
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
        try:
            if crc != _CRC.pack(google_crc32c.value(content)):
                raise ValueError("its checksum is another")
            self._take(content)
        except (ValueError, IndexError, struct.error) as error:
            _log.warning(
                "the seal of the index files is damaged: nobody knows whether they are complete",
                path=path,
                reason=str(error),
            )

    def _take(self, content: bytes) -> None:
        """What a seal says, if newer than what is known. `ValueError`, `IndexError`, `struct.error`: it is none."""
        magic, number, count = _HEAD_02.unpack_from(content)
        if magic == _MAGIC:
            at, lists = _HEAD.size, 3
            page_bytes, patterns = _HEAD.unpack_from(content)[3:]
        elif magic == _WITH_COUNTS:
            at, lists, patterns = _HEAD_03.size, 3, 0
            page_bytes = _HEAD_03.unpack_from(content)[3]
        elif magic == _WITHOUT_PAGES:
            at, lists, page_bytes, patterns = _HEAD_02.size, 2, 0, 0
        else:
            raise ValueError(f"it begins with {magic!r}")
        rows = at + lists * 8 * count
        if count < 0 or rows > len(content) or not 0 < number < _LAST_NUMBER or not 0 <= page_bytes < _TOO_LARGE:
            raise ValueError(f"{count} ledgers do not fit in, or {number} is no number, or {page_bytes} no `pageSize`")
        numbers = _unpacked("q", content[at:rows])
        ledger_ids, lengths, many = numbers[:count], numbers[count : 2 * count], numbers[2 * count :]
        self._page_bytes = self._page_bytes or page_bytes
        if not page_bytes or page_bytes != self._page_bytes:
            held = {}
        elif magic == _WITH_COUNTS:
            held = self._counts(ledger_ids, many, content[rows:])
        else:
            held = self._patterns(ledger_ids, many, content[rows:], patterns)
        if number > self._number:
            self._number, self._held = number, held
            self._sealed = dict(zip(ledger_ids, lengths, strict=True))

    def _counts(self, ledger_ids: Iterable[int], many: array[int], content: bytes) -> dict[int, HeldPages]:
        _check_length(content, many, 2)
        counts, at = _unpacked("H", content), 0
        found: dict[int, HeldPages] = {}
        for ledger_id, pages in zip(ledger_ids, many, strict=True):
            known = [(page, held) for page, held in enumerate(counts[at : at + pages]) if held]
            found[ledger_id] = self._shared(_NO_PAGES.replaced(known))
            at += pages
        return found

    def _patterns(
        self, ledger_ids: Iterable[int], many: array[int], content: bytes, count: int
    ) -> dict[int, HeldPages]:
        width = _pattern_bytes(self._slots)
        total = _check_length(content, many, 12, count, width)
        ends = range(12 * total + width, len(content) + 1, width)
        patterns = [self._shared_pages(content[end - width : end].rstrip(b"\0")) for end in ends]

        @lru_cache(_LIKE_OTHERS)
        def pages_of(numbers: bytes, which: bytes) -> HeldPages:
            slots = [patterns[each] if each < _COUNTED else each - _COUNTED for each in memoryview(which).cast("I")]
            return self._shared(HeldPages(numbers, tuple(slots)))

        pages = _unpacked("q", content[: 8 * total])
        if pages and not 0 <= min(pages) <= max(pages) <= _LAST_ENTRY // self._slots:
            raise ValueError(f"no entry is on page {min(pages)}, or on page {max(pages)}")
        numbers = pages.tobytes()
        which = _unpacked("I", content[8 * total : 12 * total]).tobytes()
        found: dict[int, HeldPages] = {}
        at = 0
        for ledger_id, its in zip(ledger_ids, many, strict=True):
            end = at + its
            found[ledger_id] = pages_of(numbers[8 * at : 8 * end], which[4 * at : 4 * end])
            at = end
        return found


def _check_length(content: bytes, many: array[int], page_bytes: int, patterns: int = 0, pattern_bytes: int = 0) -> int:
    """How many pages ledgers with so many have. `ValueError` unless they and the patterns are what the content is."""
    total = sum(many)
    if min(many, default=0) < 0 or patterns < 0 or len(content) != total * page_bytes + patterns * pattern_bytes:
        raise ValueError(f"{len(content)} bytes are not {total} pages and {patterns} patterns")
    return total


class _Patterns(dict[Held, int]):
    """Numbers of patterns, in the order in which they are asked for; a count is its own number."""

    def __missing__(self, held: Held) -> int:
        if isinstance(held, int):
            return _COUNTED | held
        number = self[held] = len(self)
        return number


def _pattern_bytes(slots: int) -> int:
    return -(-slots // 8)


def drop_seals(files: Files, folders: Iterable[str]) -> None:
    """A tool puts other index files in the place of those that were sealed. `OSError`."""
    for folder in folders:
        with suppress(FileNotFoundError):
            files.unlink(f"{folder}/{NAME}")


def _packed(kind: Literal["q", "I"], numbers: Iterable[int]) -> bytes:
    """Big-endian, 8 bytes each or 4."""
    packed = array(kind, numbers)
    if sys.byteorder == "little":
        packed.byteswap()
    return packed.tobytes()


def _unpacked(kind: Literal["q", "I", "H"], data: bytes) -> array[int]:
    numbers = array(kind, data)
    if sys.byteorder == "little":
        numbers.byteswap()
    return numbers
