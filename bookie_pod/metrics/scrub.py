"""Metrics of the scrubber, `scrubber_*`, and of rebuilds of indexes while the bookie serves, `index_rebuild_*`.

Source: docs/internals/bookie-behaviour.md, section 11.7, for `runTime`, `detectedScrubErrors` and
`detectedFatalScrubErrors`; the others are our own.
"""

from __future__ import annotations

from collections.abc import Callable

from bookie_pod.metrics.registry import Registry


class ScrubMetrics:
    """Instruments of the scrubber of one bookie. Any thread may call every method."""

    def __init__(self, registry: Registry) -> None:
        scope = registry.scope("scrubber")
        self._scope = scope
        self._run_time = scope.op_stats("runTime")
        self._errors = scope.counter("detectedScrubErrors")
        self._fatal = scope.counter("detectedFatalScrubErrors")
        self._entries = scope.counter("SCRUBBED_ENTRIES")
        self._bytes = scope.counter("SCRUBBED_BYTES")
        self._restored = scope.counter("RESTORED_INDEX_ROWS")
        self._repaired = scope.counter("REPAIRED_ENTRIES")

    def bind_levels(
        self,
        *,
        damages: dict[str, Callable[[], float]],
        last_pass_ms: Callable[[], float],
        running: Callable[[], float],
    ) -> None:
        """Export levels: what is damaged now, by kind; when the oldest of the directories was last scrubbed whole."""
        for kind, count in damages.items():
            self._scope.scope(kind=kind).gauge("DAMAGES", count)
        self._scope.gauge("LAST_PASS_TIMESTAMP_MS", last_pass_ms)
        self._scope.gauge("RUNNING", running)

    def found(self, damage: object) -> None:
        """New damage."""
        self._errors.add()

    def not_checked(self) -> None:
        """A check could not be made."""
        self._fatal.add()

    def progressed(self, entries: int, nbytes: int, restored: int) -> None:
        """This much was read, and so many index rows were put back."""
        self._entries.add(entries)
        self._bytes.add(nbytes)
        if restored:
            self._restored.add(restored)

    def ran(self, milliseconds: float, success: bool) -> None:
        """A pass has ended."""
        self._run_time.observe_ms(milliseconds, success=success)

    def repaired(self, entries: int) -> None:
        """Count so many damaged entries that were fetched from other bookies."""
        self._repaired.add(entries)


class IndexRebuildMetrics:
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

    def ran(
        self, milliseconds: float, success: bool, *, entries: int, changed_rows: int, restored_ledgers: int
    ) -> None:
        """The rebuild of one directory has ended."""
        self._run_time.observe_ms(milliseconds, success=success)
        self._entries.add(entries)
        if success:
            self._rows.add(changed_rows)
        self._ledgers.add(restored_ledgers)
