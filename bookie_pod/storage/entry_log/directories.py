"""Which directory takes a new log, and what disks report (reference bookie behaviour, section 5).

Threads: the disk monitor changes states; the appending and allocating threads ask. `LedgerDirStates` locks
by itself.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Protocol

from bookie_pod.storage.files import Files
from bookie_protocol.errors import NoWritableDirectory


class DiskState(IntEnum):
    """State of one ledger directory; greater is worse."""

    WRITABLE = 0
    ALMOST_FULL = 1
    FULL = 2


DiskListener = Callable[[str, DiskState], None]
"""Called with a directory and its new state, on the disk monitor's thread: only note them."""


class LedgerDirs(Protocol):
    """The ledger directories of one logger, as paths of their `current` folders."""

    def all(self) -> Sequence[str]: ...
    def writable(self) -> Sequence[str]:
        """Return the directories that are not full, the almost full included."""
        ...

    def add_listener(self, listener: DiskListener) -> None: ...


class LedgerDirStates:
    """The plain `LedgerDirs`: remembers the state that was last reported for each directory."""

    def __init__(self, directories: Iterable[str]) -> None:
        self._states = dict.fromkeys(directories, DiskState.WRITABLE)
        self._listeners: list[DiskListener] = []
        self._lock = threading.Lock()

    def all(self) -> Sequence[str]:
        return list(self._states)

    def writable(self) -> Sequence[str]:
        with self._lock:
            return [path for path, state in self._states.items() if state is not DiskState.FULL]

    def add_listener(self, listener: DiskListener) -> None:
        with self._lock:
            self._listeners.append(listener)

    def report(self, directory: str, state: DiskState) -> None:
        """Set a directory's state and tell every listener, also if it is the same as before."""
        with self._lock:
            if directory not in self._states:
                raise KeyError(f"{directory} is not a ledger directory")
            self._states[directory] = state
            listeners = list(self._listeners)
        for listener in listeners:
            listener(directory, state)


class JoinedLedgerDirs:
    """The `LedgerDirs` of several others together, for one logger over all of them."""

    def __init__(self, parts: Iterable[LedgerDirs]) -> None:
        self._parts = tuple(parts)

    def all(self) -> Sequence[str]:
        return [path for part in self._parts for path in part.all()]

    def writable(self) -> Sequence[str]:
        return [path for part in self._parts for path in part.writable()]

    def add_listener(self, listener: DiskListener) -> None:
        for part in self._parts:
            part.add_listener(listener)


@dataclass(frozen=True, slots=True)
class LogPurpose:
    """The purpose of a new log, worded for an error."""

    what: str
    key: str
    """The configuration key behind the room that it needs on a full disk."""


NEW_ENTRIES: Final = LogPurpose("a new entry log", "minUsableSizeForEntryLogCreation")
COMPACTION: Final = LogPurpose("what lives in a log", "with minUsableSizeAfterCompaction")


def candidate_directories(
    files: Files,
    dirs: LedgerDirs,
    usable_bytes: int,
    purpose: LogPurpose = NEW_ENTRIES,
    lost: Container[str] = frozenset(),
) -> list[str]:
    """Directories that may take a new log, in random order.

    The writable ones; if there are none, those with more than `usable_bytes` of free space. Never `lost` ones.
    `NoWritableDirectory` if there are none of these either.
    """
    candidates = [path for path in dirs.writable() if path not in lost]
    if not candidates:
        candidates = [path for path in dirs.all() if path not in lost and _usable(files, path) > usable_bytes]
    if not candidates:
        raise NoWritableDirectory(
            f"no ledger directory may take {purpose.what}: all of {', '.join(dirs.all())} are full and "
            f"none has {usable_bytes} bytes left ({purpose.key}); "
            "free space or add a directory"
        )
    random.shuffle(candidates)
    return candidates


def check_room(files: Files, dirs: LedgerDirs, path: str, usable_bytes: int, purpose: LogPurpose) -> None:
    """Raise `NoWritableDirectory` if this directory is full and has no more than `usable_bytes` of free space."""
    if path not in dirs.writable() and _usable(files, path) <= usable_bytes:
        raise NoWritableDirectory(
            f"{path} is full and has no room for {purpose.what}: {usable_bytes} bytes ({purpose.key}); "
            "free space or add a directory"
        )


def _usable(files: Files, path: str) -> int:
    try:
        return files.usage(path).usable
    except OSError:
        return -1
