"""The times in which `spec.update.windows` lets bookies be restarted.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from bookie_operator.crds.cluster_spec import Day, Update, Window
from bookie_operator.planner import operations


def is_open(update: Update, now: float) -> bool:
    """Return whether a window is open, or none is set. `now`: seconds since 1970."""
    moment = datetime.fromtimestamp(now, UTC)
    return not update.windows or any(
        begins <= moment < begins + timedelta(hours=window.hours)
        for window in update.windows
        for begins in _beginnings(window, moment)
    )


def next_opening(update: Update, now: float) -> float:
    """Return when the next window opens, in seconds since 1970; `now` if no window is set."""
    moment = datetime.fromtimestamp(now, UTC)
    coming = [each for window in update.windows for each in _beginnings(window, moment) if each > moment]
    return min(coming, default=moment).timestamp()


def opens(update: Update, now: float) -> str:
    """Say when bookies may be restarted."""
    opening = operations.written(next_opening(update, now))
    return f"bookies are restarted from {opening} on, when the next of update.windows opens"


def _beginnings(window: Window, around: datetime) -> list[datetime]:
    """Return the beginnings from the day before, whose window may be open still, to the same day of the next week."""
    hour, minute = map(int, window.start.split(":"))
    first = around.replace(hour=hour, minute=minute, second=0, microsecond=0) - timedelta(days=1)
    days = list(Day)
    beginnings = (first + timedelta(days=number) for number in range(9))
    return [each for each in beginnings if not window.days or days[each.weekday()] in window.days]
