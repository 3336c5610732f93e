"""All garbage collectors of one bookie: started, stopped, forced and suspended together.

What the disks have to do with it, for the collector of the directory that changed:

                                    by default                      with isForceGCAllowWhenNoSpace
    almost full                     major compaction is suspended   a pass is forced
    full                            both are suspended; passes,     a pass is forced
                                    one at once, make room
    room again, still above warn    minor compaction resumes        a pass is forced
    room again                      both resume                     such a pass is forgotten if it has not begun

"Make room" is transactional compaction of the logs with most garbage, as far as a copy of what lives in one fits into
what `diskUsageThreshold` has left, without `minUsableSizeAfterCompaction`. Without transactional compaction it is
unknown what fits, so nothing is compacted on a full disk.

Threads: `on_disk` runs on the disk monitor's thread; the rest may be called by any thread.

Source: docs/internals/bookie-behaviour.md, section 6.6.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

import structlog

from bookie_pod.config.model import BookieConfig
from bookie_pod.config.sections.journal import current_folders
from bookie_pod.config.sections.ledger_storage import StorageEngine
from bookie_pod.metrics.gc import GcMetrics
from bookie_pod.metrics.registry import Registry
from bookie_pod.storage.engines.interface import LedgerStorage
from bookie_pod.storage.entry_log.directories import DiskState
from bookie_pod.storage.files import Files
from bookie_pod.storage.gc.collector import GarbageCollector
from bookie_pod.storage.gc.fenced_deleted import FencedAndDeleted
from bookie_pod.storage.gc.log_usage import LogUsage
from bookie_pod.storage.gc.schedule import Compaction, Force
from bookie_pod.storage.gc.state_file import GcStateFile
from bookie_pod.storage.gc.storage import CollectedStorage, GcMetadata, collected

_log = structlog.get_logger(__name__)


class GarbageCollection:
    """The collectors, in the order of the ledger directories (one in all for Sorted and Interleaved)."""

    def __init__(
        self,
        collectors: Mapping[str, GarbageCollector],
        *,
        force_when_full: bool,
        make_room: bool = True,
        interrupt: Callable[[], None] = lambda: None,
    ) -> None:
        """`collectors` by `current` folder; all folders of an engine with one collector name the same one. `make_room`:
        compaction may use what a full disk has left. `interrupt` ends what they wait for."""
        self._interrupt = interrupt
        self._by_folder = dict(collectors)
        self.collectors: Sequence[GarbageCollector] = list(dict.fromkeys(collectors.values()))
        self._force_when_full = force_when_full
        self._make_room = make_room
        self._states = dict.fromkeys(collectors, DiskState.WRITABLE)

    def start(self) -> None:
        for collector in self.collectors:
            collector.start()

    async def stop(self) -> None:
        """End all of them at the next safe place."""
        for collector in self.collectors:
            collector.begin_stop()
        self._interrupt()
        await asyncio.gather(*(asyncio.to_thread(collector.stop) for collector in self.collectors))

    def force(self, major: bool | None = None, minor: bool | None = None) -> None:
        """Ask every collector for a pass now."""
        for collector in self.collectors:
            collector.request(Force(major, minor))

    def allow_deletions(self, ledgers: int) -> None:
        """See `GarbageCollector.allow_deletions`; and ask for a pass now."""
        for collector in self.collectors:
            collector.allow_deletions(ledgers)
        self.force()

    @property
    def force_pending(self) -> bool:
        """A forced pass waits or runs somewhere."""
        return any(collector.force_pending for collector in self.collectors)

    def suspend(self, *, major: bool = False, minor: bool = False) -> None:
        """Hold back compactions until they are resumed."""
        for collector in self.collectors:
            collector.schedule.held |= _kinds(major, minor)
        self._set_suspended(self.collectors, True, major, minor)

    def resume(self, *, major: bool = False, minor: bool = False) -> None:
        for collector in self.collectors:
            collector.schedule.held -= _kinds(major, minor)
        self._set_suspended(self.collectors, False, major, minor)

    @property
    def major_suspended(self) -> bool:
        return any(collector.schedule.major_suspended for collector in self.collectors)

    @property
    def minor_suspended(self) -> bool:
        return any(collector.schedule.minor_suspended for collector in self.collectors)

    def folders_of(self, collector: GarbageCollector) -> list[str]:
        """The `current` folders that it collects."""
        return [folder for folder, each in self._by_folder.items() if each is collector]

    def reconfigure(self, config: BookieConfig) -> None:
        """Take over thresholds, intervals and rates of a changed configuration."""
        for collector in self.collectors:
            collector.reconfigure(config.gc)

    def on_disk(self, folder: str, state: DiskState) -> None:
        """A ledger directory was looked at."""
        before, self._states[folder] = self._states[folder], state
        if state is before:
            return
        collector = [self._by_folder[folder]]
        self._note_space(collector[0])
        if state is DiskState.WRITABLE:
            collector[0].schedule.held.clear()
            self._set_suspended(collector, False, True, True)
            collector[0].cancel_request()
        elif self._force_when_full:
            collector[0].request(Force(by_disk=True))
        elif state is DiskState.FULL:
            self._set_suspended(collector, True, True, True)
            if self._make_room:
                collector[0].request(Force(by_disk=True))
        elif before is DiskState.FULL:
            self._set_suspended(collector, False, False, True)
            collector[0].cancel_request()
        else:
            self._set_suspended(collector, True, True, False)

    def _note_space(self, collector: GarbageCollector) -> None:
        full = any(self._states[folder] is DiskState.FULL for folder in self.folders_of(collector))
        collector.schedule.disk_full, collector.schedule.short_of_space = full, full and self._make_room

    def _set_suspended(self, collectors: Sequence[GarbageCollector], suspended: bool, major: bool, minor: bool) -> None:
        for collector in collectors:
            if major:
                collector.schedule.major_suspended = suspended
            if minor:
                collector.schedule.minor_suspended = suspended
        kinds = [name for name, meant in (("major", major), ("minor", minor)) if meant]
        _log.info("compaction " + ("suspended" if suspended else "resumed"), kinds=kinds)


def _kinds(major: bool, minor: bool) -> set[Compaction]:
    named = {Compaction.MAJOR: major, Compaction.MINOR: minor}
    return {kind for kind, meant in named.items() if meant}


def make_collection(
    config: BookieConfig,
    files: Files,
    storage: LedgerStorage,
    metadata: GcMetadata,
    registry: Registry,
    under_pressure: Callable[[], bool],
    fenced: FencedAndDeleted,
    interrupt: Callable[[], None] = lambda: None,
) -> GarbageCollection:
    """Return the collectors of this configuration, not started. `interrupt` ends calls of `metadata` that wait."""
    folders = current_folders(config.directories.ledger)
    parts = collected(storage)
    made: list[GarbageCollector] = []
    indexes = current_folders(config.directories.index)
    for index, part in enumerate(parts):
        labels = None
        if config.ledger_storage.engine is StorageEngine.DB:
            labels = (folders[index], indexes[index] if indexes else folders[index])
        instruments = GcMetrics(registry, labels)
        collector = GarbageCollector(
            part,
            metadata,
            GcStateFile(files, folders[index]),
            config.gc,
            index=index,
            collectors=len(parts),
            fenced=fenced,
            under_pressure=under_pressure,
            metrics=instruments,
        )
        _bind_levels(instruments, collector, part)
        made.append(collector)
    by_folder = {folder: made[min(index, len(made) - 1)] for index, folder in enumerate(folders)}
    return GarbageCollection(
        by_folder,
        force_when_full=config.gc.force_gc_when_no_space,
        make_room=config.gc.transactional_compaction,
        interrupt=interrupt,
    )


def _bind_levels(instruments: GcMetrics, collector: GarbageCollector, part: CollectedStorage) -> None:
    def usages() -> list[LogUsage]:
        return [*collector.usages(), *collector.current_usages()]

    instruments.bind_levels(
        logs=lambda: len(usages()),
        live_bytes=lambda: sum(each.live_bytes for each in usages()),
        total_bytes=lambda: sum(each.total for each in usages()) + collector.quarantined_bytes(),
        ledgers=lambda: len(part.ledger_ids()),
        buckets=collector.buckets,
        quarantined=lambda: len(collector.state().quarantined),
        oldest_age_s=collector.oldest_age_s,
        since_pass_s=lambda: collector.since_pass_s,
        pass_errors=lambda: len(collector.state().last_errors),
        yielded_s=lambda: collector.yielded_s,
        waiting=lambda: collector.state().ledgers_waiting,
        held=lambda: collector.state().deletions_held is not None,
    )
