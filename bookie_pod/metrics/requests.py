"""Metrics of request processing: `bookkeeper_server_*`.

`..._REQUEST` summaries run from reception to answer; the short names are the processing inside the bookie. Here both
are observed where the answer is made, and successful v2 adds count in `ADD_ENTRY_REQUEST` too, which the reference
implementation leaves out.

Two names are exported and stay at zero, so that dashboards which ask for them find something: adds do not wait for a
thread here (`WRITE_THREAD_QUEUED_LATENCY`), and an answer that was handed to its connection is not followed to the
socket (`CHANNEL_WRITE`).

Reads of the traffic class `batch` have separate names of Podkeeper's own that begin with `BATCH_CLASS_`: they wait on
purpose, and would spoil the latencies of all others.

Source: docs/internals/bookie-behaviour.md, section 11.2.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from bookie_pod.metrics.bookie import BookieMetrics
from bookie_pod.metrics.registry import OpStats, Registry

_PREFIX: Final = "bookkeeper_server"
_KINDS: Final = {
    "read": ("READ_ENTRY_REQUEST",),
    "fence": ("READ_ENTRY_FENCE_REQUEST",),
    "long_poll": ("READ_ENTRY_LONG_POLL_REQUEST",),
    "batch": ("READ_ENTRY_REQUEST",),
    "batch_class": ("BATCH_CLASS_READ_REQUEST",),
    "read_lac": ("READ_LAC_REQUEST", "READ_LAC"),
    "write_lac": ("WRITE_LAC_REQUEST", "WRITE_LAC"),
    "force": ("FORCE_LEDGER_REQUEST", "FORCE_LEDGER"),
    "bookie_info": ("GET_BOOKIE_INFO_REQUEST", "GET_BOOKIE_INFO"),
    "entry_list": ("GET_LIST_OF_ENTRIES_OF_LEDGER_REQUEST", "GET_LIST_OF_ENTRIES_OF_LEDGER"),
}
_SUMMED: Final = ("READ_ENTRY_REQUEST",)
_PHASES: Final = ("fence_read", "fence_wait", "long_poll_pre_wait", "long_poll_wait", "long_poll_read")
"""`READ_ENTRY_` and the name in capitals."""


class RequestMetrics:
    """Instruments of the TCP server, observed once per batch where a batch exists, never per entry on the hot path.

    Times are milliseconds. Threads: event loop, but for the two that say otherwise.
    """

    def __init__(
        self,
        registry: Registry,
        bookie: BookieMetrics | None = None,
        throttled: Callable[[int, float, bool], None] | None = None,
    ) -> None:
        """`bookie` also hears of bytes written and read, `throttled` of adds that waited for the write cache: ledger,
        seconds, whether in vain."""
        self._throttled = throttled or _ignored
        self._bookie = bookie
        scope = registry.scope(_PREFIX)
        self._scope = scope
        self._adds = (
            scope.op_stats("ADD_ENTRY_REQUEST", summed=True),
            scope.for_thread("BookieWriteThreadPool", 0).op_stats("ADD_ENTRY"),
        )
        reads = scope.for_thread("BookieReadThreadPool", 0).op_stats("READ_ENTRY")
        self._kinds: dict[str, tuple[OpStats, ...]] = {
            kind: tuple(scope.op_stats(name, summed=name in _SUMMED) for name in names)
            for kind, names in _KINDS.items()
        }
        for kind in ("read", "batch"):
            self._kinds[kind] = (*self._kinds[kind], reads)
        if bookie is not None:
            self._kinds["entry_list"] = (*self._kinds["entry_list"], bookie.get_list_of_entries)
        self._blocked_wait = scope.op_stats("ADD_ENTRY_BLOCKED_WAIT")
        self._scheduling_delay = scope.op_stats("READ_ENTRY_SCHEDULING_DELAY")
        self._batch_scheduling_delay = scope.op_stats("BATCH_CLASS_READ_SCHEDULING_DELAY")
        self._phases = {phase: scope.op_stats(f"READ_ENTRY_{phase.upper()}") for phase in _PHASES}
        self._read_blocked_wait = scope.op_stats("READ_ENTRY_BLOCKED_WAIT")
        scope.op_stats("CHANNEL_WRITE")
        scope.for_thread("BookieWriteThreadPool", 0).op_stats("WRITE_THREAD_QUEUED_LATENCY")
        self._add_rejected = scope.counter("ADD_ENTRY_REJECTED")
        self._read_rejected = scope.counter("READ_ENTRY_REJECTED")
        self._no_last_entry = scope.counter("READ_LAST_ENTRY_NOENTRY_ERROR")

    def adds_done(self, entries: int, elapsed_ms: float, success: bool) -> None:
        """A batch of adds was answered, so long after its reception."""
        for stats in self._adds:
            stats.observe_ms(elapsed_ms, entries, success)

    def add_traced(self, elapsed_ms: float, trace_id: int, *, success: bool) -> None:
        """Adds that were answered after so long are in this trace: it is an exemplar."""
        self._adds[0].exemplify(elapsed_ms, trace_id, success)

    def read_traced(self, kind: str, elapsed_ms: float, trace_id: int, *, success: bool) -> None:
        """Take the trace of a request that is no add, as `add_traced` does; `kind` is one of `_KINDS`."""
        for stats in self._kinds[kind]:
            stats.exemplify(elapsed_ms, trace_id, success)

    def adds_admitted(self, entries: int, nbytes: int, elapsed_ms: float) -> None:
        """A batch of adds was handed to the journal, so long after its socket read."""
        if self._bookie is not None:
            self._bookie.added(entries, nbytes, elapsed_ms)

    def entries_read(self, entries: int, nbytes: int, elapsed_ms: float) -> None:
        """A read was answered with so many entries, and so many bytes of entries."""
        if self._bookie is not None:
            self._bookie.was_read(entries, nbytes, elapsed_ms)

    def reads_done(self, entries: int, nbytes: int, elapsed_ms: float) -> None:
        """Count so many plain reads of one entry that were answered together, each after so long: 0 from memory.

        Stands for `read_done` and `entries_read`.
        """
        for stats in self._kinds["read"]:
            stats.observe_ms(elapsed_ms, entries)
        self.entries_read(entries, nbytes, elapsed_ms)

    def forced(self) -> None:
        """A force request came in."""
        if self._bookie is not None:
            self._bookie.force_ledger.add()

    def add_refused(self, elapsed_ms: float) -> None:
        """One add was answered with an error before it reached the journal."""
        self.adds_done(1, elapsed_ms, False)

    def add_rejected(self) -> None:
        """One add was answered with TOO_MANY_REQUESTS."""
        self._add_rejected.add()

    def add_waited(self, ledger_id: int, seconds: float, for_cache: bool, in_vain: bool) -> None:
        """An add waits no more for room in the write cache (`for_cache`) or in the journal."""
        self._blocked_wait.observe_ms(seconds * 1000, success=not in_vain)
        if for_cache:
            self._throttled(ledger_id, seconds, in_vain)

    def read_waited(self, seconds: float) -> None:
        """A read that memory could not answer got its thread. Any thread."""
        self._scheduling_delay.observe_ms(seconds * 1000)

    def batch_read_waited(self, seconds: float) -> None:
        """A read of the traffic class `batch` got its thread, and gave way before. Any thread."""
        self._batch_scheduling_delay.observe_ms(seconds * 1000)

    def read_done(self, kind: str, elapsed_ms: float, success: bool) -> None:
        """One request that is no add was answered; `kind` is one of `_KINDS`."""
        for stats in self._kinds[kind]:
            stats.observe_ms(elapsed_ms, 1, success)

    def read_phase(self, phase: str, elapsed_ms: float, success: bool) -> None:
        """A part of a fencing read or a long poll has ended; `phase` is one of `_PHASES`.

        `long_poll_wait` is a success if a newer LAC came.
        """
        self._phases[phase].observe_ms(elapsed_ms, 1, success)

    def no_last_entry(self) -> None:
        """A read asked for the last entry of a ledger that has none here."""
        self._no_last_entry.add()

    def reads_blocked(self, seconds: float) -> None:
        """A connection whose reads were left in its socket goes on."""
        self._read_blocked_wait.observe_ms(seconds * 1000)

    def read_rejected(self) -> None:
        """One read was answered with TOO_MANY_REQUESTS."""
        self._read_rejected.add()

    def bind_levels(
        self,
        *,
        adds_in_progress: Callable[[], float],
        adds_blocked: Callable[[], float],
        reads_in_progress: Callable[[], float],
        reads_blocked: Callable[[], float],
    ) -> None:
        """Export what is under way and what waits for room. Once per server."""
        self._scope.gauge("ADD_ENTRY_IN_PROGRESS", adds_in_progress)
        self._scope.gauge("ADD_ENTRY_BLOCKED", adds_blocked)
        self._scope.gauge("READ_ENTRY_IN_PROGRESS", reads_in_progress)
        self._scope.gauge("READ_ENTRY_BLOCKED", reads_blocked)

    def bind_bounded(self, levels: Mapping[str, tuple[Callable[[], float], int | None]]) -> None:
        """Export what is held of something, and how much of it may be held (None: no limit of its own)."""
        for name, (held, most) in levels.items():
            self._scope.gauge(name, held)
            if most is not None:
                self._scope.gauge(f"{name}_MAX", _constant(most))

    def bind_batch_class(
        self,
        *,
        entries: Callable[[], float],
        nbytes: Callable[[], float],
        yielded_s: Callable[[], float],
        limited_s: Callable[[], float],
    ) -> None:
        """Export what reads of the traffic class `batch` read, how long their lanes rested while clients waited, and
        how long they waited for `batchClassReadRateByBytes`. Podkeeper's own."""
        self._scope.level_counter("BATCH_CLASS_READ_ENTRIES", entries)
        self._scope.level_counter("BATCH_CLASS_READ_BYTES", nbytes)
        self._scope.level_counter("BATCH_CLASS_YIELDED_SECONDS_TOTAL", yielded_s)
        self._scope.level_counter("BATCH_CLASS_LIMITED_SECONDS_TOTAL", limited_s)

    def bind_connection_errors(self, errors: Callable[[], float]) -> None:
        """Export connections closed because of what the client sent since the start. Podkeeper's own."""
        self._scope.level_counter("CONNECTION_ERRORS", errors)

    def bind_refusals(
        self, requests: Callable[[], float], strangers: Callable[[], float], connections: Callable[[], float]
    ) -> None:
        """Export requests refused because their client had to authenticate or to use TLS first, connections closed
        because theirs did not in time or were too many, and connections refused because there are too many of all.
        Podkeeper's own."""
        self._scope.level_counter("UNAUTHENTICATED_REQUESTS", requests)
        self._scope.level_counter("UNAUTHENTICATED_CONNECTIONS_CLOSED", strangers)
        self._scope.level_counter("CONNECTIONS_REFUSED", connections)

    def bind_pool(self, pool: str, threads: int, max_queue_size: int) -> None:
        """Export a pool's size, such as `BookieReadThreadPool`: threads, and requests that may wait (-1: no
        limit)."""
        self._scope.gauge(f"{pool}_threads", lambda: threads)
        self._scope.gauge(f"{pool}_max_queue_size", lambda: max_queue_size)


def _ignored(ledger_id: int, seconds: float, in_vain: bool) -> None:
    """Do nothing: no storage counts throttled adds by directory."""


def _constant(value: float) -> Callable[[], float]:
    return lambda: value
