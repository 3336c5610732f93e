"""Which compaction a pass does (reference bookie behaviour, sections 6.2 and 6.6)."""

from __future__ import annotations

from dataclasses import replace

import pytest

from bookie_pod.storage.gc.schedule import Compaction, CompactionRule, CompactionSchedule, Force, GcTimes

MINOR, MAJOR = Compaction.MINOR, Compaction.MAJOR
SECOND = 1000
SCHEDULE = CompactionSchedule(CompactionRule(0.2, 100), CompactionRule(0.8, 1000))
OFF = CompactionRule(0.2, 0)


def _choose(
    minutes: tuple[int, int],
    force: Force | None = None,
    *,
    suspended: str = "",
    minor: CompactionRule = SCHEDULE.minor,
    major: CompactionRule = SCHEDULE.major,
    allowed: bool = False,
) -> Compaction | None:
    """`minutes`: seconds since the last minor and the last major compaction."""
    now = 10_000 * SECOND
    times = GcTimes(now - minutes[0] * SECOND, now - minutes[1] * SECOND)
    schedule = replace(
        SCHEDULE,
        minor=minor,
        major=major,
        force_allowed=allowed,
        minor_suspended="minor" in suspended,
        major_suspended="major" in suspended,
    )
    return schedule.choose(times, now, force)


@pytest.mark.parametrize(
    ("since", "expected"),
    [
        ((0, 0), None),
        ((100, 100), None),  # the interval has to be over
        ((101, 101), MINOR),
        ((101, 1001), MAJOR),  # never both
        ((0, 1001), MAJOR),
    ],
)
def test_periodic(since: tuple[int, int], expected: Compaction | None) -> None:
    assert _choose(since) is expected


@pytest.mark.parametrize(
    ("suspended", "expected"), [("major", MINOR), ("minor", MAJOR), ("major minor", None), ("", MAJOR)]
)
def test_suspended(suspended: str, expected: Compaction | None) -> None:
    assert _choose((5000, 5000), suspended=suspended) is expected
    assert _choose((0, 0), Force(), suspended=suspended) is expected  # a plain force honours it


@pytest.mark.parametrize("suspended", ["", "major", "minor", "major minor"])
@pytest.mark.parametrize(
    ("force", "expected"),
    [
        (Force(major=True), MAJOR),
        (Force(minor=True), MINOR),
        (Force(major=True, minor=True), MAJOR),
        (Force(major=False, minor=True), MINOR),
        (Force(major=True, minor=False), MAJOR),
        (Force(major=False, minor=False), None),
    ],
)
def test_forced_by_name_in_spite_of_a_suspension(force: Force, expected: Compaction | None, suspended: str) -> None:
    assert _choose((0, 0), force, suspended=suspended) is expected


def test_not_this_kind_leaves_the_other_to_the_rules() -> None:
    assert _choose((0, 0), Force(major=False)) is MINOR
    assert _choose((0, 0), Force(minor=False)) is MAJOR
    assert _choose((0, 0), Force(major=False), suspended="minor") is None


@pytest.mark.parametrize("rule", [OFF, CompactionRule(0, 100), CompactionRule(-1, 100), CompactionRule(0.2, -1)])
def test_switched_off(rule: CompactionRule) -> None:
    assert _choose((9999, 0), minor=rule) is None
    assert _choose((9999, 0), Force(minor=True), minor=rule) is None
    assert _choose((0, 9999), major=rule) is None


def test_force_allowed_makes_up_for_a_switched_off_period_but_not_for_a_threshold_out_of_range() -> None:
    assert _choose((0, 0), Force(minor=True), minor=OFF, allowed=True) is MINOR
    assert _choose((9999, 9999), None, minor=OFF, major=replace(OFF, threshold=0.8), allowed=True) is None
    for threshold in (0.0, -0.5, 1.0):
        rule = CompactionRule(threshold, 0)
        assert _choose((0, 0), Force(minor=True), minor=rule, allowed=True) is None


def test_a_major_one_counts_as_a_minor_one_too() -> None:
    times = GcTimes(0, 0)
    times.done(MAJOR, 5)
    assert times == GcTimes(5, 5, 0, 1)
    times.done(MINOR, 9)
    assert times == GcTimes(9, 5, 1, 1)
