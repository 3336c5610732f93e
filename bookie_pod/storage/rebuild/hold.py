"""Keeping garbage collection from entry logs while the index that it goes by is rebuilt.

A log whose rows are missing looks empty. Ledgers are deleted all the same; the space comes back afterwards.

Threads: that of the rebuild; `held` any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final, Protocol

from bookie_pod.storage.entry_log.interface import EntryLogger
from bookie_pod.storage.integrity.scrub_pace import ScrubPace

REASON: Final = "the index is being rebuilt"
CHECK_S: Final = 0.05
"""Between two looks at whether a pass has ended, in seconds."""


class HeldCollector(Protocol):
    """What is asked of a `GarbageCollector`."""

    excluded: Callable[[], Mapping[int, str]]

    @property
    def is_idle(self) -> bool: ...


class CollectionHold:
    """The hold on one collector. Made after everybody else has told it what to spare."""

    def __init__(self, collector: HeldCollector, logs: EntryLogger) -> None:
        self._collector = collector
        self._others = collector.excluded
        self._all = _AllLogs(logs)
        self._on = False
        collector.excluded = self.held

    def held(self) -> Mapping[int, str]:
        """The logs that are neither compacted nor removed, and why."""
        return self._all if self._on else self._others()

    def take(self, pace: ScrubPace) -> None:
        """From now on no log is compacted or removed; returns when a pass that had begun has ended. `ScrubStopped`."""
        self._on = True
        while not self._collector.is_idle:
            pace.wait(CHECK_S)

    def release(self) -> None:
        self._on = False


class _AllLogs(Mapping[int, str]):
    """Every log that there is or will be."""

    def __init__(self, logs: EntryLogger) -> None:
        self._logs = logs

    def __contains__(self, log_id: object) -> bool:
        return True

    def __getitem__(self, log_id: int) -> str:
        return REASON

    def __iter__(self) -> Iterator[int]:
        return iter(self._logs.log_ids())

    def __len__(self) -> int:
        return len(self._logs.log_ids())
