"""Keys that have no effect beside the values of others: those of another engine, of a form of it that was not chosen.

They are accepted, since files are shared and copied, and named at the start if they ask for another value than the
default: a setting that does nothing must not pass for one that does.

Pure: any thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from bookie_pod.config.keys import keys_of
from bookie_pod.config.model import BookieConfig
from bookie_pod.config.sections.ledger_storage import DbStorageConfig, RocksDbConfig, StorageEngine
from bookie_pod.config.sections.sorted_storage import SortedStorageConfig

_OF_EVERY_ENGINE: Final = frozenset({"dbStorage_maxThrottleTimeMs"})
"""Whatever the name says."""
_PER_LEDGER: Final = ("maximumNumberOfActiveEntryLogs", "entrylogMapAccessExpiryTimeInSeconds")
_THROTTLES: Final = {True: "compactionRateByEntries", False: "compactionRateByBytes"}
"""The one that does nothing, by `isThrottleByBytes`."""


def idle_keys(config: BookieConfig) -> frozenset[str]:
    """Names of all keys that have no effect with these values of the others."""
    return frozenset(_idle(config))


def _idle(config: BookieConfig) -> Iterator[str]:
    storage = config.ledger_storage
    per_ledger = storage.log_per_ledger
    if storage.engine is StorageEngine.DB:
        yield from _names(SortedStorageConfig)
        yield "entryLogPerLedgerEnabled"
        if config.db_storage.direct_io_entry_logger:
            yield "writeBufferSizeBytes"
    else:
        yield from (name for name in _names(DbStorageConfig) if name not in _OF_EVERY_ENGINE)
        yield from _names(RocksDbConfig)
        if not per_ledger:
            yield "flushInterval"
    if not per_ledger:
        yield from _PER_LEDGER
    if not per_ledger or storage.engine is not StorageEngine.SORTED:
        yield "numOfMemtableFlushThreads"
    yield _THROTTLES[config.gc.throttle_by_bytes]


def _names(section: type) -> Iterator[str]:
    for _, declared in keys_of(section):
        yield declared.name
