"""Starts the disk monitor of a bookie: its verdicts go to the mode, its usage to the metrics.

Threads: `start_disk_watch` is for the event loop; the first check runs in it, so a bookie never serves before its
disks were looked at.
"""

from __future__ import annotations

from collections.abc import Callable

from bookie_pod.config.model import BookieConfig
from bookie_pod.metrics.bookie import BookieMetrics
from bookie_pod.node import options
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

    folders = options.current_folders(directories.ledger)

    def report(folder: str, state: DiskState) -> None:
        if folder in storage.index_dirs:
            storage.index_dirs[folder].report(folder, state)
            return
        storage.dirs[folder].report(folder, state)
        on_state(folder, state)

    engine = storage.storage
    on_failed: Callable[[str, StorageFault], None] | None = None
    if config.disks.isolate_failed_ledger_directories:

        def fail_directory(folder: str, failure: StorageFault) -> None:
            engine.fail_directory(folders.index(folder), failure)

        on_failed = tasks.on_loop(fail_directory)
    taken = {*directories.ledger, *directories.index}
    journals = tuple(path for path in directories.journal if path not in taken)
    monitor = DiskMonitor(
        files,
        folders,
        options.disk_options(config),
        report=report,
        on_verdict=tasks.on_loop(mode.on_disks),
        on_failure=tasks.on_loop(fail),
        index_directories=options.current_folders(
            tuple(path for path in directories.index if path not in directories.ledger)
        ),
        journal_directories=options.current_folders(journals),
        on_failed_directory=on_failed,
    )

    def writes_fail(index: int, failure: StorageFault) -> None:
        try:
            monitor.give_up(folders[index], failure)
        except StorageFault as error:
            fail(StorageFault(f"ledger directory {directories.ledger[index]}: {error}"))

    engine.on_directory_failure(tasks.on_loop(writes_fail))
    mode.on_disks(monitor.check())
    monitor.start()
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
    return monitor


def _not_full(monitor: DiskMonitor, directories: tuple[str, ...]) -> int:
    """How many of these configured directories were not full at the last check."""
    states = monitor.states
    return sum(states[folder] is not DiskState.FULL for folder in options.current_folders(directories))


def _usage_percent(monitor: DiskMonitor, directory: str) -> Callable[[], float]:
    """Reads how full a configured directory was at the last check."""
    (folder,) = options.current_folders((directory,))
    return lambda: monitor.usage.get(folder, 0.0) * 100
