"""`PosixFiles`: the file system of the operating system.

The only module of `bookie_pod.storage` that calls `os` for file access. Built at the top (node, command line,
tests) and handed down as a `Files`.

Invariants
- Calls that the kernel interrupts are repeated by the interpreter; short writes are continued here.
- A failed sync is remembered by the file: later syncs raise too (see `storage.files`).
- Every `OSError` names its file.

Threads: as `storage.files` says; nothing here is locked, the kernel's positional calls are used throughout.
"""

from __future__ import annotations

import errno
import os
import warnings
from collections.abc import Sequence
from itertools import islice

from bookie_pod.storage.files import LONGEST_WITHOUT_HOLES, Buffer, DiskUsage, File, WholeFiles

IOV_MAX = min(1024, os.sysconf("SC_IOV_MAX"))
"""The number of pieces that one `pwritev` takes, at most."""

_FILE_MODE = 0o644
_PROBE = "length-probe.tmp"


def _calls_holes_data(fd: int) -> bool:
    """Return whether the file system calls holes data; `fd` is a file that is nothing but a hole."""
    try:
        os.lseek(fd, 0, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return False
        raise
    return True


def _named(error: OSError, path: str) -> OSError:
    error.filename = path
    return error


class PosixFile:
    """One open file descriptor, written with positional calls."""

    __slots__ = ("_fd", "_path", "_position", "_sync_error")

    def __init__(self, fd: int, path: str, position: int) -> None:
        self._fd = fd
        self._path = path
        self._position = position
        self._sync_error: OSError | None = None

    @property
    def path(self) -> str:
        return self._path

    @property
    def position(self) -> int:
        return self._position

    def write(self, data: Buffer) -> None:
        self.pwrite(data, self._position)
        self._position += len(data)

    def writev(self, pieces: Sequence[Buffer]) -> None:
        try:
            remaining = iter(pieces)
            while batch := list(islice(remaining, IOV_MAX)):
                self._write_batch(batch)
        except OSError as error:
            raise _named(error, self._path) from None

    def _write_batch(self, batch: list[Buffer]) -> None:
        expected = sum(map(len, batch))
        written = self._progress(os.pwritev(self._fd, batch, self._position), expected)
        if written < expected:
            self._write_rest(b"".join(batch), written, self._position)
        self._position += expected

    def pwrite(self, data: Buffer, offset: int) -> None:
        try:
            length = len(data)
            written = self._progress(os.pwrite(self._fd, data, offset), length)
            if written < length:
                self._write_rest(data, written, offset)
        except OSError as error:
            raise _named(error, self._path) from None

    def _write_rest(self, data: Buffer, written: int, offset: int) -> None:
        """Go on after a short write. Every view is released, so that an error that is kept holds none of the buffer."""
        while written < len(data):
            with memoryview(data) as whole, whole[written:] as rest:
                written += self._progress(os.pwrite(self._fd, rest, offset + written), len(rest))

    @staticmethod
    def _progress(written: int, expected: int) -> int:
        if written == 0 and expected > 0:
            raise OSError(errno.EIO, "a write made no progress")
        return written

    def pread(self, length: int, offset: int) -> bytes:
        try:
            data = os.pread(self._fd, length, offset)
            if len(data) in (0, length):
                return data
            chunks = [data]
            got = len(data)
            while got < length and (data := os.pread(self._fd, length - got, offset + got)):
                chunks.append(data)
                got += len(data)
            return b"".join(chunks)
        except OSError as error:
            raise _named(error, self._path) from None

    def allocate(self, offset: int, length: int) -> None:
        try:
            os.posix_fallocate(self._fd, offset, length)
        except OSError as error:
            raise _named(error, self._path) from None

    def truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            raise _named(error, self._path) from None
        self._position = min(self._position, size)

    def datasync(self) -> None:
        self._sync(data_only=True)

    def sync(self) -> None:
        self._sync(data_only=False)

    def _sync(self, *, data_only: bool) -> None:
        if self._sync_error is not None:
            raise OSError(
                self._sync_error.errno,
                "an earlier sync of this file failed, so what it held may be lost",
                self._path,
            ) from self._sync_error
        try:
            if data_only:
                os.fdatasync(self._fd)
            else:
                os.fsync(self._fd)
        except OSError as error:
            self._sync_error = error
            raise _named(error, self._path) from None

    def data_from(self, offset: int) -> tuple[int, int] | None:
        try:
            begin = os.lseek(self._fd, offset, os.SEEK_DATA)
            return begin, os.lseek(self._fd, begin, os.SEEK_HOLE)
        except OSError as error:
            if error.errno == errno.ENXIO:  # behind the end, or nothing but a hole up to it
                return None
            raise _named(error, self._path) from None

    def drop_cache(self, offset: int, length: int) -> None:
        try:
            os.posix_fadvise(self._fd, offset, length, os.POSIX_FADV_DONTNEED)
        except OSError:
            pass  # advice only

    def size(self) -> int:
        try:
            return os.fstat(self._fd).st_size
        except OSError as error:
            raise _named(error, self._path) from None

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            try:
                os.close(fd)
            except OSError as error:
                raise _named(error, self._path) from None

    def __del__(self) -> None:
        if self._fd >= 0:
            warnings.warn(f"{self._path} was never closed", ResourceWarning, stacklevel=1, source=self)
            self.close()


class PosixFiles(WholeFiles):
    """The real `Files`. Stateless; one instance serves the whole process."""

    def create(self, path: str) -> File:
        return self._open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def create_direct(self, path: str) -> File:
        direct = getattr(os, "O_DIRECT", 0)
        if not direct:
            raise OSError(errno.EOPNOTSUPP, "this system has no direct I/O", path)
        try:
            return self._open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | direct)
        except FileExistsError:
            raise
        except OSError:
            self._unlink_if_there(path)  # some file systems make the file before they refuse the flag
            raise

    @staticmethod
    def _unlink_if_there(path: str) -> None:
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass

    def overwrite(self, path: str) -> File:
        return self._open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    def open(self, path: str, *, writable: bool = False) -> File:
        return self._open(path, os.O_RDWR if writable else os.O_RDONLY)

    @staticmethod
    def _open(path: str, flags: int) -> PosixFile:
        fd = os.open(path, flags | os.O_CLOEXEC, _FILE_MODE)
        file = PosixFile(fd, path, 0)
        file._position = file.size()
        return file

    def exists(self, path: str) -> bool:
        try:
            os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def is_accessible(self, path: str) -> bool:
        return os.access(path, os.R_OK | os.W_OK | os.X_OK)

    def takes_file_of(self, folder: str, nbytes: int) -> bool:
        path = f"{folder}/{_PROBE}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _FILE_MODE)
        try:
            os.unlink(path)
            os.ftruncate(fd, nbytes)
            return nbytes <= LONGEST_WITHOUT_HOLES or not _calls_holes_data(fd)
        except OSError as error:
            if error.errno in (errno.EFBIG, errno.EINVAL):
                return False
            raise _named(error, path) from None
        finally:
            os.close(fd)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def modified_ms(self, path: str) -> int:
        return os.stat(path).st_mtime_ns // 1_000_000

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(path))

    def makedirs(self, path: str) -> None:
        missing: list[str] = []
        folder = os.path.abspath(path)
        while not os.path.isdir(folder):
            missing.append(folder)
            folder = os.path.dirname(folder)
        os.makedirs(path, exist_ok=True)
        for made in reversed(missing):
            self.sync_directory(os.path.dirname(made))

    def rmdir(self, path: str) -> None:
        os.rmdir(path)

    def rename(self, source: str, target: str) -> None:
        os.rename(source, target)

    def link(self, source: str, target: str) -> None:
        os.link(source, target)

    def unlink(self, path: str) -> None:
        os.unlink(path)

    def sync_directory(self, path: str) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            try:
                os.fsync(fd)
            except OSError as error:
                raise _named(error, path) from None
        finally:
            os.close(fd)

    def usage(self, path: str) -> DiskUsage:
        stats = os.statvfs(path)
        return DiskUsage(
            total=stats.f_blocks * stats.f_frsize,
            usable=stats.f_bavail * stats.f_frsize,
            device=os.stat(path).st_dev,
            file_system=stats.f_fsid,
        )
