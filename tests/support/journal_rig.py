"""A journal on a `MemoryFiles`, with the acknowledgements it gave and what replay of its files hands out."""

from __future__ import annotations

import struct
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from bookie_pod.config.sections.journal import JournalConfig
from bookie_pod.metrics.journal import JournalMetrics
from bookie_pod.storage.files import Files
from bookie_pod.storage.journal import (
    Journal,
    JournalBatch,
    LogMark,
    ReplayOptions,
    replay_journal,
)
from bookie_pod.storage.journal.format import entry_record
from tests.support.memory_faults import Gate
from tests.support.memory_files import MemoryFiles

DIRECTORY = "/journal/current"
FOREVER = 3_600_000.0
"""A wait in ms that does not end within a test."""


def an_entry(ledger_id: int, entry_id: int, payload: bytes = b"payload") -> bytes:
    return struct.pack(">qqq", ledger_id, entry_id, entry_id - 1) + payload


def an_add(ledger_id: int, entry_id: int, payload: bytes = b"payload", *, sync: bool = True) -> JournalBatch:
    return JournalBatch.of(entry_record(an_entry(ledger_id, entry_id, payload)), sync=sync)


class Acknowledgements:
    """A `deliver` and an `on_failure` that remember, and events to wait for."""

    def __init__(self) -> None:
        self.calls: list[list[JournalBatch]] = []
        self.batches: list[JournalBatch] = []
        self.failures: list[Exception] = []
        self._changed = threading.Condition()

    def deliver(self, batches: Sequence[JournalBatch], error: BaseException | None) -> None:
        assert error is None
        with self._changed:
            self.calls.append(list(batches))
            self.batches.extend(batches)
            self._changed.notify_all()

    def failed(self, error: Exception) -> None:
        with self._changed:
            self.failures.append(error)
            self._changed.notify_all()

    def wait_for(self, count: int, timeout: float = 20.0) -> None:
        with self._changed:
            enough = self._changed.wait_for(lambda: len(self.batches) >= count, timeout)
        assert enough, f"{len(self.batches)} of {count} batches acknowledged"

    def wait_for_failure(self, timeout: float = 20.0) -> Exception:
        with self._changed:
            assert self._changed.wait_for(lambda: self.failures, timeout), "no failure was told"
            return self.failures[0]


class Counting:
    """An `OpStats` and a `Counter` that keep everything."""

    def __init__(self) -> None:
        self.values: list[tuple[float, int, bool]] = []
        self.total = 0.0

    def observe_ms(self, value: float, count: int = 1, success: bool = True) -> None:
        self.values.append((value, count, success))

    def add(self, n: float) -> None:
        self.total += n


@dataclass
class Replayed:
    """A `ReplaySink` that notes everything, in order."""

    events: list[tuple[str, int, int, bytes]] = field(default_factory=list)

    def on_key(self, ledger_id: int, key: bytes, life: bytes) -> None:
        self.events.append(("key", ledger_id, 0, key))

    def on_fence(self, ledger_id: int) -> None:
        self.events.append(("fence", ledger_id, 0, b""))

    def on_explicit_lac(self, ledger_id: int, packet: bytes) -> None:
        self.events.append(("lac", ledger_id, 0, packet))

    def on_deletion(self, ledger_id: int, next_log: int) -> None:
        self.events.append(("deletion", ledger_id, next_log, b""))

    def on_entry(self, ledger_id: int, entry_id: int, entry: bytes) -> None:
        self.events.append(("entry", ledger_id, entry_id, entry))

    def entries(self) -> list[tuple[int, int]]:
        return [(ledger, entry) for kind, ledger, entry, _ in self.events if kind == "entry"]


def small_options(**changes: object) -> JournalConfig:
    """Production's defaults, but with small files and quick groups."""
    values: dict[str, object] = {"pre_alloc_size_bytes": 8192, "max_group_wait_ms": 0.2, **changes}
    return JournalConfig(**values)  # type: ignore[arg-type]


class JournalRig:
    """A running journal; `with` stops it."""

    def __init__(
        self,
        files: Files | None = None,
        options: JournalConfig | None = None,
        metrics: JournalMetrics | None = None,
        directory: str = DIRECTORY,
    ) -> None:
        self.files = files if files is not None else MemoryFiles()
        self.acknowledged = Acknowledgements()
        self.directory = directory
        self.files.makedirs(directory)
        self.journal = Journal(
            directory,
            0,
            self.files,
            options or small_options(),
            self.acknowledged.deliver,
            self.acknowledged.failed,
            metrics,
        )

    def __enter__(self) -> JournalRig:
        self.journal.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.journal.stop()

    def add(self, *batches: JournalBatch) -> None:
        """Append and wait until all that were appended through here are acknowledged."""
        before = len(self.acknowledged.batches)
        for batch in batches:
            self.journal.append(batch)
        self.acknowledged.wait_for(before + len(batches))

    def wait_for_written(self, groups: int) -> None:
        """Until so many are written that wait for their sync."""
        while self.journal.force_write_queue_size < groups:
            time.sleep(0.0005)

    def journals(self) -> list[str]:
        return [name for name in self.files.listdir(self.directory) if name.endswith(".txn")]


@contextmanager
def in_its_sync(files: MemoryFiles) -> Iterator[tuple[JournalRig, Gate]]:
    """A journal whose first entry is in a sync that ends with the gate, while its second is written and waits."""
    gate = files.faults.hold("datasync")
    with JournalRig(files, small_options(flush_when_queue_empty=True)) as rig:
        rig.journal.append(an_add(7, 0))
        gate.reached()
        rig.journal.append(an_add(7, 1))
        rig.wait_for_written(1)
        yield rig, gate


def replayed(
    files: Files, mark: LogMark | None = None, *, skip: bool = False, directory: str = DIRECTORY
) -> tuple[Replayed, LogMark]:
    sink = Replayed()
    marks = [] if mark is None else [mark]
    end = replay_journal(directory, marks, files, sink, ReplayOptions(skip_invalid_records=skip))
    return sink, end.mark


def records_of(rig: JournalRig) -> list[tuple[int, int]]:
    """Ledger and entry id of all entries that a replay would hand out now."""
    return replayed(rig.files, directory=rig.directory)[0].entries()
