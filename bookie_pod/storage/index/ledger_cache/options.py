"""Settings of the ledger cache, already converted from the configuration file's units."""

from __future__ import annotations

from dataclasses import dataclass

from bookie_pod.storage.index.index_file import CURRENT_VERSION, SLOT_BYTES
from bookie_protocol.errors import InvalidConfiguration

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class LedgerCacheOptions:
    """Every field names its configuration key, its unit and its default (reference bookie behaviour, section 1.7)."""

    page_bytes: int = 8192
    """`pageSize`, bytes, default 8192: 1024 slots."""

    page_limit: int = 32_768
    """`pageLimit`, pages; the key's default -1, and 0, stand for a third of the memory budget
    (`default_page_limit`)."""

    open_files: int = 20_000
    """`openFileLimit`, files, default 20 000: index files kept open; those in use come on top."""

    idle_seconds: float = 0
    """`fileInfoMaxIdleTime`, seconds, default 0: close files that nobody used for so long; 0 never does."""

    version: int = CURRENT_VERSION
    """`fileInfoFormatVersionToWrite`, default 1: version of new files."""

    min_usable_bytes: int = 100 * _MIB
    """`minUsableSizeForIndexFileCreation`, bytes, default 100 MiB: free space that a directory which is not writable
    any more must have to take a new index file all the same."""

    def __post_init__(self) -> None:
        if self.page_bytes < SLOT_BYTES or self.page_bytes % SLOT_BYTES:
            raise InvalidConfiguration(f"pageSize={self.page_bytes} must be a multiple of {SLOT_BYTES}")
        if self.page_limit < 1:
            raise InvalidConfiguration(f"pageLimit={self.page_limit} must be at least 1; 0 and -1 are derived before")
        if self.open_files < 1:
            raise InvalidConfiguration(f"openFileLimit={self.open_files} must be at least 1")
        if not 0 <= self.version <= CURRENT_VERSION:
            raise InvalidConfiguration(f"fileInfoFormatVersionToWrite={self.version} must be 0 or {CURRENT_VERSION}")


def default_page_limit(memory_budget: int, page_bytes: int) -> int:
    """Pages that a third of the memory budget (bytes) holds, at least one."""
    return max(1, memory_budget // 3 // page_bytes)
