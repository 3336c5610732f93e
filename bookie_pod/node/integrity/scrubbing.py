"""The scrubber of one bookie, and the rebuilder of its indexes, put together from its configuration.

Damage that is known from earlier passes is refused to readers, and its logs are kept from garbage collection, whether
or not the scrubber is switched on.

`MetadataDigestTypes` asks the metadata service how entries are checked, for the scrubber and for reads.

Invariants
- A ledger's digest type never changes, so what was learnt is kept, for the `MAX_KNOWN` ledgers asked for last. But ids
  are used again: a `fresh` answer is at most `FRESH_S` old.
- A service that does not answer is left alone for `PAUSE_S`: entries are then checked without their digests, and the
  scrubber does not stand still.

Threads: event loop; `start` and `stop` as they say. `MetadataDigestTypes` may be asked on any thread; questions are
asked one after another.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Final

import structlog

from bookie_pod.config.model import BookieConfig
from bookie_pod.config.sections.journal import current_folders
from bookie_pod.config.sections.ledger_storage import StorageEngine
from bookie_pod.metrics.registry import Registry
from bookie_pod.metrics.scrub import IndexRebuildMetrics, ScrubMetrics
from bookie_pod.storage.engines.db import DbLedgerStorage
from bookie_pod.storage.engines.interface import LedgerStorage
from bookie_pod.storage.files import Files
from bookie_pod.storage.gc.collector import GarbageCollector
from bookie_pod.storage.gc.schedule import steady_now_ms
from bookie_pod.storage.gc.storage import GcMetadata, collected
from bookie_pod.storage.gc.throttle import ScrubPace, Throttle
from bookie_pod.storage.index.rocksdb_store import RocksStores
from bookie_pod.storage.index_rebuild.online import CollectionHold, DirectoryRebuild, RebuildParts
from bookie_pod.storage.index_rebuild.rebuilder import IndexRebuilder
from bookie_pod.storage.index_rebuild.swap import DiskStores, finish_online_rebuilds
from bookie_pod.storage.integrity.journal_scrub import JournalScrub
from bookie_pod.storage.integrity.ledger_scrub import LedgerScrub
from bookie_pod.storage.integrity.quarantine import Damage, DamageKind
from bookie_pod.storage.integrity.scrub import Scrubber
from bookie_pod.storage.integrity.scrub_part import ScrubPart
from bookie_pod.storage.journal.marks import LogMark, MarkFiles
from bookie_protocol.digest import DigestType
from bookie_protocol.errors import MetadataDamaged, MetadataError

AfterPass = Callable[[Sequence[tuple[ScrubPart, Damage]]], None]
_log = structlog.get_logger(__name__)
MAX_KNOWN: Final = 65_536
PAUSE_S: Final = 30.0
FRESH_S: Final = 1.0


def make_scrubber(
    config: BookieConfig,
    files: Files,
    storage: LedgerStorage,
    collectors: Sequence[GarbageCollector],
    metadata: GcMetadata,
    registry: Registry,
    under_pressure: Callable[[], bool],
    after_pass: Callable[[ScrubMetrics], AfterPass],
) -> Scrubber:
    """The scrubber, not started. `collectors` in the order of the storage's parts."""
    stopped = threading.Event()
    integrity = config.integrity
    pace = ScrubPace(
        stopped,
        entries_per_second=integrity.local_scrub_rate_limit,
        bytes_per_second=integrity.local_scrub_rate_bytes,
        under_pressure=under_pressure,
    )
    questions = Throttle(config.gc.metadata_op_rate_limit, stopped, by_bytes=False)
    digests = MetadataDigestTypes(metadata, lambda: questions.pay(1, 0))
    instruments = ScrubMetrics(registry)
    folders = current_folders(config.directories.ledger)
    parts: list[ScrubPart] = []
    for part, folder, collector in zip(collected(storage), folders, collectors, strict=False):
        scrub = LedgerScrub(
            part,
            files,
            folder,
            pace,
            digests,
            metrics=instruments,
            now_ms=steady_now_ms,
        )
        collector.excluded = scrub.register.held_logs
        parts.append(scrub)
    journals = current_folders(config.directories.journal)
    for index, folder in enumerate(journals):
        marks = _mark_reader(files, folders, index, len(journals))
        parts.append(JournalScrub(files, folder, marks, pace, metrics=instruments, now_ms=steady_now_ms))
    scrubber = Scrubber(
        parts,
        stopped,
        interval_s=integrity.local_scrub_interval_s,
        after_pass=after_pass(instruments),
        metrics=instruments,
        turns=lambda: pace.turns,
    )
    _bind_levels(instruments, scrubber)
    return scrubber


