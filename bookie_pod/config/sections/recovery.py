"""Integrity checks and auto-recovery.

Source: reference pages on bookie behaviour, section 1.10, and on auto-recovery, section 15. Frozen; any
thread may read.
"""

from __future__ import annotations

from dataclasses import dataclass

from bookie_pod.config.keys import INT_MAX, LONG_MAX, key


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegrityConfig:
    """Integrity"""

    data_integrity_checking: bool = key("dataIntegrityChecking", False)
    """After an unclean shutdown compare what is stored with what metadata says, and fetch what is missing."""
    stamp_missing_cookies: bool = key("dataIntegrityStampMissingCookies", False)
    """With `dataIntegrityChecking`: accept empty directories in place of lost ones and stamp them."""
    local_scrub_interval_s: int = key("localScrubInterval", 0, at_least=0, at_most=INT_MAX)
    """Time between scrubs of the local storage, in seconds. 0: never."""
    local_scrub_rate_limit: float = key("localScrubRateLimit", 60.0, at_least=0)
    """Entries that a scrub reads per second. 0: no limit."""
    local_scrub_rate_bytes: int = key("localScrubRateByBytes", 16_777_216, at_least=0, at_most=LONG_MAX, own=True)
    """Bytes that a scrub reads per second, whatever `localScrubRateLimit` allows. 0: no limit."""
    local_scrub_repair: bool = key("localScrubRepair", True, own=True)
    """After each scrub fetch entries that are damaged here from other bookies that hold them."""
    consistency_check_on_startup: bool = key("localConsistencyCheckOnStartup", False)
    """Check the whole local storage before the bookie serves. Takes as long as reading every disk."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoRecoveryConfig:
    """Auto-recovery"""

    daemon_enabled: bool = key("autoRecoveryDaemonEnabled", False)
    """Run auto-recovery inside the bookie. Where nobody in a cluster runs it, lost copies are never
    restored."""
    lost_bookie_recovery_delay_s: int = key("lostBookieRecoveryDelay", 0, at_least=0, at_most=INT_MAX)
    """Wait this many seconds before the ledgers of a lost bookie are repaired. Only the initial value of a
    setting that lives in the metadata service."""
    auditor_bookie_check_interval_s: int = key(
        "auditorPeriodicBookieCheckInterval", 86_400, at_least=0, at_most=INT_MAX
    )
    """Time between checks for lost bookies, in seconds. 0: only when a bookie goes."""
    auditor_check_interval_s: int = key("auditorPeriodicCheckInterval", 604_800, at_least=0, at_most=INT_MAX)
    """Time between checks of all ledgers, in seconds. 0: never."""
    auditor_placement_check_interval_s: int = key(
        "auditorPeriodicPlacementPolicyCheckInterval", 0, at_least=0, at_most=INT_MAX
    )
    """Time between checks of the placement of all ledgers, in seconds. 0: never."""
    auditor_replicas_check_interval_s: int = key("auditorReplicasCheckInterval", 0, at_least=0, at_most=INT_MAX)
    """Time between checks that every entry has its copies, in seconds. 0: never."""
    auditor_verification_percentage: int = key("auditorLedgerVerificationPercentage", 0, at_least=0, at_most=100)
    """Share of a fragment's entries that a check reads, in per cent. 0: the first and the last entry."""
    auditor_max_concurrent_opens: int = key(
        "auditorMaxNumberOfConcurrentOpenLedgerOperations", 500, at_least=1, at_most=INT_MAX
    )
    """Ledgers that the auditor opens at the same time."""
    auditor_open_timeout_ms: int = key(
        "auditorAcquireConcurrentOpenLedgerOperationsTimeOutMSec", 120_000, at_least=0, at_most=INT_MAX
    )
    """How long the auditor waits for its turn to open a ledger, in ms."""
    checker_reads_in_flight: int = key("inFlightReadEntryNumInLedgerChecker", -1, at_least=-1, at_most=INT_MAX)
    """Reads of a check in flight. -1: no limit."""
    underreplicated_grace_period_s: int = key(
        "underreplicatedLedgerRecoveryGracePeriod", 0, at_least=0, at_most=INT_MAX
    )
    """Ledgers that are under-replicated for longer than this many seconds are counted in a metric. 0:
    none."""
    repair_placement: bool = key("repairedPlacementPolicyNotAdheringBookieEnabled", False)
    """Move copies that break the placement policy."""
    open_ledger_grace_period_ms: int = key("openLedgerRereplicationGracePeriod", 30_000, at_least=0, at_most=INT_MAX)
    """Wait this long for the writer of an open ledger to replace a lost bookie, in ms, before the ledger
    is fenced."""
    failed_ledger_lock_release_ms: int = key(
        "lockReleaseOfFailedLedgerGracePeriod", 300_000, at_least=0, at_most=INT_MAX
    )
    """How long a worker keeps the lock of a ledger that it failed to repair, in ms."""
    worker_backoff_ms: int = key("rwRereplicateBackoffMs", 5000, at_least=0, at_most=INT_MAX)
    """Pause of a worker after an error, in ms."""
    entry_batch_size: int = key("rereplicationEntryBatchSize", 10, at_least=1, at_most=INT_MAX)
    """Entries that a worker copies at the same time."""
    rate_by_bytes: int = key("replicationRateByBytes", -1, at_least=-1, at_most=INT_MAX)
    """Bytes that a worker copies per second. -1: no limit."""
    zk_task_rate_limit: float = key("zkReplicationTaskRateLimit", 0.0, at_least=0)
    """Tasks per second that a worker takes from the metadata service. 0: no limit."""
    batch_read: bool = key("recoveryBatchReadEnabled", False)
    """Workers read many entries with one request."""
    store_mark_time: bool = key("storeSystemTimeAsLedgerUnderreplicatedMarkTime", True)
    """Store when a ledger was marked under-replicated."""
