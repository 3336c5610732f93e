"""`MemoryFiles`: a file system in memory that forgets, fails, slows down and dies on demand.

What a crash keeps
- Data of a file: all that was synced. Each write since then is kept, lost or torn: per 512-byte sector in any
  order, and some sectors in the middle. A size that grew without its data reads as zeros. A truncation is in
  force as soon as any later write of that file survives. A sync covers what was written before it was called.
- Names (`strict_names=False`, as ext4 and xfs do): creations, renames, links and removals are kept in order
  up to a random one; syncing a file makes its own name (and all name changes before it) durable,
  `sync_directory` makes everything so far durable.
- Names (`strict_names=True`, what POSIX promises): only `sync_directory` of the folder helps, every other
  change is kept or lost by itself.
- Folders are durable at once (`Files.makedirs` promises that).

What a fault leaves
- A write that fails has written its first half.
- A sync that fails loses what it covered, for good: the kernel calls those pages clean, and a later sync of the file,
  opened anew, succeeds without them. Until a crash they can be read.

Every call is an `Operation`, counted, and shown to the faults before it happens: `Faults` can fail, delay,
hold or kill it. After a death every call of every thread raises `Died`, as the process is gone; `crash(rng)` then
gives the file system that the next process finds.

Threads: everything but the faults' own waiting happens under one lock.
"""

from __future__ import annotations

import errno
import os
import posixpath
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

from bookie_pod.storage.files import Buffer, DiskUsage, File, WholeFiles
from tests.support.memory_faults import Died, Faults, Operation
from tests.support.memory_inode import FolderMove, Inode, NameChange, survivors_in_any_order, survivors_in_order

__all__ = ["Died", "Faults", "MemoryFile", "MemoryFiles", "Operation"]

DEFAULT_CAPACITY = 1 << 40

DIRECT_ALIGNMENT = 4096
"""What lengths and offsets of writes to a file of `create_direct` must be multiples of."""


class MemoryFile:
    """One open file of a `MemoryFiles`."""

    def __init__(self, files: MemoryFiles, inode: Inode, path: str, *, writable: bool, position: int) -> None:
        self._files = files
        self._inode = inode
        self._path = path
        self._writable = writable
        self._position = position
        self._closed = False
        self._sync_failed = False
        self._alignment = 1

    @property
    def path(self) -> str:
        return self._path

    @property
    def position(self) -> int:
        return self._position

    def write(self, data: Buffer) -> None:
        self._apply("write", bytes(data), self._position)
        self._position += len(data)

    def writev(self, pieces: Sequence[Buffer]) -> None:
        data = b"".join(pieces)
        self._apply("writev", data, self._position)
        self._position += len(data)

    def pwrite(self, data: Buffer, offset: int) -> None:
        self._apply("pwrite", bytes(data), offset)

    def _apply(self, name: str, data: bytes, offset: int) -> None:
        try:
            self._write_whole(name, data, offset)
        except OSError as error:
            self._write_half(data, offset, error)
            raise

    def _write_half(self, data: bytes, offset: int, error: OSError) -> None:
        """What a write that failed leaves: as much of its first half as there is room for."""
        part = len(data) // 2 // self._alignment * self._alignment
        refused = error.errno in (errno.EBADF, errno.EINVAL, errno.EROFS, errno.EFBIG)
        if refused or self._closed or not self._writable or not part:
            return
        with self._files._lock:
            while part and not self._files._has_room(self._path, self._inode.growth(part, offset)):
                part = part // 2 // self._alignment * self._alignment
            self._inode.write(data[:part], offset)

    def _write_whole(self, name: str, data: bytes, offset: int) -> None:
        with self._files._operation(name, self._path, len(data)):
            self._check(writing=True)
            if len(data) % self._alignment or offset % self._alignment:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self._path)
            if offset + len(data) > self._files.largest_file:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), self._path)
            self._files._reserve(self._path, self._inode.growth(len(data), offset))
            self._inode.write(data, offset)

    def pread(self, length: int, offset: int) -> bytes:
        with self._files._operation("pread", self._path, length):
            self._check()
            return bytes(self._inode.data[offset : offset + length])

    def allocate(self, offset: int, length: int) -> None:
        with self._files._operation("allocate", self._path):
            self._check(writing=True)
            end = offset + length
            self._files._reserve(self._path, max(0, end - max(self._inode.allocated, self._inode.reserved)))
            if len(self._inode.data) < end:
                self._inode.truncate(end)
            self._inode.reserved = max(self._inode.reserved, end)

    def truncate(self, size: int) -> None:
        with self._files._operation("truncate", self._path):
            self._check(writing=True)
            self._inode.truncate(size)
        self._position = min(self._position, size)

    def datasync(self) -> None:
        self._sync("datasync")

    def sync(self) -> None:
        self._sync("sync")

    def _sync(self, name: str) -> None:
        covers = self._inode.changes
        try:
            operation = self._files._operation(name, self._path)
        except OSError:
            self._sync_failed = True
            with self._files._lock:
                self._inode.lose(covers)
            raise
        try:
            with operation:
                self._check()
                if self._sync_failed:
                    raise OSError(errno.EIO, "an earlier sync of this file failed", self._path)
                self._inode.sync(covers)
                self._files._file_synced(self._inode)
        except OSError:
            self._sync_failed = True
            raise

    def data_from(self, offset: int) -> tuple[int, int] | None:
        with self._files._operation("data_from", self._path):
            self._check()
            return self._inode.data_from(offset)

    def drop_cache(self, offset: int, length: int) -> None:
        with self._files._operation("drop_cache", self._path, length):
            self._files.dropped.append((self._path, offset, length))

    def size(self) -> int:
        with self._files._operation("size", self._path):
            self._check()
            return len(self._inode.data)

    def close(self) -> None:
        if self._files.faults.dead:
            return  # a process that is gone closes nothing, and its finalizers are not to raise
        with self._files._operation("close", self._path):
            if not self._closed:
                self._closed = True
                self._files.open_files -= 1

    def _check(self, *, writing: bool = False) -> None:
        if self._closed:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF), self._path)
        if writing and not self._writable:
            raise OSError(errno.EBADF, "not open for writing", self._path)


