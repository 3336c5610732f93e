"""The ledger cache: ledgers, and where each of their entries lies, over one index file per ledger.

Invariants
- Entry e of a ledger: S = pageSize / 8 slots a page, slot = e mod S, first entry of its page = e - slot. `put` and
  `get` use the same arithmetic.
- "No location" is an answer: the page was looked at, in memory or in its file, of a ledger that was neither deleted nor
  cut off by the end of the look. A ledger without an index raises `NoLedgerIndex`; every fault raises another
  `StorageFault`.
- Nothing here is durable before `flush` returns.
- A location that a page has lost is none as well, and comes back by being put. A caller that denies an entry checks
  that first (`locate`, `last_held`).
- An answer about several entries is of one life of their ledger, or an error.
- Of a ledger that is cut off (see `directories`) nothing is denied, and nothing is taken.
- A deleted ledger is unknown, and so are its pages, from the moment of the deletion; its file goes with the next flush.

Threads: `put` from the storage thread (and its helpers, each with ledgers of its own); reads from any; `delete` and
changes of `records` on the event loop; `flush` from one thread at a time.

Source: docs/internals/bookie-behaviour.md, sections 4 and 13.2; docs/internals/on-disk-formats.md, section 9.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from itertools import chain, groupby

import structlog

from bookie_pod.config.model import BookieConfig
from bookie_pod.metrics.memtable_storage import LedgerCacheMetrics
from bookie_pod.metrics.registry import Registry
from bookie_pod.storage.files import Files, storage_fault
from bookie_pod.storage.index.index_file import HEADER_BYTES, SLOT_BYTES, slot_offset
from bookie_pod.storage.index.ledger_cache.directories import IndexDirectories, WritableDirs, max_entry_id
from bookie_pod.storage.index.ledger_cache.flusher import IndexFlusher
from bookie_pod.storage.index.ledger_cache.handles import IndexHandle, IndexHandles
from bookie_pod.storage.index.ledger_cache.page_table import PageTable, entries_of, highest_entry
from bookie_pod.storage.index.ledger_cache.records import IndexRecords
from bookie_pod.storage.index.ledger_cache.seal import IndexFilesSeal
from bookie_pod.storage.index.ledger_data import Life
from bookie_protocol.errors import NoLedgerIndex, StorageFault

_log = structlog.get_logger(__name__)


class LedgerCache:
    """Index files of some directories, with their pages and headers in memory."""

    def __init__(
        self,
        files: Files,
        dirs: WritableDirs,
        config: BookieConfig,
        sync_logs: Callable[[], None],
        metrics: LedgerCacheMetrics | None = None,
    ) -> None:
        """`StorageFault` if the directories or a header cannot be read."""
        self._files = files
        self._metrics = metrics or LedgerCacheMetrics(Registry())
        index = config.sorted_storage
        self._page_bytes = index.page_size_bytes
        self._slots = self._page_bytes // SLOT_BYTES
        self._directories = IndexDirectories(files, dirs, config.disks.min_usable_for_index_file_bytes)
        self.max_entry_id = max_entry_id(files, dirs.all(), self._page_bytes)
        """The highest entry id that has a slot on these disks."""
        self._seal = IndexFilesSeal(files, dirs.all(), self._page_bytes)
        self.records = IndexRecords(files, self._directories, self._seal.check, self._seal.withdraw)
        self._directories.unsettled = set(self._seal.unsealed)
        self.handles = IndexHandles(
            files, self._directories, index.open_file_limit, index.file_info_max_idle_seconds, self._metrics
        )
        self._flusher = IndexFlusher(
            files, self._directories, self.handles, self.records, index.file_info_format_version, sync_logs, self._seal
        )
        self.pages = PageTable(config.index_page_limit, self._load, self._flusher.flush, self._metrics)
        self._flusher.table = self.pages
        self._headers_due: set[int] = set()

    # --- putting --------------------------------------------------------------------------------------------

    def put(
        self,
        ledger_id: int,
        entry_ids: Sequence[int],
        locations: Sequence[int],
        is_void: Callable[[], bool] = lambda: False,
    ) -> None:
        """Take note of where entries lie.

        `NoLedgerIndex` if the ledger is not known, or was deleted since these entries were put, which `is_void` tells.
        """
        if ledger_id in self._directories.cut_off:
            raise _unknown(ledger_id)
        for begin, end in self._runs(entry_ids):
            slot = entry_ids[begin] % self._slots
            page = self.pages.pin(ledger_id, entry_ids[begin] - slot)
            try:
                with self.pages.lock:
                    if page.dropped or self.records.get(ledger_id) is None or is_void():
                        raise _unknown(ledger_id)
                    page.put(slot, locations[begin:end])
                    self.pages.mark_dirty(page)
            finally:
                self.pages.unpin(page)

    def _runs(self, entry_ids: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Ranges of consecutive entries that lie in one page."""
        count, at = len(entry_ids), 0
        while at < count:
            first = entry_ids[at]
            longest = min(count - at, self._slots - first % self._slots)
            if entry_ids[at + longest - 1] - first == longest - 1 and longest > 1:
                end = at + longest
                if list(entry_ids[at:end]) == list(range(first, first + longest)):
                    yield at, end
                    at = end
                    continue
            end = at + 1
            while end < at + longest and entry_ids[end] == first + end - at:
                end += 1
            yield at, end
            at = end

    def move(self, ledger_id: int, entry_id: int, old: int, new: int) -> bool:
        """Compaction copied an entry: replace its location, unless it is no longer `old`; whether it was."""
        slot = entry_id % self._slots
        try:
            self._check_known(ledger_id)
            page = self.pages.pin(ledger_id, entry_id - slot)
        except NoLedgerIndex:
            return False
        try:
            with self.pages.lock:
                if page.dropped or self.records.get(ledger_id) is None or page.get(slot) != old:
                    return False
                page.put(slot, [new])
                self.pages.mark_dirty(page)
                return True
        finally:
            self.pages.unpin(page)

    # --- reading --------------------------------------------------------------------------------------------

    def _check_known(self, ledger_id: int) -> None:
        if ledger_id in self._directories.cut_off:
            raise StorageFault(
                f"the index of ledger {ledger_id} is on a disk that failed; replace it, or restart the bookie"
            )
        if self.records.get(ledger_id) is None:
            raise _unknown(ledger_id)

    def life(self, ledger_id: int) -> Life:
        """Return the life of a ledger. Take it before the first of several looks at the ledger, and check it after the
        last.

        Raises `NoLedgerIndex` and `StorageFault`.
        """
        life = self.records.life(ledger_id)
        self._check_known(ledger_id)
        if life is None:
            raise _unknown(ledger_id)
        return life

    def check_life(self, ledger_id: int, life: Life) -> None:
        """Raise `NoLedgerIndex` if the ledger was deleted since, even if it was created again; or `StorageFault`."""
        if self.life(ledger_id) is not life:
            raise _unknown(ledger_id)

    def get(self, ledger_id: int, entry_id: int) -> int:
        """The entry's location, 0 if there is none. `NoLedgerIndex`, `StorageFault`."""
        self._check_known(ledger_id)
        if not 0 <= entry_id <= self.max_entry_id:
            return 0
        slot = entry_id % self._slots
        first_entry = entry_id - slot
        page = self.pages.peek(ledger_id, first_entry)
        if page is None:
            # Asked in this order: a page leaves memory only after its file is known.
            if self._directories.path(ledger_id) is None:
                self._check_known(ledger_id)
                return 0
            page = self.pages.pin(ledger_id, first_entry)
        try:
            location = page.get(slot)
        finally:
            self.pages.unpin(page)
        if not location:
            self._check_known(ledger_id)
        return location

    def last_entry_id(self, ledger_id: int) -> int | None:
        """The highest entry id with a location; None if there is none. `NoLedgerIndex`, `StorageFault`."""
        self._check_known(ledger_id)
        highest = self._highest(ledger_id)
        self._check_known(ledger_id)
        return highest

    def _highest(self, ledger_id: int) -> int | None:
        best = -1
        for first_entry in sorted(self.pages.first_entries(ledger_id), reverse=True):
            found = highest_entry(self._page_in_memory(ledger_id, first_entry), first_entry)
            if found is not None:
                best = found
                break
        # Everything that was not in memory just now is in the file.
        for pages in reversed(list(self._pages_in_file(ledger_id))):
            for first_entry in reversed(pages):
                if first_entry + self._slots <= best:
                    return best
                found = highest_entry(self._read_page(ledger_id, first_entry), first_entry)
                if found is not None:
                    return max(best, found)
        return None if best < 0 else best

    def locate(self, ledger_id: int, entry_id: int) -> int | None:
        """Return the location as `get` does: None if the entry has lost its location, 0 only if it never had one."""
        location = self.get(ledger_id, entry_id)
        while not location:
            page, slot = divmod(entry_id, self._slots)
            life, held = self._held(ledger_id, page)
            if slot >= len(held) * 8 or not held[slot // 8] >> slot % 8 & 1:
                return 0
            location = self.get(ledger_id, entry_id)  # put back meanwhile?
            if not location and self.records.life(ledger_id) is life:
                return None
            # Else the ledger was deleted between the two looks, and created again.
        return location

    def last_held(self, ledger_id: int) -> int:
        """Return the highest entry id that has had a location durably, -1 if none has.

        A caller that looks for the last entry asks before: if it finds a lower one, the last entry is lost. Raises
        `StorageFault`.
        """
        for page in reversed(self._seal.pages(ledger_id)):
            _, held = self._held(ledger_id, page)
            if held:
                return page * self._slots + int.from_bytes(held, "little").bit_length() - 1
        return -1

    def was_durable(self, ledger_id: int, entry_id: int) -> bool:
        """Return whether the entry has had a location durably."""
        return self._seal.has_held(ledger_id, entry_id)

    def _held(self, ledger_id: int, page: int) -> tuple[Life | None, bytes]:
        """Return the life of a ledger, and the slots of a page that have held a location in it."""
        with self.pages.lock:
            return self.records.life(ledger_id), self._seal.held(ledger_id, page)

    def entry_ids(self, ledger_id: int) -> Iterator[int]:
        """All entry ids with a location, ascending. Raises as `scan`."""
        return (entry_id for page in self.scan(ledger_id) for entry_id, _ in page)

    def scan(self, ledger_id: int, first_entry: int = 0) -> Iterator[list[tuple[int, int]]]:
        """(entry id, location) of everything in a ledger, page by page, ascending, from the page of `first_entry` on.

        `NoLedgerIndex` (at once, and at the end if the ledger was deleted meanwhile), `StorageFault`.
        """
        life = self.life(ledger_id)
        first = first_entry - first_entry % self._slots
        in_memory = sorted(page for page in self.pages.first_entries(ledger_id) if page >= first)
        return self._scan(ledger_id, life, in_memory, first)

    def _scan(
        self, ledger_id: int, life: Life, in_memory: Sequence[int], first: int
    ) -> Iterator[list[tuple[int, int]]]:
        in_file = chain.from_iterable(self._pages_in_file(ledger_id, first))
        for first_entry, _ in groupby(merge(in_memory, in_file)):
            self._metrics.scanned(1, 0)
            yield entries_of(self._page(ledger_id, first_entry), first_entry)
        self.check_life(ledger_id, life)

    def _page(self, ledger_id: int, first_entry: int) -> bytes:
        """Return the bytes of a page, wherever it is."""
        return self._page_in_memory(ledger_id, first_entry) or self._read_page(ledger_id, first_entry)

    def _page_in_memory(self, ledger_id: int, first_entry: int) -> bytes:
        page = self.pages.peek(ledger_id, first_entry)
        if page is None:
            return b""
        try:
            return bytes(page.data)
        finally:
            self.pages.unpin(page)

    # --- files ----------------------------------------------------------------------------------------------

    def _load(self, ledger_id: int, first_entry: int) -> bytearray:
        """A page from its file; zeros where the file ends."""
        begin = time.perf_counter()
        data = bytearray(self._read_page(ledger_id, first_entry))
        self._metrics.page_read(time.perf_counter() - begin)
        del data[len(data) // SLOT_BYTES * SLOT_BYTES :]
        data.extend(bytes(self._page_bytes - len(data)))
        return data

    def _read_page(self, ledger_id: int, first_entry: int) -> bytes:
        with _Reading(self, ledger_id) as handle:
            if handle is None:
                return b""
            return handle.file.pread(self._page_bytes, slot_offset(first_entry))

    def _pages_in_file(self, ledger_id: int, first_entry: int = 0) -> Iterator[range]:
        """First entries of the pages that the ledger's file holds, ascending; what was never written is left out."""
        while True:
            with _Reading(self, ledger_id) as handle:
                found = None if handle is None else handle.file.data_from(slot_offset(first_entry))
            if found is None:
                return
            begin, end = (
                (at - HEADER_BYTES) // SLOT_BYTES // self._slots * self._slots for at in (found[0], found[1] - 1)
            )
            yield range(begin, end + 1, self._slots)
            first_entry = end + self._slots

    # --- ledgers --------------------------------------------------------------------------------------------

    def end_replay(self) -> None:
        """Note that the replay of the journals is over."""
        unsealed = self._seal.never_durable
        for ledger_id in self.records.end_replay(unsealed):
            _log.info("an index file that a crash left without a header goes", ledger_id=ledger_id)
            self.delete(ledger_id)
        # Those that name no log may be of another program, which knows no seal.
        self._seal.prove(ledger_id for ledger_id in unsealed if self.records.first_log(ledger_id))

    def compare_logs(self, has_foreign: Callable[[int], bool], later_logs: Callable[[], int]) -> None:
        """Find out whether another program has used the directories since the seal was written. Before the replay.

        `has_foreign`: whether it may have made a log from this one on. `later_logs`: see the seal."""
        if self._seal.claims_anything and has_foreign(self._seal.first_log):
            _log.warning("another program has used these directories: what index files may lack is unknown")
            self._seal.distrust()
        self._seal.later_logs = later_logs

    def may_lack_rows(self, ledger_id: int) -> None:
        """Take the ledger for incomplete: an entry of it was found that has no row. Any thread."""
        self._seal.withdraw(ledger_id)

    def delete(self, ledger_id: int) -> int:
        """Forget a ledger; see `LedgerRecords`. Memory only; event loop."""
        with self.pages.lock:
            next_log = self.records.delete(ledger_id)
            self.pages.drop_ledger(ledger_id)
            self._directories.delete(ledger_id)
            self._flusher.deleted(ledger_id)
        self.handles.drop(ledger_id)
        return next_log

    def check_taken(self, ledger_id: int) -> None:
        """`StorageFault` of a ledger that is cut off: it takes no entries. Event loop."""
        if self._directories.cut_off:
            self._check_known(ledger_id)

    def give_up(self, directory: str) -> None:
        """The disk of this index directory failed: nothing is written there any more. Storage thread."""
        self._flusher.give_up(directory)

    # --- flushing -------------------------------------------------------------------------------------------

    def take_dirty_headers(self) -> None:
        """Headers that changed up to now are part of the next flush. Event loop."""
        changed = self.records.take_dirty()
        if changed:
            with self.pages.lock:
                self._headers_due |= changed

    def flush(self) -> None:
        """Make durable: deletions, headers taken before, and every page that is dirty now. `StorageFault`."""
        self._flusher.remove_deleted()
        with self.pages.lock:
            due, self._headers_due = self._headers_due, set()
        try:
            self._flusher.flush(sorted(due.union(self.pages.dirty_ledgers())), due)
            due = set()
        finally:
            with self.pages.lock:
                self._headers_due |= due
        self.handles.expire()

    def seal(self) -> None:
        """Seal the files, so that a later loss of their present rows is noticed.

        Called after `flush`, and before a mark moves. Raises `NoWritableDirectory` and `StorageFault`.
        """
        self._seal.renew(self._directories.in_use())

    @property
    def flushed(self) -> int:
        """Return how often the pages of a ledger were written to its file. Any thread."""
        return self._flusher.flushed

    def close(self) -> None:
        """Close every file, without flushing."""
        self._seal.close()
        self.handles.close()


class _Reading:
    """Use of a ledger's file; None if it has none. I/O errors become `StorageFault`."""

    def __init__(self, cache: LedgerCache, ledger_id: int) -> None:
        self._cache = cache
        self._ledger_id = ledger_id
        self._handle: IndexHandle | None = None

    def __enter__(self) -> IndexHandle | None:
        try:
            self._handle = self._cache.handles.acquire(self._ledger_id)
        except OSError as error:
            raise self._fault(error) from error
        return self._handle

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if self._handle is not None:
            self._cache.handles.release(self._handle)
        if isinstance(error, OSError):
            raise self._fault(error) from error

    def _fault(self, error: OSError) -> StorageFault:
        return storage_fault(f"cannot read the index file of ledger {self._ledger_id}", error)


def _unknown(ledger_id: int) -> NoLedgerIndex:
    return NoLedgerIndex(f"ledger {ledger_id} has no index here")
