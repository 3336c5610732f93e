"""How full the disks are, and what follows from it.

States of one directory, by the usage of its file system (1 - usable/total):

    WRITABLE --usage > warn--> ALMOST_FULL --usage > threshold--> FULL
    FULL --usage <= threshold--> ALMOST_FULL or WRITABLE

If no directory is writable, a full one comes back only when the usage over all directories together is below the
low-water mark, so that a bookie at the limit does not flap.

Invariants
- `DiskMonitor.check` is the only writer of the states; listeners hear every state at every check.
- A directory that is gone, or not readable and writable, raises `StorageFault`: the bookie stops.

Threads: `check` runs on the monitor's thread (`disk-monitor`), or wherever a test calls it; `on_verdict` is called there.

Source: reference bookie behaviour, sections 1.9 and 5.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import structlog

from bookie_pod.storage.entry_log.directories import DiskState
from bookie_pod.storage.files import DiskUsage, Files
from bookie_protocol.errors import PodkeeperError, StorageFault

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class DiskOptions:
    """Thresholds are shares of a file system in use, between 0 and 1."""

    threshold: float = 0.95
    """Above it a directory takes no new entry log (`diskUsageThreshold`)."""
    warn: float = 0.90
    """Above it the current entry log is rolled and compaction holds back (`diskUsageWarnThreshold`)."""
    low_water: float = 0.95
    """With no writable directory left, usage over all must fall below it first (`diskUsageLwmThreshold`)."""
    interval_s: float = 10.0
    """Between two checks, in seconds (`diskCheckInterval`)."""
    high_priority_bytes: int = 1024 * 1024 * 1024
    """Room that lets recovery adds pass a read-only bookie (`minUsableSizeForHighPriorityWrites`)."""


@dataclass(frozen=True, slots=True)
class DiskVerdict:
    """What one check found over all directories."""

    writable: int
    full: int
    high_priority_room: bool
    """Some directory has room for recovery adds."""
    usage: dict[str, float]
    """Share in use, by directory."""


class DiskMonitor:
    """Watches a fixed set of directories.

    `report(directory, state)` hands each state to the entry logs of that directory; `on_verdict` gets the summary;
    `on_failure` gets the fault that ends the bookie.
    """

    def __init__(
        self,
        files: Files,
        directories: Sequence[str],
        options: DiskOptions,
        *,
        report: Callable[[str, DiskState], None],
        on_verdict: Callable[[DiskVerdict], None],
        on_failure: Callable[[BaseException], None],
    ) -> None:
        self._files = files
        self._options = options
        self._states = dict.fromkeys(directories, DiskState.WRITABLE)
        self._report = report
        self._on_verdict = on_verdict
        self._on_failure = on_failure
        self.usage: dict[str, float] = {}
        """Share in use by directory, as found last."""
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def states(self) -> dict[str, DiskState]:
        """A copy of the states found last."""
        return dict(self._states)

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="disk-monitor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def check(self) -> DiskVerdict:
        """Look at every directory once. Raises StorageFault for one that cannot be used."""
        usages = {directory: self._usage(directory) for directory in self._states}
        none_writable = all(state is DiskState.FULL for state in self._states.values())
        may_return = not none_writable or self._total(usages) < self._options.low_water
        for directory, usage in usages.items():
            old = self._states[directory]
            new = self._state(usage, old, may_return)
            self._states[directory] = new
            if new is not old:
                _log.warning("disk state", directory=directory, state=new.name, usage=round(_share(usage), 4))
            self._report(directory, new)
        full = sum(state is DiskState.FULL for state in self._states.values())
        room = any(usage.usable > self._options.high_priority_bytes for usage in usages.values())
        verdict = DiskVerdict(
            len(self._states) - full, full, room, {path: _share(usage) for path, usage in usages.items()}
        )
        self.usage = verdict.usage
        self._on_verdict(verdict)
        return verdict

    def _run(self) -> None:
        while not self._stop.wait(self._options.interval_s):
            try:
                self.check()
            except PodkeeperError as error:
                self._on_failure(error)
                return

    def _state(self, usage: DiskUsage, old: DiskState, may_return: bool) -> DiskState:
        share = _share(usage)
        if share > self._options.threshold or (old is DiskState.FULL and not may_return):
            return DiskState.FULL
        return DiskState.ALMOST_FULL if share > self._options.warn else DiskState.WRITABLE

    def _usage(self, directory: str) -> DiskUsage:
        try:
            if not self._files.is_dir(directory):
                raise StorageFault(f"directory {directory} is gone; mount it again and restart the bookie")
            return self._files.usage(directory)
        except OSError as error:
            raise StorageFault(f"directory {directory} cannot be used: {error.strerror or error}") from error

    def _total(self, usages: dict[str, DiskUsage]) -> float:
        by_device = {usage.device: usage for usage in usages.values()}
        total = sum(usage.total for usage in by_device.values())
        return 1 - sum(usage.usable for usage in by_device.values()) / total if total else 1.0


def disk_space(files: Files, directories: Sequence[str]) -> tuple[int, int]:
    """Total and usable bytes over the distinct file systems of some directories (GET_BOOKIE_INFO)."""
    by_device = {usage.device: usage for usage in (files.usage(directory) for directory in directories)}
    return sum(usage.total for usage in by_device.values()), sum(usage.usable for usage in by_device.values())


def current(directory: str) -> str:
    """The folder of a configured directory that holds the data."""
    return os.path.join(directory, "current")


def _share(usage: DiskUsage) -> float:
    return 1 - usage.usable / usage.total if usage.total else 1.0
