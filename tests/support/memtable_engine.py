"""Interleaved and Sorted engines to test: on memory or on real disks."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from bookie_pod.config.model import BookieConfig
from bookie_pod.metrics.memtable_storage import MemTableMetrics
from bookie_pod.metrics.registry import Registry
from bookie_pod.storage.engines.detection import INTERLEAVED_LEDGER_STORAGE, SORTED_LEDGER_STORAGE
from bookie_pod.storage.engines.interface import OnLoop
from bookie_pod.storage.engines.memtable_storage import MemTableStorage
from bookie_pod.storage.engines.registry import StorageParts, open_storage
from bookie_pod.storage.entry_log import EntryLogger, LedgerDirs, LedgerDirStates
from bookie_pod.storage.files import Files
from bookie_pod.storage.journal.marks import LogMark
from tests.support.memory_files import Faults, MemoryFiles
from tests.support.production import changed, production
from tests.support.storage_engine import call_directly, small_logs

ENGINES = {"interleaved": INTERLEAVED_LEDGER_STORAGE, "sorted": SORTED_LEDGER_STORAGE}


def memtable_options(
    *,
    memtable_bytes: int = 1 << 20,
    log_size: int = 1 << 20,
    page_bytes: int = 8192,
    page_limit: int = 1024,
    open_files: int = 100,
    per_ledger: bool = False,
    version: int = 1,
    isolates: bool = False,
) -> BookieConfig:
    return production(
        skip_list_size_limit_bytes=memtable_bytes,
        page_size_bytes=page_bytes,
        page_limit=page_limit,
        open_file_limit=open_files,
        file_info_format_version=version,
        min_usable_for_index_file_bytes=0,
        entry_log_per_ledger=per_ledger,
        isolate_failed_ledger_directories=isolates,
        **small_logs(log_size),
    )


class Checkpoints:
    """A `Checkpointer` whose marks the test sets, and which remembers what was asked for."""

    def __init__(self, journals: int = 1) -> None:
        self.now: Sequence[LogMark] = [LogMark()] * journals
        self.requests: list[Sequence[LogMark] | None] = []

    def marks(self) -> Sequence[LogMark]:
        return list(self.now)

    def request(self, marks: Sequence[LogMark] | None = None) -> None:
        self.requests.append(marks)


@dataclass
class MemTableBookie:
    """The disks of one bookie in memory, and an Interleaved or Sorted engine on top of them."""

    engine: str
    directories: Sequence[str] = ("/ledgers0",)
    index_directories: Sequence[str] = ()
    options: BookieConfig = field(default_factory=memtable_options)
    files: MemoryFiles = field(default_factory=MemoryFiles)
    on_loop: OnLoop = call_directly
    metrics: MemTableMetrics = field(default_factory=lambda: MemTableMetrics(Registry()))
    states: dict[str, LedgerDirStates] = field(default_factory=dict)
    logger: Callable[[Files, LedgerDirs, BookieConfig], EntryLogger] = EntryLogger

    def __post_init__(self) -> None:
        self.options = changed(self.options, storage_class=ENGINES[self.engine])
        for directory in (*self.directories, *self.index_directories):
            self.states.setdefault(directory, LedgerDirStates([directory]))

    @property
    def faults(self) -> Faults:
        return self.files.faults

    def open(self) -> MemTableStorage:
        return open_memtable_engine(
            self.engine,
            self.files,
            self.directories,
            self.options,
            index_directories=self.index_directories,
            on_loop=self.on_loop,
            states=self.states,
            metrics=self.metrics,
            logger=self.logger,
        )

    def writable(self) -> list[str]:
        return [path for path in self.directories for path in self.states[path].writable()]

    def on(self, files: MemoryFiles) -> MemTableBookie:
        """The same bookie on other disks, not yet opened."""
        return MemTableBookie(
            self.engine,
            self.directories,
            self.index_directories,
            self.options,
            files,
            self.on_loop,
            logger=self.logger,
        )

    def restart(self) -> MemTableBookie:
        """The bookie after its process was killed, not yet opened."""
        return self.on(self.files.restart())

    def crash(self, rng: random.Random) -> MemTableBookie:
        """The bookie after a power cut, not yet opened. Index files rely on sectors that are written whole."""
        return self.on(self.files.crash(rng, whole_sectors=True))


def open_memtable_engine(
    engine: str,
    files: Files,
    directories: Sequence[str],
    options: BookieConfig,
    *,
    index_directories: Sequence[str] = (),
    on_loop: OnLoop = call_directly,
    states: dict[str, LedgerDirStates] | None = None,
    metrics: MemTableMetrics | None = None,
    logger: Callable[[Files, LedgerDirs, BookieConfig], EntryLogger] = EntryLogger,
) -> MemTableStorage:
    known = states or {}

    def dirs(path: str) -> LedgerDirStates:
        return known.get(path) or LedgerDirStates([path])

    storage = open_storage(
        changed(options, storage_class=ENGINES[engine]),
        StorageParts(
            files,
            on_loop,
            directories,
            index_directories,
            logger=logger,
            ledger_dirs=dirs,
            index_dirs=dirs,
            memtable_metrics=lambda: metrics or MemTableMetrics(Registry()),
        ),
    )
    assert isinstance(storage, MemTableStorage)
    return storage
