"""Flushes of the engines over a memtable.

`BackgroundFlush` is their storage thread, one for all directories: it flushes on request, and again after a failure.
`Drain` hands one frozen memtable to the entry logs and to the ledger cache. Neither makes anything durable: checkpoints
do.

Invariants
- At most one requested flush waits. A flush that failed is repeated after `RETRY_SECONDS` without a request; a
  checkpoint does not wait for that.
- A failure of the disks is reported as `NoWritableDirectory`, which makes the bookie read-only; `StorageFailed` and
  internal errors are reported unchanged, and stop it. So is the fault of one directory, which changes nothing: when it
  comes again and again, the engine gives that directory up.
- No flush runs after `BackgroundFlush.close` returned.
- Each entry is appended before its location is put, and a slice is done when both are. After a failure `Drain.run`
  continues with the slices that are not done: a failed write may be repeated, and appended entries remain valid.
- A failed sync of an entry log is final: entries of earlier drains, which memory no longer holds, may be gone.
  `StorageFailed` is raised, the process has to end, and the next start replays the journals.
- After the deletion of a ledger, the rest of its entries in the map is skipped.
- An entry whose id no index file can hold puts its ledger in limbo: it is not stored, and never denied.

Threads: `request` and `begun` on the event loop; `BackgroundFlush.run` from background threads; the work on the storage
thread, where one ledger's part of a drain is run by one thread at a time; several ledgers at once if asked to.

Source: docs/internals/bookie-behaviour.md, sections 4 and 13.1; docs/internals/on-disk-formats.md, section 4.4.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Final

import structlog

from bookie_pod.storage.engines.frozen import SLICE_BYTES, SLICE_ENTRIES
from bookie_pod.storage.entry_log.logger import EntryLogger
from bookie_pod.storage.index.ledger_cache import LedgerCache
from bookie_pod.storage.index.locations import YIELD_SECONDS
from bookie_pod.storage.write_cache import WriteCacheHalf
from bookie_protocol.errors import DirectoryFault, NoLedgerIndex, NoWritableDirectory, StorageFailed, StorageFault

RETRY_SECONDS: Final = 1.0
_log = structlog.get_logger(__name__)


class BackgroundFlush:
    """One thread, and the flush it makes on request."""

    def __init__(self, name: str, work: Callable[[], None], pause: float = 0) -> None:
        """`pause` seconds pass between a request and the work, so that one flush does for many."""
        self._work = work
        self._pause = pause
        self._thread = ThreadPoolExecutor(1, name)
        self._callbacks: list[Callable[[BaseException], None]] = []
        self._wanted = False
        self._closed = False
        self._hurry = threading.Event()
        self._retry: threading.Timer | None = None
        self.began: float | None = None
        """The time at which the running requested flush began (monotonic), or None if none is running. Any thread."""

    def on_failure(self, callback: Callable[[BaseException], None]) -> None:
        self._callbacks.append(callback)

    def request(self, *, hurry: bool = False) -> None:
        """Have the work done soon, unless it is waiting already; with `hurry` without the pause."""
        if hurry:
            self._hurry.set()
        if self._wanted or self._closed:
            return
        self._wanted = True
        self._submit()

    def _submit(self) -> None:
        with contextlib.suppress(RuntimeError):  # closed meanwhile
            self._thread.submit(self._requested)

    def begun(self) -> None:
        """Note that the requested flush has begun: a further request asks for another one."""
        self._wanted = False

    def run(self, work: Callable[[], None]) -> None:
        """Run `work` on the storage thread and wait; raises what it raised, `StorageFault` once closed."""
        if self._wanted:
            self._hurry.set()  # what waits goes first, without its pause
        try:
            running = self._thread.submit(work)
        except RuntimeError as error:
            raise StorageFault("the storage is closed") from error
        running.result()

    def _requested(self) -> None:
        if self._pause:
            self._hurry.wait(self._pause)
            self._hurry.clear()
        if not self._wanted or self._closed:
            return  # a checkpoint has done it
        self.began = time.monotonic()
        try:
            self._work()
        except BaseException as error:
            _log.error("flush of the memtable failed", error=str(error))
            if not isinstance(error, StorageFailed):
                self._retry_later()
            for callback in self._callbacks:
                callback(_told(error))
        finally:
            self.began = None

    def _retry_later(self) -> None:
        """Schedule a retry; until it runs, further requests count as made."""
        self._wanted = True
        timer = self._retry = threading.Timer(RETRY_SECONDS, self._submit)
        timer.daemon = True
        timer.name = "storage-0-retry"
        timer.start()

    def close(self) -> None:
        """Wait for what is running, drop what waits."""
        self._closed = True
        self._hurry.set()
        self._thread.shutdown(wait=True, cancel_futures=True)
        if self._retry is not None:
            self._retry.cancel()
            self._retry.join()


def _told(error: BaseException) -> BaseException:
    if not isinstance(error, StorageFault) or isinstance(error, StorageFailed | NoWritableDirectory | DirectoryFault):
        return error
    return NoWritableDirectory(f"the memtable cannot be flushed: {error}")


class Drain:
    """The work of draining one frozen map."""

    def __init__(
        self,
        half: WriteCacheHalf,
        logs: EntryLogger,
        cache: LedgerCache,
        *,
        in_order: bool,
        roll: bool,
        on_unindexable: Callable[[int], None],
    ) -> None:
        """`in_order`: sort by (ledger, entry), else keep the order of arrival. `roll`: see `EntryLogger.append_run`.

        `on_unindexable` is called with the ledger of each entry that no index can hold.
        """
        self._half = half
        self._logs = logs
        self._cache = cache
        self._in_order = in_order
        self._roll = roll
        self._on_unindexable = on_unindexable
        ledger_ids = sorted(half.ledgers) if in_order else list(half.ledgers)
        self._parts = {ledger_id: _LedgerPart(self, ledger_id) for ledger_id in ledger_ids}
        self.nbytes = 0
        """Bytes of entries appended."""

    def run(self, threads: Executor | None = None) -> None:
        """Drain what is not drained yet, ledgers in parallel if there are threads.

        `StorageFault`: call again. `StorageFailed`: nothing helps but a restart.
        """
        if threads is None:
            for ledger_id, part in list(self._parts.items()):
                part.run()
                self._done(ledger_id, part)
            return
        running = {ledger_id: threads.submit(part.run) for ledger_id, part in self._parts.items()}
        errors = []
        for ledger_id, future in running.items():
            error = future.exception()
            if error is None:
                self._done(ledger_id, self._parts[ledger_id])
            else:
                errors.append(error)
        if errors:
            raise next((error for error in errors if not isinstance(error, StorageFault)), errors[0])

    def _done(self, ledger_id: int, part: _LedgerPart) -> None:
        self.nbytes += part.nbytes
        del self._parts[ledger_id]

    def first_log(self, ledger_id: int) -> int:
        return self._cache.records.first_log(ledger_id)

    def append(self, ledger_id: int, entry_ids: list[int], entries: list[bytes], first_log: int) -> list[int]:
        try:
            return self._logs.append_run(ledger_id, entry_ids, entries, roll=self._roll, first_log=first_log)
        except StorageFault as error:
            raise checked(self._logs, error) from error

    def put(self, ledger_id: int, entry_ids: list[int], locations: list[int]) -> None:
        self._cache.put(ledger_id, entry_ids, locations, lambda: self.is_deleted(ledger_id))

    def is_deleted(self, ledger_id: int) -> bool:
        return ledger_id in self._half.deleted

    def slices(self, ledger_id: int) -> Iterator[tuple[list[int], list[bytes]]]:
        """The ledger's entries, cut to about a millisecond's work."""
        held = self._half.ledgers[ledger_id]
        entry_ids = sorted(held) if self._in_order else list(held)
        limit = self._cache.max_entry_id
        if max(entry_ids, default=0) > limit:
            _log.error("entry ids beyond what an index file holds: ledger in limbo", ledger_id=ledger_id)
            self._on_unindexable(ledger_id)
            entry_ids = [entry_id for entry_id in entry_ids if entry_id <= limit]
        begin = 0
        while begin < len(entry_ids):
            end, nbytes = begin, 0
            while end < len(entry_ids) and end - begin < SLICE_ENTRIES and nbytes < SLICE_BYTES:
                nbytes += len(held[entry_ids[end]])
                end += 1
            part = entry_ids[begin:end]
            yield part, [held[entry_id] for entry_id in part]
            begin = end


class _LedgerPart:
    """The entries of one ledger in the map, and how far they are drained."""

    def __init__(self, drain: Drain, ledger_id: int) -> None:
        self._drain = drain
        self._ledger_id = ledger_id
        self._slices: Iterator[tuple[list[int], list[bytes]]] | None = None
        self._current: tuple[list[int], list[bytes]] | None = None
        self._locations: list[int] | None = None
        self.nbytes = 0

    def run(self) -> None:
        if self._slices is None:
            self._slices = self._drain.slices(self._ledger_id)
        while True:
            # First: the ledger may be deleted and created again meanwhile.
            first_log = self._drain.first_log(self._ledger_id)
            if self._drain.is_deleted(self._ledger_id):
                return
            if self._current is None:
                self._current = next(self._slices, None)
                if self._current is None:
                    return
            try:
                self._slice(*self._current, first_log)
            except NoLedgerIndex:
                return
            self._current = self._locations = None
            time.sleep(YIELD_SECONDS)

    def _slice(self, entry_ids: list[int], entries: list[bytes], first_log: int) -> None:
        if self._locations is None:
            self._locations = self._drain.append(self._ledger_id, entry_ids, entries, first_log)
            self.nbytes += sum(map(len, entries))
        self._drain.put(self._ledger_id, entry_ids, self._locations)


def sync_for_index(logs: EntryLogger) -> None:
    """Make durable what index pages are about to point to. `StorageFault`, `StorageFailed`."""
    try:
        logs.sync()
    except StorageFault as error:
        raise checked(logs, error) from error


def checked(logs: EntryLogger, error: StorageFault) -> StorageFault:
    """`error`, or `StorageFailed` if a sync has failed: nothing can be appended again what memory no longer holds."""
    if isinstance(error, StorageFailed) or not logs.sync_failed:
        return error
    return StorageFailed(str(error))
