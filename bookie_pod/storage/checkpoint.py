"""Checkpoints: make the ledger storage durable, then let the marks move, then let old journals go.

Order, never changed
1. take the mark of every journal: all records below it were put into the storage before they were journaled; or take
   the marks that the engine asked for, which are older;
2. `storage.checkpoint(marks)` (at shutdown `flush`): everything put below them is in synced entry logs and synced
   indexes;
3. write the marks of step 1 to all writable ledger directories;
4. delete journals below them (not at shutdown).

A failure ends the checkpoint where it is: the marks stay, nothing is deleted, and the next checkpoint starts again.

    storage fault            logged; repeated after the next interval
    directory given up       the same, and `on_flushed` is called: what other directories hold is durable
    no writable directory    reported to `on_no_writable_directory` (the bookie turns read-only); repeated too
    no directory takes the   the same
    mark
    storage failed           reported to `on_failure` (the bookie stops): only a replay can bring back what was lost
    anything else            the same: a fault of ours, nothing may be assumed

Step 2 happens even if no mark has moved: deletions of ledgers, and entries that are not journaled at all
(`journalWriteData=false`), have to reach the disk as well. With nothing to write it costs one turn of the event loop.

When: every `flushInterval` with DbLedgerStorage and with one log per ledger; with the other engines when they ask for
it, after a log was rotated. A checkpoint that failed is repeated after `flushInterval` in any case.

Threads: `checkpoint` runs on the thread named so, or on that of its caller, one at a time; `request` may come from any.

Source: docs/internals/on-disk-formats.md, section 13; docs/internals/bookie-behaviour.md, section 13.4.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from bookie_pod.storage.engines.interface import DirectoryGivenUp, LedgerStorage
from bookie_pod.storage.journal.journal import Journal
from bookie_pod.storage.journal.marks import LogMark, MarkFiles
from bookie_protocol.errors import JournalDamaged, NoWritableDirectory, StorageFailed, StorageFault

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class CheckpointHandlers:
    """Whom to tell; called on the checkpoint thread or on a storage thread, possibly repeatedly."""

    on_no_writable_directory: Callable[[BaseException], None]
    on_failure: Callable[[BaseException], None]
    on_checkpoint: Callable[[float], None] = lambda seconds: None
    """A checkpoint is complete; it took this long."""
    on_flushed: Callable[[], None] = lambda: None
    """The storage has flushed all but what directories owe that were given up, so no checkpoint is ever complete."""


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A request for a checkpoint up to `marks`, or up to now if `marks` is None."""

    marks: Sequence[LogMark] | None


