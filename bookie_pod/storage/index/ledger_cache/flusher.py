"""Bringing pages and headers of ledgers to their index files.

Order: what is to be written is taken, of some ledgers at once; entry logs are synced, so that no location ever reaches
a disk before its entry; then, ledger by ledger, header; pages by first entry, adjacent ones in one write; sync; and for
a new file its name. A new file is made behind the seal, if that asks for what the ledger held in an earlier life. Only
then pages count as clean.

Invariants
- One thread flushes at a time, so an older state of a page never overwrites a newer one.
- A ledger that is deleted meanwhile is skipped; a file made for it is removed again.
- A failure leaves pages dirty and headers due. The file is closed, and the next flush opens it again and writes
  everything again: a file whose sync failed may have lost what it was given.

Slots are overwritten in place. That is safe where the disk writes sectors of 512 bytes whole: no slot crosses one.

Threads: any; calls take turns on one lock.

Source: docs/internals/bookie-behaviour.md, section 13.2; docs/internals/on-disk-formats.md, sections 9 and 13.
"""

from __future__ import annotations

import posixpath
import threading
from collections.abc import Callable, Container, Iterator, Sequence
from itertools import pairwise
from typing import Final

import structlog

from bookie_pod.storage.files import File, Files, directory_fault, storage_fault
from bookie_pod.storage.index.index_file import HEADER_BYTES, SLOT_BYTES, encode_header, slot_offset
from bookie_pod.storage.index.ledger_cache.directories import IndexDirectories
from bookie_pod.storage.index.ledger_cache.handles import IndexHandle, IndexHandles
from bookie_pod.storage.index.ledger_cache.held import slots_in
from bookie_pod.storage.index.ledger_cache.page_table import DirtyPage, PageTable
from bookie_pod.storage.index.ledger_cache.records import IndexRecords
from bookie_pod.storage.index.ledger_cache.seal import IndexFilesSeal

_log = structlog.get_logger(__name__)

TOGETHER: Final = 16
"""Ledgers for which entry logs are synced at once, at most."""
PAGES_TOGETHER: Final = 1024
"""Pages of several ledgers that are taken at once, about: each is copied."""


