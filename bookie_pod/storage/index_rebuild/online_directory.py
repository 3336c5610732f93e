"""The rebuild of one ledger directory, from the first look to the new databases.

Invariants
- From before the first look until the end, what the index does not name is unknown, not absent (`doubt`); entries and
  ledgers that it names are served all the while.
- Garbage collection leaves the entry logs alone for as long (`CollectionHold`): a log whose rows are missing looks
  empty. Ledgers are deleted all the same; the space comes back afterwards.
- Whatever ends a rebuild before `adopt` leaves the databases in use as they are.

Threads: that of the rebuild; `held` any.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from bookie_pod.storage.engines.single_directory import SingleDirectoryStorage
from bookie_pod.storage.entry_log.logger import EntryLogger
from bookie_pod.storage.files import Files
from bookie_pod.storage.gc.deleted_ledgers import DeletedLedgers
from bookie_pod.storage.gc.metadata import GcMetadata
from bookie_pod.storage.gc.throttle import ScrubPace
from bookie_pod.storage.index.store import StoreKind
from bookie_pod.storage.index_rebuild.online_ledgers import LedgersRebuild
from bookie_pod.storage.index_rebuild.online_locations import LocationsRebuild
from bookie_pod.storage.index_rebuild.state import RebuildPhase, RebuildRequest, RebuildState
from bookie_pod.storage.index_rebuild.swap import NewDatabase, ToolStores
from bookie_protocol.errors import StorageFault

DOUBT: Final = "its index is being rebuilt"
REASON: Final = "the index is being rebuilt"
CHECK_S: Final = 0.05
"""Between two looks at whether a pass has ended, in seconds."""


@dataclass(frozen=True, slots=True)
class RebuildParts:
    """What all directories share."""

    files: Files
    stores: ToolStores
    journal_folders: Sequence[str]
    """`current` folders."""
    metadata: GcMetadata


class DirectoryRebuild:
    """Number `number` of `count` ledger directories; folders are `current` folders."""

    def __init__(
        self,
        directory: SingleDirectoryStorage,
        parts: RebuildParts,
        hold: CollectionHold,
        ledger_folder: str,
        index_folder: str,
        *,
        number: int,
        count: int,
    ) -> None:
        self.folder = ledger_folder
        self.state = RebuildState(ledger_folder)
        self._directory = directory
        self._parts = parts
        self._hold = hold
        self._index_folder = index_folder
        self._number = number
        self._count = count

    def run(self, request: RebuildRequest, pace: ScrubPace, pay_question: Callable[[], None]) -> None:
        """Raises `ScrubStopped`, `LogsDamaged`, `StorageFault`, `MetadataError`."""
        if self._directory.failure is not None:
            raise StorageFault(str(self._directory.failure))
        self._directory.doubt = DOUBT
        try:
            self.state.phase = RebuildPhase.COLLECTION
            self._hold.take(pace)
            # As the last pass of the collection has stored them: none runs now.
            deleted = DeletedLedgers(self._parts.files, self.folder)
            if request.ledgers:
                self._rebuild_ledgers(deleted, pace, pay_question)
            if request.locations:
                self._rebuild_locations(deleted, pace, accept_damage=request.accept_damage)
        finally:
            self._hold.release()
            self._directory.doubt = None

    def _rebuild_ledgers(self, deleted: DeletedLedgers, pace: ScrubPace, pay_question: Callable[[], None]) -> None:
        parts = self._parts
        rebuilding = LedgersRebuild(
            self._directory,
            parts.files,
            parts.journal_folders,
            parts.metadata,
            pace,
            self.state,
            belongs=lambda ledger_id: ledger_id % self._count == self._number,
            is_gone=deleted.is_gone,
            pay_question=pay_question,
        )
        rebuilding.restore()
        self._build(StoreKind.LEDGERS, rebuilding.replace)

    def _rebuild_locations(self, deleted: DeletedLedgers, pace: ScrubPace, *, accept_damage: bool) -> None:
        rebuilding = LocationsRebuild(self._directory, self._parts.files, pace, self.state, deleted.may_be_earlier_life)
        self._build(StoreKind.LOCATIONS, lambda new: rebuilding.run(new, accept_damage=accept_damage))

    def _build(self, kind: StoreKind, build: Callable[[NewDatabase], None]) -> None:
        new = NewDatabase(self._parts.files, self._parts.stores, self._index_folder, kind)
        try:
            build(new)
        finally:
            if new.backup:
                self.state.backups.append(new.backup)
            new.discard()


class HeldCollector(Protocol):
    """What is asked of a `GarbageCollector`."""

    excluded: Callable[[], Mapping[int, str]]

    @property
    def is_idle(self) -> bool: ...


class CollectionHold:
    """The hold on one collector. Made after everybody else has told it what to spare."""

    def __init__(self, collector: HeldCollector, logs: EntryLogger) -> None:
        self._collector = collector
        self._others = collector.excluded
        self._all = _AllLogs(logs)
        self._on = False
        collector.excluded = self.held

    def held(self) -> Mapping[int, str]:
        """The logs that are neither compacted nor removed, and why."""
        return self._all if self._on else self._others()

    def take(self, pace: ScrubPace) -> None:
        """Keep logs from being compacted or removed from now on; returns when a pass that had begun has ended.
        `ScrubStopped`."""
        self._on = True
        while not self._collector.is_idle:
            pace.wait(CHECK_S)

    def release(self) -> None:
        self._on = False


class _AllLogs(Mapping[int, str]):
    """Every log that there is or will be."""

    def __init__(self, logs: EntryLogger) -> None:
        self._logs = logs

    def __contains__(self, log_id: object) -> bool:
        return True

    def __getitem__(self, log_id: int) -> str:
        return REASON

    def __iter__(self) -> Iterator[int]:
        return iter(self._logs.log_ids())

    def __len__(self) -> int:
        return len(self._logs.log_ids())
