"""The ownership of directories: one process at a time, from before anything in them is changed.

Invariants
- Every `current` folder of a bookie is locked (flock) by the process that changes anything in it, a bookie or a
  command, for as long as it may. The lock is the kernel's: it ends with the process, however that ends, and works
  across containers that share the disk. Where a file system has no locks, that is logged once and the start goes on.
- No folder is given twice for one purpose, and none lies inside another: whatever their names, device and inode tell.
- Directories that share a file system fail and fill together: they are refused, or logged (`check_partitions`, once at
  start-up, before anything is written).

Threads: any, blocking; `hold_directories` and its context belong to one.

Source: docs/internals/bookie-behaviour.md, section 1.3 (`allowMultipleDirsUnderSameDiskPartition`).
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final

import structlog

from bookie_pod.config.sections.journal import DirectoriesConfig
from bookie_pod.node.identity.cookies import BookieDirectories
from bookie_pod.storage.files import Files
from bookie_protocol.errors import InvalidConfiguration, ServerStartFailed

_log = structlog.get_logger(__name__)

_NO_LOCKS: Final = frozenset({errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EBADF, errno.EINVAL})


class DirectoryInUse(ServerStartFailed):
    """Another process owns a directory."""


@contextmanager
def hold_directories(folders: Sequence[str]) -> Iterator[None]:
    """Own these folders, those of them that exist. `DirectoryInUse` if another process does, or `OSError`."""
    held: set[tuple[int, int]] = set()
    with ExitStack() as stack:
        for folder in folders:
            try:
                descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                continue
            stack.callback(os.close, descriptor)
            found = os.fstat(descriptor)
            if (found.st_dev, found.st_ino) not in held:
                _lock(descriptor, folder)
                held.add((found.st_dev, found.st_ino))
        yield


def _lock(descriptor: int, folder: str) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise DirectoryInUse(
            f"{folder} is in use by another process: a bookie, or a command that changes its files; stop that first"
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        _log.warning("this file system has no locks: nothing keeps a second bookie away", folder=folder)


def check_distinct(directories: BookieDirectories) -> None:
    """`InvalidConfiguration` if one directory is given twice for one purpose, under whatever names, or lies inside
    what a bookie keeps in another one. One directory may serve several purposes."""
    every: dict[str, str] = {}
    for key, paths in (
        ("journalDirectories", directories.journal),
        ("ledgerDirectories", directories.ledger),
        ("indexDirectories", directories.index or ()),
    ):
        seen: dict[object, str] = {}
        for path in paths:
            current = os.path.realpath(os.path.join(path, "current"))
            other = seen.setdefault(_identity(current), path)
            if other is not path:
                raise InvalidConfiguration(f"{key}: {other} and {path} are the same directory; name it once")
            every[current] = path
    for inner, path in every.items():
        for outer, around in every.items():
            if inner.startswith(outer + os.sep):
                raise InvalidConfiguration(
                    f"{path} lies inside {around}/current, which is a bookie's; move it elsewhere"
                )


def _identity(folder: str) -> object:
    try:
        found = os.stat(folder)
    except OSError:
        return folder  # not there yet: its name without links has to do
    return found.st_dev, found.st_ino


def check_partitions(directories: DirectoriesConfig, files: Files) -> None:
    """Warn of ledger or index directories on one file system, or refuse them with `InvalidConfiguration`.

    Journal directories, and a ledger directory beside its index directory, may share one.
    """
    for key, paths in (("ledgerDirectories", directories.ledger), ("indexDirectories", directories.index)):
        for together in _sharing(files, paths):
            if not directories.allow_same_disk_partition:
                raise InvalidConfiguration(
                    f"{key}: {', '.join(together)} are on one file system; give each a disk of its own, or set"
                    " allowMultipleDirsUnderSameDiskPartition=true"
                )
            _log.warning("directories share a file system", key=key, directories=together)


def _sharing(files: Files, paths: Sequence[str]) -> list[list[str]]:
    """Groups of two and more paths on one file system. One that cannot be looked at is for others to complain of."""
    by_device: dict[int, list[str]] = {}
    for path in paths:
        try:
            device = files.usage(_existing(files, path)).device
        except OSError:
            continue
        by_device.setdefault(device, []).append(path)
    return [together for together in by_device.values() if len(together) > 1]


def _existing(files: Files, path: str) -> str:
    """The path, or the nearest folder above it: where it will be made."""
    folder = os.path.abspath(path)
    while not files.is_dir(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    return folder