class SyncThread:
    """Checkpoints the ledger storage every `flushInterval`, and whenever it is asked to."""

    def __init__(
        self,
        storage: LedgerStorage,
        journals: Sequence[Journal],
        marks: Sequence[MarkFiles],
        writable_directories: Callable[[], Sequence[str]],
        handlers: CheckpointHandlers,
        *,
        flush_interval_ms: int = 10_000,
    ) -> None:
        """`marks[i]` belongs to `journals[i]`; `flush_interval_ms` is `flushInterval`."""
        if len(journals) != len(marks):
            raise ValueError(f"{len(journals)} journals but {len(marks)} mark writers")
        self._storage = storage
        self._journals = tuple(journals)
        self._marks = tuple(marks)
        self._writable_directories = writable_directories
        self._handlers = handlers
        self._interval = flush_interval_ms / 1000
        self._completed = [LogMark()] * len(journals)
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._wanted: _Wanted | None = None
        self._began: float | None = None
        """The time at which the current checkpoint began (monotonic), or None if none is running."""
        self._flushing = False
        self._wanted_lock = threading.Lock()
        self._stopping = False
        self._told = ""
        """The reason that was logged last. A disk may be full for days, and one line says so."""
        self._thread: threading.Thread | None = None
        storage.on_flush_failure(self._tell)

    def start(self) -> None:
        """Begin with the checkpoints; only after replay, when the journals run. On the event loop."""
        self._storage.start(self)
        self._thread = threading.Thread(target=self._run, name="checkpoint", daemon=True)
        self._thread.start()

    def marks(self) -> list[LogMark]:
        """Return the mark of every journal now. Any thread."""
        return [journal.last_mark() for journal in self._journals]

    def step(self) -> object | None:
        """Return a value that changes with each step of the running checkpoint and each write of the storage, or None.

        None means that no checkpoint is running. Any thread.
        """
        began = self._began
        return None if began is None else (began, self._storage.written() if self._flushing else None)

    def request(self, marks: Sequence[LogMark] | None = None) -> None:
        """Let the thread make a checkpoint now, of what lies below `marks` (None: of now). Never blocks."""
        with self._wanted_lock:
            self._wanted = _Wanted(marks if self._wanted is None or self._wanted.marks is not None else None)
        self._wake.set()

    def stop(self) -> None:
        """End the thread, after the checkpoint that is running. No error if it never ran."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def shutdown(self) -> None:
        """End the thread, then a last checkpoint that deletes no journals. Before the journals stop.

        Raises what the checkpoint raises; nothing is lost by that, the next start replays.
        """
        self.stop()
        self.checkpoint(trim=False)

    def _run(self) -> None:
        failed = False
        while True:
            self._wake.wait(self._interval if failed or self._storage.checkpoints_by_interval else None)
            self._wake.clear()
            if self._stopping:
                return
            with self._wanted_lock:
                wanted, self._wanted = self._wanted, None
            failed = False
            try:
                self.checkpoint(marks=None if wanted is None else wanted.marks)
                self._told = ""
            except Exception as error:
                failed = True
                self._tell(error)

    def checkpoint(self, *, trim: bool = True, marks: Sequence[LogMark] | None = None) -> None:
        """One checkpoint on the calling thread (not the event loop), of what lies below `marks` or the marks of now.

        Raises what ended it. Without `trim` it is the last one: everything is flushed, no journal is deleted.
        """
        with self._lock:
            self._began = begin = time.monotonic()
            try:
                taken = self.marks() if marks is None else list(marks)
                self._flushing = True
                if trim:
                    self._storage.checkpoint(taken)
                else:
                    self._storage.flush()
                self._flushing = False
                self._persist(taken)
                if trim:
                    self._trim()
            except DirectoryGivenUp:
                self._handlers.on_flushed()
                raise
            finally:
                self._began, self._flushing = None, False
            self._handlers.on_checkpoint(time.monotonic() - begin)

    def _persist(self, taken: Sequence[LogMark]) -> None:
        for index, mark in enumerate(taken):
            if mark <= self._completed[index]:
                continue
            try:
                self._marks[index].write(mark, self._writable_directories())
            except NoWritableDirectory:
                raise
            except StorageFault as error:
                raise NoWritableDirectory(str(error)) from error
            self._completed[index] = mark

    def _trim(self) -> None:
        for journal, mark in zip(self._journals, self._completed, strict=True):
            if mark == LogMark():
                continue
            try:
                journal.remove_below(mark)
            except (StorageFault, JournalDamaged) as error:  # old journals that stay do no harm
                _log.warning("cannot delete old journals, will be tried again", error=str(error))

    def _tell(self, error: BaseException) -> None:
        if isinstance(error, NoWritableDirectory):
            tell = _log.debug if self._told == str(error) else _log.error
            tell("no writable ledger directory, marks stay", error=str(error))
            self._told = str(error)
            self._handlers.on_no_writable_directory(error)
        elif isinstance(error, StorageFailed):
            _log.critical("the storage cannot go on", error=str(error))
            self._handlers.on_failure(error)
        elif isinstance(error, StorageFault):
            _log.error("checkpoint failed, marks stay, will be repeated", error=str(error))
        else:
            _log.critical("checkpoint failed, and not because of a storage fault", error=repr(error))
            self._handlers.on_failure(error)
