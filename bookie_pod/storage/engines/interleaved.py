"""`InterleavedLedgerStorage`: entries go to the entry log as they come, their locations into index files.

The reference appends each add to the log at once. Here the event loop must not write, so adds go into a memtable that
the storage thread drains all the time (`GATHER_SECONDS` after the first add, in one go for all that came meanwhile):
entries lie in the log in the order in which they came, ledger by ledger within one drain.

A checkpoint is asked for when a log was rotated, with the stamp of what the rotated logs hold for certain.

Threads: see `MemTableStorage`.

Source: reference bookie behaviour, section 4; reference on-disk formats, section 13.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from bookie_pod.storage.cache.memtable import EntryMemTable
from bookie_pod.storage.engines.drain import Drain
from bookie_pod.storage.engines.interface import OnLoop
from bookie_pod.storage.engines.memtable_storage import MemTableStorage, covers
from bookie_pod.storage.engines.metrics import MemTableMetrics
from bookie_pod.storage.engines.storage_flags import StorageFlags
from bookie_pod.storage.entry_log.logger import EntryLogger
from bookie_pod.storage.index.ledger_cache import LedgerCache
from bookie_pod.storage.journal.marks import LogMark

GATHER_SECONDS: Final = 0.05


class InterleavedLedgerStorage(MemTableStorage):
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
    ) -> None:
        """`memtable_bytes`: what adds may be ahead of the entry log; twice as much while a drain is running."""
        memtable = EntryMemTable(memtable_bytes, first_copy_stays=False)
        super().__init__(
            logs,
            cache,
            memtable,
            on_loop,
            metrics,
            flags=flags,
            folders=folders,
            log_per_ledger=log_per_ledger,
            flush_threads=1,
        )
        self._background.pause = GATHER_SECONDS

    def account(self, ledger_id: int, nbytes: int, count: int) -> bool:
        if self._checkpointer is not None:  # the replay puts from a thread of its own and flushes by itself
            self._background.request()
        return super().account(ledger_id, nbytes, count)

    def _new_drain(self) -> Drain:
        assert self.memtable.frozen is not None
        return Drain(
            self.memtable.frozen,
            self.logs,
            self.cache,
            in_order=False,
            roll=True,
            on_unindexable=lambda ledger_id: self._on_loop(lambda: self._set_limbo(ledger_id)),
        )

    def _run_drain(self, drain: Drain) -> None:
        drain.run()
        self._drained()

    def _sync_logs(self, marks: Sequence[LogMark]) -> None:
        if self._log_per_ledger or covers(self._rotated_stamp, marks):
            self.logs.checkpoint()
        else:
            self.logs.sync()  # what the marks cover is partly in the current log
