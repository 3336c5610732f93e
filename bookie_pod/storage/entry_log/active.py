"""The rule that chooses the log for the next entry of a ledger.

It is one log for all ledgers, or one log for each ledger (`entryLogPerLedgerEnabled`; reference disk formats, 6.2).
Both rules are plain maps under the logger's append lock; making, rotating and syncing logs is the logger's business.

Invariants, with one log for each ledger
- A log holds entries of that ledger only. More than `max_active_logs` never stay active: the least recently used is
  rotated first, and one that was idle for `active_log_idle_seconds` is rotated at the next flush or new log.
- A checkpoint syncs active and rotated logs, as no log is sure to rotate soon.

Threads: under the logger's append lock, but for `order`, which the preallocating thread calls: it only reads a counter.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from typing import Protocol

from bookie_pod.storage.entry_log.writer import LogWriter


class ActiveLogs(Protocol):
    """The logs that are open for appending. Used under the append lock only."""

    checkpoint_all: bool
    """True if a checkpoint syncs the active logs too, not only the rotated ones."""

    def get(self, ledger_id: int) -> LogWriter | None:
        """Return the active log of this ledger."""
        ...

    def put(self, ledger_id: int, log: LogWriter) -> None:
        """Make `log` the active one of this ledger, in place of the one before."""
        ...

    def remove(self, log: LogWriter) -> None: ...
    def all(self) -> list[LogWriter]: ...
    def surplus(self) -> list[LogWriter]:
        """Active logs that should be rotated now: idle ones, and those beyond the permitted number."""
        ...

    def order(self, candidates: Sequence[str]) -> Sequence[str]:
        """Directories for the next log, the best first; `candidates` come in random order."""
        ...


class SharedLog:
    """One active log; entries of different ledgers share it on purpose: few files, sequential writes."""

    checkpoint_all = False

    def __init__(self) -> None:
        self._log: LogWriter | None = None

    def get(self, ledger_id: int) -> LogWriter | None:
        return self._log

    def put(self, ledger_id: int, log: LogWriter) -> None:
        self._log = log

    def remove(self, log: LogWriter) -> None:
        if self._log is log:
            self._log = None

    def all(self) -> list[LogWriter]:
        return [] if self._log is None else [self._log]

    def surplus(self) -> list[LogWriter]:
        return []

    def order(self, candidates: Sequence[str]) -> Sequence[str]:
        return candidates


class PerLedgerLogs:
    """The `ActiveLogs` with one log for each ledger. `clock` gives seconds that never go back."""

    checkpoint_all = True

    def __init__(self, max_logs: int, idle_seconds: float, clock: Callable[[], float]) -> None:
        self._max_logs = max_logs
        self._idle_seconds = idle_seconds
        self._clock = clock
        self._logs: OrderedDict[int, LogWriter] = OrderedDict()
        self._used: dict[int, float] = {}
        self._per_directory: Counter[str] = Counter()

    def get(self, ledger_id: int) -> LogWriter | None:
        log = self._logs.get(ledger_id)
        if log is not None:
            self._logs.move_to_end(ledger_id)
            self._used[ledger_id] = self._clock()
        return log

    def put(self, ledger_id: int, log: LogWriter) -> None:
        self._forget(ledger_id)
        self._logs[ledger_id] = log
        self._used[ledger_id] = self._clock()
        self._per_directory[log.directory] += 1

    def remove(self, log: LogWriter) -> None:
        for ledger_id in [ledger_id for ledger_id, active in self._logs.items() if active is log]:
            self._forget(ledger_id)

    def _forget(self, ledger_id: int) -> None:
        log = self._logs.pop(ledger_id, None)
        if log is not None:
            self._per_directory[log.directory] -= 1
            del self._used[ledger_id]

    def all(self) -> list[LogWriter]:
        return list(self._logs.values())

    def surplus(self) -> list[LogWriter]:
        excess = len(self._logs) - self._max_logs
        horizon = self._clock() - self._idle_seconds
        logs: list[LogWriter] = []
        for ledger_id, log in self._logs.items():
            if len(logs) >= excess and self._used[ledger_id] > horizon:
                break
            logs.append(log)
        return logs

    def order(self, candidates: Sequence[str]) -> Sequence[str]:
        return sorted(candidates, key=lambda directory: self._per_directory[directory])
