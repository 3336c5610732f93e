"""The rebuilder of indexes of one bookie, put together from its configuration.

Threads: event loop.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bookie_pod.config.model import BookieConfig
from bookie_pod.metrics.registry import Registry
from bookie_pod.metrics.scrub import IndexRebuildMetrics
from bookie_pod.node import options
from bookie_pod.storage.engines.db import DbLedgerStorage
from bookie_pod.storage.engines.detection import is_db
from bookie_pod.storage.engines.interface import LedgerStorage
from bookie_pod.storage.files import Files
from bookie_pod.storage.gc.collector import GarbageCollector
from bookie_pod.storage.gc.metadata import GcMetadata
from bookie_pod.storage.index.rocksdb_store import RocksStores
from bookie_pod.storage.index_rebuild.online_directory import CollectionHold, DirectoryRebuild, RebuildParts
from bookie_pod.storage.index_rebuild.rebuilder import IndexRebuilder
from bookie_pod.storage.index_rebuild.swap import DiskStores, finish_online_rebuilds


def make_rebuilder(
    config: BookieConfig,
    files: Files,
    storage: LedgerStorage,
    collectors: Sequence[GarbageCollector],
    metadata: GcMetadata,
    registry: Registry,
    under_pressure: Callable[[], bool],
) -> IndexRebuilder:
    """The rebuilder; nothing runs. `collectors` in the order of the storage's parts, with the scrubber's holds."""
    directories: list[DirectoryRebuild] = []
    if isinstance(storage, DbLedgerStorage):
        journals = options.current_folders(config.directories.journal)
        parts = RebuildParts(files, _stores(config, files), journals, metadata)
        pairs = options.storage_settings(config).pairs()
        together = zip(storage.directories, collectors, pairs, strict=True)
        for number, (directory, collector, (ledger_folder, index_folder)) in enumerate(together):
            hold = CollectionHold(collector, directory.logs)
            made = DirectoryRebuild(
                directory, parts, hold, ledger_folder, index_folder, number=number, count=len(pairs)
            )
            directories.append(made)
    instruments = IndexRebuildMetrics(registry)
    rebuilder = IndexRebuilder(
        directories,
        bytes_per_second=config.integrity.index_rebuild_rate_bytes,
        questions_per_second=config.gc.metadata_op_rate_limit,
        under_pressure=under_pressure,
        metrics=instruments,
    )
    instruments.bind_levels(
        running=lambda: rebuilder.running,
        bytes_done=lambda: sum(each.bytes_done for each in rebuilder.states()),
        bytes_total=lambda: sum(each.bytes_total for each in rebuilder.states()),
    )
    return rebuilder


def finish_rebuilds(config: BookieConfig, files: Files) -> None:
    """Before the storage is opened: finish what a crash interrupted. `StorageFault`, InvalidConfiguration."""
    settings = options.storage_settings(config)
    if is_db(settings.engine):
        finish_online_rebuilds(files, _stores(config, files), [index for _, index in settings.pairs()])


def _stores(config: BookieConfig, files: Files) -> DiskStores:
    db = options.storage_settings(config).db
    return DiskStores(files, RocksStores(files, db.locations_db, db.ledgers_db))
