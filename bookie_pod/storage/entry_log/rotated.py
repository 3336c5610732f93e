"""The way of a log that takes no more entries: closed with its ledgers map, synced, handed to the garbage collection.

Invariants
- A log is marked as flushed, and so may be collected, only once all of it is durable, or its owner has given it up.
- A log that could not get its map is closed without: whoever needs the map scans the log.

Threads: whoever holds the appender's append lock; listeners are called with it held.

Source: reference on-disk formats, section 4.4.
"""

from __future__ import annotations

from collections.abc import Iterable

import structlog

from bookie_pod.storage.entry_log.catalog import LogCatalog
from bookie_pod.storage.entry_log.interface import EntryLogStats, RotationListener
from bookie_pod.storage.entry_log.writer import LogWriter

logger = structlog.get_logger(__name__)


class RotatedLogs:
    """Logs that are rotated and not known to be durable. `writers`: see `LogAppender`."""

    def __init__(self, catalog: LogCatalog, writers: dict[int, LogWriter], stats: EntryLogStats) -> None:
        self._catalog = catalog
        self._writers = writers
        self._stats = stats
        self._logs: list[LogWriter] = []
        self._listeners: list[RotationListener] = []

    def add_listener(self, listener: RotationListener) -> None:
        self._listeners.append(listener)

    def all(self) -> list[LogWriter]:
        """The oldest first."""
        return list(self._logs)

    def add(self, log: LogWriter) -> None:
        """Close the contents of a flushed log that is active no more. Cannot fail: the map may be missing."""
        end = log.position
        try:
            log.write_map()
        except OSError as error:
            logger.warning("entry log closed without its ledgers map", log_id=log.log_id, error=str(error))
            log.cut(end)
        self._writers.pop(log.log_id, None)
        self._logs.append(log)
        self._stats.logs_rotated += 1
        for listener in self._listeners:
            listener(log.log_id)

    def settle(self, logs: Iterable[LogWriter]) -> None:
        """These are durable: close them; the garbage collector may have them."""
        for log in logs:
            if log in self._logs:
                self._logs.remove(log)
                self._catalog.mark_flushed(log.log_id)
                log.close()

    def give_up(self, logs: Iterable[LogWriter]) -> None:
        """What no sync has vouched for is appended again elsewhere: cut them there and close them. So a disk on which
        each try fails is not filled by what the tries leave."""
        for log in logs:
            log.take_back()
            if log not in self._logs:
                self._logs.append(log)
        self.settle(logs)

    def forget(self, log: LogWriter) -> None:
        """Its owner sees to it; no error if it is not rotated."""
        if log in self._logs:
            self._logs.remove(log)

    def close(self) -> None:
        """Close every file without writing anything."""
        for log in self._logs:
            log.close()
        self._logs.clear()
