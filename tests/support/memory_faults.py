"""What can go wrong in a `MemoryFiles`: failing, slow, held and last operations."""

from __future__ import annotations

import errno as errnos
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

_CONTENT = {
    "create",
    "create_direct",
    "overwrite",
    "write",
    "writev",
    "pwrite",
    "truncate",
    "allocate",
    "datasync",
    "sync",
}
_NAMES = {"makedirs", "rmdir", "rename", "link", "unlink", "sync_directory"}
MUTATING = frozenset(_CONTENT | _NAMES)


class Died(BaseException):
    """The process ended in the middle of a file operation. Not an `Exception`: nothing may handle it."""


@dataclass(frozen=True)
class Operation:
    """One call on a `Files` or `File`; `nbytes` is what it reads or writes."""

    name: str
    path: str
    nbytes: int = 0

    @property
    def mutates(self) -> bool:
        return self.name in MUTATING


class Faults:
    """The script of a `MemoryFiles`. Rules are tried in the order they were given."""

    def __init__(self) -> None:
        self.dead = False
        self.mutations = 0
        self.counts: Counter[str] = Counter()
        self.log: list[Operation] | None = None
        self._die_at: int | None = None
        self._rules: list[Callable[[Operation], None]] = []
        self._lock = threading.Lock()

    def before(self, operation: Operation) -> None:
        """Called at the begin of every operation, outside the lock of the file system."""
        with self._lock:
            if self.dead:
                raise Died
            self.counts[operation.name] += 1
            if operation.mutates:
                if self.log is not None:
                    self.log.append(operation)
                self.mutations += 1
                if self.mutations - 1 == self._die_at:
                    self.dead = True
                    raise Died
            rules = list(self._rules)
        for rule in rules:
            rule(operation)

    def die_at(self, mutation: int) -> None:
        """Die at the begin of the mutating operation of this number (the first is 0)."""
        self._die_at = mutation

    def die_now(self) -> None:
        with self._lock:
            self.dead = True

    def record(self) -> list[Operation]:
        """From now on note every mutating operation in the list returned."""
        self.log = []
        return self.log

    def clear(self) -> None:
        """Forget every rule (not a death)."""
        with self._lock:
            self._rules.clear()

    def fail(
        self, *names: str, path: str = "", errno: int = errnos.EIO, after: int = 0, times: int | None = None
    ) -> None:
        """Fail such operations with `path` in their path: let `after` pass, then fail `times` (None: all)."""
        matched = 0

        def rule(operation: Operation) -> None:
            nonlocal matched
            if operation.name not in names or path not in operation.path:
                return
            with self._lock:
                matched += 1
                failing = matched > after and (times is None or matched <= after + times)
            if failing:
                raise OSError(errno, os.strerror(errno), operation.path)

        self._rules.append(rule)

    def kill(self, name: str, path: str) -> None:
        """Die at the begin of the first such operation with `path` in its path."""

        def rule(operation: Operation) -> None:
            if operation.name == name and path in operation.path:
                self.die_now()
                raise Died

        self._rules.append(rule)

    def read_only(self, path: str = "") -> None:
        """Every mutating operation below `path` fails with EROFS."""
        self.fail(*MUTATING, path=path, errno=errnos.EROFS)

    def delay(self, seconds: float, *names: str, path: str = "") -> None:
        """Each such operation takes this much longer."""

        def rule(operation: Operation) -> None:
            if operation.name in names and path in operation.path:
                time.sleep(seconds)

        self._rules.append(rule)

    def hold(self, *names: str, path: str = "") -> Gate:
        """Such operations wait at the returned gate until it is opened."""
        gate = Gate()

        def rule(operation: Operation) -> None:
            if operation.name in names and path in operation.path:
                gate.wait()

        self._rules.append(rule)
        return gate


class Gate:
    """Where held operations wait."""

    def __init__(self) -> None:
        self._reached = threading.Semaphore(0)
        self._open = threading.Event()

    def wait(self) -> None:
        self._reached.release()
        if not self._open.wait(timeout=60):
            raise TimeoutError("a held file operation was never let go")

    def reached(self, timeout: float = 10.0) -> None:
        """Return when one more operation has come to the gate."""
        if not self._reached.acquire(timeout=timeout):
            raise AssertionError("no file operation came to the gate")

    def open(self) -> None:
        self._open.set()


@contextmanager
def quiet_death() -> Iterator[None]:
    """Threads that end by `Died` do so without a word."""
    before = threading.excepthook

    def hook(args: threading.ExceptHookArgs) -> None:
        if args.exc_type is not Died:
            before(args)

    threading.excepthook = hook
    try:
        yield
    finally:
        threading.excepthook = before
