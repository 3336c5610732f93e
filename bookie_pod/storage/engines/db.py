"""`DbLedgerStorage`: one `SingleDirectoryStorage` per ledger directory, side by side.

Invariants
- A ledger belongs to directory `ledger id mod number of directories`, for ever: neither number nor order may
  change.
- Each directory has its own halves, entry logs, databases and one storage thread; only that thread flushes
  it. At most one requested flush per directory waits, beside at most one checkpoint.
- Until `start` the replaying thread puts, and only a `flush` that it calls itself swaps a half: a swap between its look
  at the active half and its put would lose what it puts.
- `flush` returns when every directory has flushed, and raises if one failed; the others are flushed all the
  same.

Threads: see `LedgerStorage`.

Source: docs/internals/on-disk-formats.md, section 1 (signSafeMod), sections 8 and 13.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import reduce
from operator import or_
from typing import Final

import structlog

from bookie_pod.storage.engines.interface import FLUSH_TRIES, Checkpointer, DirectoryGivenUp, OnDeleted, OnLoop
from bookie_pod.storage.engines.single_directory import SingleDirectoryStorage
from bookie_pod.storage.index.ledger_data import LedgerRecord
from bookie_pod.storage.index.locations import MAX_ENTRY_ID
from bookie_pod.storage.journal.marks import LogMark
from bookie_protocol.errors import NoWritableDirectory, ResourcesShort, StorageFault

_log = structlog.get_logger(__name__)

RETRY_SECONDS: Final = 1.0
"""Pause before a failed flush of a full half is repeated. Each try may leave orphans in the entry logs."""


class DbLedgerStorage:
    """A `LedgerStorage` over several ledger directories."""

    def __init__(self, directories: Sequence[SingleDirectoryStorage], on_loop: OnLoop, *, flush_bytes: int = 0) -> None:
        """`directories` in the order of the configuration, which is part of the data. `flush_bytes`: how much each
        gathers before it is flushed, once the replay is over; 0: a half of its write cache."""
        if not directories:
            raise ValueError("a DbLedgerStorage needs at least one ledger directory")
        self.directories = tuple(directories)
        self._count = len(self.directories)
        self._on_loop = on_loop
        self._flush_bytes = flush_bytes
        self._threads = [
            ThreadPoolExecutor(max_workers=1, thread_name_prefix=f"storage-{index}") for index in range(self._count)
        ]
        self._failure_callbacks: list[Callable[[BaseException], None]] = []
        self._on_directory_failure: Callable[[int, StorageFault], None] = lambda index, failure: None
        self._failed_flushes = [0] * self._count
        """The number of consecutive failed flushes, by directory; each belongs to that directory's storage thread."""
        self._retries: dict[int, threading.Timer] = {}
        self._began: list[float | None] = [None] * self._count
        self._closed = False
        self.checkpoints_by_interval = True
        self.max_entry_id = MAX_ENTRY_ID
        self.write_caches = self._count

    def directory_of(self, ledger_id: int) -> SingleDirectoryStorage:
        """Return the directory that a ledger belongs to (Python's % is the reference's signSafeMod)."""
        return self.directories[ledger_id % self._count]

    @property
    def doubts(self) -> int:
        return sum(directory.doubts for directory in self.directories)

    # --- event loop -----------------------------------------------------------------------------------------

    def start(self, checkpointer: Checkpointer) -> None:
        """Allow flushes from now on, also while the event loop puts entries: it makes both puts and swaps."""
        for directory in self.directories:
            directory.flush_bytes = self._flush_bytes

    def ledger(self, ledger_id: int) -> LedgerRecord | None:
        return self.directories[ledger_id % self._count].ledgers.get(ledger_id)

    def set_ledger(self, ledger_id: int, record: LedgerRecord) -> None:
        self.directory_of(ledger_id).ledgers.put(ledger_id, record)

    def set_master_key(self, ledger_id: int, key: bytes) -> LedgerRecord:
        return self.directory_of(ledger_id).ledgers.set_master_key(ledger_id, key)

    def active_entries(self, ledger_id: int) -> dict[int, bytes]:
        return self.directories[ledger_id % self._count].active_entries(ledger_id)

    def account(self, ledger_id: int, nbytes: int, count: int) -> bool:
        directory = self.directories[ledger_id % self._count]
        full = directory.account(nbytes, count)
        if directory.is_due:
            self.request_flush(ledger_id)
        return full

    def is_full(self, ledger_id: int) -> bool:
        return self.directories[ledger_id % self._count].is_full

    def request_flush(self, ledger_id: int) -> None:
        index = ledger_id % self._count
        directory = self.directories[index]
        if directory.flush_wanted or self._closed or directory.failure is not None:
            return
        directory.flush_wanted = True
        self._submit(index)

    def _submit(self, index: int) -> None:
        with contextlib.suppress(RuntimeError):  # closed meanwhile
            self._threads[index].submit(self._requested_flush, index)

    def _requested_flush(self, index: int) -> None:
        """Runs on the directory's storage thread."""
        directory = self.directories[index]
        if not directory.flush_wanted:
            return  # a checkpoint has swapped since
        try:
            self._flush(index)
        except BaseException as error:
            _log.error("flush of a full write cache failed, will be repeated", error=str(error))
            self._retry_later(index)
            for callback in self._failure_callbacks:
                callback(error)

    def _flush(self, index: int, *, seal: bool = False) -> None:
        """Flush the directory on its storage thread. With `seal`, seal its indexes too, before a mark moves."""
        directory = self.directories[index]
        self._began[index] = time.monotonic()
        try:
            directory.flush_and_seal() if seal else directory.flush()
        except StorageFault as error:
            # What the machine lacks comes back; a disk that has refused so often does not.
            if directory.failure is None and not isinstance(error, ResourcesShort | NoWritableDirectory):
                self._failed_flushes[index] += 1
                if self._failed_flushes[index] == FLUSH_TRIES:
                    failure = StorageFault(f"{FLUSH_TRIES} flushes failed one after the other, the last: {error}")
                    self._on_directory_failure(index, failure)
            raise
        finally:
            self._began[index] = None
        self._failed_flushes[index] = 0

    def flushing(self) -> list[tuple[str, object | None]]:
        return [
            (f"storage-{index}", None if began is None else (began, self.directories[index].logs.stats.written))
            for index, began in enumerate(self._began)
        ]

    def written(self) -> int:
        return sum(directory.logs.stats.written for directory in self.directories)

    def _retry_later(self, index: int) -> None:
        """Repeat a flush that did not get as far as the swap; until then further requests count as made."""
        directory = self.directories[index]
        if self._closed or not directory.flush_wanted or directory.failure is not None:
            return
        timer = self._retries[index] = threading.Timer(RETRY_SECONDS, self._submit, (index,))
        timer.daemon = True
        timer.name = f"storage-{index}-retry"
        timer.start()

    def on_swap(self, callback: Callable[[], None]) -> None:
        for directory in self.directories:
            directory.on_swap(callback)

    def on_space(self, callback: Callable[[], None]) -> None:
        for directory in self.directories:
            directory.on_space(callback)

    def on_flush_failure(self, callback: Callable[[BaseException], None]) -> None:
        self._failure_callbacks.append(callback)

    def on_directory_failure(self, callback: Callable[[int, StorageFault], None]) -> None:
        self._on_directory_failure = callback

    def on_ledger_deleted(self, callback: OnDeleted) -> None:
        for directory in self.directories:
            directory.on_ledger_deleted(callback)

    def cached(self, ledger_id: int, entry_id: int) -> bytes | None:
        return self.directories[ledger_id % self._count].cached(ledger_id, entry_id)

    def cached_each(self, ledger_id: int, entry_ids: Sequence[int]) -> list[bytes | None]:
        return self.directories[ledger_id % self._count].cached_each(ledger_id, entry_ids)

    def cached_run(self, ledger_id: int, entry_ids: range) -> list[bytes]:
        return self.directories[ledger_id % self._count].cached_run(ledger_id, entry_ids)

    def fail_directory(self, index: int, failure: StorageFault) -> None:
        if self.directories[index].failure is None:
            self.directories[index].fail(failure)

    # --- reader threads -------------------------------------------------------------------------------------

    def read(self, ledger_id: int, entry_id: int) -> bytes:
        return self.directory_of(ledger_id).read(ledger_id, entry_id)

    def read_each(
        self, ledger_id: int, entry_ids: Sequence[int], *, apart: bool = False
    ) -> Iterator[bytes | Exception]:
        return self.directory_of(ledger_id).read_each(ledger_id, entry_ids, apart=apart)

    def read_apart(self, ledger_id: int, first: int, count: int, max_bytes: int) -> list[bytes]:
        return self.directory_of(ledger_id).read_apart(ledger_id, first, count, max_bytes)

    def last_entry_id(self, ledger_id: int) -> int:
        return self.directory_of(ledger_id).last_entry_id(ledger_id)

    def entry_ids(self, ledger_id: int, *, in_logs: bool = False) -> Iterator[int]:
        return self.directory_of(ledger_id).entry_ids(ledger_id, in_logs=in_logs)

    # --- any thread -----------------------------------------------------------------------------------------

    def ledger_ids(self) -> list[int]:
        return [ledger_id for directory in self.directories for ledger_id in directory.ledgers.ledger_ids()]

    def delete_ledger(self, ledger_id: int) -> None:
        self.directory_of(ledger_id).delete_ledger(ledger_id)

    def deleted_before(self, ledger_id: int, next_log: int) -> None:
        self.directory_of(ledger_id).deleted_before(ledger_id, next_log)

    def flags(self) -> int:
        """See `LedgerStorage`. A flag of any directory counts: a rebuild sets it where it has made the database. The
        reference knows only those of the directory that owns ledger 0."""
        return reduce(or_, (each.ledgers.flags() for each in self.directories if each.failure is None), 0)

    def set_flags(self, flags: int) -> None:
        for each in self.directories:
            if each.failure is None and each.ledgers.flags() != flags:
                each.ledgers.set_flags(flags)

    def clear_flags(self, flags: int, doubts: int) -> bool:
        """See `LedgerStorage`. A rebuild that sets a flag raises a doubt first."""
        for each in self.directories:
            if each.failure is None and each.ledgers.flags() & flags:
                each.ledgers.change_flags(lambda known: known & ~flags if self.doubts == doubts else known)
        return self.doubts == doubts

    # --- background threads ---------------------------------------------------------------------------------

    def flush(self) -> None:
        running = [thread.submit(self._flush, index, seal=True) for index, thread in enumerate(self._threads)]
        raise_worst(running)

    def checkpoint(self, marks: Sequence[LogMark]) -> None:
        self.flush()

    def close(self) -> None:
        """Wait for running flushes, then close every directory; the first error is raised after all were
        tried."""
        if self._closed:
            return
        self._closed = True
        for thread in self._threads:
            thread.shutdown(wait=True, cancel_futures=True)
        for timer in self._retries.values():
            timer.cancel()
            timer.join()
        errors: list[Exception] = []
        for directory in self.directories:
            try:
                directory.close()
            except Exception as error:
                errors.append(error)
        if errors:
            raise errors[0]


def raise_worst(running: Sequence[Future[None]]) -> None:
    """Wait for all; raise the gravest error: one of our own making, an I/O error, a full disk, or last a directory
    that was given up."""
    errors = [error for future in running if (error := future.exception()) is not None]
    if errors:
        raise min(errors, key=_gravity)


def _gravity(error: BaseException) -> int:
    if not isinstance(error, StorageFault):
        return 0
    if isinstance(error, DirectoryGivenUp):
        return 3
    return 2 if isinstance(error, NoWritableDirectory) else 1
