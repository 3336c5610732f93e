"""Pages of ledgers' slots as the index files have them, and the table of all that are in memory: at most `limit`.

Invariants of a page
- `data` is the page as it is in the file: big-endian locations, 0 = absent.
- `version` grows after each change. A flush takes the version first, then the bytes; the page is clean afterwards only
  if the version is still that one.
- A page that is pinned or dirty is never evicted. `dropped`: its ledger was deleted, and its contents must not be used.

Invariants of the table
- A page is pinned while it is in use. Clean pages that are not in use are in `_clean`, least recently used first, and
  only these make room for others.
- Without such a page, some ledgers' dirty pages are flushed (by the thread that needs the room). If that frees nothing,
  because every page is in use, the table grows by the one page: the surplus is bounded by the number of threads.
- A page is read from its file once, by the first who wants it; the others wait for it.
- After `drop_ledger` no page of that life of the ledger is found any more.

The lock is held for memory operations only, so the event loop may take it.

Threads: any. Flags and pins of a page are changed under the lock of the table; `data` is written by one thread at a
time, in single calls, and may be read by any.

Source: docs/internals/bookie-behaviour.md, section 13.2.
"""

from __future__ import annotations

import struct
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import lru_cache
from itertools import islice
from typing import Final, NamedTuple

from bookie_pod.metrics.memtable_storage import LedgerCacheMetrics
from bookie_pod.storage.index.index_file import SLOT_BYTES

VICTIMS: Final = 16
"""Ledgers whose pages are flushed at once to make room: the entry logs are synced for it."""
_SLOT = struct.Struct(">q")
Load = Callable[[int, int], bytearray]
"""(ledger id, first entry) to the page's bytes."""


assert _SLOT.size == SLOT_BYTES

_NOTHING: dict[int, IndexPage] = {}


class IndexPage:
    """Slots `first_entry` up to the page's size."""

    __slots__ = (
        "data",
        "dirty",
        "dropped",
        "error",
        "first_entry",
        "ledger_id",
        "loading",
        "pins",
        "version",
    )

    def __init__(self, ledger_id: int, first_entry: int) -> None:
        self.ledger_id = ledger_id
        self.first_entry = first_entry
        self.data = bytearray()
        self.dirty = False
        self.dropped = False
        self.pins = 1
        self.version = 0
        self.loading: threading.Event | None = threading.Event()
        """Set and taken away when `data` is there, or `error` says why not."""
        self.error: BaseException | None = None

    def get(self, slot: int) -> int:
        """Return the location in a slot, 0 if there is none."""
        location: int = _SLOT.unpack_from(self.data, slot * SLOT_BYTES)[0]
        return location

    def put(self, slot: int, locations: Sequence[int]) -> None:
        """Write adjacent slots."""
        _slots(len(locations)).pack_into(self.data, slot * SLOT_BYTES, *locations)
        self.version += 1


@lru_cache(maxsize=64)
def _slots(count: int) -> struct.Struct:
    return struct.Struct(f">{count}q")


def entries_of(data: bytes | bytearray, first_entry: int) -> list[tuple[int, int]]:
    """(entry id, location) of the slots that are not empty, ascending. A part of a slot at the end is no slot."""
    if not any(data):
        return []
    count = len(data) // SLOT_BYTES
    locations = _slots(count).unpack_from(data)
    return [(first_entry + slot, location) for slot, location in enumerate(locations) if location]


def highest_entry(data: bytes | bytearray, first_entry: int) -> int | None:
    """The highest entry id with a location in these slots."""
    used = len(data.rstrip(b"\0"))
    slot = (used - 1) // SLOT_BYTES
    if used == 0 or (slot + 1) * SLOT_BYTES > len(data):  # a part of a slot at the end counts as zero
        found = entries_of(data, first_entry)
        return found[-1][0] if found else None
    return first_entry + slot


class DirtyPage(NamedTuple):
    """A pinned dirty page as it was when the flush looked."""

    page: IndexPage
    version: int
    data: bytes