def _mark_reader(files: Files, folders: Sequence[str], index: int, count: int) -> Callable[[], LogMark]:
    return lambda: MarkFiles(files, folders, index, count).read()


def _bind_levels(instruments: ScrubMetrics, scrubber: Scrubber) -> None:
    def count(kind: DamageKind) -> Callable[[], float]:
        return lambda: sum(damage.kind is kind for damage in scrubber.damages())

    instruments.bind_levels(
        damages={kind.name: count(kind) for kind in DamageKind},
        last_pass_ms=lambda: min((part.position.completed_ms for part in scrubber.parts), default=0),
        running=lambda: scrubber.state().running,
    )


class MetadataDigestTypes:
    """`DigestTypes` by the metadata service. `pay` waits before each question."""

    def __init__(
        self, metadata: GcMetadata, pay: Callable[[], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._metadata = metadata
        self._pay = pay
        self._clock = clock
        self._known: OrderedDict[int, tuple[DigestType | None, float]] = OrderedDict()
        """The known types, with the time of the answer."""
        self._silent_until = 0.0
        self._lock = threading.Lock()

    def digest_type(self, ledger_id: int, *, fresh: bool = False) -> DigestType | None:
        with self._lock:
            return self._known_or_asked(ledger_id, self._clock() - FRESH_S if fresh else 0.0)

    def _known_or_asked(self, ledger_id: int, since: float) -> DigestType | None:
        known = self._known
        if ledger_id in known and known[ledger_id][1] >= since:
            known.move_to_end(ledger_id)
            return known[ledger_id][0]
        if self._clock() < self._silent_until:
            return None
        self._pay()
        try:
            metadata = self._metadata.read(ledger_id)
        except MetadataDamaged:  # only this ledger's: the checks of others must go on
            metadata = None
        except MetadataError as error:
            self._silent_until = self._clock() + PAUSE_S
            _log.warning("digests are not checked for a while: the metadata service does not tell", reason=str(error))
            return None
        # A record that names no type never will, so its entries are those of a ledger without digests.
        found = (metadata.digest_type or DigestType.DUMMY) if metadata is not None else None
        known[ledger_id] = found, self._clock()
        known.move_to_end(ledger_id)
        if len(known) > MAX_KNOWN:
            known.popitem(last=False)
        return found


def make_rebuilder(
    config: BookieConfig,
    files: Files,
    storage: LedgerStorage,
    collectors: Sequence[GarbageCollector],
    metadata: GcMetadata,
    registry: Registry,
    under_pressure: Callable[[], bool],
    on_end: Callable[[], None],
) -> IndexRebuilder:
    """The rebuilder; nothing runs. `collectors` in the order of the storage's parts, with the scrubber's holds.

    `on_end`: see `IndexRebuilder`."""
    directories: list[DirectoryRebuild] = []
    if isinstance(storage, DbLedgerStorage):
        journals = current_folders(config.directories.journal)
        parts = RebuildParts(files, _stores(config, files), journals, metadata)
        ledgers = current_folders(config.directories.ledger)
        indexes = current_folders(config.directories.index_or_ledger)
        together = zip(storage.directories, collectors, zip(ledgers, indexes, strict=True), strict=True)
        for number, (directory, collector, (ledger_folder, index_folder)) in enumerate(together):
            hold = CollectionHold(collector, directory.logs)
            made = DirectoryRebuild(
                directory, parts, hold, ledger_folder, index_folder, number=number, count=len(ledgers)
            )
            directories.append(made)
    instruments = IndexRebuildMetrics(registry)
    rebuilder = IndexRebuilder(
        directories,
        bytes_per_second=config.integrity.index_rebuild_rate_bytes,
        questions_per_second=config.gc.metadata_op_rate_limit,
        under_pressure=under_pressure,
        metrics=instruments,
        on_end=on_end,
    )
    instruments.bind_levels(
        running=lambda: rebuilder.running,
        bytes_done=lambda: sum(each.bytes_done for each in rebuilder.states()),
        bytes_total=lambda: sum(each.bytes_total for each in rebuilder.states()),
    )
    return rebuilder


def finish_rebuilds(config: BookieConfig, files: Files) -> None:
    """Finish what a crash interrupted, before the storage is opened. `StorageFault`, InvalidConfiguration."""
    if config.ledger_storage.engine is StorageEngine.DB:
        indexes = current_folders(config.directories.index_or_ledger)
        finish_online_rebuilds(files, _stores(config, files), indexes)


def _stores(config: BookieConfig, files: Files) -> DiskStores:
    return DiskStores(files, RocksStores(files, config.rocksdb))