class IndexFlusher:
    """The writing half of the ledger cache."""

    def __init__(
        self,
        files: Files,
        directories: IndexDirectories,
        handles: IndexHandles,
        records: IndexRecords,
        version: int,
        sync_logs: Callable[[], None],
        seal: IndexFilesSeal,
    ) -> None:
        """`version` is that of new files; `sync_logs` makes durable what every location points to; `seal` notes what
        files hold."""
        self._files = files
        self._directories = directories
        self._handles = handles
        self._records = records
        self._version = version
        self._sync_logs = sync_logs
        self._seal = seal
        self.flushed = 0
        """The number of times that a ledger was written."""
        self._lock = threading.Lock()
        self._deleted_meanwhile: set[int] = set()
        self.table: PageTable

    def deleted(self, ledger_id: int) -> None:
        """A ledger was deleted. Under the table's lock."""
        self._deleted_meanwhile.add(ledger_id)
        self._seal.forget(ledger_id)

    # --- one ledger -----------------------------------------------------------------------------------------

    def flush(self, ledger_ids: Sequence[int], headers: Container[int] = ()) -> None:
        """Write the dirty pages of these ledgers, and the headers of those among `headers`. `StorageFault`."""
        at = 0
        while at < len(ledger_ids):
            at += self._flush_some(ledger_ids[at : at + TOGETHER], headers)

    def _flush_some(self, ledger_ids: Sequence[int], headers: Container[int]) -> int:
        """Flush the first few of these ledgers, those that have few pages together, and return how many."""
        taken: dict[int, list[DirtyPage]] = {}
        with self._lock:
            with self.table.lock:
                # In one turn: else pages of a life that began between the two would seem to be of the deleted one.
                self._deleted_meanwhile.clear()
                for ledger_id in ledger_ids:
                    taken[ledger_id] = self.table.pin_dirty(ledger_id)
                    if sum(map(len, taken.values())) >= PAGES_TOGETHER:
                        break
            try:
                if any(taken.values()):
                    self._sync_logs()
                for ledger_id, pages in taken.items():
                    if pages or ledger_id in headers:
                        self._flush_ledger(ledger_id, pages, ledger_id in headers)
            finally:
                for pages in taken.values():
                    self.table.unpin_all(pages)
        return len(taken)

    def _flush_ledger(self, ledger_id: int, pages: list[DirtyPage], header: bool) -> None:
        if ledger_id in self._directories.cut_off:
            return
        try:
            self._flush(ledger_id, pages, header)
        except OSError as error:
            directory = self._directories.of(error)
            what = f"cannot write the index file of ledger {ledger_id}"
            if directory is None:
                raise storage_fault(what, error) from error
            if not self._directories.is_lost(directory):
                raise directory_fault(what, error, directory) from error
            self._cut_off(ledger_id, error)
        self.flushed += 1

    def _cut_off(self, ledger_id: int, error: OSError) -> None:
        _log.error("the index of a ledger is on a failed disk, and lost to it", ledger_id=ledger_id, reason=str(error))
        with self.table.lock:
            self._directories.cut_off.add(ledger_id)
            self.table.drop_ledger(ledger_id)

    def _flush(self, ledger_id: int, pages: list[DirtyPage], header: bool) -> None:
        if self._records.get(ledger_id) is None or ledger_id in self._deleted_meanwhile:
            return
        if self._directories.should_move(ledger_id):
            self._move(ledger_id)
        handle = self._handles.acquire(ledger_id)
        if handle is None:
            self._create(ledger_id, pages)
        else:
            self._write_through(handle, ledger_id, pages, header)
        self.table.written(pages)

    def _move(self, ledger_id: int) -> None:
        """Readers use the old file while it moves, as its handle is held, and open the new one when it is dropped."""
        handle = self._handles.acquire(ledger_id)
        if handle is None:
            return  # deleted just now
        try:
            self._directories.move(ledger_id)
        finally:
            self._handles.drop(ledger_id)
            self._handles.release(handle)

    def _write_through(self, handle: IndexHandle, ledger_id: int, pages: list[DirtyPage], header: bool) -> None:
        handle.written = True
        try:
            self._write(handle.file, ledger_id, pages, header)
            self._directories.settle(ledger_id)
        except BaseException:
            self._handles.drop(ledger_id)
            raise
        finally:
            self._handles.release(handle)
        held = _held(pages)
        with self.table.lock:
            if ledger_id not in self._deleted_meanwhile:
                self._seal.note(ledger_id, _end(pages), held)

    def _create(self, ledger_id: int, pages: list[DirtyPage]) -> None:
        if self._version == 0:
            self._records.version_0.add(ledger_id)
        self._seal.prepare(ledger_id, self._directories.in_use())
        directory, file = self._directories.create(ledger_id)
        try:
            self._write(file, ledger_id, pages, header=True)
            self._files.sync_directory(posixpath.dirname(file.path))
        except BaseException:
            # Unfinished: the next try makes the file again.
            self._directories.disown(ledger_id, directory)
            raise
        finally:
            file.close()
        held = _held(pages)
        with self.table.lock:
            if ledger_id in self._deleted_meanwhile:
                self._directories.disown(ledger_id, directory)
            else:
                self._directories.created(ledger_id, directory)
                self._seal.note(ledger_id, _end(pages), held, is_new=True)

    def _write(self, file: File, ledger_id: int, pages: list[DirtyPage], header: bool) -> None:
        record = self._records.get(ledger_id)
        self._seal.tell_withdrawn(self._directories.in_use())  # behind the looks at what is written now
        if header and record is not None:
            file.pwrite(encode_header(record, 0 if ledger_id in self._records.version_0 else 1), 0)
        for first_entry, data in _runs(pages):
            file.pwrite(data, slot_offset(first_entry))
        file.datasync()

    # --- all ledgers ----------------------------------------------------------------------------------------

    def remove_deleted(self) -> None:
        """Remove the files of deleted ledgers, durably.

        The old file of a ledger that was created again goes when the ledger gets a file, after the seal. Raises
        `StorageFault`.
        """
        for ledger_id in self._directories.deleted_ledgers():
            if self._records.get(ledger_id) is not None and ledger_id not in self._directories.cut_off:
                continue
            try:
                with self._lock:
                    self._directories.unlink_deleted(ledger_id)
            except OSError as error:
                raise storage_fault(f"cannot remove the index file of deleted ledger {ledger_id}", error) from error

    def give_up(self, directory: str) -> None:
        """The disk of this directory failed: nothing is written there any more. Not in the middle of a flush, since
        what was to be removed is removed first."""
        with self._lock:
            self._directories.give_up(directory)


def _end(pages: list[DirtyPage]) -> int:
    """Return the length that a file has at least once these are in it."""
    return slot_offset(pages[-1].page.first_entry) + len(pages[-1].data) if pages else HEADER_BYTES


def _held(pages: list[DirtyPage]) -> list[tuple[int, bytes]]:
    """(page, which of its slots hold a location) of each."""
    return [(page.page.first_entry * SLOT_BYTES // len(page.data), slots_in(page.data)) for page in pages]


def _runs(pages: list[DirtyPage]) -> Iterator[tuple[int, bytes]]:
    """(first entry, bytes) of each run of adjacent pages."""
    begin = 0
    for at, (left, right) in enumerate(pairwise(pages), 1):
        if left.page.first_entry + len(left.data) // SLOT_BYTES != right.page.first_entry:
            yield pages[begin].page.first_entry, b"".join(page.data for page in pages[begin:at])
            begin = at
    if pages:
        yield pages[begin].page.first_entry, b"".join(page.data for page in pages[begin:])


assert HEADER_BYTES % SLOT_BYTES == 0
