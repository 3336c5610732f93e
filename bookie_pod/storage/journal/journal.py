"""`Journal`: the write-ahead log of one journal directory.

Invariants
- A batch is acknowledged only when every byte of it is synced (deferred-sync batches and `sync_data=False`: when it is
  written to the OS), in the order of `append`.
- Nothing is written to a file before everything in the file before it is synced. Only the newest file with records can
  therefore have a torn tail.
- After the first error nothing more is acknowledged: what was not answered is in doubt, and only a replay settles it.
- `last_mark` is the end of a synced group.

Threads: `append` on one thread (the event loop); it never blocks. `journal-<index>` writes, `journal-<index>-sync`
syncs, and each calls `deliver`. All counters have one writing thread each. `remove_below` belongs to the checkpoint
thread, `start` and `stop` to the owner of the journal.
"""

from __future__ import annotations

import errno
import math
import threading
import time
from collections.abc import Callable

import structlog

from bookie_pod.config.sections.journal import JournalConfig
from bookie_pod.metrics.journal import FlushReason, JournalMetrics
from bookie_pod.metrics.registry import Registry
from bookie_pod.storage.files import Files, storage_fault
from bookie_pod.storage.journal.batch_queue import BatchQueue, Deliver, JournalBatch
from bookie_pod.storage.journal.directory import journal_path, list_journals, remove_journals_below
from bookie_pod.storage.journal.format import FIRST_VERSION_WITH_EXPLICIT_LAC, NO_FILE, without_explicit_lacs
from bookie_pod.storage.journal.journal_file import JournalFile
from bookie_pod.storage.journal.marks import LogMark
from bookie_pod.storage.journal.sync_thread import SyncThread, WrittenGroup, observe_acknowledged
from bookie_protocol.errors import StorageFault, fresh

