"""Reports of garbage collection: on itself, on single logs, and on what compaction would give back.

Invariants
- Nothing here changes anything, and what is answered is as of the last pass, but for who owns a log: that is looked
  up when memory does not hold it.
- A look-up that has to scan a log gives up after `LOOK_S` seconds.

Threads: any; look-ups read files.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from heapq import nlargest
from typing import Final, Literal

from bookie_pod.storage.entry_log.format import HEADER_SIZE
from bookie_pod.storage.entry_log.ledger_sizes import LedgerSizes
from bookie_pod.storage.gc.log_usage import LogUsage, LogUsages
from bookie_pod.storage.gc.schedule import Compaction, CompactionSchedule, GcTimes
from bookie_pod.storage.gc.storage import CollectedStorage
from bookie_protocol.errors import StorageFault

BUCKETS: Final = 10
LogState = Literal["written", "complete", "quarantined", "held"]
"""The state of a log.

`written`: it is being written, or was not rotated and synced yet. `quarantined` and `held`: it is damaged, and garbage
collection or the scrubber leaves it alone.
"""
LOOK_S: Final = 5.0
REPORT_LEDGERS: Final = 100
"""Ledgers that a report on one log names, the largest first."""


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
    """The time at which the location index was last rewritten, or at which the collector began."""
    index_count: int = 0
    done: int = 0
    """Logs of this phase that are done, of `total`; both 0 when the phase does not count logs."""
    total: int = 0
    last_pass: PassResult | None = None
    """The result of the last pass; None if none has ended since the start."""
    last_pass_ms: int = 0
    """The time at which it ended; before the first pass, the time at which the collector was made."""
    deletions_held: str | None = None
    """The reason why ledgers that the metadata service does not have are not deleted; None if only their grace holds
    them.
    """
    ledgers_waiting: int = 0
    """The number of such ledgers here."""


@dataclass(slots=True)
class PassResult:
    """The result of one pass."""

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
    """The result that one kind of compaction would have now."""

    threshold: float
    logs: int
    """Logs that it would rewrite."""
    rewritten_bytes: int
    reclaimable_bytes: int
    due_in_s: int | None
    """Seconds until it is due, 0: with the next pass; None: off or suspended."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """The space that the collector could give back, as of the last pass."""

    buckets: list[UsageBucket]
    """The buckets by usage, from 0 to 10 % up to 90 to 100 %."""
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
    """A sentence that says why it is there, and when it will go."""
    age_s: int
    """Seconds since it was written last."""


@dataclass(frozen=True, slots=True)
class LogSummary:
    """One log of a list."""

    log_id: int
    size: int
    """Bytes of the file."""
    age_s: int
    """Seconds since it was written last."""
    share: float | None
    """Live share, 0 to 1, as of the last pass; None: not measured."""
    state: LogState


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
    """Explain why a log is still there.

    `unreadable` is the error of the last attempt to read it. `doubt` says why some ledgers that count as alive may have
    been deleted.
    """
    if quarantined is not None:
        return f"quarantined: damaged ({quarantined}); it is kept until you remove it"
    if held is not None:
        return (
            f"held: the scrubber found damage in it ({held}); it is left alone until the damaged entries have been"
            " fetched from other bookies, or a later scrub (PUT /api/v1/bookie/scrub begins one) no longer finds this"
        )
    if not flushed:
        return _of_a_current_log(usage, size_limit, doubt)
    if unreadable is not None:
        return f"the last pass could not read it ({unreadable}); the next one tries again"
    if usage is None:
        return "not looked at yet: the next pass will"
    if usage.in_doubt:
        return (
            f"{usage.in_doubt} bytes belong to ledgers that are not in the index here, but that the metadata service"
            " places here or could not tell of"
        )
    share, lives = usage.usage(size_limit), _lives(usage, size_limit, doubt)
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


def _of_a_current_log(usage: LogUsage | None, size_limit: int | None, doubt: str | None) -> str:
    text = "it is being written, or was not rotated and synced yet"
    if usage is None:
        return f"{text}; not looked at yet: the next pass will" + ("" if doubt is None else f" ({doubt})")
    return f"{text}; {_lives(usage, size_limit, doubt)}; a pass that finds it mostly garbage closes it"


def _lives(usage: LogUsage, size_limit: int | None, doubt: str | None) -> str:
    share = usage.usage(size_limit)
    text = f"{usage.live_bytes} of {usage.total} bytes live ({share:.0%}), of {usage.ledgers} ledgers"
    return text if doubt is None else f"{text}, as far as is known ({doubt})"


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
        self._written_ms: dict[int, int] = {}

    def report(self, log_id: int, size_limit: int | None, now_ms: int) -> LogReport:
        """Return why this log is still there, and when it will go. `StorageFault` if there is no such log."""
        logs = self._storage.logs
        size, flushed = logs.size(log_id), logs.is_flushed(log_id)
        quarantined = self._usages.quarantined.get(log_id)
        usage = self._usage(log_id)
        pairs = self._pairs(log_id, look=flushed and quarantined is None)
        owners: list[tuple[int, int]] | None = None
        if pairs is not None:
            alive = ((nbytes, ledger) for ledger, nbytes in pairs if self._storage.has_ledger(ledger))
            owners = [(ledger, nbytes) for nbytes, ledger in nlargest(REPORT_LEDGERS, alive)]
        text = explain(
            usage,
            flushed=flushed,
            quarantined=quarantined,
            held=self._held().get(log_id),
            unreadable=self._usages.unreadable.get(log_id),
            schedule=self._schedule,
            times=self._times,
            now_ms=now_ms,
            size_limit=size_limit,
            doubt=self._doubt(),
        )
        return LogReport(log_id, logs.path(log_id), size, usage, owners, text, self._age_s(log_id, now_ms))

    def _usage(self, log_id: int) -> LogUsage | None:
        """Return the usage as of the last pass.

        That of a log that was written during the pass says what lives as far as the index here knows.
        """
        found = self._usages.usages.get(log_id)
        return found or next((each for each in self._usages.current if each.log_id == log_id), None)

    def _pairs(self, log_id: int, *, look: bool) -> Iterable[tuple[int, int]] | None:
        """Ledgers and their bytes in a log; None: not known. `look`: read the log if memory does not hold them."""
        sizes = self._usages.peek(log_id)
        if sizes is None and look:
            sizes = self._look(log_id)
        if sizes is not None:
            return sizes.pairs()
        current = self._storage.logs.current_sizes().get(log_id)
        return None if current is None else current.items()

    def logs(self, size_limit: int | None, now_ms: int) -> list[LogSummary]:
        """Every log here, the one that was written longest ago first."""
        logs, held, found = self._storage.logs, self._held(), list[LogSummary]()
        for log_id in logs.log_ids():
            usage = self._usage(log_id)
            state: LogState = "complete" if logs.is_flushed(log_id) else "written"
            if log_id in self._usages.quarantined:
                state = "quarantined"
            elif log_id in held:
                state = "held"
            with suppress(StorageFault):  # removed meanwhile
                age_s, size = self._age_s(log_id, now_ms), logs.size(log_id)
                share = None if usage is None else usage.usage(size_limit)
                found.append(LogSummary(log_id, size, age_s, share, state))
        return sorted(found, key=lambda each: (-each.age_s, each.log_id))

    def oldest_age_s(self, now_ms: int) -> float:
        """See `GarbageCollector.oldest_age_s`. A complete log is not written any more, so it is looked at once."""
        logs, complete = self._storage.logs, dict[int, int]()
        oldest = now_ms
        for log_id in logs.log_ids():
            with suppress(StorageFault):  # removed meanwhile
                written_ms = self._written_ms.get(log_id)
                if written_ms is None:
                    flushed = logs.is_flushed(log_id)
                    if not flushed and logs.size(log_id) <= HEADER_SIZE:
                        continue  # created ahead of time, and nothing was written
                    written_ms = logs.written_ms(log_id)
                    if flushed:
                        complete[log_id] = written_ms
                else:
                    complete[log_id] = written_ms
                oldest = min(oldest, written_ms)
        self._written_ms = complete
        return (now_ms - oldest) / 1000

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

    def forecast(self, size_limit: int | None, now_ms: int) -> Forecast:
        """Usage by tenths, and what each compaction would give back now."""
        known = list(self._usages.usages.values())
        buckets = [UsageBucket() for _ in range(BUCKETS)]
        for each in known:
            bucket = buckets[bucket_of(each.usage(size_limit))]
            bucket.logs += 1
            bucket.total_bytes += each.total
            bucket.reclaimable_bytes += each.garbage_bytes
            with suppress(StorageFault):  # removed meanwhile
                bucket.oldest_age_s = max(bucket.oldest_age_s, self._age_s(each.log_id, now_ms))
        measured = {each.log_id for each in known} | set(self._usages.quarantined) | set(self._held())
        return Forecast(
            buckets,
            self._compaction(Compaction.MINOR, size_limit, now_ms),
            self._compaction(Compaction.MAJOR, size_limit, now_ms),
            unmeasured=sum(log_id not in measured for log_id in self._storage.logs.log_ids()),
        )

    def _compaction(self, kind: Compaction, size_limit: int | None, now_ms: int) -> CompactionForecast:
        rule = self._schedule.rule(kind)
        found = candidates(self._usages, rule.threshold, size_limit)
        return CompactionForecast(
            rule.threshold,
            len(found),
            sum(each.live_bytes for each in found),
            sum(each.garbage_bytes for each in found),
            due_in_s(kind, self._schedule, self._times, now_ms),
        )
