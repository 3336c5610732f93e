"""Which compaction is due, and by which clock.

Invariants
- At most one compaction in a pass; a major one counts as a minor one too.
- A suspended compaction runs only when it is forced by name, or to make room.
- While the disk is full (`short_of_space`) any pass may make room, whatever is due or forced: only an operator who
  holds a compaction back (`held`) keeps it from that.
- The times survive restarts (`GcTimes` is stored by the caller): a bookie that restarts more often than an interval
  does what is due all the same.

Pure but for the clock; time is an argument, in milliseconds since 1970.

Source: docs/internals/bookie-behaviour.md, sections 6.2 and 6.6.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from bookie_pod.config.sections.gc import GcConfig

_OFFSET_NS: Final = time.time_ns() - time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Compaction(Enum):
    """A kind of compaction: major ones are rarer and take logs of which more is alive."""

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
    """The times at which each kind of periodic work last ended, in ms since 1970, and the number of compactions."""

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
    """A pass on request. Each field says whether that kind of compaction is wanted.

    None: as the rules and suspensions say, but at once, unless the other kind was asked for by name. False: not this
    kind.
    """

    major: bool | None = None
    minor: bool | None = None
    by_disk: bool = False
    """True if a full disk asked for it; the request is dropped when there is room again."""


@dataclass(slots=True)
class CompactionSchedule:
    """Decides; `force_allowed` lets forced passes compact although the periodic compaction is off."""

    minor: CompactionRule
    major: CompactionRule
    force_allowed: bool = False
    minor_suspended: bool = False
    major_suspended: bool = False
    disk_full: bool = False
    """Deleted ledgers go without a grace."""
    short_of_space: bool = False
    """The disk is full, and compaction may use what is left of it."""
    held: set[Compaction] = field(default_factory=set)
    """The compactions that an operator has suspended, not a disk."""

    @classmethod
    def of(cls, options: GcConfig) -> CompactionSchedule:
        """The schedule that the configuration asks for."""
        schedule = cls(CompactionRule(0, 0), CompactionRule(0, 0))
        schedule.reconfigure(options)
        return schedule

    def reconfigure(self, options: GcConfig) -> None:
        """Take other thresholds and intervals; what is suspended stays suspended."""
        self.minor = CompactionRule(
            options.minor_compaction_threshold,
            options.minor_compaction_interval_s,
            options.minor_compaction_max_time_ms,
        )
        self.major = CompactionRule(
            options.major_compaction_threshold,
            options.major_compaction_interval_s,
            options.major_compaction_max_time_ms,
        )
        self.force_allowed = options.force_allow_compaction

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


def steady_now_ms() -> int:
    """Return the time by which the rare work of a storage becomes due (collection, scrubbing), in ms since the epoch.

    It is the time of day when the process began, advanced by a clock that cannot be set and that does not stop while
    the machine sleeps. So a time of day that is set back delays nothing, and one that is set forward for a moment
    leaves no times in the future behind. A reader of stored times takes none for later than now. Any thread.
    """
    return (_OFFSET_NS + time.clock_gettime_ns(time.CLOCK_BOOTTIME)) // 1_000_000
