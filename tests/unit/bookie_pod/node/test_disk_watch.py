"""The disks of a configuration: which of them are watched, and what the metrics say of each."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from bookie_pod.config.load import load_config
from bookie_pod.config.sections.gc import DisksConfig
from bookie_pod.metrics.bookie import BookieMetrics
from bookie_pod.metrics.registry import Registry
from bookie_pod.node.disk_watch import start_disk_watch
from bookie_pod.node.mode import BookieMode
from bookie_pod.node.parts import StorageSide, open_storage_side
from bookie_pod.node.processes.background import BackgroundTasks
from bookie_pod.storage.checkpoint import CheckpointHandlers, SyncThread
from bookie_pod.storage.disks import DiskMonitor, DiskVerdict
from bookie_pod.storage.engines.detection import DB_LEDGER_STORAGE, INTERLEAVED_LEDGER_STORAGE, SORTED_LEDGER_STORAGE
from bookie_pod.storage.engines.interface import FLUSH_TRIES
from bookie_pod.storage.engines.registry import StorageParts, open_storage
from bookie_pod.storage.entry_log.directories import DiskState, LedgerDirStates
from bookie_pod.storage.files import DiskUsage
from bookie_pod.storage.index.ledger_cache.directories import index_folders
from bookie_protocol.errors import NoWritableDirectory, StorageFault
from tests.support.memory_files import MemoryFiles
from tests.support.memory_store import MemoryStores
from tests.support.storage_engine import call_directly, entry, put

TOTAL = 1_000_000
FOLDERS = ["/l1/current", "/l2/current"]


class Disks:
    """Directories in memory as full as a test says, and the exported metrics."""

    def __init__(self, **overrides: str) -> None:
        config = load_config(
            environ={},
            overrides={
                "metadataServiceUri": "file:///metadata",
                "journalDirectories": "/j",
                "ledgerDirectories": "/l1,/l2",
                **overrides,
            },
        )
        directories = config.directories
        self.used = {f"{path}/current": 0.5 for path in (*directories.journal, *directories.ledger, *directories.index)}
        files = MemoryFiles()
        for folder in self.used:
            files.makedirs(folder)
        files.usage = self._usage  # type: ignore[method-assign]
        folders = [f"{path}/current" for path in directories.ledger]
        storage: Any = SimpleNamespace(
            storage=SimpleNamespace(on_directory_failure=lambda callback: None),
            dirs={folder: SimpleNamespace(report=self._note("logs of")) for folder in folders},
            index_dirs={
                f"{path}/current": SimpleNamespace(report=self._note("index files of")) for path in directories.index
            },
            writable=lambda: [folder for folder in folders if self.used[folder] < 0.95],
        )
        self.verdicts: list[DiskVerdict] = []
        self.told: list[tuple[str, str, str]] = []
        """Who heard of which directory that it is in which state."""
        mode: Any = SimpleNamespace(on_disks=self.verdicts.append)
        self.failures: list[BaseException] = []
        self._registry = Registry()
        self.monitor = start_disk_watch(
            config,
            files,
            storage,
            mode,
            BackgroundTasks(asyncio.get_running_loop(), self.failures.append),
            self.failures.append,
            BookieMetrics(self._registry),
            self._note("collector of"),
        )

    def _note(self, who: str) -> Callable[[str, DiskState], None]:
        return lambda folder, state: self.told.append((who, folder, state.name))

    def _usage(self, path: str) -> DiskUsage:
        return DiskUsage(TOTAL, round(TOTAL * (1 - self.used[path])), hash(path))

    def check(self, **used: float) -> dict[str, float]:
        """The gauges of directories, by their names, after a check at this usage of some."""
        for name, share in used.items():
            self.used[f"/{name}/current"] = share
        self.monitor.check()
        lines = [line.split() for line in self._registry.render().splitlines() if not line.startswith("#")]
        return {
            name.removeprefix("bookie_"): round(float(value), 6)
            for name, value in lines
            if "_dirs" in name or "_dir_" in name
        }


async def test_index_directories_of_their_own_are_gauges_as_ledger_directories_are() -> None:
    disks = Disks(indexDirectories="/i1,/data/i2")
    try:
        gauges = disks.check(l1=0.6, i1=0.7)
        assert gauges == {
            "ledger_writable_dirs": 2,
            "ledger_num_dirs": 2,
            "ledger_failed_dirs": 0,
            "ledger_dir__l1_usage": 60,
            "ledger_dir__l2_usage": 50,
            "index_writable_dirs": 2,
            "index_num_dirs": 2,
            "index_dir__i1_usage": 70,
            "index_dir__data_i2_usage": 50,
            "journal_dir__j_usage": 50,
        }
        full = disks.check(i1=0.99)
        assert (full["index_writable_dirs"], full["index_num_dirs"], full["index_dir__i1_usage"]) == (1, 2, 99)
        assert full["ledger_writable_dirs"] == 2
    finally:
        disks.monitor.stop()


async def test_indexes_beside_the_ledgers_have_no_gauges_of_their_own() -> None:
    disks = Disks()
    try:
        assert not [name for name in disks.check() if name.startswith("index_")]
    finally:
        disks.monitor.stop()


async def test_whoever_needs_to_hears_of_the_disks_before_the_bookie_serves_and_at_every_check() -> None:
    disks = Disks(indexDirectories="/i1,/i2")
    try:
        assert disks.told == [
            *((who, f"/{name}/current", "WRITABLE") for name in ("l1", "l2") for who in ("logs of", "collector of")),
            *(("index files of", f"/{name}/current", "WRITABLE") for name in ("i1", "i2")),
        ]
        assert (disks.verdicts[0].writable, disks.verdicts[0].full) == (2, 0)
        disks.told.clear()
        disks.check(l1=0.92, l2=0.96, i1=0.96)
        assert disks.told == [
            ("logs of", "/l1/current", "ALMOST_FULL"),
            ("collector of", "/l1/current", "ALMOST_FULL"),
            ("logs of", "/l2/current", "FULL"),
            ("collector of", "/l2/current", "FULL"),
            ("index files of", "/i1/current", "FULL"),
            ("index files of", "/i2/current", "WRITABLE"),
        ]
        await asyncio.sleep(0)  # a later verdict comes to the mode through the event loop
        assert (disks.verdicts[-1].writable, disks.verdicts[-1].full) == (1, 2)
        assert disks.verdicts[-1].full_directories == ("/l2/current", "/i1/current")
    finally:
        disks.monitor.stop()


async def test_a_full_index_directory_takes_no_new_index_files() -> None:
    files = MemoryFiles()
    overrides = {
        "metadataServiceUri": "file:///metadata",
        "journalDirectories": "/j",
        "ledgerDirectories": "/l",
        "indexDirectories": "/i1,/i2",
        "ledgerStorageClass": SORTED_LEDGER_STORAGE,
    }
    side = open_storage_side(load_config(environ={}, overrides=overrides), files, call_directly, Registry())
    side.index_dirs["/i1/current"].report("/i1/current", DiskState.FULL)
    for ledger_id in range(8):
        put(side.storage, entry(ledger_id, 0))
    side.storage.flush()
    for folder, count in (("/i1/current", 0), ("/i2/current", 8)):
        names = [name for tree in index_folders(files, folder) for name in files.listdir(tree)]
        assert len(names) == count
    side.storage.close()


@pytest.mark.parametrize("engine", [DB_LEDGER_STORAGE, SORTED_LEDGER_STORAGE, INTERLEAVED_LEDGER_STORAGE])
@pytest.mark.parametrize("isolated", [True, False])
async def test_a_directory_that_takes_no_writes_is_a_failed_one_whatever_the_engine(
    engine: str, isolated: bool
) -> None:
    files, registry, failures = MemoryFiles(), Registry(), list[BaseException]()
    side, monitor = _watched(files, engine, isolated, failures, registry)
    try:
        files.faults.fail("write", "writev", "pwrite", path="/l2/current/", errno=errno.EIO)
        for number in range(20 * FLUSH_TRIES):
            with suppress(StorageFault):
                put(side.storage, *(entry(ledger_id, number, 400) for ledger_id in range(4)))
            with suppress(StorageFault):
                side.storage.flush()
            await asyncio.sleep(0)
            if monitor.failed or failures:
                break
        await asyncio.sleep(0)
        gauge = next(line for line in registry.render().splitlines() if line.startswith("bookie_ledger_failed_dirs"))
        assert float(gauge.split()[-1]) == isolated
        assert [str(failure).startswith("ledger directory /l2: ") for failure in failures] == [True] * (not isolated)
        assert side.writable() == FOLDERS[:1] if isolated else FOLDERS
    finally:
        monitor.stop()
        files.faults.clear()
        with suppress(StorageFault):
            side.storage.close()


@pytest.mark.parametrize("engine", [DB_LEDGER_STORAGE, SORTED_LEDGER_STORAGE, INTERLEAVED_LEDGER_STORAGE])
async def test_a_flush_during_which_a_directory_fails_is_not_told_that_all_are_full(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bookie would be read-only until a checkpoint succeeds, and with a failed directory none does."""
    files, failures = MemoryFiles(), list[BaseException]()
    side, monitor = _watched(files, engine, True, failures, Registry())
    put(side.storage, *(entry(ledger_id, 0) for ledger_id in range(2)))
    usage = files.usage

    def lost(path: str) -> DiskUsage:
        if path.startswith("/l2/"):
            raise OSError(errno.EIO, "Input/output error")
        return usage(path)

    monkeypatch.setattr(files, "usage", lost)
    try:
        monitor.check()
        assert list(monitor.failed) == ["/l2/current"]
        side.storage.flush()  # the event loop has not heard of it
        await asyncio.sleep(0)
        assert side.writable() == FOLDERS[:1]
        with pytest.raises(StorageFault) as refused:
            put(side.storage, *(entry(ledger_id, 1) for ledger_id in range(2)))
            side.storage.flush()
        assert not isinstance(refused.value, NoWritableDirectory)
        assert failures == []
    finally:
        monitor.stop()
        with suppress(StorageFault):
            side.storage.close()


