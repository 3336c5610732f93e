"""The seal that shows whether index files are complete: the file `index-files-seal` in an index directory.

    8 bytes    "PKSEAL05"
    8 bytes    number, i64: of several such files the highest counts
    8 bytes    `pageSize`, i64
    then blocks, to the end of the file, or to the first that is not whole (a crash left it):
    4 bytes    length n of what follows the checksum, u32, never 0
    4 bytes    CRC32C of it
    n bytes    rows, compressed by zlib

    A row:
    8 bytes    ledger id, i64
    8 bytes    length of its index file, i64; -1: forget what rows before say of the ledger
    4 bytes    how many of its pages follow, u32: those of which earlier rows say something else. For each of these:
    8 bytes    which page of the ledger it is, i64, ascending
    4 bytes    length m, u32
    m bytes    a bit for each slot of the page, the lowest of the first byte first, without the zeros at the end:
               whether it has held a location

    A row that says that a ledger is complete: every entry that was durable here has its row in the index file, or had
    one that the rows above tell of, or is in a journal behind the mark. An older release takes nothing from it:
    8 bytes    -1 - ledger id, i64
    8 bytes    -2, i64
    4 bytes    0, u32

    Likewise, a row that says of which entry logs the seal knows, the last one counts:
    8 bytes    -1 - the first log that another program may have made since, i64
    8 bytes    -3, i64
    4 bytes    0, u32

What lies behind the end of an index file reads as absent, a ledger without a file as unknown, and so does a slot that
is zero: a file that was cut, lost, or zeroed in the middle would deny entries that were acknowledged. So every
checkpoint writes down how long each file is, and which slots of each of its pages hold locations: of the ledgers that
changed since the last. At the start a file that is shorter, or not there, puts its ledger in limbo: nothing of it is
denied until it was healed. A slot that has held a location and is zero is damage, and no absence, until it is put
again.

Invariants
- What is noted was durable before, and it is noted before a mark moves. So no crash leaves less: a slot that has held a
  location is never emptied while its ledger lives.
- A ledger is complete only if that was proved: its file was made by this release, or no checkpoint covers it, so that
  the journals have all of it. Of any other one it is not known: of a file that another program has made, of one that
  an older release has sealed, and of one whose page size has changed. It is not known any more once the ledger is in
  limbo, or an entry without a row was found, whatever comes later. That is withdrawn by a whole new file, since a row
  could be lost with the end of this one, and before anything is written to an index file.
- Nothing is known to be complete once another program has used the directories, which does not know this file: it makes
  entry logs, and they do not say that they are ours.
- A seal beside another one, or beside a damaged one, may not be the newest: each may be of a time in which the other's
  directory was not there. No ledger is complete then, and a new seal removes the others.
- A file without a row is accepted: of tools, of Apache BookKeeper, which does not know the seal. So is a ledger that
  was deleted meanwhile: garbage collection deletes it again. So is a page of a file that was never written by this
  bookie, and every page after a change of `pageSize`, until it is written.
- A process adds to no file that another one left, nor to one of which a write has failed: it writes a whole new file,
  and does so again when the additions are longer than that.
- The seal goes to the first directory that takes it; which one does not matter.

Threads: any.
"""

from __future__ import annotations

import errno
import struct
import threading
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import chain, islice
from typing import Final

import google_crc32c
import structlog

from bookie_pod.storage.files import File, Files, storage_fault
from bookie_pod.storage.index.index_file import SLOT_BYTES, slot_offset
from bookie_pod.storage.index.ledger_cache.held import NOTHING, HeldPages, joined, slots_in
from bookie_pod.storage.index.ledger_data import Shared
from bookie_protocol.errors import NoWritableDirectory, StorageFault

_log = structlog.get_logger(__name__)

NAME: Final = "index-files-seal"
_HEAD: Final = struct.Struct(">8sqq")
_MAGIC: Final = b"PKSEAL05"
_BLOCK: Final = struct.Struct(">II")
_ROW: Final = struct.Struct(">qqI")
_PAGE: Final = struct.Struct(">qI")
_DELETED: Final = -1
_COMPLETE: Final = -2
_LOGS: Final = -3
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_LAST_NUMBER: Final = 1 << 62
"""Seals are not that many: it is damage, and would be none behind it."""
_NO_PAGES: Final = HeldPages()
_ROWS_TOGETHER: Final = 1000
_LEAST_GROWTH: Final = 1 << 20
"""Bytes that are added, at least, before a whole new file is written."""


