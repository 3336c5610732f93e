"""What an engine reports. The names follow reference bookie behaviour, sections 11.5 and 11.7.

Invariants: every method is cheap, never raises and never blocks; counts may come from any thread.
"""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from bookie_pod.storage.index.ledger_cache import LedgerCacheMetrics, NoCacheMetrics


class ReadLevel(Enum):
    """Where a read found its entry."""

    WRITE_CACHE = "write_cache"
    """The active half."""
    FLUSHING_CACHE = "flushing_cache"
    """The half that is being flushed."""
    READ_CACHE = "read_cache"
    ENTRY_LOG = "entry_log"


class FlushStage(Enum):
    """Parts of a flush that are timed; the values are the reference's metric names."""

    WHOLE = "flush"
    ENTRY_LOG = "flush_entrylog"
    LOCATIONS = "flush_locations_index"
    LEDGERS = "flush_ledger_index"


class StorageMetrics(Protocol):
    """Sink for the counters of one ledger directory."""

    def read_from(self, level: ReadLevel, count: int = 1) -> None:
        """`count` entries were served from this level: `write_cache_hits`, `read_cache_hits`, or both missed."""
        ...

    def looked_up(self, seconds: float) -> None:
        """One look-up in the location index: `lookup_entry_location`, `read_locations_index_time`."""
        ...

    def read_log(self, seconds: float) -> None:
        """One read of an entry log: `read_entrylog_time`."""
        ...

    def read_ahead(self, seconds: float, entries: int, nbytes: int) -> None:
        """`readahead_time`, `readahead_batch_count`, `readahead_batch_size`."""
        ...

    def last_entry(self, seconds: float) -> None:
        """`get_last_entry_in_ledger`."""
        ...

    def flushed(self, stage: FlushStage, seconds: float) -> None:
        """A stage of a flush succeeded."""
        ...

    def flush_size(self, nbytes: int, entries: int) -> None:
        """Bytes (without overhead) and entries that one flush wrote."""
        ...

    def flush_failed(self) -> None: ...


class MemTableMetrics(LedgerCacheMetrics, Protocol):
    """Sink for the counters of InterleavedLedgerStorage or SortedLedgerStorage (reference bookie behaviour, 11.7)."""

    def got_offset(self, seconds: float) -> None:
        """One look-up in the index: `STORAGE_GET_OFFSET`."""
        ...

    def got_entry(self, seconds: float, success: bool) -> None:
        """One read of an entry log: `STORAGE_GET_ENTRY`."""
        ...

    def memtable_get(self, found: bool) -> None:
        """One look-up in the memtable: `SKIP_LIST_GET_ENTRY`."""
        ...

    def memtable_put(self, count: int) -> None:
        """Count so many entries that were put: `SKIP_LIST_PUT_ENTRY`."""
        ...

    def frozen(self, seconds: float) -> None:
        """A map was frozen: `SKIP_LIST_SNAPSHOT`."""
        ...

    def throttled(self, seconds: float) -> None:
        """The memtable was full for so long: `SKIP_LIST_THROTTLING`, `SKIP_LIST_THROTTLING_LATENCY`."""
        ...

    def flushed(self, seconds: float, nbytes: int) -> None:
        """One drain wrote so many bytes of entries: `flush`, `SKIP_LIST_FLUSH_BYTES`."""
        ...

    def flush_failed(self) -> None:
        """A drain failed: `flush`."""
        ...


class NoMemTableMetrics(NoCacheMetrics):
    """Reports nothing."""

    def got_offset(self, seconds: float) -> None: ...
    def got_entry(self, seconds: float, success: bool) -> None: ...
    def memtable_get(self, found: bool) -> None: ...
    def memtable_put(self, count: int) -> None: ...
    def frozen(self, seconds: float) -> None: ...
    def throttled(self, seconds: float) -> None: ...
    def flushed(self, seconds: float, nbytes: int) -> None: ...
    def flush_failed(self) -> None: ...


class NoMetrics:
    """Reports nothing."""

    def read_from(self, level: ReadLevel, count: int = 1) -> None: ...
    def looked_up(self, seconds: float) -> None: ...
    def read_log(self, seconds: float) -> None: ...
    def read_ahead(self, seconds: float, entries: int, nbytes: int) -> None: ...
    def last_entry(self, seconds: float) -> None: ...
    def flushed(self, stage: FlushStage, seconds: float) -> None: ...
    def flush_size(self, nbytes: int, entries: int) -> None: ...
    def flush_failed(self) -> None: ...
