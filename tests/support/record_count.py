"""A journal for engines in memory that only counts."""

from __future__ import annotations

from bookie_pod.storage.journal.marks import LogMark


class RecordCount:
    """A journal in which every step that was begun is a synced record."""

    def __init__(self, begun: int = 0) -> None:
        self.begun = begun

    def last_mark(self) -> LogMark:
        return LogMark(1, self.begun)

    def remove_below(self, mark: LogMark) -> list[int]:
        return []