class MemoryFiles(WholeFiles):
    """A `Files` in memory.

    `volumes` maps a folder to the capacity in bytes of the file system mounted there; everything else lives
    on one of `capacity` bytes. No file may be longer than `largest_file` bytes.
    """

    def __init__(
        self,
        *,
        strict_names: bool = False,
        capacity: int = DEFAULT_CAPACITY,
        volumes: dict[str, int] | None = None,
        largest_file: int = 16 << 40,
        faults: Faults | None = None,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.strict_names = strict_names
        self.faults = faults or Faults()
        self.largest_file = largest_file
        self.open_files = 0
        self.dropped: list[tuple[str, int, int]] = []
        self._volumes = {"/": capacity, **{_normal(path): size for path, size in (volumes or {}).items()}}
        self._now_ms = now_ms
        self._lock = threading.RLock()
        self._folders = {"/"}
        self._names: dict[str, Inode] = {}
        self._durable_names: dict[str, Inode] = {}
        self._pending: list[NameChange] = []

    # --- what tests ask for -------------------------------------------------------------------------------

    def crash(self, rng: random.Random, *, whole_sectors: bool = False) -> MemoryFiles:
        """The file system after a power cut at this moment; this one stays as it is.

        `whole_sectors`: the disk never tears a write within a sector of 512 bytes.
        """
        with self._lock:
            survivors = survivors_in_any_order if self.strict_names else survivors_in_order
            names = dict(self._durable_names)
            kept = survivors(self._pending, rng)
            for change in kept:
                change.apply(names)
            after = self._like()
            after._folders = self._folders
            for change in reversed(self._pending):
                if isinstance(change, FolderMove) and change not in kept:
                    after._folders = change.folders_without_it(after._folders)
            after._folders = set(after._folders)
            copies: dict[int, Inode] = {}
            for path in sorted(names):
                inode = names[path]
                if id(inode) not in copies:
                    copies[id(inode)] = inode.after_crash(rng, whole_sectors=whole_sectors)
                after._names[path] = copies[id(inode)]
            after._durable_names = dict(after._names)
            return after

    def restart(self) -> MemoryFiles:
        """The file system after the process was killed but the machine lived on: nothing is lost yet. What the process
        has not synced, of data and of names, a power cut may still take."""
        with self._lock:
            after = self._like()
            after._folders = set(self._folders)
            copies: dict[int, Inode] = {}

            def copy(inode: Inode) -> Inode:
                if id(inode) not in copies:
                    copies[id(inode)] = inode.copy()
                return copies[id(inode)]

            after._names = {path: copy(inode) for path, inode in self._names.items()}
            after._durable_names = {path: copy(inode) for path, inode in self._durable_names.items()}
            after._pending = [
                change if change.inode is None else replace(change, inode=copy(change.inode))
                for change in self._pending
            ]
            return after

    def _like(self) -> MemoryFiles:
        """An empty file system on the same disks."""
        return MemoryFiles(
            strict_names=self.strict_names,
            volumes=self._volumes,
            largest_file=self.largest_file,
            now_ms=self._now_ms,
        )

    def exchange(self, one: str, other: str) -> None:
        """What lies in two folders changes places, as of two disks that were mounted crosswise."""

        def moved(path: str) -> str:
            for old, new in ((one, other), (other, one)):
                if path == old or path.startswith(f"{old}/"):
                    return new + path[len(old) :]
            return path

        with self._lock:
            self._folders = set(map(moved, self._folders))
            self._names = {moved(path): inode for path, inode in self._names.items()}
            self._durable_names = {moved(path): inode for path, inode in self._durable_names.items()}
            assert not any(isinstance(change, FolderMove) for change in self._pending)
            self._pending = [
                replace(change, path=moved(change.path), removes=change.removes and moved(change.removes))
                for change in self._pending
            ]

    def corrupt(self, path: str, offset: int, data: bytes) -> None:
        """Overwrite bytes behind everybody's back, durably and without an operation."""
        with self._lock:
            inode = self._names[_normal(path)]
            inode.write(data, offset)
            inode.sync(inode.changes)

    def truncate_to(self, path: str, size: int) -> None:
        """Cut or lengthen a file behind everybody's back, durably and without an operation."""
        with self._lock:
            inode = self._names[_normal(path)]
            inode.truncate(size)
            inode.sync(inode.changes)

    def allocated(self, path: str) -> int:
        """Bytes that a file takes on its volume."""
        return self._names[_normal(path)].allocated

    def set_capacity(self, folder: str, capacity: int) -> None:
        with self._lock:
            self._volumes[_normal(folder)] = capacity

    @property
    def operations(self) -> int:
        """How many mutating operations were begun: the range of `Faults.die_at`."""
        return self.faults.mutations

    # --- Files --------------------------------------------------------------------------------------------

    def create(self, path: str) -> File:
        with self._operation("create", path) as target:
            self._need_folder(target)
            if target in self._names or target in self._folders:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
            self._change(NameChange(target, self._new_inode()))
            return self._opened(target, path, writable=True, position=0)

    def create_direct(self, path: str) -> File:
        with self._operation("create_direct", path):
            pass
        file = self.create(path)
        assert isinstance(file, MemoryFile)
        file._alignment = DIRECT_ALIGNMENT
        return file

    def overwrite(self, path: str) -> File:
        with self._operation("overwrite", path) as target:
            self._need_folder(target)
            if target in self._folders:
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
            if target in self._names:
                self._names[target].truncate(0)
            else:
                self._change(NameChange(target, self._new_inode()))
            return self._opened(target, path, writable=True, position=0)

    def open(self, path: str, *, writable: bool = False) -> File:
        with self._operation("open", path) as target:
            inode = self._inode(target, path)
            return self._opened(target, path, writable=writable, position=len(inode.data))

    def exists(self, path: str) -> bool:
        with self._operation("exists", path) as target:
            return target in self._names or target in self._folders

    def is_dir(self, path: str) -> bool:
        with self._operation("is_dir", path) as target:
            return target in self._folders

    def is_accessible(self, path: str) -> bool:
        with self._operation("is_accessible", path) as target:
            return target in self._folders

    def takes_file_of(self, folder: str, nbytes: int) -> bool:
        with self._operation("takes_file_of", folder) as target:
            if target not in self._folders:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), folder)
            return nbytes <= self.largest_file

    def size(self, path: str) -> int:
        with self._operation("size", path) as target:
            return len(self._inode(target, path).data)

    def modified_ms(self, path: str) -> int:
        with self._operation("modified_ms", path) as target:
            return self._inode(target, path).modified_ms

    def listdir(self, path: str) -> list[str]:
        with self._operation("listdir", path) as target:
            if target not in self._folders:
                kind = NotADirectoryError if target in self._names else FileNotFoundError
                number = errno.ENOTDIR if target in self._names else errno.ENOENT
                raise kind(number, os.strerror(number), path)
            found = {name for name in (*self._names, *self._folders) if posixpath.dirname(name) == target}
            return sorted(posixpath.basename(name) for name in found - {"/"})

    def makedirs(self, path: str) -> None:
        with self._operation("makedirs", path) as target:
            folder = target
            while folder not in self._folders:
                if folder in self._names:
                    raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), path)
                self._folders.add(folder)
                folder = posixpath.dirname(folder)

    def rmdir(self, path: str) -> None:
        with self._operation("rmdir", path) as target:
            if target not in self._folders:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            if any(posixpath.dirname(name) == target for name in (*self._names, *self._folders)):
                raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), path)
            self._folders.discard(target)

    def rename(self, source: str, target: str) -> None:
        with self._operation("rename", source) as old:
            new = _normal(target)
            self._need_folder(new)
            if old in self._folders:
                self._rename_folder(old, new)
                return
            inode = self._inode(old, source)
            self._change(NameChange(new, inode, removes=old if old != new else None))

    def _rename_folder(self, old: str, new: str) -> None:
        if new in self._names or any(name.startswith(new + "/") for name in (*self._names, *self._folders)):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), new)
        move = FolderMove(new, None, removes=old)
        self._change(move)
        self._folders = move.folders_with_it(self._folders)

    def link(self, source: str, target: str) -> None:
        with self._operation("link", source) as old:
            new = _normal(target)
            self._need_folder(new)
            if new in self._names:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), source, None, target)
            self._change(NameChange(new, self._inode(old, source)))

    def unlink(self, path: str) -> None:
        with self._operation("unlink", path) as target:
            self._inode(target, path)
            self._change(NameChange(target, None))

    def sync_directory(self, path: str) -> None:
        with self._operation("sync_directory", path) as target:
            if target not in self._folders:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            if self.strict_names:
                self._settle([change for change in self._pending if change.touches_folder(target)])
            else:
                self._settle(list(self._pending))

    def usage(self, path: str) -> DiskUsage:
        with self._operation("usage", path) as target:
            if target not in self._folders and target not in self._names:
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
            volume = self._volume(target)
            total = self._volumes[volume]
            usable = max(0, total - self._used(volume))
            return DiskUsage(total, usable, device=1 + sorted(self._volumes).index(volume))

    # --- inside -------------------------------------------------------------------------------------------

    def _operation(self, name: str, path: str, nbytes: int = 0) -> _Locked:
        self.faults.before(Operation(name, path, nbytes))
        return _Locked(self._lock, _normal(path), self.faults)

    def _opened(self, target: str, path: str, *, writable: bool, position: int) -> MemoryFile:
        self.open_files += 1
        return MemoryFile(self, self._names[target], path, writable=writable, position=position)

    def _new_inode(self) -> Inode:
        return Inode(self._now_ms)

    def _inode(self, target: str, path: str) -> Inode:
        if target in self._folders:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        if target not in self._names:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        return self._names[target]

    def _need_folder(self, target: str) -> None:
        if posixpath.dirname(target) not in self._folders:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), target)

    def _change(self, change: NameChange) -> None:
        change.apply(self._names)
        self._pending.append(change)

    def _file_synced(self, inode: Inode) -> None:
        if self.strict_names:
            return
        last = max((i for i, change in enumerate(self._pending) if change.inode is inode), default=-1)
        self._settle(self._pending[: last + 1])

    def _settle(self, changes: list[NameChange]) -> None:
        for change in changes:
            change.apply(self._durable_names)
        settled = {id(change) for change in changes}
        self._pending = [change for change in self._pending if id(change) not in settled]

    def _volume(self, target: str) -> str:
        folders = [folder for folder in self._volumes if target == folder or target.startswith(_prefix(folder))]
        return max(folders, key=len)

    def _used(self, volume: str) -> int:
        inodes = {id(inode): inode for path, inode in self._names.items() if self._volume(path) == volume}
        return sum(inode.allocated for inode in inodes.values())

    def _has_room(self, path: str, growth: int) -> bool:
        volume = self._volume(_normal(path))
        capacity = self._volumes[volume]
        return growth <= 0 or capacity >= DEFAULT_CAPACITY or self._used(volume) + growth <= capacity

    def _reserve(self, path: str, growth: int) -> None:
        if not self._has_room(path, growth):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)


class _Locked:
    """The lock around one operation; gives the normal form of its path. The dead do nothing."""

    def __init__(self, lock: threading.RLock, target: str, faults: Faults) -> None:
        self._lock = lock
        self._target = target
        self._faults = faults

    def __enter__(self) -> str:
        self._lock.acquire()
        if self._faults.dead:
            self._lock.release()
            raise Died
        return self._target

    def __exit__(self, *_: object) -> None:
        self._lock.release()


@lru_cache(maxsize=10_000)
def _normal(path: str) -> str:
    return posixpath.normpath(posixpath.join("/", path))


def _prefix(folder: str) -> str:
    return folder if folder.endswith("/") else folder + "/"