_log = structlog.get_logger(__name__)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class JournalFileSupply:
    """New journal files, made before they are needed.

    The next file is created (header and name synced) by a short-lived thread as soon as the current one is half full,
    so that no add waits for it. If that failed it is tried once more when the file is needed.

    Makes the files of one journal directory, with ascending ids.

    Threads: all methods on the journal thread, or before it exists and after it ended.
    """

    def __init__(
        self,
        files: Files,
        directory: str,
        options: JournalConfig,
        metrics: JournalMetrics,
        *,
        thread_name: str,
        now_ms: Callable[[], int] = _now_ms,
    ) -> None:
        self._files = files
        self._directory = directory
        self._options = options
        self._metrics = metrics
        self._thread_name = thread_name
        self._now_ms = now_ms
        self._last_id = -1
        self._previous = NO_FILE
        """The file that was written before the next one."""
        self._thread: threading.Thread | None = None
        self._ready: JournalFile | None = None

    def first(self, after: LogMark) -> JournalFile:
        """The first file of this process: largest id + 1, or the time in ms + 1 if the directory holds none.

        `after` is where the records end that other processes left; (0, 0) if they left none. Raises `StorageFault` if
        the directory cannot be listed, `OSError` if the file cannot be made.
        """
        ids = list_journals(self._files, self._directory)
        self._last_id = ids[-1] if ids else self._now_ms()
        self._previous = NO_FILE if after == LogMark() else after.journal_id
        return self._begin(self._create(), after.offset)

    def prepare(self) -> None:
        """Begin to make the next file, unless that was begun."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._prepare, name=self._thread_name, daemon=True)
            self._thread.start()

    def _prepare(self) -> None:
        try:
            self._ready = self._create()
        except OSError as error:
            _log.warning("cannot make the next journal yet", directory=self._directory, error=str(error))

    def next(self, end: int) -> JournalFile:
        """The next file, after one that ends at `end`: waits for that begun, else makes one now. Raises `OSError`."""
        self._join()
        ready, self._ready = self._ready, None
        return self._begin(ready or self._create(), end)

    def _begin(self, file: JournalFile, end_of_previous: int) -> JournalFile:
        file.before = end_of_previous
        self._previous = file.journal_id
        return file

    def discard(self) -> None:
        """Remove the file that was made and never used."""
        self._join()
        unused, self._ready = self._ready, None
        if unused is not None:
            unused.close()
            self._files.unlink(unused.path)

    def _join(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.join()

    def _create(self) -> JournalFile:
        journal_id = self._last_id + 1
        while self._files.exists(journal_path(self._directory, journal_id)):
            journal_id += 1
        began = time.perf_counter()
        made = JournalFile.create(self._files, self._directory, journal_id, self._options, self._previous)
        self._last_id = journal_id  # only now: files that do not name the one before them must leave no gap
        self._metrics.creation_latency.observe_ms((time.perf_counter() - began) * 1000)
        return made


class Journal:
    """Group commit into the files of one directory (its `current` folder)."""

    def __init__(
        self,
        directory: str,
        index: int,
        files: Files,
        options: JournalConfig,
        deliver: Deliver,
        on_failure: Callable[[StorageFault], None],
        metrics: JournalMetrics | None = None,
    ) -> None:
        self.directory = directory
        self.index = index
        self.options = options
        self._files = files
        self._deliver = deliver
        self._on_failure = on_failure
        self._metrics = metrics or JournalMetrics(Registry(), index)
        self._queue = BatchQueue(options, self._metrics)
        self._stopping = False
        self._broken = False
        self._error: StorageFault | None = None
        self._fail_lock = threading.Lock()
        self._acknowledged_entries = 0
        self._acknowledged_bytes = 0
        self._unsynced_since: float | None = None
        self._awaited: threading.Event | None = None
        self._file: JournalFile | None = None
        self._sync = SyncThread(options, self._metrics, deliver)
        self._supply = JournalFileSupply(
            files, directory, options, self._metrics, thread_name=f"journal-{index}-next-file"
        )
        self._writer_thread = threading.Thread(target=self._run, name=f"journal-{index}", daemon=True)
        self._sync_thread = threading.Thread(target=self._run_sync, name=f"journal-{index}-sync", daemon=True)

    # --- the owner ------------------------------------------------------------------------------------------

    def start(self, after: LogMark = LogMark(), *, written: LogMark = LogMark()) -> None:  # noqa: B008 -- immutable
        """Make this process's first file and start the threads; only after the replay, which returned `after` (the end
        of the records) and wrote the mark `written`. Raises `StorageFault`.

        Files below that mark are deleted before, and if the disk is full even those that are kept as backups.
        """
        self.remove_below(written)
        try:
            try:
                self._file = self._supply.first(after)
            except OSError as error:
                if error.errno != errno.ENOSPC or not remove_journals_below(self._files, self.directory, written, 0):
                    raise
                _log.warning("the journal disk was full: old journals were deleted", directory=self.directory)
                self._file = self._supply.first(after)
        except OSError as error:
            raise storage_fault(f"cannot start journal {self.index} in {self.directory}", error) from error
        self._sync.last_mark = LogMark(self._file.journal_id, self._file.position)
        self._writer_thread.start()
        self._sync_thread.start()

    def stop(self) -> None:
        """Write, sync and acknowledge all that is queued, then close the file. Returns when the threads ended."""
        self._stopping = True
        self._queue.wake()
        for thread in (self._writer_thread, self._sync_thread):
            if thread.ident is not None:
                thread.join()
        if self._broken:
            self._release_files()

    def _release_files(self) -> None:
        """After a failure: close what is open; nothing here can be made durable any more."""
        try:
            if self._file is not None:
                self._file.close()
            self._supply.discard()
        except OSError as error:
            _log.warning("cannot tidy up a failed journal", index=self.index, error=str(error))

    def remove_below(self, mark: LogMark) -> list[int]:
        """Delete files strictly below the mark, but for the newest `max_backups`; gives their ids."""
        return remove_journals_below(self._files, self.directory, mark, self.options.max_backups)

    # --- adding ---------------------------------------------------------------------------------------------

    def append(self, batch: JournalBatch) -> None:
        """Queue a batch. Never blocks. Raises `StorageFault` once the journal has failed or was stopped."""
        if self._error is not None or self._stopping:
            stopped = StorageFault(f"journal {self.index} in {self.directory} is stopped")
            raise stopped if self._error is None else fresh(self._error)
        self._queue.append(batch)

    def has_room(self) -> bool:
        """Return whether the limits on unacknowledged records and bytes allow more; if not, callers stop reading."""
        limit_entries, limit_bytes = self.options.queue_size, self.options.max_memory_bytes
        return not (0 < limit_entries <= self.queued_entries or 0 < limit_bytes <= self.queued_bytes)

    def last_mark(self) -> LogMark:
        """End of the last synced group: everything before it is durable here."""
        return self._sync.last_mark

    # --- levels, for back-pressure and gauges ---------------------------------------------------------------

    @property
    def queued_entries(self) -> int:
        """Records not yet acknowledged."""
        return self._queue.appended_entries - self._acknowledged_entries - self._sync.acknowledged_entries

    @property
    def queued_bytes(self) -> int:
        """Bytes not yet acknowledged (`JOURNAL_MEMORY_USED`)."""
        return self._queue.appended_bytes - self._acknowledged_bytes - self._sync.acknowledged_bytes

    @property
    def appended_bytes(self) -> int:
        """Bytes of records that were given to the journal, ever."""
        return self._queue.appended_bytes

    @property
    def queue_size(self) -> int:
        """Records that the journal thread has not taken yet (`JOURNAL_QUEUE_SIZE`)."""
        return self._queue.entries

    @property
    def force_write_queue_size(self) -> int:
        """Groups written and not yet taken for a sync (`JOURNAL_FORCE_WRITE_QUEUE_SIZE`)."""
        return self._sync.waiting

    def step(self) -> object | None:
        """Return a value that changes with everything that it acknowledges; None if no batch waits."""
        acknowledged = self._acknowledged_entries + self._sync.acknowledged_entries
        return acknowledged if self._queue.appended_entries != acknowledged else None

    @property
    def slow_syncs(self) -> int:
        return self._sync.slow_syncs

    @property
    def error(self) -> StorageFault | None:
        """Return why the journal failed; None while it works."""
        return self._error

    # --- journal thread -------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._broken and (self._queue or not self._stopping):
                self._run_once()
            self._check_sync_thread()
            self._finish()
        except BaseException as error:  # whatever ends this thread, adds wait for it
            self._fail(error)
        finally:
            self._sync.close()

    def _run_once(self) -> None:
        reason = self._queue.wait_for_group(self._is_ending, self._seconds_to_sync)
        if self._broken:
            return
        if reason is not None:
            began = time.monotonic()
            self._write_group(self._queue.take_group(began), reason)
            self._metrics.process_time.observe_ms((time.monotonic() - began) * 1000)
        elif self._seconds_to_sync() <= 0:
            self._hand_over([])

    def _is_ending(self) -> bool:
        return self._stopping or self._broken

    def _write_group(self, group: list[JournalBatch], reason: FlushReason) -> None:
        file = self._current_file()
        began = time.monotonic()
        payload = [self._payload(batch) for batch in group if batch.pieces]
        nbytes = sum(size for _, size in payload)
        if nbytes:
            self._metrics.write_bytes.add(file.write_group(payload, nbytes))
            if self._unsynced_since is None:
                self._unsynced_since = began
        self._metrics.flush_latency.observe_ms((time.monotonic() - began) * 1000)
        self._metrics.groups[reason].add()
        self._pass_on(group)

    def _payload(self, batch: JournalBatch) -> tuple[list[bytes], int]:
        if self.options.format_version >= FIRST_VERSION_WITH_EXPLICIT_LAC:
            return batch.pieces, batch.nbytes
        data = without_explicit_lacs(b"".join(batch.pieces))
        return [data], len(data)

    def _pass_on(self, group: list[JournalBatch]) -> None:
        """Acknowledge what needs no sync, hand the rest to the sync thread, roll a full file over."""
        sync_data = self.options.sync_data
        done = [batch for batch in group if not (sync_data and batch.sync)]
        if done:
            entries, nbytes = observe_acknowledged(self._metrics, done)
            self._acknowledged_entries += entries
            self._acknowledged_bytes += nbytes
            self._deliver(done, None)  # last, see `SyncThread._acknowledge`
        needs_sync = [batch for batch in group if sync_data and batch.sync]
        position, max_bytes = self._current_file().position, self.options.max_size_bytes
        if position > max_bytes:
            self._roll_over(needs_sync)
        elif sync_data or self._seconds_to_sync() <= 0:
            self._hand_over(needs_sync)
        if max_bytes // 2 < position <= max_bytes:
            self._supply.prepare()

    def _seconds_to_sync(self) -> float:
        """Seconds until data that was written and not handed over must be; infinite if there is none."""
        if self._unsynced_since is None:
            return math.inf
        interval = self.options.page_cache_flush_interval_ms / 1000
        return self._unsynced_since + interval - time.monotonic()

    def _hand_over(self, batches: list[JournalBatch], *, wait: bool = False, closes_file: bool = False) -> None:
        """Let the sync thread sync all that was written and acknowledge `batches`; `wait` until it did."""
        file = self._current_file()
        self._unsynced_since = None
        synced = self._awaited = threading.Event() if wait else None
        self._sync.put(WrittenGroup(file, file.position, batches, synced, closes_file))
        if synced is not None:
            if not self._broken:
                synced.wait()
            self._check_sync_thread()

    def _check_sync_thread(self) -> None:
        if self._broken:
            raise StorageFault(f"the sync thread of journal {self.index} ended")

    def _roll_over(self, batches: list[JournalBatch]) -> None:
        """Hand over the last group of a full file and go on in the next one, once the full one is synced."""
        end = self._current_file().position
        self._hand_over(batches, wait=True, closes_file=True)
        self._file = None
        self._file = self._supply.next(end)
        _log.info("journal rolled over", index=self.index, path=self._file.path)

    def _finish(self) -> None:
        """Sync and close the last file, behind a group that says that everything before it was synced."""
        self._hand_over([], wait=True)
        self._current_file().close_group()
        self._hand_over([], wait=True, closes_file=True)
        self._file = None
        self._supply.discard()

    def _current_file(self) -> JournalFile:
        assert self._file is not None
        return self._file

    # --- sync thread ----------------------------------------------------------------------------------------

    def _run_sync(self) -> None:
        try:
            self._sync.run(lambda: self._broken)
        except BaseException as error:
            self._fail(error)
        finally:
            self._queue.wake()
            awaited = self._awaited
            if awaited is not None:
                awaited.set()

    # --- failing --------------------------------------------------------------------------------------------

    def _fail(self, error: BaseException) -> None:
        """End this journal: from here on nothing is acknowledged. Reported once, before anything else is tried."""
        with self._fail_lock:
            if self._broken:
                return
            self._broken = True
            self._error = StorageFault(f"journal {self.index} in {self.directory} failed: {str(error) or repr(error)}")
            self._error.__cause__ = error
        self._on_failure(self._error)
        _log.error("journal failed, nothing pending is acknowledged", index=self.index, error=str(error))
