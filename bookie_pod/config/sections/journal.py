"""Directories and the journal.

Source: docs/internals/bookie-behaviour.md, sections 1.3 and 1.4. Frozen; any thread may read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from bookie_pod.config.keys import INT_MAX, MIB, key

CURRENT_FOLDER: Final = "current"


def current_folders(directories: Iterable[str]) -> list[str]:
    """Return the folder in each configured directory that holds its files."""
    return [os.path.join(directory, CURRENT_FOLDER) for directory in directories]


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoriesConfig:
    """Directories"""

    journal: tuple[str, ...] = key("journalDirectories", ("/tmp/bk-txn",), legacy=("journalDirectory",))
    """Directories of the write-ahead log, comma-separated; a ledger always uses the same one. Each
    deserves a device of its own. The texts are part of the bookie's cookie: never rename, reorder or drop
    one that holds data. The default is a temporary directory, good for trying out only."""
    ledger: tuple[str, ...] = key("ledgerDirectories", ("/tmp/bk-data",))
    """Directories of entry logs, comma-separated. Part of the cookie like `journalDirectories`. The
    default is a temporary directory, good for trying out only."""
    index: tuple[str, ...] = key("indexDirectories", (), derived="the ledger directories")
    """Directories of the index, comma-separated. With DbLedgerStorage: as many as ledger directories, in
    their order."""
    allow_storage_expansion: bool = key("allowStorageExpansion", False)
    """Accept new, empty ledger and index directories beside those that the cookie knows. Not with DbLedgerStorage,
    which finds a ledger by the number of its directories."""
    allow_same_disk_partition: bool = key("allowMultipleDirsUnderSameDiskPartition", True)
    """Accept several directories on one file system (a warning is logged). False: refuse to start."""

    @property
    def index_or_ledger(self) -> tuple[str, ...]:
        """Return the directories of the index: the index directories, or the ledger directories if there are none."""
        return self.index or self.ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalConfig:
    """Journal"""

    sync_data: bool = key("journalSyncData", True)
    """Sync the journal before an add is acknowledged. False: acknowledged entries are lost with the
    machine."""
    write_data: bool = key("journalWriteData", True)
    """Journal entries at all. False: acknowledged entries are lost with the process, up to the last flush."""
    max_size_bytes: int = key("journalMaxSizeMB", 2048, unit=MIB, at_least=1, at_most=1_048_576)
    """Size at which a new journal file begins, in MiB."""
    max_backups: int = key("journalMaxBackups", 5, at_least=0, at_most=INT_MAX)
    """Journal files kept although everything in them is in ledger storage."""
    pre_alloc_size_bytes: int = key("journalPreAllocSizeMB", 16, unit=MIB, at_least=1, at_most=1_048_576)
    """Step in which space for a journal file is allocated, in MiB."""
    write_buffer_size_kb: int = key("journalWriteBufferSizeKB", 64, at_least=1, at_most=1_048_576, no_effect=True)
    """Write buffer in KiB. Has no effect here: a group is written with one call and needs no buffer."""
    alignment_size_bytes: int = key("journalAlignmentSize", 512, at_least=512, at_most=1_073_741_824)
    """Groups are padded to a multiple of this many bytes. A multiple of 512, at most the preallocation
    step; the sector size of the device is a good value."""
    format_version: int = key("journalFormatVersionToWrite", 6, at_least=4, at_most=6)
    """Format of new journal files: 4 no padding, 5 padding, 6 explicit LACs too. Lower it only to go back
    to a release that cannot read 6; fences and explicit LACs that a version lacks are not journaled."""
    max_group_wait_ms: int = key("journalMaxGroupWaitMSec", 2, at_least=-1, at_most=INT_MAX)
    """Maximum time that a record waits for others to share its sync, in ms. A record that comes so long after the
    last group does not wait. 0 or less: no waiting."""
    buffered_writes_threshold_bytes: int = key("journalBufferedWritesThreshold", 524_288, at_least=0, at_most=INT_MAX)
    """A group is written once it holds this many bytes. 0: never for that reason."""
    buffered_entries_threshold: int = key("journalBufferedEntriesThreshold", 0, at_least=0, at_most=INT_MAX)
    """A group is written once it holds this many entries. 0: never for that reason."""
    flush_when_queue_empty: bool = key("journalFlushWhenQueueEmpty", False)
    """Write a group as soon as no record is waiting. Lowest latency at low load; implied when the group
    wait is 0."""
    adaptive_group_writes: bool = key("journalAdaptiveGroupWrites", True)
    """While the bookie is short of processor time and at least 64 records wait, they wait longer for others: up to 16
    ms, or `journalMaxGroupWaitMSec` if that is more. The thresholds of a group grow by the same factor. More throughput
    at full load; no difference at any other. (In the reference implementation this key has no effect.)"""
    remove_from_page_cache: bool = key("journalRemoveFromPageCache", True)
    """Drop synced journal pages from the page cache, 8 MiB behind the sync position."""
    page_cache_flush_interval_ms: int = key("journalPageCacheFlushIntervalMSec", 1000, at_least=1, at_most=INT_MAX)
    """Interval at which the journal is synced even with `journalSyncData=false`, in ms."""
    queue_size: int = key("journalQueueSize", 10_000, at_least=1, at_most=INT_MAX)
    """Records that may wait per journal; beyond, connections are not read."""
    max_memory_bytes: int = key(
        "journalMaxMemorySizeMb", 51, unit=MIB, at_least=1, at_most=1_048_576, derived="5 % of `memoryBudgetMb`"
    )
    """Memory for records that wait, all journals together, in MiB; beyond, connections are not read."""
    reuse_files: bool = key("journalReuseFiles", False, no_effect=True)
    """Overwrite an old journal file instead of deleting it. Has no effect here: the next file is made in advance, and
    replay never has to tell its records from those of an older use."""
    group_checks: bool = key("journalGroupChecksEnabled", True, own=True)
    """Write a checksum of each group where Apache BookKeeper writes zeros and ignores what it reads. False: bytes
    exactly as Apache's, and damage is distinguished from a torn tail by guessing."""
    direct_io: bool = key("journalDirectIoEnabled", True, own=True)
    """Write the journal past the page cache, from which it is never read: about half the CPU time of a written
    byte, and shorter syncs. File systems without direct I/O are written as usual."""
    slow_sync_ms: int = key("journalSlowSyncMs", 1000, at_least=0, at_most=INT_MAX, own=True)
    """A sync that takes longer than this many ms is counted and logged. 0: never."""
    channel_provider: str | None = key("journalChannelProvider", None, no_effect=True)
    """Has no effect: there is one way to write a journal file."""
    skip_invalid_record: bool = key("skipReplayJournalInvalidRecord", False)
    """Skip a damaged record at replay instead of refusing to start. Loses acknowledged entries: only as a
    last resort, when every ledger has other copies. Then all ledgers of this bookie are in limbo until it has fetched
    what it lost."""

    @property
    def waits_for_group(self) -> bool:
        """Return True if a record may wait for others at all."""
        return self.max_group_wait_ms > 0 and not self.flush_when_queue_empty
