"""Keys without effect: Apache BookKeeper's keys that mean nothing here, or nothing beside the values of others.

A configuration that a Java bookie runs with may hold them. They are accepted, so that the file works as it is, and
named in one log line at start-up, so that no operator believes that they do something.

Invariant: no key that protects data or access is listed here; those are either obeyed or refused.

Keys of another engine, or of a form of it that was not chosen, are accepted too, since files are shared and copied.
They are named at the start if they ask for another value than the default: a setting that does nothing must not pass
for one that does.

Pure: any thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from bookie_pod.config.keys import keys_of
from bookie_pod.config.model import BookieConfig
from bookie_pod.config.sections.ledger_storage import DbStorageConfig, RocksDbConfig, SortedStorageConfig, StorageEngine

_NAMES: Final = frozenset(
    {
        "allocatorExitOnOutOfMemory",
        "allocatorLeakDetectionPolicy",
        "allocatorOutOfMemoryPolicy",
        "allocatorPoolingConcurrency",
        "allocatorPoolingPolicy",
        "allowShadedLedgerManagerFactoryClass",
        "byteBufAllocatorSizeInitial",
        "byteBufAllocatorSizeMax",
        "byteBufAllocatorSizeMin",
        "digestType",
        "disableServerSocketBind",
        "dlogRootPath",
        "enableDigestTypeAutodetection",
        "enableHealthCheck",
        "enableLocalTransport",
        "entryFormatterClass",
        "entryLogPerLedgerCounterLimitsMultFactor",
        "ignoreExtraServerComponentsStartupFailures",
        "ledgerIdFormatterClass",
        "ledgerManagerFactoryDisableClassCheck",
        "ledgerMetadataVersion",
        "metastoreImplClass",
        "metastoreMaxEntriesPerScan",
        "passwd",
        "preserveMdcForTaskExecution",
        "prometheusBasicStatsLatencyRolloverSeconds",
        "registrationManagerClass",
        "shadedLedgerManagerFactoryClassPrefix",
        "statsExport",
        "statsHttpPort",
        "storeSystemTimeAsLedgerCreationTime",
    }
)
_CLIENT_NAMES: Final = frozenset(
    {
        "addEntryTimeoutSec",
        "batchReadEnabled",
        "bookieAddressResolverEnabled",
        "bookieConnectionErrorQuarantineEnabled",
        "bookieErrorThresholdPerInterval",
        "bookieFailureHistoryExpirationMSec",
        "bookieHealthCheckEnabled",
        "bookieHealthCheckIntervalSeconds",
        "bookieQuarantineRatio",
        "bookieQuarantineTimeSeconds",
        "clientConnectBookieUnavailableLogThrottling",
        "clientConnectTimeoutMillis",
        "clientReceiveBufferSize",
        "clientRole",
        "clientSendBufferSize",
        "clientSockKeepalive",
        "clientTcpNoDelay",
        "clientTcpUserTimeoutMillis",
        "clientWriteBufferHighWaterMark",
        "clientWriteBufferLowWaterMark",
        "delayEnsembleChange",
        "disableEnsembleChangeFeatureName",
        "enableBookieAddressTracking",
        "enableBookieFailureTracking",
        "enableParallelRecoveryRead",
        "ensemblePlacementPolicyOrderSlowBookies",
        "ensembleRandomReadReordering",
        "explicitLacInterval",
        "firstSpeculativeReadLACTimeout",
        "firstSpeculativeReadTimeout",
        "getBookieInfoTimeoutSecs",
        "maxNumEnsembleChanges",
        "maxSpeculativeReadLACTimeout",
        "maxSpeculativeReadTimeout",
        "nettyUsePooledBuffers",
        "networkTopologyStabilizePeriodSeconds",
        "numChannelsPerBookie",
        "numIOThreads",
        "numWorkerThreads",
        "opportunisticStriping",
        "pcbcTimeoutTimerNumTicks",
        "pcbcTimeoutTimerTickDurationMs",
        "readEntryTimeoutSec",
        "readReorderThresholdPendingRequests",
        "readTimeout",
        "recoveryReadBatchSize",
        "registrationClientClass",
        "reorderReadSequenceEnabled",
        "reppDisableDurabilityEnforcementFeature",
        "reppDisableDurabilityFeatureName",
        "reppDisallowBookiePlacementInRegionFeatureName",
        "speculativeReadLACTimeoutBackoffMultiplier",
        "speculativeReadTimeout",
        "speculativeReadTimeoutBackoffMultiplier",
        "startTLSTimeoutSecs",
        "stickyReadSEnabled",
        "taskExecutionWarnTimeMicros",
        "tcpKeepCnt",
        "tcpKeepIdle",
        "tcpKeepIntvl",
        "throttle",
        "timeoutMonitorIntervalSec",
        "timeoutTaskIntervalMillis",
        "timeoutTimerNumTicks",
        "timeoutTimerTickDurationMs",
        "useHostnameResolveLocalNodePlacementPolicy",
        "useV2WireProtocol",
        "waitTimeoutOnBackpressureMs",
    }
)
"""Settings of the Java client that a bookie hands to its auto-recovery."""
_PREFIXES: Final = (
    "codahaleStats",  # another stats provider
    "dlog.",  # the stream storage's own log
    "storage.",  # stream storage
    "storageserver.",
    "stream.",
)
_OF_EVERY_ENGINE: Final = frozenset({"dbStorage_maxThrottleTimeMs"})
"""Keys of every engine, whatever the name says."""
_PER_LEDGER: Final = ("maximumNumberOfActiveEntryLogs", "entrylogMapAccessExpiryTimeInSeconds")
_STATS: Final = ("prometheusStatsHttpAddress", "prometheusStatsHttpEnable", "prometheusStatsHttpPort")
"""Metrics are served with the admin API, at its address."""
_THROTTLES: Final = {True: "compactionRateByEntries", False: "compactionRateByBytes"}
"""The one that does nothing, by `isThrottleByBytes`."""


def is_ignored(name: str) -> bool:
    """Return True if Apache BookKeeper has the key `name` and it means nothing here."""
    return name in _NAMES or name in _CLIENT_NAMES or name.startswith(_PREFIXES)


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
    if config.http.server_enabled:
        same_port = config.http.stats_port == config.http.server_port  # as `--http-port` sets both
        yield from (name for name in _STATS if not (same_port and name == "prometheusStatsHttpPort"))


def _names(section: type) -> Iterator[str]:
    for _, declared in keys_of(section):
        yield declared.name
