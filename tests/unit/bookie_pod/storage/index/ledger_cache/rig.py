"""A ledger cache on its own, over two directories in memory."""

from __future__ import annotations

from bookie_pod.metrics.memtable_storage import LedgerCacheMetrics
from bookie_pod.metrics.registry import Registry
from bookie_pod.storage.entry_log import LedgerDirStates
from bookie_pod.storage.index.ledger_cache import LedgerCache
from tests.support.memory_files import MemoryFiles
from tests.support.production import production

KEY = bytes(range(20))


class Counts(LedgerCacheMetrics):
    """Counts what the cache reports."""

    def __init__(self) -> None:
        super().__init__(Registry())
        self.hits = self.misses = self.reads = self.evicted = self.scanned_pages = 0

    def page_hit(self) -> None:
        self.hits += 1

    def page_miss(self) -> None:
        self.misses += 1

    def page_read(self, seconds: float) -> None:
        self.reads += 1

    def ledger_evicted(self) -> None:
        self.evicted += 1

    def scanned(self, pages: int, retries: int) -> None:
        self.scanned_pages += pages


class Rig:
    """A cache over two directories in memory."""

    def __init__(self, files: MemoryFiles | None = None, **options: int) -> None:
        self.files = files or MemoryFiles()
        for directory in ("/a", "/b"):
            self.files.makedirs(directory)
        self.states = LedgerDirStates(["/a", "/b"])
        self.counts = Counts()
        self.syncs = 0
        self.options = production(**{"page_size_bytes": 64, "min_usable_for_index_file_bytes": 0, **options})
        self.cache = self._open()

    def _open(self) -> LedgerCache:
        return LedgerCache(self.files, self.states, self.options, self._sync_logs, self.counts)

    def _sync_logs(self) -> None:
        self.syncs += 1

    def reopen(self) -> LedgerCache:
        self.cache.close()
        self.cache = self._open()
        return self.cache

    def add(self, *ledger_ids: int) -> None:
        for ledger_id in ledger_ids:
            self.cache.records.set_master_key(ledger_id, KEY)

    def flush(self) -> None:
        self.cache.take_dirty_headers()
        self.cache.flush()

    def path(self, ledger_id: int) -> str:
        path = self.cache._directories.path(ledger_id)
        assert path is not None
        return path