class IndexFilesSeal:
    """The lengths of all index files, what their pages have held, and the file that this is written to."""

    def __init__(self, files: Files, folders: Iterable[str], page_bytes: int = 0) -> None:
        """`page_bytes` 0: those of the seal, of a single folder. `StorageFault`: a seal cannot be read."""
        self._files = files
        self._page_bytes = page_bytes
        self._number = 0
        self._is_whole = False
        self._is_newest = True
        """Every seal that was found could be understood."""
        self._found: list[str] = []
        """The folders that may hold a seal."""
        self.first_log = 0
        """The first entry log that the seal says nothing of; 0: it says nothing of any."""
        self.later_logs: Callable[[], int] = lambda: self.first_log
        """Returns the first log that another program may make from now on. May raise `StorageFault`."""
        self._lengths: dict[int, int] = {}
        self._held: dict[int, HeldPages] = {}
        self._shared_bits = Shared[bytes]()
        self._shared_pages = Shared[HeldPages]()
        self.unsealed: set[int] = set()
        """Ledgers of whose files no checkpoint has said that they are durable, when they were found."""
        self._owed: dict[int, int] = {}
        """The former lengths of files that are shorter now, or gone, until the limbo of their ledgers is durable."""
        self._changed: dict[int, set[int]] = {}
        """Ledgers of which something is to be written, and which of their pages."""
        self._complete: set[int] = set()
        self._proved: set[int] = set()
        """The complete ledgers of which the file does not say so yet."""
        self._doubtful: set[int] = set()
        """Ledgers that this process does not take for complete, whatever is proved of their files."""
        self._withdrawing = False
        """The file says of a ledger that it is complete, and it is not any more."""
        self._forgotten: set[int] = set()
        """Ledgers that were deleted, of which nothing says so yet."""
        self._telling: set[int] = set()
        """The deleted ledgers whose deletion is being written."""
        self._lock = threading.Lock()
        """Guards everything that is noted; held for memory operations only."""
        self._writing = threading.Lock()
        self._file: File | None = None
        """The file that this process adds to."""
        self._folder = ""
        self._whole = 0
        """The length of the file before anything was added."""
        for folder in folders:
            self._read(f"{folder}/{NAME}")
        if not self._is_newest or len(self._found) > 1:
            self.distrust()

    def distrust(self) -> None:
        """Take what was found for neither the newest nor complete. Before the end of the replay."""
        self._is_whole, self._withdrawing, self._complete = False, True, set()

    @property
    def claims_anything(self) -> bool:
        """Return whether something that was found counts as complete, or as surely not complete."""
        return bool(self._complete) or (self._is_whole and self.first_log > 0)

    def check(self, found: Mapping[int, int], headless: Collection[int] = ()) -> list[int]:
        """The ledgers whose files have been cut or lost since, or their headers; `found` are the lengths of all files,
        `headless` those that look as if their header had never been written. From now on these are the lengths that
        count."""
        sealed, self._lengths = self._lengths, dict(found)
        self._held = {ledger_id: pages for ledger_id, pages in self._held.items() if ledger_id in found}
        self._owed = {
            ledger_id: length
            for ledger_id, length in sealed.items()
            if found.get(ledger_id, -1) < length or ledger_id in headless
        }
        self._changed = {ledger_id: set() for ledger_id, length in found.items() if sealed.get(ledger_id) != length}
        self.unsealed = set(found).difference(sealed)
        self._complete = {ledger_id for ledger_id in self._lengths if ledger_id in self._complete}  # no ids twice
        for ledger_id in self._owed:
            self.withdraw(ledger_id)
        return list(self._owed)

    @property
    def never_durable(self) -> Collection[int]:
        """Ledgers whose files were found, and surely never were complete: there is a seal, all of it, and they are not
        in it."""
        return self.unsealed if self._is_whole else ()

    # --- what is noted --------------------------------------------------------------------------------------

    def note(
        self, ledger_id: int, length: int, pages: Iterable[tuple[int, bytes]] = (), *, is_new: bool = False
    ) -> None:
        """The file is durably so long at least, and these slots of these pages of it hold locations (`held`). `is_new`:
        it was made just now."""
        with self._lock:
            if is_new:
                self._prove(ledger_id)
            if self._lengths.get(ledger_id, -1) < length:
                self._lengths[ledger_id] = length
                self._changed.setdefault(ledger_id, set())
            before = self._held.get(ledger_id, _NO_PAGES)
            new: list[tuple[int, bytes]] = []
            for page, found in pages:
                known = before.get(page)
                held = joined(known, found)
                if held != known:
                    new.append((page, self._shared_bits(held)))
            if new:
                self._held[ledger_id] = self._shared(before.replaced(new))
                self._changed.setdefault(ledger_id, set()).update(page for page, _ in new)

    def prove(self, ledger_ids: Iterable[int]) -> None:
        """Take these ledgers for complete: the journals have whatever their files lack."""
        with self._lock:
            for ledger_id in ledger_ids:
                self._prove(ledger_id)

    def _prove(self, ledger_id: int) -> None:
        if ledger_id not in self._complete and ledger_id not in self._doubtful:
            self._complete.add(ledger_id)
            self._proved.add(ledger_id)

    def withdraw(self, ledger_id: int) -> None:
        """Note that the ledger may lack rows. Durable with the next header that is written, or the next `renew`."""
        with self._lock:
            self._doubtful.add(ledger_id)
            if ledger_id in self._complete:
                self._complete.discard(ledger_id)
                self._withdrawing = True

    def _shared(self, pages: HeldPages) -> HeldPages:
        return self._shared_pages(pages) if len(pages.slots) == 1 else pages

    def forget(self, ledger_id: int) -> None:
        """The ledger was deleted."""
        with self._lock:
            self._held.pop(ledger_id, None)
            known = (self._lengths.pop(ledger_id, None), self._owed.pop(ledger_id, None))
            self._changed.pop(ledger_id, None)
            for marked in (self._complete, self._proved, self._doubtful):
                marked.discard(ledger_id)
            if known != (None, None):
                self._forgotten.add(ledger_id)

    def held(self, ledger_id: int, page: int) -> bytes:
        """Which slots of a page have held a location durably."""
        return self._held.get(ledger_id, _NO_PAGES).get(page)

    def has_held(self, ledger_id: int, entry_id: int) -> bool:
        """Return whether the slot of this entry has held a location durably."""
        slots = self._page_bytes // SLOT_BYTES
        if not slots:
            return False  # there is no seal
        page, slot = divmod(entry_id, slots)
        held = self.held(ledger_id, page)
        return slot // 8 < len(held) and bool(held[slot // 8] >> slot % 8 & 1)

    def pages(self, ledger_id: int) -> Sequence[int]:
        """Return the pages of a ledger that have held locations durably, ascending."""
        return self._held.get(ledger_id, _NO_PAGES).pages()

    def has_lost(self, ledger_id: int, page: int, file: File) -> bool:
        """Return whether a page of the ledger's file has held locations that are not there now. Raises `OSError`."""
        begin = slot_offset(page * (self._page_bytes // SLOT_BYTES))
        left = file.size() - begin
        found = slots_in(file.pread(min(self._page_bytes, left), begin) if left > 0 else b"")
        return joined(self.held(ledger_id, page), found) != found

    def is_complete(self, ledger_id: int, file: File) -> bool:
        """Return whether every entry that was durable here surely has its row in this file of the ledger, or is in a
        journal. Raises `OSError`."""
        length = self._lengths.get(ledger_id)
        return (
            ledger_id in self._complete
            and length is not None
            and file.size() >= length
            and not any(self.has_lost(ledger_id, page, file) for page in self.pages(ledger_id))
        )

    # --- writing --------------------------------------------------------------------------------------------

    def prepare(self, ledger_id: int, folders: Sequence[str]) -> None:
        """A file is about to be made for the ledger: from now on no seal asks what that of an earlier life held. Raises
        as `renew`."""
        with self._lock:
            told = ledger_id not in self._forgotten and ledger_id not in self._telling
        if not told:
            self._write_down(folders, flushed=False)

    def tell_withdrawn(self, folders: Sequence[str]) -> None:
        """A header or slot that was looked up is about to be written: from now on no seal takes a ledger for complete
        that is not. Raises as `renew`."""
        with self._writing:  # else one that another thread is about to withdraw would seem to be withdrawn
            if self._withdrawing:
                self._write(folders, flushed=False)

    def renew(self, folders: Sequence[str]) -> None:
        """Write down what was noted, to one of these folders; durable on return. The headers of all ledgers that were
        in limbo since the start are durable. `NoWritableDirectory` on full disks, `StorageFault`."""
        self._write_down(folders, flushed=True)

    def _write_down(self, folders: Sequence[str], *, flushed: bool) -> None:
        with self._writing:
            self._write(folders, flushed=flushed)

    def _write(self, folders: Sequence[str], *, flushed: bool) -> None:
        with self._lock:
            changed, self._changed = self._changed, {}
            self._telling, self._forgotten = self._forgotten, set()
            proved, self._proved = self._proved, set()
            withdrawing, self._withdrawing = self._withdrawing, False
            owed = dict(self._owed)
            if flushed:  # of these what earlier rows say holds no more
                self._telling.update(owed)
                changed |= {each: set(self.pages(each)) for each in owed if each in self._lengths}
        try:
            if changed or proved or withdrawing or self._telling:
                self._bring(folders, {} if flushed else owed, changed, proved, whole=withdrawing)
        except BaseException:
            with self._lock:
                for ledger_id, pages in changed.items():
                    self._changed.setdefault(ledger_id, set()).update(pages)
                self._forgotten |= self._telling
                self._proved |= proved & self._complete
                self._withdrawing |= withdrawing
            raise
        else:
            if flushed:
                with self._lock:
                    self._owed.clear()
        finally:
            with self._lock:
                self._telling = set()

    def _bring(
        self,
        folders: Sequence[str],
        owed: Mapping[int, int],
        changed: Mapping[int, Collection[int]],
        proved: Iterable[int],
        *,
        whole: bool,
    ) -> None:
        """`owed`: lengths that stand for those of these ledgers. `changed`: ledgers, and which of their pages.

        `proved`: ledgers that are complete since. `whole`: nothing is added to the file, a new one is written."""
        file = self._file
        if file is not None and self._folder in folders and not whole:
            grown = file.position - self._whole
            if grown <= max(self._whole, _LEAST_GROWTH):
                try:
                    gone = (_ROW.pack(ledger_id, _DELETED, 0) for ledger_id in self._telling)
                    rows = chain(gone, self._rows_of(changed.items(), owed), self._complete_rows(proved))
                    for block in _blocks(rows):
                        file.write(block)
                    file.datasync()
                    return
                except OSError as error:
                    _log.warning("the seal of the index files cannot be added to", path=file.path, reason=str(error))
        self.close()
        with suppress(StorageFault):  # then the next process looks at more logs than it has to
            self.first_log = self.later_logs()
        logs = [_ROW.pack(-1 - self.first_log, _LOGS, 0)]
        ledgers = ((ledger_id, None) for ledger_id in [*self._lengths, *owed])
        data = b"".join(_blocks(chain(logs, self._rows_of(ledgers, owed), self._complete_rows(list(self._complete)))))
        self._folder = self._write_whole(folders, data)
        self._whole = _HEAD.size + len(data)
        with suppress(OSError):  # then the next write makes a whole new file
            self._file = self._files.open(f"{self._folder}/{NAME}", writable=True)

    def _rows_of(self, ledgers: Iterable[tuple[int, Iterable[int] | None]], owed: Mapping[int, int]) -> Iterator[bytes]:
        """Yield the rows with the present state of these pages of ledgers; None means all pages of a ledger.

        A ledger that was deleted meanwhile gets no row.
        """
        for ledger_id, pages in ledgers:
            length = owed.get(ledger_id) or self._lengths.get(ledger_id)
            if length is not None:
                held = self._held.get(ledger_id, _NO_PAGES)
                known: Iterable[tuple[int, bytes]] = zip(held.pages(), held.slots, strict=True)
                if pages is not None:
                    known = [(page, bits) for page in sorted(pages) if (bits := held.get(page))]
                parts = [_PAGE.pack(page, len(bits)) + bits for page, bits in known]
                yield b"".join((_ROW.pack(ledger_id, length, len(parts)), *parts))

    def _complete_rows(self, ledger_ids: Iterable[int]) -> Iterator[bytes]:
        """Yield the row that says that a ledger is complete, of each of these that still is."""
        return (_ROW.pack(-1 - each, _COMPLETE, 0) for each in ledger_ids if each in self._complete)

    def _write_whole(self, folders: Sequence[str], rows: bytes) -> str:
        """Return the folder that it is in. A try that failed may have left its file."""
        for left, folder in enumerate(folders, 1 - len(folders)):
            path = f"{folder}/{NAME}"
            self._number += 1
            try:
                if folder not in self._found:
                    self._found.append(folder)  # also if the write fails
                self._files.write_bytes_atomic(path, _HEAD.pack(_MAGIC, self._number, self._page_bytes) + rows)
                self._remove_others(folder, folders)
                return folder
            except OSError as error:
                if left < 0:
                    _log.warning("the lengths of the index files are noted elsewhere", path=path, reason=str(error))
                elif error.errno in _FULL:
                    raise NoWritableDirectory(f"cannot write {path}: {error.strerror}") from error
                else:
                    raise storage_fault(f"cannot write {path}", error) from error
        raise NoWritableDirectory("no index directory is left for the seal of the index files")

    def _remove_others(self, folder: str, folders: Sequence[str]) -> None:
        """Remove the seals in other folders: this one would be missed, and not them, if its folder were not there."""
        for other in list(self._found):
            if other != folder and other in folders:
                try:
                    with suppress(FileNotFoundError):
                        self._files.unlink(f"{other}/{NAME}")
                    self._files.sync_directory(other)
                except OSError as error:
                    _log.warning("an older seal of the index files stays", folder=other, reason=str(error))
                else:
                    self._found.remove(other)

    def close(self) -> None:
        """Write no more to the file."""
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()

    # --- reading --------------------------------------------------------------------------------------------

    def _read(self, path: str) -> None:
        try:
            data = self._files.read_bytes(path)
        except FileNotFoundError:
            return
        except OSError as error:
            raise storage_fault(f"cannot read {path}", error) from error
        self._found.append(path.removesuffix(f"/{NAME}"))
        try:
            magic, number, page_bytes = _HEAD.unpack_from(data)
            if magic != _MAGIC or not 0 < number < _LAST_NUMBER:
                raise ValueError(f"it begins with {magic!r}, and is number {number}")
            if number > self._number:
                self._take(data, number, page_bytes, path)
        except (ValueError, IndexError, struct.error, zlib.error) as error:
            self._is_newest = False
            _log.warning(
                "the seal of the index files is damaged: it is unknown whether they are complete",
                path=path,
                reason=str(error),
            )

    def _take(self, data: bytes, number: int, page_bytes: int, path: str) -> None:
        """Take over the contents of a seal.

        `ValueError`, `IndexError`, `struct.error` and `zlib.error` mean that it is not a valid seal.
        """
        self._page_bytes = self._page_bytes or page_bytes
        lengths: dict[int, int] = {}
        held: dict[int, HeldPages] = {}
        more: dict[int, dict[int, bytes]] = {}
        complete: set[int] = set()
        at, first_log = _HEAD.size, 0
        while at < len(data):
            if len(data) - at < _BLOCK.size:
                break
            length, crc = _BLOCK.unpack_from(data, at)
            content = data[at + _BLOCK.size : at + _BLOCK.size + length]
            if not content or len(content) < length or google_crc32c.value(content) != crc:
                break  # zeros too, which a crash may leave: no bytes have the checksum 0
            at += _BLOCK.size + length
            for ledger_id, nbytes, pages in _rows(zlib.decompress(content)):
                if nbytes == _DELETED:
                    for known in (lengths, held, more):
                        known.pop(ledger_id, None)
                    complete.discard(ledger_id)
                    continue
                if nbytes == _COMPLETE:
                    complete.add(-1 - ledger_id)
                    continue
                if nbytes == _LOGS:
                    first_log = -1 - ledger_id
                    continue
                lengths[ledger_id] = nbytes
                slots = [(page, self._shared_bits(bits)) for page, bits in pages]
                if not slots or page_bytes != self._page_bytes:
                    continue
                if ledger_id in held:
                    more.setdefault(ledger_id, {}).update(slots)
                else:
                    held[ledger_id] = self._shared(_NO_PAGES.replaced(slots))
        for ledger_id, changed in more.items():
            held[ledger_id] = self._shared(held[ledger_id].replaced(sorted(changed.items())))
        if at < len(data):
            _log.warning("the end of the seal of the index files is not whole, and left out", path=path, at=at)
        self._number, self._lengths, self._held, self._is_whole = number, lengths, held, at == len(data)
        self.first_log = first_log
        self._complete = complete if page_bytes == self._page_bytes else set()


def _blocks(rows: Iterator[bytes]) -> Iterator[bytes]:
    while together := b"".join(islice(rows, _ROWS_TOGETHER)):
        content = zlib.compress(together, 1)
        yield _BLOCK.pack(len(content), google_crc32c.value(content)) + content


def _rows(content: bytes) -> Iterator[tuple[int, int, list[tuple[int, bytes]]]]:
    """(ledger, length, (page, slots) of its pages) of each row."""
    at = 0
    while at < len(content):
        ledger_id, length, count = _ROW.unpack_from(content, at)
        at += _ROW.size
        pages: list[tuple[int, bytes]] = []
        for _ in range(count):
            page, width = _PAGE.unpack_from(content, at)
            at += _PAGE.size
            pages.append((page, content[at : at + width] or NOTHING))
            at += width
        yield ledger_id, length, pages


def drop_seals(files: Files, folders: Iterable[str]) -> None:
    """A tool puts other index files in the place of those that were sealed. `OSError`."""
    for folder in folders:
        with suppress(FileNotFoundError):
            files.unlink(f"{folder}/{NAME}")
