"""The processes that use the directories of a bookie now.

- A bookie, and a command that changes its files, owns each folder (`node.identity.ownership`).
- RocksDB locks each database with a lock of the kernel, so every process on the machine that has one open is found.
- Bookies of other makes own no folder: a process that has files open below them is found if it shares this process's
  view of the machine (`/proc`). `DIRTY` stays behind when a bookie did not stop cleanly.

Source: docs/internals/on-disk-formats.md, section 11.
"""

from __future__ import annotations

import fcntl
import os
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

from bookie_pod.node.identity.ownership import hold_directories
from bookie_pod.storage.index.store import StoreKind
from bookie_pod.storage.inspect.layout import DiskLayout
from bookie_protocol.errors import BadRequest

_FLOCK: Final = struct.Struct("hhqqi4x")
"""`struct flock` on 64-bit Linux: type, whence, start, length, pid."""


def refuse_if_used(layout: DiskLayout) -> None:
    """`BadRequest` naming the process that uses the directories, if one does."""
    for path in _locks(layout):
        with open(path, "rb") as file:
            holder = _holder(file.fileno())
        if holder is not None:
            raise BadRequest(f"{os.path.dirname(path)} is open in {_name(holder)}: stop that bookie first")
    for pid, path in _open_files(layout.folders):
        raise BadRequest(f"{path} is open in {_name(pid)}: stop that bookie first")


def refuse_if_dirty(layout: DiskLayout) -> None:
    """`BadRequest` if the last bookie did not stop cleanly: where nothing is locked, one may still run."""
    for folder in layout.ledgers:
        path = f"{folder}/DIRTY"
        if os.path.exists(path):
            raise BadRequest(
                f"{path} is there: the bookie was killed, or still runs where it cannot be seen from here; "
                "if you are sure that it does not run, give --unclean"
            )


@contextmanager
def hold(layout: DiskLayout) -> Iterator[None]:
    """Hold the folders, and keep other bookies from opening the databases. `BadRequest` or `DirectoryInUse` if
    they are in use."""
    with ExitStack() as held:
        held.enter_context(hold_directories(layout.folders))
        for path in _locks(layout):
            file = held.enter_context(open(path, "r+b"))
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise BadRequest(
                    f"{os.path.dirname(path)} is open in {_name(_holder(file.fileno()) or 0)}: stop that bookie first"
                ) from None
        yield


def _locks(layout: DiskLayout) -> Iterator[str]:
    for folder in layout.index_folders:
        for kind in StoreKind:
            path = f"{folder}/{kind.value}/LOCK"
            if os.path.exists(path):
                yield path


def _holder(descriptor: int) -> int | None:
    """Return the process id of the holder of a write lock on the file; 0 if it cannot be seen from here, None if
    there is none."""
    asked = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = _FLOCK.unpack(fcntl.fcntl(descriptor, fcntl.F_GETLK, asked))
    return None if kind == fcntl.F_UNLCK else max(0, pid)


def _open_files(folders: Sequence[str]) -> Iterator[tuple[int, str]]:
    prefixes = tuple(os.path.realpath(folder) + "/" for folder in folders)
    own = os.getpid()
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if not name.isdigit() or int(name) == own:
            continue
        for path in _descriptors(f"/proc/{name}/fd"):
            if path.startswith(prefixes):
                yield int(name), path


def _descriptors(folder: str) -> list[str]:
    try:
        names = os.listdir(folder)
    except OSError:
        return []  # another user's process, or one that has just ended
    found: list[str] = []
    for name in names:
        with suppress(OSError):  # closed meanwhile
            found.append(os.readlink(f"{folder}/{name}"))
    return found


def _name(pid: int) -> str:
    return f"process {pid}" if pid else "another process"
