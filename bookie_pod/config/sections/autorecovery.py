"""Auto-recovery: auditor and replication worker. Frozen; any thread may read.

Source: docs/internals/auto-recovery.md, section 15.
"""

from __future__ import annotations

from dataclasses import dataclass

from bookie_pod.config.keys import INT_MAX, LONG_MAX, key


@dataclass(frozen=True, slots=True, kw_only=True)
class AutoRecoveryConfig:
    """Auto-recovery"""

    daemon_enabled: bool = key("autoRecoveryDaemonEnabled", False)
    """Run auto-recovery inside the bookie: a candidate for the auditor, and a replication worker. If no process in
    a cluster runs it, lost copies are never restored."""
    lost_bookie_recovery_delay_s: int = key("lostBookieRecoveryDelay", 60, at_least=0, at_most=INT_MAX)
    """Wait this many seconds before the ledgers of a lost bookie are marked for repair; a bookie that is back by then
    costs nothing. Only the first value of a setting that lives in the metadata service: change it there with
    `bookie cluster lost-delay set`. Choose it above the time that a restart takes."""
    auditor_bookie_check_interval_s: int = key(
        "auditorPeriodicBookieCheckInterval", 86_400, at_least=0, at_most=INT_MAX
    )
    """Time between audits that no change of membership asked for, in seconds: whether ledgers name bookies that are
    registered nowhere. 0: once, when the auditor starts."""
    auditor_check_interval_s: int = key("auditorPeriodicCheckInterval", 604_800, at_least=-1, at_most=INT_MAX)
    """Time between checks that read from every replica of every ledger, in seconds. 0 or less: never."""
    auditor_placement_check_interval_s: int = key(
        "auditorPeriodicPlacementPolicyCheckInterval", 0, at_least=-1, at_most=INT_MAX
    )
    """Time between checks of the placement of all closed ledgers, in seconds. 0 or less: never."""
    auditor_replicas_check_interval_s: int = key("auditorReplicasCheckInterval", 86_400, at_least=-1, at_most=INT_MAX)
    """Time between checks that compare what every bookie stores of every closed ledger with what it should, in
    seconds. 0 or less: never."""
    auditor_verification_percentage: int = key("auditorLedgerVerificationPercentage", 0, at_least=0, at_most=100)
    """Share of a fragment's entries that a check reads, in per cent. 0: the first and the last entry."""
    auditor_max_concurrent_opens: int = key(
        "auditorMaxNumberOfConcurrentOpenLedgerOperations", 500, at_least=1, at_most=INT_MAX
    )
    """Ledgers that a check of all ledgers or of replicas looks at at the same time."""
    auditor_open_timeout_ms: int = key(
        "auditorAcquireConcurrentOpenLedgerOperationsTimeOutMSec", 120_000, at_least=0, at_most=INT_MAX, no_effect=True
    )
    """Has no effect: a ledger waits for its turn as long as it takes; no check ends early, after so many ms or more."""
    checker_reads_in_flight: int = key("inFlightReadEntryNumInLedgerChecker", -1, at_least=-1, at_most=INT_MAX)
    """Reads of a check in flight, all its ledgers together. -1: hundreds."""
    auditor_metadata_ops_per_second: int = key(
        "auditorMetadataOpsPerSecond", 2000, at_least=0, at_most=INT_MAX, own=True
    )
    """Ledgers whose metadata the periodic checks read per second. 0: no limit. The audit of a lost bookie is urgent and
    not held back; it has a few dozen reads under way at a time."""
    auditor_reads_per_second: int = key("auditorReadsPerSecond", 1000, at_least=0, at_most=INT_MAX, own=True)
    """Requests that the periodic checks send to bookies per second. 0: no limit."""
    auditor_read_bytes_per_second: int = key(
        "auditorReadBytesPerSecond", 16_777_216, at_least=0, at_most=LONG_MAX, own=True
    )
    """Bytes that the periodic checks read from bookies per second. 0: no limit."""
    auditor_second_look_s: int = key("auditorSecondLookDelay", 10, at_least=1, at_most=INT_MAX, own=True)
    """Seconds until a check looks again at a ledger whose bookie denied a copy. Only what is missing both times is
    marked."""
    auditor_replicas_check_marks: bool = key("auditorReplicasCheckMarksLedgers", True, own=True)
    """Mark ledgers with copies that the check of replicas misses twice. False: only count them, as Apache's does."""
    underreplicated_grace_period_s: int = key(
        "underreplicatedLedgerRecoveryGracePeriod", 0, at_least=0, at_most=INT_MAX
    )
    """Ledgers that are under-replicated for longer than this many seconds are counted in a metric by the check of
    placement. 0: none."""
    repair_placement: bool = key("repairedPlacementPolicyNotAdheringBookieEnabled", False)
    """Mark ledgers whose placement breaks the policy, so that workers move copies. The policy is that of
    `ensemblePlacementPolicy`."""
    open_ledger_grace_period_ms: int = key("openLedgerRereplicationGracePeriod", 30_000, at_least=0, at_most=INT_MAX)
    """Wait this long for the writer of an open ledger to replace a lost bookie, in ms, before the ledger
    is fenced."""
    failed_ledger_lock_release_ms: int = key(
        "lockReleaseOfFailedLedgerGracePeriod", 300_000, at_least=0, at_most=INT_MAX
    )
    """Maximum time for which workers leave a ledger alone that one of them failed to repair, in ms."""
    worker_backoff_ms: int = key("rwRereplicateBackoffMs", 5000, at_least=0, at_most=INT_MAX)
    """Pause of a worker after an error, in ms."""
    ledgers_at_once: int = key("replicationLedgersAtOnce", 8, at_least=1, at_most=1024, own=True)
    """Ledgers that a worker checks and copies at the same time."""
    max_bytes_in_flight: int = key(
        "replicationMaxBytesInFlight", 33_554_432, at_least=1_048_576, at_most=LONG_MAX, own=True
    )
    """Bytes that a worker has read and not yet stored, over all its ledgers."""
    entry_batch_size: int = key("rereplicationEntryBatchSize", 2000, at_least=1, at_most=INT_MAX)
    """Maximum entries that a worker reads at a time; bytes bound it too, so large entries make smaller pieces.
    Apache's default is 10."""
    rate_by_bytes: int = key("replicationRateByBytes", 16_777_216, at_least=-1, at_most=INT_MAX)
    """Bytes that a worker copies per second at most. 0 or -1: no limit, Apache's default."""
    yields_to_clients: bool = key("replicationYieldsToClients", True, own=True)
    """The rate follows how busy bookies are: while they take longer than usual to store copies it falls, to an eighth
    of `replicationRateByBytes` at least, and it rises again afterwards. False: the full rate whatever clients feel.
    Without a limit there is nothing that could fall."""
    niceness: int = key("autoRecoveryNiceness", 10, at_least=0, at_most=19, own=True)
    """Niceness of `bookie autorecovery`, by which it yields processors to others: 0 to 19. Within a bookie
    auto-recovery has the bookie's priority."""
    zk_task_rate_limit: float = key("zkReplicationTaskRateLimit", 0.0, at_least=0)
    """Tasks per second that a worker takes from the metadata service. 0: no limit."""
    batch_read: bool = key("recoveryBatchReadEnabled", True)
    """Workers read many entries with one request, where ensemble size = write quorum and the bookie can. Apache's
    default is false."""
    store_mark_time: bool = key("storeSystemTimeAsLedgerUnderreplicatedMarkTime", True)
    """Store when a ledger was marked under-replicated."""
