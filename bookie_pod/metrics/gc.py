"""Metrics of garbage collection: `bookie_*`, for DbLedgerStorage with the labels `ledgerDir` and `indexDir`.

The other engines have one collector for all directories, and no labels. (The reference calls theirs `bookie_gc_*`; here
one thing has one name, so that alerts and dashboards are about every engine.)

What is observed here is observed once a pass, a log or a ledger, on the thread of the collector.

Source: docs/internals/bookie-behaviour.md, section 11.6.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from typing import Final

from bookie_pod.metrics.registry import Registry

_BUCKETS: Final = 10


class GcStage(Enum):
    """The timed stages of a pass, by the metric's name."""

    WHOLE = "THREAD_RUNTIME"
    LEDGERS = "GC_LEDGER_RUNTIME"
    METADATA = "EXTRACT_META_RUNTIME"
    COMPACTION = "COMPACT_RUNTIME"


class GcMetrics:
    """Instruments of one collector. Any thread may call every method."""

    def __init__(self, registry: Registry, directories: tuple[str, str] | None) -> None:
        """`directories`: ledger and index folder, for the labels; None for an engine with one collector in all."""
        labels = {} if directories is None else {"ledgerDir": directories[0], "indexDir": directories[1]}
        scope = self._scope = registry.scope("bookie", **labels)
        self._runtimes = {stage: scope.op_stats(stage.value) for stage in GcStage}
        self._compactions = {
            "major": scope.counter("MAJOR_COMPACTION_TOTAL"),
            "minor": scope.counter("MINOR_COMPACTION_TOTAL"),
        }
        self._index_compactions = scope.counter("ENTRY_LOCATION_COMPACTION_TOTAL")
        self._deleted = scope.counter("DELETED_LEDGER_TOTAL")
        self._delete_failed = scope.counter("RECLAIM_FAILED_TO_DELETE")
        self._reclaimed = {
            True: scope.counter("RECLAIMED_COMPACTION_SPACE_BYTES"),
            False: scope.counter("RECLAIMED_DELETION_SPACE_BYTES"),
        }

    def bind_levels(
        self,
        *,
        logs: Callable[[], float],
        live_bytes: Callable[[], float],
        total_bytes: Callable[[], float],
        ledgers: Callable[[], float],
        buckets: Callable[[], Sequence[int]],
        quarantined: Callable[[], float],
        oldest_age_s: Callable[[], float],
        since_pass_s: Callable[[], float],
        pass_errors: Callable[[], float],
        yielded_s: Callable[[], float],
        waiting: Callable[[], float],
        held: Callable[[], float],
    ) -> None:
        """Export levels: logs that the last pass has looked at, those written at present included, their live and all
        bytes, ledgers, logs in each tenth of usage, logs that are quarantined; the age of the oldest log, the time
        since a pass has ended, how many of its parts failed; for how long collection has given way to clients; ledgers
        that the metadata service does not have any more, and whether something but their grace holds them."""
        scope = self._scope
        scope.gauge("ACTIVE_ENTRY_LOG_TOTAL", logs)
        scope.gauge("ACTIVE_ENTRY_LOG_SPACE_BYTES", live_bytes)
        scope.gauge("ENTRY_LOG_SPACE_BYTES", total_bytes)
        scope.gauge("ACTIVE_LEDGER_TOTAL", ledgers)
        scope.gauge("ENTRY_LOG_COMPACT_RATIO", lambda: 1 - live_bytes() / total_bytes() if total_bytes() else 0.0)
        scope.gauge("QUARANTINED_ENTRY_LOG_TOTAL", quarantined)
        scope.gauge("OLDEST_ENTRY_LOG_AGE_SECONDS", oldest_age_s)
        scope.gauge("SECONDS_SINCE_GC_PASS", since_pass_s)
        scope.gauge("LAST_GC_PASS_ERRORS", pass_errors)
        scope.gauge("LEDGERS_AWAITING_DELETION", waiting)
        scope.gauge("LEDGER_DELETIONS_HELD", held)
        scope.level_counter("GC_YIELDED_SECONDS_TOTAL", yielded_s)
        for tenth in range(_BUCKETS):
            scope.gauge(f"entry_log_usage_buckets_le_{(tenth + 1) * 10}", _item(buckets, tenth))

    @contextmanager
    def timed(self, stage: GcStage) -> Iterator[None]:
        """Measures one stage; one that raises counts as failed."""
        begin = time.perf_counter()
        success = False
        try:
            yield
            success = True
        finally:
            self._runtimes[stage].observe_ms((time.perf_counter() - begin) * 1000, success=success)

    def ledgers_deleted(self, count: int, failed: int) -> None:
        """A search for dead ledgers has ended; `failed` could not be deleted."""
        self._deleted.add(count)
        self._delete_failed.add(failed)

    def reclaimed(self, nbytes: int, *, compacted: bool) -> None:
        """An entry log of so many bytes was removed; `compacted`: after its live entries had moved."""
        self._reclaimed[compacted].add(nbytes)

    def delete_failed(self) -> None:
        """An entry log could not be removed."""
        self._delete_failed.add()

    def compacted(self, compaction: Enum) -> None:
        """A compaction has ended; its value is `major` or `minor`."""
        self._compactions[compaction.value].add()

    def index_compacted(self) -> None:
        """The location index was compacted."""
        self._index_compactions.add()


def _item(values: Callable[[], Sequence[int]], index: int) -> Callable[[], float]:
    return lambda: values()[index]
