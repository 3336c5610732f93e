"""Keys of Apache BookKeeper that mean nothing here.

A configuration that a Java bookie runs with may hold them. They are accepted, so that the file works as it
is, and named in one log line at start-up, so that nobody believes that they do something.

Invariant: no key that protects data or access is listed here; those are either obeyed or refused.
"""

from __future__ import annotations

from typing import Final

_NAMES: Final = frozenset(
    {
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
        "speculativeReadLACTimeoutBackoffMultiplier",
        "speculativeReadTimeout",
        "speculativeReadTimeoutBackoffMultiplier",
        "startTLSTimeoutSecs",
        "stickyReadSEnabled",
        "taskExecutionWarnTimeMicros",
        "throttle",
        "timeoutMonitorIntervalSec",
        "timeoutTaskIntervalMillis",
        "timeoutTimerNumTicks",
        "timeoutTimerTickDurationMs",
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


def is_ignored(name: str) -> bool:
    """Whether Apache BookKeeper knows `name` and it means nothing here."""
    return name in _NAMES or name in _CLIENT_NAMES or name.startswith(_PREFIXES)
