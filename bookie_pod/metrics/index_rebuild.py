"""Metrics of rebuilds of indexes while the bookie serves: `index_rebuild_*`. All of them are our own.

Implements the `RebuildMetrics` protocol of the rebuilder.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from bookie_pod.metrics.registry import Registry


class _State(Protocol):
    """What is counted of a rebuild that has ended."""

    @property
    def entries(self) -> int: ...
    @property
    def rows_changed(self) -> int: ...
    @property
    def ledgers_restored(self) -> int: ...


class IndexRebuildInstruments:
    """Instruments of one bookie. Any thread may call every method."""

    def __init__(self, registry: Registry) -> None:
        scope = registry.scope("index_rebuild")
        self._scope = scope
        self._run_time = scope.op_stats("runTime")
        self._entries = scope.counter("ENTRIES")
        self._rows = scope.counter("CHANGED_ROWS")
        self._ledgers = scope.counter("RESTORED_LEDGERS")

    def bind_levels(
        self, *, running: Callable[[], float], bytes_done: Callable[[], float], bytes_total: Callable[[], float]
    ) -> None:
        """Export levels: whether one runs, and how many bytes of entry logs it has read, of how many."""
        self._scope.gauge("RUNNING", running)
        self._scope.gauge("BYTES_DONE", bytes_done)
        self._scope.gauge("BYTES_TOTAL", bytes_total)

    def ran(self, milliseconds: float, success: bool, state: _State) -> None:
        """The rebuild of one directory has ended."""
        self._run_time.observe_ms(milliseconds, success=success)
        self._entries.add(state.entries)
        if success:
            self._rows.add(state.rows_changed)
        self._ledgers.add(state.ledgers_restored)
