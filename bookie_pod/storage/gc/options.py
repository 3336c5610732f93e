"""Settings of one collector. Frozen; any thread."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from bookie_pod.storage.gc.schedule import CompactionRule


@dataclass(frozen=True, slots=True, kw_only=True)
class GcOptions:
    """Made from the configuration; see `docs/configuration.md` for each key."""

    minor: CompactionRule = field(default_factory=lambda: CompactionRule(0.2, 3600))
    major: CompactionRule = field(default_factory=lambda: CompactionRule(0.8, 86_400))
    wait_ms: int = 600_000
    """`gcWaitTime`: milliseconds between passes."""
    collectors: int = 1
    """Collectors of this bookie, whose first passes are spread over one more wait time."""
    force_allowed: bool = False
    """`forceAllowCompaction`."""
    throttle_by_bytes: bool = True
    """`isThrottleByBytes`."""
    compaction_rate: float = 1_000_000
    """Entries, or bytes, that are read and written per second."""
    max_outstanding: int = 100_000
    """`compactionMaxOutstandingRequests`: entries that wait for one index update."""
    transactional: bool = True
    """`useTransactionalCompaction`."""
    verify_metadata: bool = True
    """`verifyMetadataOnGC`."""
    metadata_rate: float = 1000
    """`gcMetadataOpRateLimit`: metadata operations per second."""
    over_replicated_interval_ms: int = 86_400_000
    """`gcOverreplicatedLedgerWaitTime`; 0 or less: never."""
    index_compaction_interval_ms: int = -1
    """`entryLocationCompactionInterval`; 0 or less: never."""
    use_target_log_size: bool = False
    """`useTargetEntryLogSizeForGc`."""
    log_size_limit: int = 1 << 30
    """`logSizeLimit`, bytes."""
    usage_memory_bytes: int = 64 * 1024 * 1024
    """What may be kept in memory of which ledgers lie in which logs, bytes."""
    report_ledgers: int = 100
    """Ledgers that a report on one log names, the largest first."""

    @property
    def usage_size_limit(self) -> int | None:
        """The size that a log's usage is measured against (`useTargetEntryLogSizeForGc`); None: its own."""
        return self.log_size_limit if self.use_target_log_size else None

    def reconfigured(self, wanted: GcOptions) -> GcOptions:
        """These options with those of `wanted` that may change while the collector runs."""
        return replace(
            self,
            minor=wanted.minor,
            major=wanted.major,
            wait_ms=wanted.wait_ms,
            force_allowed=wanted.force_allowed,
            throttle_by_bytes=wanted.throttle_by_bytes,
            compaction_rate=wanted.compaction_rate,
            metadata_rate=wanted.metadata_rate,
            use_target_log_size=wanted.use_target_log_size,
        )
