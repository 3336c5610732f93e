"""What the ledger cache reports. The names follow reference bookie behaviour, section 11.7.

Invariants: every method is cheap, never raises and never blocks; counts may come from any thread.
"""

from __future__ import annotations

from typing import Protocol


class LedgerCacheMetrics(Protocol):
    """Sink for the counters of one ledger cache."""

    def page_hit(self) -> None:
        """A page was in memory: `LEDGER_CACHE_HIT`."""
        ...

    def page_miss(self) -> None:
        """A page was not in memory: `LEDGER_CACHE_MISS`."""
        ...

    def page_read(self, seconds: float) -> None:
        """A page was read from its file: `LEDGER_CACHE_READ_PAGE`."""
        ...

    def ledger_evicted(self) -> None:
        """A ledger's file was closed to stay within the limit: `LEDGER_CACHE_NUM_EVICTED_LEDGERS`."""
        ...

    def opening(self, change: int) -> None:
        """Count so many more (or fewer) threads that wait for a file to be opened: `PENDING_GET_FILE_INFO`."""
        ...

    def deleted_in_use(self) -> None:
        """A page was in use when its ledger was deleted: `INDEX_INMEM_ILLEGAL_STATE_DELETE`."""
        ...

    def scanned(self, pages: int, retries: int) -> None:
        """A ledger was scanned page by page: `STORAGE_SCRUB_PAGES_SCANNED`, `STORAGE_SCRUB_PAGE_RETRIES`."""
        ...


class NoCacheMetrics:
    """Reports nothing."""

    def page_hit(self) -> None: ...
    def page_miss(self) -> None: ...
    def page_read(self, seconds: float) -> None: ...
    def ledger_evicted(self) -> None: ...
    def opening(self, change: int) -> None: ...
    def deleted_in_use(self) -> None: ...
    def scanned(self, pages: int, retries: int) -> None: ...
