"""A file that has no name of its own before it is finished.

Invariants
- The process that writes one holds a lock on it, which ends with the process, however it ends: a file that can be
  locked belongs to no process. It is removed under that lock, and its writer looks after locking whether it is there.
- Where the file system has no locks, a file was left if nothing was written to it for a day.
- The file gets its name by a hard link, which replaces nothing, and only if it is the one that was written.

Threads: any, one at a time for each file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
from contextlib import suppress
from typing import BinaryIO, Final

from bookie_protocol.errors import InvalidConfiguration, StorageFault

_ABANDONED_S: Final = 86_400.0
_NO_LINKS: Final = frozenset((errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK))


def begin(path: str) -> tuple[str, BinaryIO]:
    """Make a new file beside `path`; its path, and the file, which holds the lock while it is open.

    `InvalidConfiguration`: the file system has no hard links.
    """
    while True:
        part = _beside(path)
        file = os.fdopen(os.open(part, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600), "w+b")
        if _lock(file.fileno()) is not False and os.fstat(file.fileno()).st_nlink:
            break
        file.close()
    try:
        _check_links(part, _beside(path))
    except BaseException:
        file.close()
        discard(part)
        raise
    return part, file


def finish(part: str, file: BinaryIO, path: str) -> None:
    """Give it its name. `FileExistsError`: there is such a file."""
    os.link(part, path)
    if not os.path.samestat(os.lstat(path), os.fstat(file.fileno())):
        os.unlink(path)
        raise StorageFault(f"{part}: another process replaced it; stop that, and repeat the command")
    folder = os.open(os.path.dirname(os.path.abspath(path)), os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def discard(part: str) -> None:
    with suppress(OSError):
        os.unlink(part)


def remove_left(part: str, now: float) -> None:
    """Remove a file that a process has left which was killed. `now`: seconds since 1970."""
    with suppress(OSError):
        file = os.open(part, os.O_RDWR | os.O_NOFOLLOW)
        try:
            free = _lock(file)
            if free or (free is None and now - os.fstat(file).st_mtime > _ABANDONED_S):
                os.unlink(part)
        finally:
            os.close(file)


def _beside(path: str) -> str:
    return f"{path}.{secrets.token_hex(4)}.part"


def _lock(file: int) -> bool | None:
    """Return whether nothing else holds it; None: the file system has no locks."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _check_links(part: str, other: str) -> None:
    try:
        os.link(part, other)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        folder = os.path.dirname(os.path.abspath(part))
        raise InvalidConfiguration(f"{folder} is on a file system without hard links: choose another one") from error
    os.unlink(other)
