"""An engine to test: on memory or on real disks, with what the server would keep beside it."""

from __future__ import annotations

import random
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Self

from bookie_pod.config.model import BookieConfig
from bookie_pod.metrics.db_storage import DbStorageMetrics, FlushStage, ReadLevel
from bookie_pod.metrics.registry import Registry
from bookie_pod.storage.engines.db import DbLedgerStorage
from bookie_pod.storage.engines.interface import LedgerStorage, OnLoop
from bookie_pod.storage.engines.registry import StorageParts, open_storage
from bookie_pod.storage.entry_log import EntryLogger, LedgerDirs, LedgerDirStates
from bookie_pod.storage.entry_log.direct import DirectLogWriter
from bookie_pod.storage.entry_log.format import HEADER_SIZE
from bookie_pod.storage.files import Files
from bookie_pod.storage.index.store import StoreFactory
from tests.support.memory_files import Faults, MemoryFiles
from tests.support.memory_store import MemoryStores
from tests.support.production import production

KEY = bytes(range(20))


def entry(ledger_id: int, entry_id: int, size: int = 40, mark: bytes = b"x") -> bytes:
    """An entry of `size` bytes: ids, LAC, length, and something that tells it from others."""
    head = struct.pack(">qqqq", ledger_id, entry_id, entry_id - 1, size)
    return head + (mark * size)[: max(0, size - len(head))]


def put(storage: LedgerStorage, *entries: bytes) -> None:
    """Put entries as the server does: into the active dict, then accounted."""
    for data in entries:
        ledger_id, entry_id = struct.unpack_from(">qq", data)
        if storage.ledger(ledger_id) is None:
            storage.set_master_key(ledger_id, KEY)
        storage.active_entries(ledger_id)[entry_id] = data
        storage.account(ledger_id, len(data), 1)


class CountingMetrics(DbStorageMetrics):
    """Counts what an engine reports."""

    def __init__(self) -> None:
        super().__init__(Registry(), "", "")
        self.levels: Counter[ReadLevel] = Counter()
        self.stages: Counter[FlushStage] = Counter()
        self.stage_seconds = dict.fromkeys(FlushStage, 0.0)
        self.read_ahead_entries: list[int] = []
        self.sizes: list[tuple[int, int]] = []
        self.lookups = self.log_reads = self.failures = self.last_entries = 0

    def read_from(self, level: ReadLevel, count: int = 1) -> None:
        self.levels[level] += count

    def looked_up(self, seconds: float) -> None:
        self.lookups += 1

    def read_log(self, seconds: float) -> None:
        self.log_reads += 1

    def read_ahead(self, seconds: float, entries: int, nbytes: int) -> None:
        self.read_ahead_entries.append(entries)

    def last_entry(self, seconds: float) -> None:
        self.last_entries += 1

    def flushed(self, stage: FlushStage, seconds: float) -> None:
        self.stages[stage] += 1
        self.stage_seconds[stage] += seconds

    def flush_size(self, nbytes: int, entries: int) -> None:
        self.sizes.append((nbytes, entries))

    def flush_failed(self) -> None:
        self.failures += 1


def call_directly(action: Callable[[], None]) -> None:
    """An `OnLoop` for tests that have no event loop."""
    action()


def small_options(
    *,
    half_bytes: int = 1 << 20,
    directories: int = 1,
    read_cache_bytes: int = 1 << 20,
    log_size: int = 1 << 20,
    direct_io: bool = False,
) -> BookieConfig:
    """Small sizes, and logs that are not made ahead: a thread would do that.

    `log_size`: as in the ordinary format. The header of direct I/O is longer, and logs are by as much.
    """
    limit = log_size + (DirectLogWriter.first_position - HEADER_SIZE if direct_io else 0)
    return production(
        write_cache_max_bytes=2 * half_bytes * directories,
        read_cache_max_bytes=read_cache_bytes * directories,
        direct_io_entry_logger=direct_io,
        **small_logs(limit),
    )


def small_logs(log_size: int) -> dict[str, int | bool]:
    """Fields of the configuration: logs of at most `log_size` bytes, with what goes with them."""
    return {
        "log_size_limit_bytes": log_size,
        "entry_log_preallocation": False,
        "min_usable_for_entry_log_bytes": log_size,
        "min_usable_after_compaction_bytes": 0,
    }


@dataclass
class MemoryBookie:
    """The disks of one bookie in memory, and the engine on top of them."""

    directories: Sequence[str] = ("/ledgers0",)
    options: BookieConfig = field(default_factory=small_options)
    files: MemoryFiles = field(default_factory=MemoryFiles)
    stores: MemoryStores | None = None
    on_loop: OnLoop = call_directly
    metrics: CountingMetrics = field(default_factory=CountingMetrics)
    states: dict[str, LedgerDirStates] = field(default_factory=dict)
    logger: Callable[[Files, LedgerDirs, BookieConfig], EntryLogger] = EntryLogger

    @classmethod
    def without_read_cache(cls) -> Self:
        """What is flushed is read from the disks only."""
        return cls(options=small_options(read_cache_bytes=0))

    def __post_init__(self) -> None:
        if self.stores is None:
            self.stores = MemoryStores(self.files.faults)
        for directory in self.directories:
            self.states.setdefault(directory, LedgerDirStates([directory]))

    @property
    def faults(self) -> Faults:
        return self.files.faults

    def open(self) -> DbLedgerStorage:
        return open_engine(
            self.files,
            self.directories,
            self.options,
            stores=self.stores,
            on_loop=self.on_loop,
            metrics=self.metrics,
            states=self.states,
            logger=self.logger,
        )

    def writable(self) -> list[str]:
        return [path for state in self.states.values() for path in state.writable()]

    def _on(self, files: MemoryFiles, stores: MemoryStores) -> MemoryBookie:
        return MemoryBookie(self.directories, self.options, files, stores, self.on_loop, logger=self.logger)

    def restart(self) -> MemoryBookie:
        """The bookie after its process was killed, not yet opened."""
        assert self.stores is not None
        files = self.files.restart()
        return self._on(files, self.stores.restart(files.faults))

    def crash(self, rng: random.Random) -> MemoryBookie:
        """The bookie after a power cut, not yet opened."""
        assert self.stores is not None
        files = self.files.crash(rng)
        return self._on(files, self.stores.crash(rng, files.faults))


def open_engine(
    files: Files,
    directories: Sequence[str],
    options: BookieConfig,
    *,
    stores: StoreFactory | None = None,
    on_loop: OnLoop = call_directly,
    metrics: CountingMetrics | None = None,
    states: dict[str, LedgerDirStates] | None = None,
    logger: Callable[[Files, LedgerDirs, BookieConfig], EntryLogger] = EntryLogger,
) -> DbLedgerStorage:
    counting, states = metrics or CountingMetrics(), states or {}
    storage = open_storage(
        options,
        StorageParts(
            files,
            on_loop,
            directories,
            stores=stores,
            ledger_dirs=lambda path: states.get(path) or LedgerDirStates([path]),
            metrics=lambda ledger_directory, index_directory: counting,
            logger=logger,
        ),
    )
    assert isinstance(storage, DbLedgerStorage)
    return storage