@pytest.mark.parametrize("engine", [DB_LEDGER_STORAGE, SORTED_LEDGER_STORAGE, INTERLEAVED_LEDGER_STORAGE])
async def test_beside_a_failed_directory_another_may_be_full_for_a_while(
    engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No checkpoint is complete any more, so the mode hears of what could be flushed."""
    files = MemoryFiles()
    side, monitor = _watched(files, engine, True, [], Registry())
    monitor.stop()
    read_only: list[bool] = []
    gate: Any = SimpleNamespace(set_mode=lambda **mode: read_only.append(mode["read_only"]))
    mode = BookieMode(DisksConfig(), gate, lambda work: None, pytest.fail)
    handlers = CheckpointHandlers(mode.no_writable_directory, pytest.fail, on_flushed=mode.flushed)
    checkpoints = SyncThread(side.storage, [], [], side.writable, handlers)
    try:
        put(side.storage, *(entry(ledger_id, 0) for ledger_id in range(4)))
        side.storage.fail_directory(1, StorageFault("gone"))
        for folder in FOLDERS:
            side.dirs[folder].report(folder, DiskState.FULL)
        with monkeypatch.context() as patch, pytest.raises(NoWritableDirectory) as full:
            patch.setattr(files, "usage", lambda path: DiskUsage(TOTAL, 0, 1))
            checkpoints.checkpoint()
        mode.no_writable_directory(full.value)
        assert read_only[-1]
        side.dirs[FOLDERS[0]].report(FOLDERS[0], DiskState.WRITABLE)
        mode.on_disks(DiskVerdict(1, 0, True, {}))
        assert read_only[-1], "room is not enough"
        with pytest.raises(StorageFault, match="gone"):
            checkpoints.checkpoint()
        assert not read_only[-1]
        mode.on_disks(DiskVerdict(1, 0, True, {}))
        assert not read_only[-1]
    finally:
        with suppress(StorageFault):
            side.storage.close()


def _watched(
    files: MemoryFiles, engine: str, isolated: bool, failures: list[BaseException], registry: Registry
) -> tuple[StorageSide, DiskMonitor]:
    """An engine with two ledger directories, and the monitor of their disks."""
    overrides = {
        "metadataServiceUri": "file:///metadata",
        "journalDirectories": "/j",
        "ledgerDirectories": "/l1,/l2",
        "ledgerStorageClass": engine,
        "logSizeLimit": "4096",
        "isolateFailedLedgerDirectories": str(isolated).lower(),
    }
    config = load_config(environ={}, overrides=overrides)
    for folder in ("/j/current", *FOLDERS):
        files.makedirs(folder)
    states = {folder: LedgerDirStates([folder]) for folder in FOLDERS}
    stores = MemoryStores(files.faults)
    parts = StorageParts(files, call_directly, FOLDERS, stores=stores, ledger_dirs=states.__getitem__)
    side = StorageSide(open_storage(config, parts), states, {})
    mode: Any = SimpleNamespace(on_disks=lambda verdict: None)
    monitor = start_disk_watch(
        config,
        files,
        side,
        mode,
        BackgroundTasks(asyncio.get_running_loop(), failures.append),
        failures.append,
        BookieMetrics(registry),
        lambda folder, state: None,
    )
    return side, monitor


def test_directories_whose_paths_have_one_name_have_a_gauge_each() -> None:
    registry = Registry()
    metrics = BookieMetrics(registry)
    paths = ["/disk/1", "/disk_1", "/disk_1_2", "/disk_1/2"]
    metrics.bind_directories("ledger", lambda: 1.0, {path: lambda: 0.0 for path in paths})
    metrics.bind_journal_disks({path: lambda: 0.0 for path in paths})
    names = {line.split()[0] for line in registry.render().splitlines() if "_dir_" in line and not line.startswith("#")}
    assert len(names) == 8
    assert {"bookie_ledger_dir__disk_1_usage", "bookie_journal_dir__disk_1_2_usage"} <= names
