"""Starts the disk monitor of a bookie: its verdicts go to the mode, its usage to the metrics.

Threads: `start_disk_watch` is for the event loop; the first check runs in it, so a bookie never serves before its
disks were looked at.
"""

from __future__ import annotations

from collections.abc import Callable

from bookie_pod.config.model import BookieConfig
from bookie_pod.config.sections.journal import DirectoriesConfig, current_folders
from bookie_pod.metrics.bookie import BookieMetrics
from bookie_pod.node.mode import BookieMode
from bookie_pod.node.parts import StorageSide
from bookie_pod.node.processes.background import BackgroundTasks
from bookie_pod.storage.disks import DiskMonitor
from bookie_pod.storage.entry_log.directories import DiskState
from bookie_pod.storage.files import Files
from bookie_protocol.errors import StorageFault


def start_disk_watch(
    config: BookieConfig,
    files: Files,
    storage: StorageSide,
    mode: BookieMode,
    tasks: BackgroundTasks,
    fail: Callable[[BaseException], None],
    metrics: BookieMetrics,
    on_state: Callable[[str, DiskState], None],
) -> DiskMonitor:
    """Check all directories once, then keep checking until the monitor is stopped. `on_state` hears the state of each
    ledger folder at every check."""
    directories = config.directories

    folders = current_folders(directories.ledger)

    def report(folder: str, state: DiskState) -> None:
        if folder in storage.index_dirs:
            storage.index_dirs[folder].report(folder, state)
            return
        storage.dirs[folder].report(folder, state)
        on_state(folder, state)

    def fail_directory(folder: str, failure: StorageFault) -> None:
        storage.storage.fail_directory(folders.index(folder), failure)
        # Behind it: a flush that found no room there, before it heard of the failure, would make the bookie read-only.
        report(folder, DiskState.FULL)

    taken = {*directories.ledger, *directories.index}
    journals = tuple(path for path in directories.journal if path not in taken)
    monitor = DiskMonitor(
        files,
        folders,
        config.disks,
        report=report,
        on_verdict=tasks.on_loop(mode.on_disks),
        on_failure=tasks.on_loop(fail),
        index_directories=current_folders(tuple(path for path in directories.index if path not in directories.ledger)),
        journal_directories=current_folders(journals),
        on_failed_directory=tasks.on_loop(fail_directory) if config.disks.isolate_failed_ledger_directories else None,
    )

    def writes_fail(index: int, failure: StorageFault) -> None:
        try:
            monitor.give_up(folders[index], failure)
        except StorageFault as error:
            fail(StorageFault(f"ledger directory {directories.ledger[index]}: {error}"))

    storage.storage.on_directory_failure(tasks.on_loop(writes_fail))
    mode.on_disks(monitor.check())
    monitor.start()
    _show(monitor, directories, journals, storage, metrics)
    return monitor


def _show(
    monitor: DiskMonitor,
    directories: DirectoriesConfig,
    journals: tuple[str, ...],
    storage: StorageSide,
    metrics: BookieMetrics,
) -> None:
    metrics.bind_directories(
        "ledger",
        lambda: len(storage.writable()),
        {directory: _usage_percent(monitor, directory) for directory in directories.ledger},
    )
    if directories.index:
        metrics.bind_directories(
            "index",
            lambda: _not_full(monitor, directories.index),
            {directory: _usage_percent(monitor, directory) for directory in directories.index},
        )
    metrics.bind_failed_directories(lambda: len(monitor.failed))
    metrics.bind_journal_disks({directory: _usage_percent(monitor, directory) for directory in journals})


def _not_full(monitor: DiskMonitor, directories: tuple[str, ...]) -> int:
    """Return how many of these configured directories were not full at the last check."""
    states = monitor.states
    return sum(states[folder] is not DiskState.FULL for folder in current_folders(directories))


def _usage_percent(monitor: DiskMonitor, directory: str) -> Callable[[], float]:
    """Reads how full a configured directory was at the last check."""
    (folder,) = current_folders((directory,))
    return lambda: monitor.usage.get(folder, 0.0) * 100
