"""A clock for what takes its time from a callable: it stands until a test sets `now` (seconds)."""

from __future__ import annotations


class Clock:
    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now
