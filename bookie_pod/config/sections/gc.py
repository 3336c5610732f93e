"""Garbage collection, compaction and disks.

Source: docs/internals/bookie-behaviour.md, sections 1.8 and 1.9. Frozen; any thread may read.
"""

from __future__ import annotations

from dataclasses import dataclass

from bookie_pod.config.keys import INT_MAX, key


@dataclass(frozen=True, slots=True, kw_only=True)
class GcConfig:
    """Garbage collection and compaction"""

    wait_time_ms: int = key("gcWaitTime", 600_000, at_least=1, dynamic=True)
    """Pause between passes, in ms. Each pass lists the ledgers in the metadata service."""
    minor_compaction_threshold: float = key("minorCompactionThreshold", 0.2, at_most=1.0, dynamic=True)
    """Minor compaction rewrites entry logs whose live share is below this, 0 to 1. 0 or less: no minor
    compaction."""
    minor_compaction_interval_s: int = key("minorCompactionInterval", 3600, at_most=INT_MAX, dynamic=True)
    """Time between minor compactions, in seconds. 0 or less: no minor compaction."""
    minor_compaction_max_time_ms: int = key("minorCompactionMaxTimeMillis", -1, dynamic=True)
    """Maximum duration of a minor compaction, in ms. 0 or less: no limit."""
    major_compaction_threshold: float = key("majorCompactionThreshold", 0.8, at_most=1.0, dynamic=True)
    """Major compaction rewrites entry logs whose live share is below this, 0 to 1. 0 or less: no major
    compaction. The higher, the more is rewritten to win little."""
    major_compaction_interval_s: int = key("majorCompactionInterval", 86_400, at_most=INT_MAX, dynamic=True)
    """Time between major compactions, in seconds. 0 or less: no major compaction."""
    major_compaction_max_time_ms: int = key("majorCompactionMaxTimeMillis", -1, dynamic=True)
    """Maximum duration of a major compaction, in ms. 0 or less: no limit."""
    throttle_by_bytes: bool = key("isThrottleByBytes", True, dynamic=True)
    """Throttle compaction by bytes instead of by entries, whose sizes differ. Apache's default is false."""
    compaction_rate_by_entries: int = key(
        "compactionRateByEntries", 1000, at_least=1, at_most=INT_MAX, legacy=("compactionRate",), dynamic=True
    )
    """Entries that compaction moves per second, without `isThrottleByBytes`."""
    compaction_rate_by_bytes: int = key("compactionRateByBytes", 20_000_000, at_least=1, at_most=INT_MAX, dynamic=True)
    """Bytes that compaction reads and writes per second, with `isThrottleByBytes`; a tenth of it while adds or reads of
    clients wait for the disks. Apache's default is 1000000."""
    compaction_max_outstanding: int = key("compactionMaxOutstandingRequests", 100_000, at_least=1, at_most=INT_MAX)
    """Entries that compaction moves before the index is flushed."""
    transactional_compaction: bool = key(
        "useTransactionalCompaction", True, derived="`true`, with `entryLogPerLedgerEnabled` `false`"
    )
    """Compact into logs of their own, so that an interrupted compaction leaves nothing behind. Not with
    one log per ledger. Apache's default is false."""
    force_allow_compaction: bool = key("forceAllowCompaction", False, dynamic=True)
    """A forced pass may compact although the periodic compaction is off."""
    force_gc_when_no_space: bool = key("isForceGCAllowWhenNoSpace", False)
    """Force collection also when a disk is almost full, and go on with ordinary compactions when it is full. False: on
    a full disk each pass compacts only what fits into what is left of it, most garbage first (not with
    `useTransactionalCompaction=false`)."""
    use_target_entry_log_size: bool = key("useTargetEntryLogSizeForGc", False, dynamic=True)
    """Compute a log's live share against `logSizeLimit` when the log is smaller."""
    verify_metadata: bool = key("verifyMetadataOnGC", True)
    """Read a ledger's metadata once more before it is deleted here. Apache's default is false, which trusts the
    listing."""
    metadata_op_rate_limit: int = key("gcMetadataOpRateLimit", 1000, at_least=1, at_most=INT_MAX, dynamic=True)
    """Metadata operations per second."""
    deletion_grace_ms: int = key("gcDeletionGracePeriod", 3_600_000, at_least=0, derived="6 x `gcWaitTime`", own=True)
    """Time for which a ledger stays that the metadata service no longer has, in ms, so that it is there if newer
    metadata are brought back. A forced pass, and one on a full disk, need no such grace."""
    unusual_deletion_percent: int = key("gcUnusualDeletionPercent", 30, at_least=0, at_most=100, own=True)
    """A pass that would delete more than this percentage of the ledgers here, and more than 1000, deletes none
    until that is allowed (`bookie gc allow-deletions`). 100: no such limit."""
    unusual_deletion_wait_ms: int = key("gcUnusualDeletionWaitTime", 86_400_000, at_least=-1, own=True)
    """Time after which such ledgers are deleted although that was not allowed, in ms. -1: never."""
    overreplicated_wait_time_ms: int = key("gcOverreplicatedLedgerWaitTime", 86_400_000)
    """Time between searches for ledgers that do not name this bookie any more, in ms. 0 or less: never."""
    overreplicated_max_concurrent: int = key(
        "gcOverreplicatedLedgerMaxConcurrentRequests", 1000, at_least=1, at_most=INT_MAX, no_effect=True
    )
    """Metadata reads of that search in flight at most. Has no effect here: it reads one ledger after another, held
    back by `gcMetadataOpRateLimit`."""
    entry_log_metadata_cache: bool = key("gcEntryLogMetadataCacheEnabled", False, no_effect=True)
    """Keep what is known of entry logs in a RocksDB on disk instead of in memory. Has no effect here: it is packed, and
    bounded in memory."""
    entry_log_metadata_cache_path: str | None = key(
        "gcEntryLogMetadataCachePath", None, derived="`metadata-cache` in each ledger directory", no_effect=True
    )
    """Path of that RocksDB. Has no effect here."""
    entry_location_compaction_interval_s: int = key("entryLocationCompactionInterval", -1, at_most=INT_MAX)
    """Time between full compactions of the location index, in seconds. Less than 0: never."""

    @property
    def compaction_rate(self) -> int:
        """Bytes, or entries without `throttle_by_bytes`, that compaction reads and writes per second."""
        return self.compaction_rate_by_bytes if self.throttle_by_bytes else self.compaction_rate_by_entries

    @property
    def minor_enabled(self) -> bool:
        """Return True if minor compaction runs periodically."""
        return self.minor_compaction_threshold > 0 and self.minor_compaction_interval_s > 0

    @property
    def major_enabled(self) -> bool:
        """Return True if major compaction runs periodically."""
        return self.major_compaction_threshold > 0 and self.major_compaction_interval_s > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DisksConfig:
    """Disks and read-only mode"""

    usage_threshold: float = key("diskUsageThreshold", 0.95, above=0, below=1)
    """Used share of a file system above which its directories count as full."""
    usage_warn_threshold: float = key("diskUsageWarnThreshold", 0.90, above=0, below=1)
    """Used share above which directories count as almost full."""
    usage_lwm_threshold: float = key("diskUsageLwmThreshold", 0.95, above=0, below=1, derived="`diskUsageThreshold`")
    """Used share below which full directories take writes again. Set it some per cent below
    `diskUsageThreshold`, or the bookie changes its mode back and forth on a disk that is nearly full."""
    check_interval_ms: int = key("diskCheckInterval", 10_000, at_least=1, at_most=INT_MAX)
    """Time between looks at the disks, in ms; at most a second while one is almost full."""
    read_only_mode: bool = key("readOnlyModeEnabled", True)
    """If True, serve reads only when no directory is writable. False: shut down instead."""
    read_only_on_any_disk_full: bool = key("readOnlyModeOnAnyDiskFullEnabled", True)
    """One full directory is enough to become read-only."""
    force_read_only: bool = key("forceReadOnlyBookie", False)
    """Start read-only and stay so."""
    persist_status: bool = key("persistBookieStatusEnabled", False)
    """Remember read-only mode across restarts in a file `BOOKIE_STATUS`."""
    isolate_failed_ledger_directories: bool = key("isolateFailedLedgerDirectories", False, own=True)
    """If the disk of one of several ledger directories fails, continue with the others instead of shutting down. With
    DbLedgerStorage the ledgers of the failed one are refused with an error, never denied; with the other engines
    they go on elsewhere, and what cannot be read is an error. Until the bookie is restarted the journal is not
    trimmed, so plan that soon."""
    min_usable_for_index_file_bytes: int = key("minUsableSizeForIndexFileCreation", 104_857_600, at_least=0)
    """Free bytes that a full index directory must have for a new index file during replay."""
    min_usable_for_entry_log_bytes: int = key(
        "minUsableSizeForEntryLogCreation", 1_288_490_188, at_least=0, derived="1.2 x `logSizeLimit`"
    )
    """Free bytes that a full ledger directory must have for a new entry log (replay, recovery adds). Shrinks with the
    logs on a disk that is small for `logSizeLimit`."""
    min_usable_after_compaction_bytes: int = key(
        "minUsableSizeAfterCompaction", 107_374_182, at_least=0, derived="a tenth of `logSizeLimit`", own=True
    )
    """Free bytes that compaction leaves on a full ledger directory, for the indexes and the journal. A log is compacted
    there if a copy of what lives in it fits into the rest. Shrinks with the logs on a disk that is small for
    `logSizeLimit`."""
    min_usable_for_high_priority_bytes: int = key(
        "minUsableSizeForHighPriorityWrites",
        1_288_490_188,
        at_least=0,
        derived="`minUsableSizeForEntryLogCreation`",
    )
    """Free bytes that a read-only bookie must have to take adds of recovery."""
