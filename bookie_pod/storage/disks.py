"""The fill level of the disks, and what follows from it.

States of one directory, by the usage of its file system (1 - usable/total):

    WRITABLE --usage > warn--> ALMOST_FULL --usage > threshold--> FULL
    FULL --usage <= threshold--> ALMOST_FULL or WRITABLE

If no directory of a kind (ledgers; indexes, if they have directories of their own) is writable, a full one comes back
only when the usage over all of that kind is below the low-water mark, so that a bookie at the limit does not flap. A
directory that is full holds an empty file, `disk-full`, so that it is full after a restart too.

Where there is room, a little of it is held for a start on a full disk: `start-reserve`, a file in each ledger and index
folder. A database is opened by writing: RocksDB turns its log into a table and begins new files. So a disk that another
program has filled to the last byte would keep the bookie down, although the bookie could collect garbage on it. A start
that finds less than the reserve gives it up, and then serves reads, and collects.

Invariants
- `DiskMonitor.check` is the only writer of the states; listeners hear every state at every check.
- A directory that is gone, or cannot be read and written (a file system that was mounted again read-only), raises
  `StorageFault`: the bookie stops. With `on_failed_directory` a ledger directory is handed to that function instead,
  once and for good, as long as another one is left. No state of it is reported any more. A look for which the machine
  lacks memory says nothing of the directory: what was seen before holds.
- Journal directories are watched, and warned of; what a full or failed one means the journal itself finds out first.
  While a ledger directory has failed, a full one counts as a full ledger directory: the journal is not trimmed then.
- The engine reports a ledger directory whose writes fail (`give_up`): a check of the directory cannot find that out.
- A reserve is restored only where that leaves the disk writable, and never while clients or garbage collection need the
  room. A failure to hold it has no consequence: it is logged once, and the bookie goes on.

Threads: `check` runs on the monitor's thread (`disk-monitor`), or wherever a test calls it; `on_verdict` is called
there. `give_up_reserves` belongs to the start.

Source: docs/internals/bookie-behaviour.md, sections 1.9 and 5.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import structlog

from bookie_pod.config.sections.gc import DisksConfig
from bookie_pod.storage.entry_log.directories import DiskState
from bookie_pod.storage.files import DiskUsage, Files, storage_fault
from bookie_protocol.errors import ResourcesShort, StorageFault

_log = structlog.get_logger(__name__)


FULL_FILE: Final = "disk-full"
CLOSE_INTERVAL_S: Final = 1.0
"""Seconds between checks, at most, while a directory is almost full: what clients write between two of them comes out
of the room that a full disk keeps for compaction."""
RESERVE: Final = "start-reserve"
MOST_BYTES: Final = 32 * 1024 * 1024
"""Two tables as RocksDB makes them of full memtables of locations, and the rest many times over."""
PART_OF_DISK: Final = 64


@dataclass(frozen=True, slots=True)
class DiskVerdict:
    """The result of one check over all directories."""

    writable: int
    """Directories that are not full; of the kind that has fewest of them."""
    full: int
    """Full directories of every kind."""
    high_priority_room: bool
    """True if a directory has room for recovery adds."""
    usage: dict[str, float]
    """Share in use, by directory."""
    full_directories: tuple[str, ...] = ()


class DiskMonitor:
    """Watches a fixed set of directories.

    `report(directory, state)` hands each state to the entry logs or index files of that directory; `on_verdict` gets
    the summary;
    `on_failure` gets the fault that ends the bookie.
    """

    def __init__(
        self,
        files: Files,
        directories: Sequence[str],
        options: DisksConfig,
        *,
        report: Callable[[str, DiskState], None],
        on_verdict: Callable[[DiskVerdict], None],
        on_failure: Callable[[BaseException], None],
        index_directories: Sequence[str] = (),
        journal_directories: Sequence[str] = (),
        on_failed_directory: Callable[[str, StorageFault], None] | None = None,
    ) -> None:
        """`directories` hold ledgers; `index_directories` and `journal_directories` are those that are not among
        them."""
        self._files = files
        self._options = options
        self._reserves = StartReserves(files)
        self._kinds = [tuple(kind) for kind in (directories, index_directories) if kind]
        self._ledger_directories = frozenset(directories)
        self._states = {directory: self._remembered(directory) for directory in (*directories, *index_directories)}
        self._journal_states = dict.fromkeys(journal_directories, DiskState.WRITABLE)
        self._on_failed_directory = on_failed_directory
        self._lock = threading.Lock()
        """A directory gets a state and is given up in turn. `report` only notes, so no thread waits for long."""
        self.failed: dict[str, StorageFault] = {}
        """Ledger directories whose disk failed while others go on."""
        self._seen: dict[str, DiskUsage] = {}
        """The usage of each directory at the last look for which the machine lacked nothing."""
        self._report = report
        self._on_verdict = on_verdict
        self._on_failure = on_failure
        self.usage: dict[str, float] = {}
        """Share in use by directory, as found last."""
        self.check_began: float | None = None
        """The time at which the running check began (monotonic), or None if none is running. Any thread."""
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
        self.check_began = time.monotonic()
        try:
            return self._check()
        finally:
            self.check_began = None

    def _check(self) -> DiskVerdict:
        usages = self._usages()
        for kind in self._kinds:
            self._check_kind({directory: usages[directory] for directory in kind if directory in usages})
        usages = {directory: usage for directory, usage in usages.items() if directory not in self.failed}
        journals = {directory: self._usage(directory) for directory in self._journal_states}
        for directory, usage in journals.items():
            self._check_journal(directory, usage)
        full = tuple(directory for directory, state in self._states.items() if state is DiskState.FULL)
        # Journals are not trimmed while a directory has failed: one that is full must not end what the others serve.
        kept = tuple(directory for directory, state in self._journal_states.items() if state is DiskState.FULL)
        held = kept if self.failed else ()
        verdict = DiskVerdict(
            writable=0
            if held
            else min(sum(directory not in full for directory in kind if directory in usages) for kind in self._kinds),
            full=len(full) + len(held),
            high_priority_room=not held
            and all(
                any(
                    usages[each].usable > self._options.min_usable_for_high_priority_bytes
                    for each in kind
                    if each in usages
                )
                for kind in self._kinds
            ),
            usage={path: _share(usage) for path, usage in (usages | journals).items()},
            full_directories=(*full, *held),
        )
        self.usage = verdict.usage
        self._on_verdict(verdict)
        return verdict

    def _usages(self) -> dict[str, DiskUsage]:
        """Return the usage of every directory that has not failed."""
        usages: dict[str, DiskUsage] = {}
        for directory in self._states:
            if directory in self.failed:
                continue
            try:
                usages[directory] = self._usage(directory)
            except StorageFault as failure:
                self.give_up(directory, failure)
        return usages

    def give_up(self, directory: str, failure: StorageFault) -> None:
        """A directory can be used no more. Raises `failure` unless it is a ledger directory without which others go on.
        Any thread."""
        with self._lock:
            if directory in self.failed:
                return
            last = len(self.failed) + 1 >= len(self._ledger_directories)
            if self._on_failed_directory is None or directory not in self._ledger_directories or last:
                raise failure
            self.failed[directory] = failure
            self._states[directory] = DiskState.WRITABLE  # it is not full: nothing that becomes free brings it back
        _log.error("a ledger directory failed, the others go on", directory=directory, reason=str(failure))
        self._on_failed_directory(directory, failure)

    def _check_journal(self, directory: str, usage: DiskUsage) -> None:
        old, new = self._journal_states[directory], self._state(usage, DiskState.WRITABLE, True)
        self._journal_states[directory] = new
        if new is not old:
            _log.warning("journal disk state", directory=directory, state=new.name, usage=round(_share(usage), 4))

    def _check_kind(self, usages: dict[str, DiskUsage]) -> None:
        none_writable = all(self._states[directory] is DiskState.FULL for directory in usages)
        may_return = not none_writable or self._total(usages) < self._options.usage_lwm_threshold
        for directory, usage in usages.items():
            with self._lock:
                if directory in self.failed:  # given up meanwhile, because its writes fail
                    continue
                old = self._states[directory]
                new = self._states[directory] = self._state(usage, old, may_return)
                self._report(directory, new)
            if new is not old:
                _log.warning("disk state", directory=directory, state=new.name, usage=round(_share(usage), 4))
                self._remember(directory, new)
            if new is DiskState.WRITABLE:
                self._reserves.hold(directory, usage, self._options.usage_warn_threshold)

    def _remembered(self, directory: str) -> DiskState:
        """Return the state in which an earlier process left the directory."""
        return DiskState.FULL if self._files.exists(f"{directory}/{FULL_FILE}") else DiskState.WRITABLE

    def _remember(self, directory: str, state: DiskState) -> None:
        path = f"{directory}/{FULL_FILE}"
        try:
            if state is DiskState.FULL:
                self._files.write_bytes_synced(path, b"")
            elif self._files.exists(path):
                self._files.unlink(path)
        except OSError as error:  # a disk without room even for a name is still full after a restart
            _log.warning("whether the disk is full is not remembered", path=path, error=str(error))

    def _run(self) -> None:
        while not self._stop.wait(self._pause()):
            try:
                self.check()
            except Exception as error:
                # Any error ends the bookie: without this monitor, nothing watches the disks.
                self._on_failure(error)
                return

    def _pause(self) -> float:
        """Seconds until the next check."""
        if DiskState.ALMOST_FULL in self._states.values():
            return min(self._options.check_interval_ms / 1000, CLOSE_INTERVAL_S)
        return self._options.check_interval_ms / 1000

    def _state(self, usage: DiskUsage, old: DiskState, may_return: bool) -> DiskState:
        share = _share(usage)
        if share > self._options.usage_threshold or (old is DiskState.FULL and not may_return):
            return DiskState.FULL
        return DiskState.ALMOST_FULL if share > self._options.usage_warn_threshold else DiskState.WRITABLE

    def _usage(self, directory: str) -> DiskUsage:
        try:
            if not self._files.is_dir(directory):
                raise StorageFault(f"directory {directory} is gone; mount it again and restart the bookie")
            if not self._files.is_accessible(directory):
                raise StorageFault(
                    f"directory {directory} cannot be read and written; mount it writable, check its permissions, and"
                    " restart the bookie"
                )
            self._seen[directory] = self._files.usage(directory)
        except OSError as error:
            fault = storage_fault(f"directory {directory} cannot be used", error)
            if not isinstance(fault, ResourcesShort) or directory not in self._seen:
                raise fault from error
            _log.warning("a directory could not be looked at, what was seen before holds", reason=str(fault))
        return self._seen[directory]

    def _total(self, usages: dict[str, DiskUsage]) -> float:
        by_device = {usage.device: usage for usage in usages.values()}
        total = sum(usage.total for usage in by_device.values())
        return 1 - sum(usage.usable for usage in by_device.values()) / total if total else 1.0


def disk_space(files: Files, directories: Sequence[str]) -> tuple[int, int]:
    """Total and usable bytes over the distinct file systems of some directories (GET_BOOKIE_INFO)."""
    by_device = {usage.device: usage for usage in (files.usage(directory) for directory in directories)}
    return sum(usage.total for usage in by_device.values()), sum(usage.usable for usage in by_device.values())


def fullest_share(files: Files, directories: Sequence[str]) -> float:
    """Used share, 0 to 1, of the fullest file system of some directories."""
    return max((_share(files.usage(directory)) for directory in directories), default=0.0)


def _share(usage: DiskUsage) -> float:
    return 1 - usage.usable / usage.total if usage.total else 1.0


class StartReserves:
    """The reserves of some folders. None takes more than this part of its disk."""

    def __init__(self, files: Files, part: int = PART_OF_DISK) -> None:
        self._files = files
        self._part = part
        self._refused: set[str] = set()
        """Folders whose file system refused it."""

    def hold(self, folder: str, usage: DiskUsage, warn: float) -> None:
        """Have the reserve of a folder in which there is room, unless the disk were used beyond `warn` by it."""
        if folder in self._refused:
            return
        path, nbytes = f"{folder}/{RESERVE}", _bytes(usage, self._part)
        try:
            if not self._files.exists(path) or self._files.size(path) < nbytes:
                if usage.usable - nbytes < (1 - warn) * usage.total:
                    return
                _make(self._files, path, nbytes)
        except OSError as error:
            with suppress(OSError):
                self._files.unlink(path)
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                return  # another writer took the room
            _log.warning("no room can be held for a start on a full disk", path=path, reason=str(error))
            self._refused.add(folder)


def give_up_reserves(files: Files, folders: Iterable[str], part: int = PART_OF_DISK) -> None:
    """Before anything is opened in these folders: those on a full disk get what was held for this."""
    for folder in folders:
        path = f"{folder}/{RESERVE}"
        with suppress(OSError):  # the component that opens something on an unusable disk reports it
            usage = files.usage(folder)
            if usage.usable < _bytes(usage, part) and files.exists(path):
                files.unlink(path)
                _log.warning("the disk is full: this start uses the room that was held for it", folder=folder)


def _bytes(usage: DiskUsage, part: int) -> int:
    return min(MOST_BYTES, usage.total // part)


def _make(files: Files, path: str, nbytes: int) -> None:
    file = files.overwrite(path)
    try:
        file.allocate(0, nbytes)
    finally:
        file.close()
