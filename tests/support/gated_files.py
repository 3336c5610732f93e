"""Real files some of whose operations wait at a gate: a disk that is slow for as long as a test wants it to be."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from bookie_pod.storage.files import File
from bookie_pod.storage.files_posix import PosixFiles

WRITES = frozenset({"write", "writev", "pwrite", "sync", "datasync"})
READS = frozenset({"pread"})


class DiskGate:
    """Operations named in `operations` on files with `path` in their path wait while it is closed."""

    def __init__(self, path: str, operations: frozenset[str]) -> None:
        self.path = path
        self.operations = operations
        self.passed = 0
        """Operations that have gone through."""
        self.failure: OSError | None = None
        """Raised instead of doing the operation, once the gate is open."""
        self._open = threading.Event()
        self._open.set()
        self._reached = threading.Semaphore(0)

    def close(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def reached(self, timeout: float = 10.0) -> None:
        """Blocks until one more operation has come to the closed gate."""
        if not self._reached.acquire(timeout=timeout):
            raise AssertionError(f"no operation on {self.path} came to the gate")

    def enter(self) -> None:
        if not self._open.is_set():
            self._reached.release()
            if not self._open.wait(60):
                raise TimeoutError(f"the gate of {self.path} was never opened")
        if self.failure is not None:
            raise self.failure
        self.passed += 1


class GatedFiles(PosixFiles):
    """Every gate that fits a file holds up its operations."""

    def __init__(self, *gates: DiskGate) -> None:
        self.gates = list(gates)

    def gate(self, path: str, operations: frozenset[str] = WRITES) -> DiskGate:
        gate = DiskGate(path, operations)
        self.gates.append(gate)
        return gate

    def open_all(self) -> None:
        for gate in self.gates:
            gate.open()

    def create(self, path: str) -> File:
        return self._wrap(super().create(path))

    def create_direct(self, path: str) -> File:
        return self._wrap(super().create_direct(path))

    def overwrite(self, path: str) -> File:
        return self._wrap(super().overwrite(path))

    def open(self, path: str, *, writable: bool = False) -> File:
        return self._wrap(super().open(path, writable=writable))

    def _wrap(self, file: File) -> File:
        gates = [gate for gate in self.gates if gate.path in file.path]
        return _GatedFile(file, gates) if gates else file  # type: ignore[return-value]


class _GatedFile:
    def __init__(self, file: File, gates: list[DiskGate]) -> None:
        self._file = file
        self._gates = gates

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._file, name)
        gates = [gate for gate in self._gates if name in gate.operations]
        return _behind(gates, attribute) if gates else attribute


def _behind(gates: list[DiskGate], operation: Callable[..., Any]) -> Callable[..., Any]:
    def run(*arguments: Any) -> Any:
        for gate in gates:
            gate.enter()
        return operation(*arguments)

    return run
