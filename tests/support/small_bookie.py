"""Settings of a bookie that is one of many on the machine of the tests, whose disks may be as full as they are."""

from __future__ import annotations

SMALL_BOOKIE = {
    "memoryBudgetMb": "64",
    "dbStorage_writeCacheMaxSizeMb": "8",
    "dbStorage_readAheadCacheMaxSizeMb": "8",
    "journalPreAllocSizeMB": "1",
    "entryLogFilePreallocationEnabled": "false",
    "diskUsageThreshold": "0.99",
    "diskUsageWarnThreshold": "0.98",
    "diskUsageLwmThreshold": "0.99",
}
