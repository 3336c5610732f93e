"""When the space will be used up, as far as the past tells.

Pure.
"""

from __future__ import annotations

from pyspark_bookie.jobs.framework.arguments import DAY_S


def bytes_per_day(recent_bytes: int, window_s: float) -> float:
    """Growth, from what was written within the window and is still there."""
    return recent_bytes * DAY_S / window_s if window_s > 0 else 0.0


def days_until_full(free_bytes: int, per_day: float) -> float | None:
    """None: it does not grow."""
    return None if per_day <= 0 else free_bytes / per_day
