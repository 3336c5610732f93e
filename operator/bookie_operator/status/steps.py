"""Percentages in steps, with hysteresis: a status does not change because a disk breathes.

Threads: pure functions, any thread.
"""

from __future__ import annotations

from typing import Final

_STEP: Final = 5


def stepped(percent: float | None, before: int | None) -> int | None:
    """Return the percentage to show; None: it was never known."""
    if percent is None:
        return before
    if before is not None and abs(percent - before) < _STEP:
        return before
    return min(100, max(0, round(percent / _STEP) * _STEP))
