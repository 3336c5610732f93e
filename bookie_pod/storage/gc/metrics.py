"""What garbage collection tells its metrics. Called on the garbage collection thread."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from enum import Enum
from typing import Protocol

from bookie_pod.storage.gc.schedule import Compaction


class GcStage(Enum):
    """What is timed in a pass, by the metric's name."""

    WHOLE = "THREAD_RUNTIME"
    LEDGERS = "GC_LEDGER_RUNTIME"
    METADATA = "EXTRACT_META_RUNTIME"
    COMPACTION = "COMPACT_RUNTIME"


class GcMetrics(Protocol):
    """Observations of one collector."""

    def timed(self, stage: GcStage) -> AbstractContextManager[object]:
        """Measures one stage."""
        ...

    def ledgers_deleted(self, count: int, failed: int) -> None: ...
    def reclaimed(self, nbytes: int, *, compacted: bool) -> None:
        """Bytes of a log that was removed; `compacted`: after its live entries had moved."""
        ...

    def delete_failed(self) -> None:
        """A log could not be removed."""
        ...

    def compacted(self, compaction: Compaction) -> None: ...
    def index_compacted(self) -> None: ...


class NoGcMetrics:
    """Counts nothing."""

    def timed(self, stage: GcStage) -> AbstractContextManager[object]:
        return nullcontext()

    def ledgers_deleted(self, count: int, failed: int) -> None:
        pass

    def reclaimed(self, nbytes: int, *, compacted: bool) -> None:
        pass

    def delete_failed(self) -> None:
        pass

    def compacted(self, compaction: Compaction) -> None:
        pass

    def index_compacted(self) -> None:
        pass
