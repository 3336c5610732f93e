"""Schedules: what Kubernetes takes, and when it is due next."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_operator.crds.cron import next_time, parse, schedule_fault


def due(schedule: str, after: str, zone: str = "Etc/UTC") -> str | None:
    at = next_time(schedule, zone, datetime.fromisoformat(after).timestamp())
    return None if at is None else datetime.fromtimestamp(at, UTC).strftime("%a %Y-%m-%dT%H:%M")


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ("* * * * *", "Sun 2026-03-01T10:31"),
        ("*/15 * * * *", "Sun 2026-03-01T10:45"),
        ("30 10 * * *", "Mon 2026-03-02T10:30"),
        ("5/20 4-6/2,23 * * ?", "Sun 2026-03-01T23:05"),
        ("0 3 * * mon-FRI", "Mon 2026-03-02T03:00"),
        ("0 0 13 * 5", "Fri 2026-03-06T00:00"),  # either of the days
        ("0 0 */2 * 5", "Tue 2026-03-03T00:00"),  # a step over all says something, so it is either as well
        ("0 0 29 feb *", "Tue 2028-02-29T00:00"),
        ("@weekly", "Sun 2026-03-08T00:00"),
        ("@yearly", "Fri 2027-01-01T00:00"),
        ("0 0 31 2 *", None),
    ],
)
def test_next_time(schedule: str, expected: str | None) -> None:
    assert due(schedule, "2026-03-01T10:30:00+00:00") == expected


def test_time_zones() -> None:
    assert due("0 2 * * *", "2026-07-01T12:00:00+00:00", "Europe/Berlin") == "Thu 2026-07-02T00:00"
    # The hour that is left out when the clock is put forward has no backup.
    assert due("30 2 * * *", "2026-03-28T12:00:00+00:00", "Europe/Berlin") == "Mon 2026-03-30T00:30"
    assert due("0 2 * * *", "2026-07-01T12:00:00+00:00", "No/Where") is None


@pytest.mark.parametrize(
    "schedule", ["", "* * * *", "60 * * * *", "* 24 * * *", "* * 0 * *", "* * * 13 *", "* * * * 7", "5-2 * * * *",
                 "*/0 * * * *", "*-3 * * * *", "a * * * *", "@often", "1.5 * * * *"]
)  # fmt: skip
def test_what_kubernetes_refuses(schedule: str) -> None:
    assert schedule_fault(schedule)
    assert next_time(schedule, "Etc/UTC", 0.0) is None


@given(
    st.sampled_from(["* * * * *", "7 */3 * * 1,4", "0 12 1-7 * *", "59 23 31 * 0", "*/7 1 * jan,jun *"]),
    st.datetimes(datetime(2000, 1, 1), datetime(2060, 1, 1)),
)
def test_it_is_the_first_minute_that_fits(schedule: str, at: datetime) -> None:
    after = at.replace(tzinfo=UTC)
    found = next_time(schedule, "Etc/UTC", after.timestamp())
    assert found is not None
    wanted = parse(schedule)
    minute = after.replace(second=0, microsecond=0) + timedelta(minutes=1)
    while not (
        wanted.has(minute.date()) and minute.hour in wanted.hours.values and minute.minute in wanted.minutes.values
    ):
        if wanted.has(minute.date()):
            minute += timedelta(minutes=1)
        else:
            minute = minute.replace(hour=0, minute=0) + timedelta(days=1)
    assert found == minute.timestamp()
