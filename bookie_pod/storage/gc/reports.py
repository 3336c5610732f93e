"""What garbage collection says about itself, about single logs, and about what compaction would give back.

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
from dataclasses import dataclass, field
from heapq import nlargest
from typing import Final

from bookie_pod.storage.entry_log.ledger_sizes import LedgerSizes
from bookie_pod.storage.gc.log_usage import LogUsage, LogUsages
from bookie_pod.storage.gc.schedule import Compaction, CompactionSchedule, GcOptions, GcTimes
from bookie_pod.storage.gc.storage import CollectedStorage
from bookie_protocol.errors import StorageFault

BUCKETS: Final = 10


def bucket_of(usage: float) -> int:
    """Which tenth a live share belongs to, 0 to 9."""
    return min(int(usage * BUCKETS), BUCKETS - 1)


@dataclass(frozen=True, slots=True)
class GcState:
    """Times are ms since 1970."""

    force_compacting: bool
    major_compacting: bool
    minor_compacting: bool
    last_major_ms: int
    last_minor_ms: int
    major_count: int
    minor_count: int
    major_suspended: bool
    minor_suspended: bool
    phase: str
    quarantined: Mapping[int, str]
    last_errors: tuple[str, ...]
    held: Mapping[int, str] = field(default_factory=dict)
    """Logs in which the scrubber found damage, and which: left alone until that is mended."""
    last_index_ms: int = 0
    """When the location index was last rewritten, or when the collector began."""
    index_count: int = 0
    done: int = 0
    """Logs of this phase that are done, of `total`; both 0 when the phase does not count logs."""
    total: int = 0
    last_pass: PassResult | None = None
    """What the last pass did; None: none has ended since the start."""
    last_pass_ms: int = 0
    """When it ended; before the first: when the collector was made."""


@dataclass(slots=True)
class PassResult:
    """What one pass did."""

    ledgers_deleted: int = 0
    logs_deleted: int = 0
    logs_compacted: int = 0
    reclaimed_bytes: int = 0
    compaction: Compaction | None = None
    errors: list[str] = field(default_factory=list)


@dataclass(slots=True)
class UsageBucket:
    """The logs of one tenth of usage; sizes in bytes."""

    logs: int = 0
    total_bytes: int = 0
    reclaimable_bytes: int = 0
    oldest_age_s: int = 0
    """Seconds since the one that is oldest was written last."""


@dataclass(frozen=True, slots=True)
class CompactionForecast:
    """What one kind of compaction would do now."""

    threshold: float
    logs: int
    """Logs that it would rewrite."""
    rewritten_bytes: int
    reclaimable_bytes: int
    due_in_s: int | None
    """Seconds until it is due, 0: with the next pass; None: off or suspended."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """What the collector could give back, as of the last pass."""

    buckets: list[UsageBucket]
    """By usage, from 0 to 10 % up to 90 to 100 %."""
    minor: CompactionForecast
    major: CompactionForecast
    unmeasured: int
    """Logs that are not counted: written at present, or not looked at yet."""


@dataclass(frozen=True, slots=True)
class LogReport:
    """One log."""

    log_id: int
    path: str
    size: int
    """Bytes of the file."""
    usage: LogUsage | None
    """None: not measured yet."""
    owners: list[tuple[int, int]] | None
    """(ledger id, bytes) of what lives in it, the largest first; None: not known."""
    reason: str
    """Why it is there, and when it will go, in a sentence."""
    age_s: int
    """Seconds since it was written last."""


def explain(
    usage: LogUsage | None,
    *,
    flushed: bool,
    quarantined: str | None,
    held: str | None,
    unreadable: str | None,
    schedule: CompactionSchedule,
    times: GcTimes,
    now_ms: int,
    size_limit: int | None,
    doubt: str | None = None,
) -> str:
    """Why a log is still there. `unreadable`: why it could not be looked at when it was last tried. `doubt`: why some
    ledgers may have been deleted that count as alive."""
    if quarantined is not None:
        return f"quarantined: damaged ({quarantined}); it is kept until somebody removes it"
    if held is not None:
        return (
            f"held: the scrubber found damage in it ({held}); it is left alone until the damaged entries have been"
            " fetched from other bookies, or a later scrub (PUT /api/v1/bookie/scrub begins one) no longer finds this"
        )
    if not flushed:
        return "it is being written, or was not rotated and synced yet"
    if unreadable is not None:
        return f"the last pass could not read it ({unreadable}); the next one tries again"
    if usage is None:
        return "not looked at yet: the next pass will"
    if usage.in_doubt:
        return (
            f"{usage.in_doubt} bytes belong to ledgers that are not in the index here, but that the metadata service"
            " places here or could not tell of"
        )
    share = usage.usage(size_limit)
    lives = f"{usage.remaining} of {usage.total} bytes live ({share:.0%}), of {usage.ledgers} ledgers"
    if doubt is not None:
        lives += f", as far as is known ({doubt})"
    below = [kind for kind in (Compaction.MINOR, Compaction.MAJOR) if share < schedule.rule(kind).threshold]
    if not below:
        limit = max(schedule.minor.threshold, schedule.major.threshold)
        return f"{lives}: above every compaction threshold ({limit:.0%}); it goes when its ledgers are deleted"
    waits = [text for kind in below if (text := _when(kind, schedule, times, now_ms)) is not None]
    if not waits:
        return (
            f"{lives}: {' and '.join(kind.value for kind in below)} compaction would take it, but is off or suspended"
        )
    return f"{lives}: {waits[0]}"


def due_in_s(kind: Compaction, schedule: CompactionSchedule, times: GcTimes, now_ms: int) -> int | None:
    """Seconds until this compaction is due; None: it is off or suspended."""
    rule = schedule.rule(kind)
    if schedule.to_make_room() is kind:
        return 0
    suspended = schedule.major_suspended if kind is Compaction.MAJOR else schedule.minor_suspended
    if suspended or not rule.periodic:
        return None
    last = times.last_major_ms if kind is Compaction.MAJOR else times.last_minor_ms
    return max(0, rule.interval_s - (now_ms - last) // 1000)


def _when(kind: Compaction, schedule: CompactionSchedule, times: GcTimes, now_ms: int) -> str | None:
    left = due_in_s(kind, schedule, times, now_ms)
    return None if left is None else f"the next {kind.value} compaction takes it, due in {left} s"


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
