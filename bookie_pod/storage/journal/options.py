"""`JournalOptions`: what a journal can be told (reference bookie behaviour, section 1.4)."""

from __future__ import annotations

from dataclasses import dataclass

from bookie_pod.storage.journal.format import NEWEST_VERSION, OLDEST_VERSION_WRITTEN, SECTOR

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class JournalOptions:
    """Options of one journal. Bytes, milliseconds and counts; defaults are those of the reference.

    Raises `ValueError` on construction for values that cannot work together.
    """

    sync_data: bool = True
    """`journalSyncData`. False: acknowledge after the write to the OS; a power cut loses up to the flush interval."""

    max_file_bytes: int = 2048 * MIB
    """`journalMaxSizeMB`. A file longer than this after a group is followed by a new one."""

    max_backups: int = 5
    """`journalMaxBackups`. Files kept below the mark, for recovery by hand."""

    preallocate_bytes: int = 16 * MIB
    """`journalPreAllocSizeMB`. The file grows sparsely by this much (rounded down to the alignment)."""

    write_buffer_bytes: int = MIB
    """Most bytes copied together for one write. The reference's `journalWriteBufferSizeKB` (64) is its buffer;
    here a group is written from the queue, and this bounds how long one copy keeps other threads waiting."""

    alignment: int = SECTOR
    """`journalAlignmentSize`. Groups start at multiples of this (versions 5 and 6); a multiple of 512."""

    version: int = NEWEST_VERSION
    """`journalFormatVersionToWrite`: 4, 5 or 6. Below 6 explicit LACs are acknowledged but not journaled."""

    max_group_wait_ms: float = 2.0
    """`journalMaxGroupWaitMSec`. Longest that a record waits for others. 0 or less: never wait."""

    group_bytes: int = 512 * 1024
    """`journalBufferedWritesThreshold`. More waiting bytes than this are written at once."""

    group_entries: int = 0
    """`journalBufferedEntriesThreshold`. More waiting records than this are written at once; 0: no such limit."""

    flush_when_queue_empty: bool = False
    """`journalFlushWhenQueueEmpty`. Write whatever there is, without waiting for more."""

    adaptive_groups: bool = True
    """`journalAdaptiveGroupWrites`. Wait for larger groups while processor time is short (`GroupPace`)."""

    remove_from_page_cache: bool = True
    """`journalRemoveFromPageCache`. Tell the kernel to forget synced pages more than 8 MiB behind."""

    page_cache_flush_interval_ms: float = 1000.0
    """`journalPageCacheFlushIntervalMSec`. How often to sync when `sync_data` is off."""

    queue_entries: int = 10_000
    """`journalQueueSize`. `Journal.has_room` turns false at this many unacknowledged records; 0: no such limit."""

    queue_bytes: int = 0
    """`journalMaxMemorySizeMb`, this journal's share. `has_room` turns false at this many unacknowledged bytes;
    0: no such limit."""

    group_checks: bool = True
    """Podkeeper's own: write a checksum of each group where the reference writes zeros (see `journal.format`).
    False: bytes exactly as the reference writes them, and damage is told from a torn tail by guessing."""

    slow_sync_ms: float = 1000.0
    """Podkeeper's own: a sync that takes longer is counted and logged (at most one line in 10 s). 0: never."""

    direct_io: bool = False
    """`journalDirectIoEnabled`, default true there: write past the page cache where the file system can."""

    def __post_init__(self) -> None:
        if not OLDEST_VERSION_WRITTEN <= self.version <= NEWEST_VERSION:
            raise ValueError(f"journalFormatVersionToWrite is {self.version}, must be 4, 5 or 6")
        if self.alignment < SECTOR or self.alignment % SECTOR:
            raise ValueError(f"journalAlignmentSize is {self.alignment}, must be a multiple of {SECTOR}")
        if self.preallocate_bytes < self.alignment:
            raise ValueError(
                f"journalPreAllocSizeMB is {self.preallocate_bytes} bytes, less than journalAlignmentSize "
                f"({self.alignment})"
            )
        for name in ("max_file_bytes", "write_buffer_bytes"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name)}, must be more than 0")

    @property
    def preallocation_step(self) -> int:
        """`preallocate_bytes` rounded down to the alignment."""
        return self.preallocate_bytes - self.preallocate_bytes % self.alignment

    @property
    def waits_for_group(self) -> bool:
        """Whether a record may wait for others at all."""
        return self.max_group_wait_ms > 0 and not self.flush_when_queue_empty