class PageTable:
    """Pages by ledger and first entry."""

    def __init__(
        self, limit: int, load: Load, make_clean: Callable[[Sequence[int]], None], metrics: LedgerCacheMetrics
    ) -> None:
        """`make_clean(ledger_ids)` flushes the dirty pages of some ledgers."""
        self.lock = threading.Lock()
        self._limit = limit
        self._load = load
        self._make_clean = make_clean
        self._metrics = metrics
        self._ledgers: dict[int, dict[int, IndexPage]] = {}
        self._clean: OrderedDict[tuple[int, int], IndexPage] = OrderedDict()
        self._dirty: dict[int, dict[int, IndexPage]] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    # --- using pages ----------------------------------------------------------------------------------------

    def pin(self, ledger_id: int, first_entry: int) -> IndexPage:
        """The page, to be given back with `unpin`. Raises what reading it, or flushing others for its sake, raised."""
        page, made = self._find_or_make(ledger_id, first_entry)
        try:
            if made:
                self._fill(page)
            else:
                self._wait(page)
        except BaseException:
            self.unpin(page)
            raise
        return page

    def peek(self, ledger_id: int, first_entry: int) -> IndexPage | None:
        """The page, pinned, if it is in memory."""
        with self.lock:
            page = self._pin_existing(ledger_id, first_entry)
        if page is not None:
            self._metrics.page_hit()
            try:
                self._wait(page)
            except BaseException:
                self.unpin(page)
                raise
        return page

    def unpin(self, page: IndexPage) -> None:
        with self.lock:
            page.pins -= 1
            self._settle(page)

    def _find_or_make(self, ledger_id: int, first_entry: int) -> tuple[IndexPage, bool]:
        flushed = False
        while True:
            with self.lock:
                page = self._pin_existing(ledger_id, first_entry)
                if page is not None:
                    self._metrics.page_hit()
                    return page, False
                if self._count < self._limit or self._evict() or flushed or not self._dirty:
                    self._metrics.page_miss()
                    return self._insert(ledger_id, first_entry), True
                victims = list(islice(self._dirty, VICTIMS))
            self._make_clean(victims)
            flushed = True

    def _pin_existing(self, ledger_id: int, first_entry: int) -> IndexPage | None:
        page = self._ledgers.get(ledger_id, _NOTHING).get(first_entry)
        if page is not None:
            page.pins += 1
            self._clean.pop((ledger_id, first_entry), None)
        return page

    def _insert(self, ledger_id: int, first_entry: int) -> IndexPage:
        page = IndexPage(ledger_id, first_entry)
        self._ledgers.setdefault(ledger_id, {})[first_entry] = page
        self._count += 1
        return page

    def _evict(self) -> bool:
        """Forget the least recently used clean page; whether there was one."""
        if not self._clean:
            return False
        _, page = self._clean.popitem(last=False)
        self._remove(page)
        return True

    def _remove(self, page: IndexPage) -> None:
        pages = self._ledgers[page.ledger_id]
        del pages[page.first_entry]
        if not pages:
            del self._ledgers[page.ledger_id]
        self._count -= 1

    def _settle(self, page: IndexPage) -> None:
        """Let a page that is not in use be evicted, once it is clean."""
        if not page.pins and not page.dirty and not page.dropped:
            self._clean[page.ledger_id, page.first_entry] = page

    def _fill(self, page: IndexPage) -> None:
        """Read a page that this thread made."""
        try:
            page.data = self._load(page.ledger_id, page.first_entry)
        except BaseException as error:
            page.error = error
            with self.lock:
                if not page.dropped:
                    page.dropped = True
                    self._remove(page)
            raise
        finally:
            loaded, page.loading = page.loading, None
            if loaded is not None:
                loaded.set()

    @staticmethod
    def _wait(page: IndexPage) -> None:
        loading = page.loading
        if loading is not None:
            loading.wait()
        if page.error is not None:
            raise page.error

    # --- changing and flushing ------------------------------------------------------------------------------

    def mark_dirty(self, page: IndexPage) -> None:
        """After a change of a pinned page. Under the lock."""
        if not page.dropped:
            page.dirty = True
            self._dirty.setdefault(page.ledger_id, {})[page.first_entry] = page

    def dirty_ledgers(self) -> list[int]:
        with self.lock:
            return list(self._dirty)

    def pin_dirty(self, ledger_id: int) -> list[DirtyPage]:
        """The ledger's dirty pages by first entry, pinned, each with the bytes to write. Under the lock."""
        pages = sorted(self._dirty.get(ledger_id, _NOTHING).items())
        for _, page in pages:
            page.pins += 1
        return [DirtyPage(page, page.version, bytes(page.data)) for _, page in pages]

    def written(self, pages: list[DirtyPage]) -> None:
        """Mark the pages clean whose bytes are durable now, unless they changed meanwhile."""
        with self.lock:
            for page, version, _ in pages:
                if page.version != version or page.dropped:
                    continue
                page.dirty = False
                dirty = self._dirty[page.ledger_id]
                del dirty[page.first_entry]
                if not dirty:
                    del self._dirty[page.ledger_id]

    def unpin_all(self, pages: list[DirtyPage]) -> None:
        with self.lock:
            for page, _, _ in pages:
                page.pins -= 1
                self._settle(page)

    # --- ledgers --------------------------------------------------------------------------------------------

    def first_entries(self, ledger_id: int) -> list[int]:
        """First entries of the ledger's pages in memory, in no order."""
        with self.lock:
            return list(self._ledgers.get(ledger_id, _NOTHING))

    def drop_ledger(self, ledger_id: int) -> None:
        """Forget the pages of a deleted ledger, used and dirty ones too. Under the lock."""
        self._dirty.pop(ledger_id, None)
        pages = self._ledgers.pop(ledger_id, _NOTHING)
        self._count -= len(pages)
        for page in pages.values():
            page.dropped = True
            self._clean.pop((ledger_id, page.first_entry), None)
            if page.pins:
                self._metrics.deleted_in_use()
