"""Metrics of auto-recovery, with the reference's names.

The auditor's are `auditor_*` in a process of its own and `replication_auditor_*` inside a bookie; the replication
worker's `replication_worker_*` and `replication_replication_worker_*`.

Ours are `autorecovery_*` (levels that the reference lacks), `LAST_RUN_TIMESTAMP_MS`, and of the worker the levels and
the counters of recovered ledgers and of marks of deleted ones. Only the elected process counts anything of an auditor.
`READ_DATA_LATENCY` and `WRITE_DATA_LATENCY` are those of pieces of entries, which are read and stored in one go.

Any thread may observe.

Source: docs/internals/auto-recovery.md, section 16.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Final

from bookie_pod.metrics.registry import Registry

_GAUGES: Final = {
    "not_adhering": "NUM_LEDGERS_NOT_ADHERING_TO_PLACEMENT_POLICY",
    "softly_adhering": "NUM_LEDGERS_SOFTLY_ADHERING_TO_PLACEMENT_POLICY",
    "overdue": "NUM_UNDERREPLICATED_LEDGERS_ELAPSED_RECOVERY_GRACE_PERIOD",
    "short_no_copy": "NUM_LEDGERS_HAVING_NO_REPLICA_OF_AN_ENTRY",
    "short_of_ack_quorum": "NUM_LEDGERS_HAVING_LESS_THAN_AQ_REPLICAS_OF_AN_ENTRY",
    "short_of_write_quorum": "NUM_LEDGERS_HAVING_LESS_THAN_WQ_REPLICAS_OF_AN_ENTRY",
}
_TIMES: Final = {
    "ledgers": "CHECK_ALL_LEDGERS_TIME",
    "placement": "PLACEMENT_POLICY_CHECK_TIME",
    "replicas": "REPLICAS_CHECK_TIME",
}
_LEVELS_OF: Final = {
    "placement": ("not_adhering", "softly_adhering", "overdue"),
    "replicas": ("short_no_copy", "short_of_ack_quorum", "short_of_write_quorum"),
}
_MAX_CLASSES: Final = 64


class AuditorInstruments:
    """Instruments of one auditor. Any thread may call every method; once per ledger or per run."""

    def __init__(self, registry: Registry, *, embedded: bool) -> None:
        """`embedded`: inside a bookie."""
        self._registry = registry
        scope = registry.scope("replication_auditor" if embedded else "auditor")
        self._elections = scope.counter("election_attempts")
        self._marked = scope.op_stats("NUM_UNDER_REPLICATED_LEDGERS")
        self._marked_bytes = scope.op_stats("UNDER_REPLICATED_LEDGERS_TOTAL_SIZE")
        self._publish = scope.op_stats("URL_PUBLISH_TIME_FOR_LOST_BOOKIE")
        self._map = scope.op_stats("BOOKIE_TO_LEDGERS_MAP_CREATION_TIME")
        self._audits = scope.op_stats("AUDIT_BOOKIES_TIME")
        self._times = {check: scope.op_stats(name) for check, name in _TIMES.items()}
        self._checked = scope.counter("NUM_LEDGERS_CHECKED")
        self._fragments = scope.op_stats("NUM_FRAGMENTS_PER_LEDGER")
        self._bookies = scope.op_stats("NUM_BOOKIES_PER_LEDGER")
        self._delayed = scope.counter("NUM_BOOKIE_AUDITS_DELAYED")
        self._cancelled = scope.counter("NUM_DELAYED_BOOKIE_AUDITS_CANCELLED")
        self._skipped = scope.counter("NUM_SKIPPING_CHECK_TASK_TIMES")
        self._levels = dict.fromkeys(_GAUGES, 0.0)
        self._last_ms = dict.fromkeys(("bookies", *_TIMES), math.nan)
        for level, name in _GAUGES.items():
            scope.gauge(name, _item(self._levels, level))
        for check in self._last_ms:
            scope.scope(check=check).gauge("LAST_RUN_TIMESTAMP_MS", _item(self._last_ms, check))

    def bind_levels(
        self, *, marked: Callable[[], float], disabled: Callable[[], float], no_auditor: Callable[[], float]
    ) -> None:
        """Export what the reference lacks: ledgers marked now, auto-recovery disabled (0 or 1), no auditor (0 or 1)."""
        scope = self._registry.scope("autorecovery")
        scope.gauge("UNDER_REPLICATED_LEDGERS", marked)
        scope.gauge("DISABLED", disabled)
        scope.gauge("NO_AUDITOR", no_auditor)

    def bind_decommissions(
        self,
        *,
        under_way: Callable[[], float],
        ledgers_left: Callable[[], float],
        bytes_left: Callable[[], float],
        blocked: Callable[[], float],
        updated_ms: Callable[[], float],
    ) -> None:
        """Export levels of all decommissions under way; only the auditor has them, because coordinators come and go.

        `blocked`: ledgers. `updated_ms`, since the epoch: the last update of the record that was updated least
        recently; NaN without any.
        """
        scope = self._registry.scope("autorecovery")
        scope.gauge("DECOMMISSIONS", under_way)
        scope.gauge("DECOMMISSION_LEDGERS_LEFT", ledgers_left)
        scope.gauge("DECOMMISSION_BYTES_LEFT", bytes_left)
        scope.gauge("DECOMMISSION_BLOCKED_LEDGERS", blocked)
        scope.gauge("DECOMMISSION_LAST_UPDATE_TIMESTAMP_MS", updated_ms)

    def stood_for_election(self) -> None:
        """A candidacy has begun."""
        self._elections.add()

    def audit_delayed(self) -> None:
        """A bookie left, and its delay has begun."""
        self._delayed.add()

    def audit_cancelled(self) -> None:
        """It came back in time."""
        self._cancelled.add()

    def audited(
        self, milliseconds: float, *, success: bool, marked: int = 0, nbytes: int = 0, publish_ms: float = 0.0
    ) -> None:
        """An audit of bookies has ended."""
        self._audits.observe_ms(milliseconds, success=success)
        self._map.observe_ms(max(0.0, milliseconds - publish_ms), success=success)
        if marked:
            self._marked.observe(marked)
            self._marked_bytes.observe(nbytes)
            self._publish.observe_ms(publish_ms, success=success)

    def ledger_checked(self, fragments: int, bookies: int) -> None:
        """A ledger was read."""
        self._checked.add()
        self._fragments.observe(fragments)
        self._bookies.observe(bookies)

    def check_skipped(self) -> None:
        """A check was due while auto-recovery was disabled."""
        self._skipped.add()

    def check_ran(self, check: str, milliseconds: float, *, success: bool) -> None:
        """A pass has ended, or was broken off."""
        self._times[check].observe_ms(milliseconds, success=success)

    def check_finished(self, check: str, now_ms: float, counts: Mapping[str, int]) -> None:
        """A check, or the audit of bookies, is complete."""
        self._last_ms[check] = now_ms
        for level in _LEVELS_OF.get(check, ()):
            self._levels[level] = counts.get(level, 0)
        if check != "bookies" and counts.get("marked", 0):
            self._marked.observe(counts["marked"])


def _item(values: Mapping[str, float], name: str) -> Callable[[], float]:
    return lambda: values[name]


class ReplicationWorkerMetrics:
    """Instruments of one worker."""

    def __init__(self, registry: Registry, *, embedded: bool) -> None:
        """`embedded`: inside a bookie."""
        self._scope = scope = registry.scope("replication_replication_worker" if embedded else "replication_worker")
        self._rereplicate = scope.op_stats("rereplicate")
        self._repaired = scope.counter("NUM_FULL_OR_PARTIAL_LEDGERS_REPLICATED")
        self._moved = scope.counter("NUM_NOT_ADHERING_PLACEMENT_LEDGERS_REPLICATED")
        self._entries_read = scope.counter("NUM_ENTRIES_READ")
        self._entries_written = scope.counter("NUM_ENTRIES_WRITTEN")
        self._bytes_read = scope.op_stats("NUM_BYTES_READ")
        self._bytes_written = scope.op_stats("NUM_BYTES_WRITTEN")
        self._read_latency = scope.op_stats("READ_DATA_LATENCY")
        self._write_latency = scope.op_stats("WRITE_DATA_LATENCY")
        self._deferred = scope.counter("NUM_DEFER_LEDGER_LOCK_RELEASE_OF_FAILED_LEDGER")
        self._unreadable = scope.counter("NUM_ENTRIES_UNABLE_TO_READ_FOR_REPLICATION")
        self._recovered = scope.counter("NUM_OPEN_LEDGERS_RECOVERED")
        self._deleted = scope.counter("NUM_DELETED_LEDGERS_UNMARKED")
        self._classes: set[str] = set()

    def bind_levels(
        self,
        *,
        running: Callable[[], float],
        at_work: Callable[[], float],
        waiting: Callable[[], float],
        failing: Callable[[], float],
        losing: Callable[[], float],
        locks_not_released: Callable[[], float],
        rounds_without_an_answer: Callable[[], float],
        rate_limit: Callable[[], float],
    ) -> None:
        """Export how much is going on. `losing`: ledgers at hand with entries of which no copy is left. `rate_limit`:
        bytes per second; 0: none."""
        self._scope.gauge("RUNNING", running)
        self._scope.gauge("LEDGERS_AT_WORK", at_work)
        self._scope.gauge("OPEN_LEDGERS_WAITING", waiting)
        self._scope.gauge("LEDGERS_BACKING_OFF", failing)
        self._scope.gauge("LEDGERS_WITH_LOST_ENTRIES", losing)
        self._scope.gauge("LOCKS_NOT_RELEASED", locks_not_released)
        self._scope.gauge("ROUNDS_WITHOUT_AN_ANSWER", rounds_without_an_answer)
        self._scope.gauge("RATE_LIMIT_BYTES", rate_limit)

    # --- ledgers ----------------------------------------------------------------------------------------------

    def processed(self, seconds: float, *, success: bool) -> None:
        """One round with a ledger ended."""
        self._rereplicate.observe_ms(seconds * 1000, success=success)

    def repaired(self) -> None:
        """A ledger has all its copies again, and some were made for it."""
        self._repaired.add()

    def moved(self) -> None:
        """Copies of a ledger were moved for the sake of its placement."""
        self._moved.add()

    def recovered(self) -> None:
        """An open ledger was fenced and closed."""
        self._recovered.add()

    def deleted(self) -> None:
        """The ledger of a mark did not exist any more."""
        self._deleted.add()

    def deferred(self) -> None:
        """A ledger failed, and rests for a while."""
        self._deferred.add()

    def failed_with(self, error: BaseException) -> None:
        """A round ended with this error."""
        name = type(error).__name__
        if name not in self._classes:
            if len(self._classes) >= _MAX_CLASSES:
                name = "other"
            self._classes.add(name)
        self._scope.counter(f"exceptions_{name}").add()

    # --- entries ----------------------------------------------------------------------------------------------

    def copied(self, entries: int, nbytes: int, seconds: float) -> None:
        """A piece of a fragment was read, and stored by all its targets, so long after the piece before it."""
        if entries > 0:
            self._entries_read.add(entries)
            self._bytes_read.observe(nbytes / entries, entries)
            self._read_latency.observe_ms(seconds * 1000)
            self._write_latency.observe_ms(seconds * 1000)

    def written(self, entries: int, nbytes: int) -> None:
        """All copies of a fragment were stored: each entry as often as there were targets for it."""
        if entries > 0:
            self._entries_written.add(entries)
            self._bytes_written.observe(nbytes / entries, entries)

    def unreadable(self, entries: int) -> None:
        """Entries of which no copy could be read."""
        self._unreadable.add(entries)
