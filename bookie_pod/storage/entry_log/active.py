"""Which log takes the next entry of a ledger: one log for all of them.

The other rule, one log per ledger, is in `per_ledger`. Both are plain maps under the logger's append lock;
making, rotating and syncing logs is the logger's business.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from bookie_pod.storage.entry_log.writer import LogWriter


class ActiveLogs(Protocol):
    """The logs that are open for appending. Used under the append lock only."""

    checkpoint_all: bool
    """Whether a checkpoint syncs the active logs too, not only the rotated ones."""

    def get(self, ledger_id: int) -> LogWriter | None:
        """The active log of this ledger."""
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
