"""What garbage collection says about itself and about single logs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bookie_pod.storage.gc.log_usage import LogUsage
from bookie_pod.storage.gc.schedule import Compaction, CompactionSchedule, GcTimes

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


@dataclass(frozen=True, slots=True)
class LogReport:
    """One log."""

    log_id: int
    size: int
    """Bytes of the file."""
    usage: LogUsage | None
    """None: not measured yet."""
    owners: list[tuple[int, int]]
    """(ledger id, bytes) of what lives in it, the largest first."""
    reason: str
    """Why it is there, and when it will go, in a sentence."""


def explain(
    usage: LogUsage | None,
    *,
    flushed: bool,
    quarantined: str | None,
    schedule: CompactionSchedule,
    times: GcTimes,
    now_ms: int,
    size_limit: int | None,
) -> str:
    """Why a log is still there."""
    if quarantined is not None:
        return f"quarantined: damaged ({quarantined}); it is kept until somebody removes it"
    if not flushed:
        return "it is being written, or was not rotated and synced yet"
    if usage is None:
        return "not looked at yet: the next pass will"
    if usage.in_doubt:
        return (
            f"{usage.in_doubt} bytes belong to ledgers that are not in the index here, but that the metadata service"
            " places here or could not tell of"
        )
    share = usage.usage(size_limit)
    lives = f"{usage.remaining} of {usage.total} bytes live ({share:.0%}), of {usage.ledgers} ledgers"
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


def _when(kind: Compaction, schedule: CompactionSchedule, times: GcTimes, now_ms: int) -> str | None:
    rule = schedule.rule(kind)
    suspended = schedule.major_suspended if kind is Compaction.MAJOR else schedule.minor_suspended
    if suspended or not rule.periodic:
        return None
    last = times.last_major_ms if kind is Compaction.MAJOR else times.last_minor_ms
    left = max(0, rule.interval_s - (now_ms - last) // 1000)
    return f"the next {kind.value} compaction takes it, due in {left} s"
