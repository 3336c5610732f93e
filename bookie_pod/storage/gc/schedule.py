"""Which compaction is due, by which clock, and the settings of one collector.

Invariants
- At most one compaction in a pass; a major one counts as a minor one too.
- A suspended compaction runs only when it is forced by name, or to make room.
- While the disk is full (`short_of_space`) any pass may make room, whatever is due or forced: only an operator who
  holds a compaction back (`held`) keeps it from that.
- The times survive restarts (`GcTimes` is stored by the caller): a bookie that restarts more often than an interval
  does what is due all the same.

Pure but for the clock; time is an argument, in milliseconds since 1970.

Source: reference bookie behaviour, sections 6.2 and 6.6.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Final

_OFFSET_NS: Final = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Compaction(Enum):
    """Both rewrite logs; major ones come rarely and take logs of which more is alive."""

    MINOR = "minor"
    MAJOR = "major"


@dataclass(frozen=True, slots=True)
class CompactionRule:
    """One kind of compaction."""

    threshold: float
    """Logs whose live share is below this are rewritten, 0 to 1; 0 or less: never."""
    interval_s: int
    """Seconds between two of them; 0 or less: only when forced."""
    max_time_ms: int = -1
    """Milliseconds that one may take; 0 or less: no limit."""

    @property
    def periodic(self) -> bool:
        return self.threshold > 0 and self.interval_s > 0

    def is_due(self, last_ms: int, now_ms: int) -> bool:
        return self.periodic and now_ms - last_ms > self.interval_s * 1000


@dataclass(slots=True)
class GcTimes:
    """When each kind of periodic work last ended, in ms since 1970, and how many compactions there were."""

    last_minor_ms: int
    last_major_ms: int
    minor_count: int = 0
    major_count: int = 0
    last_over_replicated_ms: int = 0
    """The search for ledgers that live elsewhere; one that ended early does not count."""
    last_index_ms: int = 0
    """The rewriting of the location index."""

    @classmethod
    def beginning(cls, now_ms: int) -> GcTimes:
        """The times of a collector that has done nothing yet."""
        return cls(now_ms, now_ms, last_over_replicated_ms=now_ms, last_index_ms=now_ms)

    def done(self, compaction: Compaction, now_ms: int) -> None:
        """Note a compaction that has ended."""
        self.last_minor_ms = now_ms
        if compaction is Compaction.MAJOR:
            self.last_major_ms = now_ms
            self.major_count += 1
        else:
            self.minor_count += 1


@dataclass(frozen=True, slots=True)
class Force:
    """A pass that somebody asked for. None: as the rules and suspensions say, but at once, unless the other kind was
    asked for by name; False: not this kind."""

    major: bool | None = None
    minor: bool | None = None
    by_disk: bool = False
    """Because a disk has become full; forgotten when there is room again."""


@dataclass(slots=True)
class CompactionSchedule:
    """Decides; `force_allowed` lets forced passes compact although the periodic compaction is off."""

    minor: CompactionRule
    major: CompactionRule
    force_allowed: bool = False
    minor_suspended: bool = False
    major_suspended: bool = False
    short_of_space: bool = False
    """The disk is full, and compaction may use what is left of it."""
    held: set[Compaction] = field(default_factory=set)
    """What an operator has suspended, not a disk."""

    def rule(self, compaction: Compaction) -> CompactionRule:
        return self.major if compaction is Compaction.MAJOR else self.minor

    def choose(self, times: GcTimes, now_ms: int, force: Force | None = None) -> Compaction | None:
        """The compaction that this pass does."""
        if self._runs(
            self.major, self.major_suspended, times.last_major_ms, now_ms, force, force.major if force else None
        ):
            return Compaction.MAJOR
        if self._runs(
            self.minor, self.minor_suspended, times.last_minor_ms, now_ms, force, force.minor if force else None
        ):
            return Compaction.MINOR
        return None

    def to_make_room(self) -> Compaction | None:
        """The compaction whose logs are to be rewritten because the disk is full, most garbage first."""
        if not self.short_of_space:
            return None
        kinds = (Compaction.MAJOR, Compaction.MINOR)
        return next((kind for kind in kinds if self.rule(kind).periodic and kind not in self.held), None)

    def _runs(
        self, rule: CompactionRule, suspended: bool, last_ms: int, now_ms: int, force: Force | None, named: bool | None
    ) -> bool:
        if force is None:
            return not suspended and rule.is_due(last_ms, now_ms)
        if named is False:
            return False
        possible = rule.periodic or (self.force_allowed and 0 < rule.threshold < 1)
        if named:
            return possible
        if force.major or force.minor:
            return False  # the other kind was asked for by name
        return possible and not suspended


@dataclass(frozen=True, slots=True, kw_only=True)
class GcOptions:
    """Made from the configuration; see `docs/configuration.md` for each key."""

    minor: CompactionRule = field(default_factory=lambda: CompactionRule(0.2, 3600))
    major: CompactionRule = field(default_factory=lambda: CompactionRule(0.8, 86_400))
    wait_ms: int = 600_000
    """`gcWaitTime`: milliseconds between passes."""
    collectors: int = 1
    """Collectors of this bookie, whose first passes are spread over one more wait time."""
    force_allowed: bool = False
    """`forceAllowCompaction`."""
    throttle_by_bytes: bool = True
    """`isThrottleByBytes`."""
    compaction_rate: float = 1_000_000
    """Entries, or bytes, that are read and written per second."""
    max_outstanding: int = 100_000
    """`compactionMaxOutstandingRequests`: entries that wait for one index update."""
    transactional: bool = True
    """`useTransactionalCompaction`."""
    verify_metadata: bool = True
    """`verifyMetadataOnGC`."""
    metadata_rate: float = 1000
    """`gcMetadataOpRateLimit`: metadata operations per second."""
    over_replicated_interval_ms: int = 86_400_000
    """`gcOverreplicatedLedgerWaitTime`; 0 or less: never."""
    index_compaction_interval_ms: int = -1
    """`entryLocationCompactionInterval`; 0 or less: never."""
    use_target_log_size: bool = False
    """`useTargetEntryLogSizeForGc`."""
    log_size_limit: int = 1 << 30
    """`logSizeLimit`, bytes."""
    usage_memory_bytes: int = 64 * 1024 * 1024
    """What may be kept in memory of which ledgers lie in which logs, bytes."""
    report_ledgers: int = 100
    """Ledgers that a report on one log names, the largest first."""

    @property
    def usage_size_limit(self) -> int | None:
        """The size that a log's usage is measured against (`useTargetEntryLogSizeForGc`); None: its own."""
        return self.log_size_limit if self.use_target_log_size else None

    def reconfigured(self, wanted: GcOptions) -> GcOptions:
        """These options with those of `wanted` that may change while the collector runs."""
        return replace(
            self,
            minor=wanted.minor,
            major=wanted.major,
            wait_ms=wanted.wait_ms,
            force_allowed=wanted.force_allowed,
            throttle_by_bytes=wanted.throttle_by_bytes,
            compaction_rate=wanted.compaction_rate,
            metadata_rate=wanted.metadata_rate,
            use_target_log_size=wanted.use_target_log_size,
        )


def steady_now_ms() -> int:
    """The time by which the rare work of a storage becomes due (collection, scrubbing), in ms since the epoch. Any
    thread.

    It is the time of day when the process began, moved on by a clock that nobody sets and that does not stand still
    while the machine sleeps. So a time of day that is set back puts nothing off, and one that is set forward for a
    moment leaves nothing behind that lies in the future. Whoever reads what was stored at the next start takes nothing
    for later than now.
    """
    return (_OFFSET_NS + time.clock_gettime_ns(time.CLOCK_BOOTTIME)) // 1_000_000
