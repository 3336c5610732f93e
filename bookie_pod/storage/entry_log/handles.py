"""Open files of the logs that are being read.

Invariants
- A handle is closed only when nobody uses it; at most `capacity` idle ones stay open, the least recently used
  goes first. Handles in use come on top of that.
- After `drop` no new handle for that log can appear: opening checks under the lock that the log still exists.

Threads: any.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from bookie_pod.storage.entry_log.catalog import LogCatalog
from bookie_pod.storage.files import File, Files, storage_fault
from bookie_protocol.errors import StorageFault


class ReadHandle:
    """One open log. `users` and `dropped` belong to `ReadHandles`."""

    __slots__ = ("dropped", "file", "log_id", "users")

    def __init__(self, log_id: int, file: File) -> None:
        self.log_id = log_id
        self.file = file
        self.users = 0
        self.dropped = False


class ReadHandles:
    """A bounded cache of `ReadHandle`s."""

    def __init__(self, files: Files, catalog: LogCatalog, capacity: int) -> None:
        self._files = files
        self._catalog = catalog
        self._capacity = capacity
        self._lock = threading.Lock()
        self._open: OrderedDict[int, ReadHandle] = OrderedDict()

    def __len__(self) -> int:
        return len(self._open)

    def acquire(self, log_id: int) -> ReadHandle:
        """The log's handle, to be given back with `release`. `StorageFault` if there is no such file."""
        with self._lock:
            handle = self._open.get(log_id)
            if handle is not None:
                handle.users += 1
                self._open.move_to_end(log_id)
                return handle
        return self._adopt(log_id, self._open_file(log_id))

    def _open_file(self, log_id: int) -> File:
        path = self._catalog.path(log_id)
        try:
            return self._files.open(path)
        except OSError as error:
            raise storage_fault(f"cannot open entry log {path}", error) from error

    def _adopt(self, log_id: int, file: File) -> ReadHandle:
        surplus: list[File] = []
        with self._lock:
            handle = self._open.get(log_id)
            if handle is not None:
                surplus.append(file)
            elif self._catalog.exists(log_id):
                handle = self._open[log_id] = ReadHandle(log_id, file)
            if handle is not None:
                handle.users += 1
                surplus += self._evict()
        if handle is None:
            file.close()
            raise StorageFault(f"entry log {file.path} was deleted meanwhile")
        for unused in surplus:
            unused.close()
        return handle

    def _evict(self) -> list[File]:
        excess = len(self._open) - self._capacity
        if excess <= 0:
            return []
        idle = [handle for handle in self._open.values() if handle.users == 0][:excess]
        for handle in idle:
            del self._open[handle.log_id]
        return [handle.file for handle in idle]

    def release(self, handle: ReadHandle) -> None:
        with self._lock:
            handle.users -= 1
            if handle.users:
                return
            files = [handle.file] if handle.dropped else self._evict()
        for file in files:
            file.close()

    def drop(self, log_id: int) -> None:
        """Forget a log that is being deleted; readers in the middle of it finish first."""
        with self._lock:
            handle = self._open.pop(log_id, None)
            if handle is None:
                return
            handle.dropped = True
            idle = handle.users == 0
        if idle:
            handle.file.close()

    def close(self) -> None:
        """Drop everything."""
        for log_id in list(self._open):
            self.drop(log_id)
