"""What can be asked about single logs and about what compaction would give back.

Invariants
- Nothing here changes anything, and what is answered is as of the last pass, but for who owns a log: that is looked
  up when memory does not hold it.
- A look-up that has to scan a log gives up after `LOOK_S` seconds.

Threads: any; look-ups read files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from heapq import nlargest
from typing import Final

from bookie_pod.storage.entry_log.ledger_sizes import LedgerSizes
from bookie_pod.storage.gc.log_usage import LogUsage, LogUsages
from bookie_pod.storage.gc.reports import (
    BUCKETS,
    CompactionForecast,
    Forecast,
    LogReport,
    UsageBucket,
    bucket_of,
    due_in_s,
    explain,
)
from bookie_pod.storage.gc.schedule import Compaction, CompactionSchedule, GcOptions, GcTimes
from bookie_pod.storage.gc.storage import CollectedStorage
from bookie_protocol.errors import StorageFault

LOOK_S: Final = 5.0


def candidates(
    usages: LogUsages, threshold: float, size_limit: int | None, may_move: Callable[[int], bool] = lambda log_id: True
) -> list[LogUsage]:
    """Logs below the threshold, the emptiest tenth first. Logs in doubt are left alone."""
    # A copy first: the collector adds and removes logs meanwhile.
    known = list(usages.usages.values())
    found = [
        each for each in known if each.usage(size_limit) < threshold and not each.in_doubt and may_move(each.log_id)
    ]
    return sorted(found, key=lambda each: (bucket_of(each.usage(size_limit)), each.log_id))


class Inspection:
    """The questions to one collector."""

    def __init__(
        self,
        storage: CollectedStorage,
        usages: LogUsages,
        schedule: CompactionSchedule,
        times: GcTimes,
        held: Callable[[], Mapping[int, str]],
        doubt: Callable[[], str | None] = lambda: None,
    ) -> None:
        """`held`: logs that the scrubber holds, and what it found in each. `doubt`: why some ledgers may have been
        deleted that count as alive."""
        self._storage = storage
        self._usages = usages
        self._schedule = schedule
        self._times = times
        self._held = held
        self._doubt = doubt

    def report(self, log_id: int, options: GcOptions, now_ms: int) -> LogReport:
        """Why this log is still there, and when it will go. `StorageFault` if there is no such log."""
        logs = self._storage.logs
        size, flushed = logs.size(log_id), logs.is_flushed(log_id)
        quarantined = self._usages.quarantined.get(log_id)
        usage = self._usages.usages.get(log_id)
        sizes = self._usages.peek(log_id)
        if sizes is None and flushed and quarantined is None:
            sizes = self._look(log_id)
        owners: list[tuple[int, int]] | None = None
        if sizes is not None:
            alive = ((nbytes, ledger) for ledger, nbytes in sizes.pairs() if self._storage.has_ledger(ledger))
            owners = [(ledger, nbytes) for nbytes, ledger in nlargest(options.report_ledgers, alive)]
        text = explain(
            usage,
            flushed=flushed,
            quarantined=quarantined,
            held=self._held().get(log_id),
            unreadable=self._usages.unreadable.get(log_id),
            schedule=self._schedule,
            times=self._times,
            now_ms=now_ms,
            size_limit=options.usage_size_limit,
            doubt=self._doubt(),
        )
        return LogReport(log_id, logs.path(log_id), size, usage, owners, text, self._age_s(log_id, now_ms))

    def _age_s(self, log_id: int, now_ms: int) -> int:
        return max(0, now_ms - self._storage.logs.written_ms(log_id)) // 1000

    def _look(self, log_id: int) -> LedgerSizes | None:
        """Bytes per ledger from the log itself; None: that takes too long, or the log is damaged."""
        until = time.monotonic() + LOOK_S

        def give_up(entries: int, nbytes: int) -> None:
            if time.monotonic() > until:
                raise StorageFault(f"entry log {log_id:x}.log was not scanned within {LOOK_S:g} s")

        try:
            found = self._storage.logs.ledgers_map(log_id, give_up)
        except StorageFault:
            return None
        return found.ledgers if found.complete else None

    def forecast(self, options: GcOptions, now_ms: int) -> Forecast:
        """Usage by tenths, and what each compaction would give back now."""
        limit = options.usage_size_limit
        known = list(self._usages.usages.values())
        buckets = [UsageBucket() for _ in range(BUCKETS)]
        for each in known:
            bucket = buckets[bucket_of(each.usage(limit))]
            bucket.logs += 1
            bucket.total_bytes += each.total
            bucket.reclaimable_bytes += each.total - each.remaining
            with suppress(StorageFault):  # removed meanwhile
                bucket.oldest_age_s = max(bucket.oldest_age_s, self._age_s(each.log_id, now_ms))
        measured = {each.log_id for each in known} | set(self._usages.quarantined) | set(self._held())
        return Forecast(
            buckets,
            self._compaction(Compaction.MINOR, limit, now_ms),
            self._compaction(Compaction.MAJOR, limit, now_ms),
            unmeasured=sum(log_id not in measured for log_id in self._storage.logs.log_ids()),
        )

    def _compaction(self, kind: Compaction, limit: int | None, now_ms: int) -> CompactionForecast:
        rule = self._schedule.rule(kind)
        found = candidates(self._usages, rule.threshold, limit)
        return CompactionForecast(
            rule.threshold,
            len(found),
            sum(each.remaining for each in found),
            sum(each.total - each.remaining for each in found),
            due_in_s(kind, self._schedule, self._times, now_ms),
        )
