"""Schedules of a CronJob: what they mean, and when they are due next.

The grammar is that of Kubernetes: five fields (minute, hour, day of month, month, day of week) with `*`, `?`, lists,
ranges, steps and English names, or one of `@hourly`, `@daily` and so on. Where both days are restricted, either of them
is enough. https://pkg.go.dev/github.com/robfig/cron/v3#hdr-CRON_Expression_Format

Threads: values and pure functions, any thread.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta, tzinfo
from functools import lru_cache
from typing import Final
from zoneinfo import ZoneInfo

_MACROS: Final = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_DAYS: Final = ("sun", "mon", "tue", "wed", "thu", "fri", "sat")
_PART: Final = re.compile(r"(?P<low>[*?]|[0-9a-z]+)(-(?P<high>[0-9a-z]+))?(/(?P<step>[0-9]+))?")
_LONGEST_DAYS: Final = 8 * 366
"""A leap day may be eight years away."""


@dataclass(frozen=True)
class _Field:
    values: frozenset[int]
    free: bool
    """True if the field says nothing: `*` or `?`."""


@dataclass(frozen=True)
class Schedule:
    minutes: _Field
    hours: _Field
    days: _Field
    months: _Field
    weekdays: _Field

    def has(self, day: date) -> bool:
        """Return whether it is due on that day."""
        if day.month not in self.months.values:
            return False
        of_month, of_week = day.day in self.days.values, day.isoweekday() % 7 in self.weekdays.values
        either = not self.days.free and not self.weekdays.free
        return of_month or of_week if either else of_month and of_week


@lru_cache(maxsize=256)
def parse(schedule: str) -> Schedule:
    """Raises ValueError, with one line, for what Kubernetes would refuse."""
    fields = _MACROS.get(schedule, schedule).lower().split()
    if len(fields) != 5:
        raise ValueError("there must be five fields, or one such as @daily")
    return Schedule(
        _field(fields[0], 0, 59),
        _field(fields[1], 0, 23),
        _field(fields[2], 1, 31),
        _field(fields[3], 1, 12, _MONTHS),
        _field(fields[4], 0, 6, _DAYS),
    )


def schedule_fault(schedule: str) -> str:
    """Return what is wrong with it; empty: Kubernetes takes it."""
    try:
        parse(schedule)
    except ValueError as error:
        return str(error)
    return ""


@lru_cache(maxsize=256)
def next_time(schedule: str, time_zone: str, after: float) -> float | None:
    """Return when it is due first after that time (seconds since 1970); None: never, or the time zone is not known
    here."""
    try:
        found = parse(schedule)
        zone: tzinfo = UTC if time_zone == "Etc/UTC" else ZoneInfo(time_zone)
    except (ValueError, LookupError, OSError):
        return None
    first = datetime.fromtimestamp(after, zone).date()
    for later in range(_LONGEST_DAYS):
        day = first + timedelta(days=later)
        if not found.has(day):
            continue
        for hour in sorted(found.hours.values):
            for minute in sorted(found.minutes.values):
                local = datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone)
                at = local.timestamp()
                # A clock that is put forward leaves times of the day out.
                if at > after and datetime.fromtimestamp(at, zone).replace(fold=0) == local:
                    return at
    return None


def _field(text: str, low: int, high: int, names: tuple[str, ...] = ()) -> _Field:
    values: set[int] = set()
    free = False
    for part in text.split(","):
        found = _PART.fullmatch(part)
        if found is None:
            raise ValueError(f"{part!r} is not a number, a range or *")
        step = int(found["step"] or 1)
        if found["low"] in ("*", "?"):
            first, last = low, high
            free = free or step == 1
        else:
            first = _number(found["low"], low, high, names)
            last = _number(found["high"], low, high, names) if found["high"] else high if found["step"] else first
        if step == 0 or last < first or (found["high"] and found["low"] in ("*", "?")):
            raise ValueError(f"{part!r} is not a range")
        values |= set(range(first, last + 1, step))
    return _Field(frozenset(values), free)


def _number(text: str, low: int, high: int, names: tuple[str, ...]) -> int:
    number = names.index(text) + low if text in names else int(text) if text.isdecimal() else -1
    if not low <= number <= high:
        raise ValueError(f"{text!r} is not between {low} and {high}")
    return number
