"""Open index files, one reference-counted handle per ledger.

The reference has one cache for handles opened with a key and a second, twice as large, for the others, over the same
handles. Here keys and headers are in memory for every ledger, so one cache of `openFileLimit` does for both.

Invariants
- A handle is closed only when it is not in use. Idle ones beyond the limit go, the least recently used first; those in
  use come on top. Nothing is lost by it: a writer syncs a handle before giving it back, or drops it.
- After `drop` no caller finds that handle any more: a ledger that is created again gets a new file.
- A file is kept for others only if no file has become void since before its path was looked up. What makes a file void
  changes its path, raises `generation` and drops the handle, in this order; so a caller that comes too early for the
  generation comes early enough for the drop.
- A file whose sync failed never syncs again, so it is dropped, and the next flush opens it again and writes again.

Threads: any. `drop` does no I/O, so the event loop may call it.

Source: docs/internals/bookie-behaviour.md, section 13.2.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from bookie_pod.metrics.memtable_storage import LedgerCacheMetrics
from bookie_pod.storage.files import File, Files
from bookie_pod.storage.index.ledger_cache.directories import IndexDirectories


class IndexHandle:
    """One open index file. `users`, `dropped` and `used_at` belong to `IndexHandles`."""

    __slots__ = ("dropped", "file", "ledger_id", "used_at", "users", "written")

    def __init__(self, ledger_id: int, file: File) -> None:
        self.ledger_id = ledger_id
        self.file = file
        self.users = 0
        self.used_at = 0.0
        self.dropped = False
        self.written = False
        """True if a flush has used it."""


class IndexHandles:
    """A bounded cache of `IndexHandle`s."""

    def __init__(
        self,
        files: Files,
        directories: IndexDirectories,
        capacity: int,
        idle_seconds: float,
        metrics: LedgerCacheMetrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`idle_seconds` 0: handles stay open until others need the room."""
        self._files = files
        self._directories = directories
        self._capacity = capacity
        self._idle_seconds = idle_seconds
        self._metrics = metrics
        self._clock = clock
        self._lock = threading.Lock()
        self._open: OrderedDict[int, IndexHandle] = OrderedDict()
        self._unused: list[File] = []

    def __len__(self) -> int:
        return len(self._open)

    def counts(self) -> tuple[int, int]:
        """(handles that were written to, handles that were only read)."""
        with self._lock:
            written = sum(handle.written for handle in self._open.values())
            return written, len(self._open) - written

    def acquire(self, ledger_id: int) -> IndexHandle | None:
        """The ledger's handle, to be given back with `release`; None if it has no file. Raises what opening raises.

        A file that may have become void since is used once and not kept.
        """
        before = self._directories.generation
        path = self._directories.path(ledger_id)
        if path is None:
            return None
        handle = self._existing(ledger_id)
        if handle is not None:
            return handle
        self._metrics.opening(1)
        try:
            return self._adopt(ledger_id, self._files.open(path, writable=True), before)
        except FileNotFoundError:
            if self._directories.generation == before:
                raise
        finally:
            self._metrics.opening(-1)
        return self.acquire(ledger_id)  # deleted, or moved to another directory

    def _existing(self, ledger_id: int) -> IndexHandle | None:
        with self._lock:
            handle = self._open.get(ledger_id)
            if handle is not None:
                self._use(handle)
        return handle

    def _use(self, handle: IndexHandle) -> None:
        handle.users += 1
        handle.used_at = self._clock()
        self._open.move_to_end(handle.ledger_id)

    @staticmethod
    def _once(ledger_id: int, file: File) -> IndexHandle:
        handle = IndexHandle(ledger_id, file)
        handle.users, handle.dropped = 1, True
        return handle

    def _adopt(self, ledger_id: int, file: File, generation: int) -> IndexHandle:
        with self._lock:
            handle = self._open.get(ledger_id)
            if handle is not None:
                self._unused.append(file)  # two threads opened it at once
            elif self._directories.generation == generation:
                handle = self._open[ledger_id] = IndexHandle(ledger_id, file)
            else:
                return self._once(ledger_id, file)
            self._use(handle)
            self._evict()
        self.close_unused()
        return handle

    def release(self, handle: IndexHandle) -> None:
        with self._lock:
            handle.users -= 1
            if handle.users == 0 and handle.dropped:
                self._unused.append(handle.file)
            self._evict()
        self.close_unused()

    def _evict(self) -> None:
        """Pick the handles to close: beyond the limit, or idle for too long."""
        excess = len(self._open) - self._capacity
        horizon = self._clock() - self._idle_seconds if self._idle_seconds > 0 else None
        gone: list[IndexHandle] = []
        for handle in self._open.values():
            if len(gone) >= excess and (horizon is None or handle.used_at > horizon):
                break
            if handle.users == 0:
                gone.append(handle)
        for handle in gone:
            del self._open[handle.ledger_id]
            self._unused.append(handle.file)
            self._metrics.ledger_evicted()

    def close_unused(self) -> None:
        """Close what was evicted or dropped."""
        while self._unused:
            with self._lock:
                unused, self._unused = self._unused, []
            for file in unused:
                file.close()

    def expire(self) -> None:
        """Close files that have not been used for too long."""
        with self._lock:
            self._evict()
        self.close_unused()

    def drop(self, ledger_id: int) -> None:
        """Forget a ledger's handle; its users finish first. The file is closed later, on another thread."""
        with self._lock:
            handle = self._open.pop(ledger_id, None)
            if handle is None:
                return
            handle.dropped = True
            if handle.users == 0:
                self._unused.append(handle.file)

    def close(self) -> None:
        """Drop and close everything."""
        for ledger_id in list(self._open):
            self.drop(ledger_id)
        self.close_unused()
