"""`SortedLedgerStorage`: a memtable of `skipListSizeLimit` bytes in front of what InterleavedLedgerStorage does.

A full memtable is frozen and drained in (ledger, entry) order. A drain may grow the current log beyond
`logSizeLimit`; the log is rotated behind it if it is full, or another than before, and a checkpoint is asked for with
the stamp of the map. A checkpoint that needs more than the rotated logs hold rotates the current one first.

With one log per ledger the frozen map is cut into ledgers, drained on `numOfMemtableFlushThreads` threads; a
checkpoint syncs all logs, every `flushInterval`.

Threads: see `MemTableStorage`.

Source: reference bookie behaviour, sections 4 and 13.1; reference on-disk formats, sections 4.4 and 13.
"""

from __future__ import annotations

from collections.abc import Sequence

from bookie_pod.storage.cache.memtable import EntryMemTable
from bookie_pod.storage.engines.drain import Drain
from bookie_pod.storage.engines.interface import OnLoop
from bookie_pod.storage.engines.memtable_storage import MemTableStorage, covers
from bookie_pod.storage.engines.metrics import MemTableMetrics
from bookie_pod.storage.engines.storage_flags import StorageFlags
from bookie_pod.storage.entry_log.logger import EntryLogger
from bookie_pod.storage.index.ledger_cache import LedgerCache
from bookie_pod.storage.journal.marks import LogMark


class SortedLedgerStorage(MemTableStorage):
    """A `LedgerStorage`."""

    def __init__(
        self,
        logs: EntryLogger,
        cache: LedgerCache,
        on_loop: OnLoop,
        metrics: MemTableMetrics,
        *,
        flags: StorageFlags,
        folders: Sequence[str],
        memtable_bytes: int,
        log_per_ledger: bool,
        flush_threads: int,
    ) -> None:
        """`memtable_bytes` is `skipListSizeLimit`; `flush_threads` counts only with one log per ledger."""
        super().__init__(
            logs,
            cache,
            EntryMemTable(memtable_bytes, first_copy_stays=True),
            on_loop,
            metrics,
            flags=flags,
            folders=folders,
            log_per_ledger=log_per_ledger,
            flush_threads=flush_threads if log_per_ledger else 1,
        )
        self._prepared: Drain | None = None

    def _new_drain(self) -> Drain:
        assert self.memtable.frozen is not None
        return Drain(
            self.memtable.frozen,
            self.logs,
            self.cache,
            in_order=True,
            roll=False,
            on_unindexable=lambda ledger_id: self._on_loop(lambda: self._set_limbo(ledger_id)),
        )

    def _run_drain(self, drain: Drain) -> None:
        if self._prepared is not drain:  # a second try must not take the log of the first for the one before
            self.logs.prepare_memtable_flush()
            self._prepared = drain
        drain.run(self._flusher)
        self._prepared = None  # it would keep the entries of the map
        self._drained()
        self.logs.commit_memtable_flush()

    def _sync_logs(self, marks: Sequence[LogMark]) -> None:
        self.logs.checkpoint()

    def checkpoint(self, marks: Sequence[LogMark]) -> None:
        with self._checkpoint_lock:
            self._background.run(lambda: self._prepare_logs(marks))
            self._make_durable(lambda: self._sync_logs(marks))

    def _prepare_logs(self, marks: Sequence[LogMark]) -> None:
        self._drain_up_to(marks)
        if not self._log_per_ledger and not covers(self._rotated_stamp, marks):
            self.logs.rotate()
