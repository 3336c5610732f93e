"""Entry logs that suit a small disk.

Logs are so small that compaction has room to copy the live entries of one when the disk is full. The room for a new log
and the room that a copy leaves shrink with the logs.

Pure functions; any thread.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from bookie_pod.config.model import BookieConfig

LOGS_IN_HEADROOM: Final = 2
"""Logs that fit into what a full file system keeps free, at least: one that is written and the copy of another."""
LEAST_FITTED_LOG_SIZE: Final = 1 << 20
"""Bytes below which no log is made smaller than configured."""


def fitted(config: BookieConfig, total_bytes: int) -> BookieConfig:
    """Return the configuration, with logs fitted to a file system of `total_bytes`."""
    logs, disks = config.ledger_storage, config.disks
    headroom = int(total_bytes * (1 - disks.usage_threshold))
    limit = max(headroom // LOGS_IN_HEADROOM, LEAST_FITTED_LOG_SIZE)
    if limit >= logs.log_size_limit_bytes:
        return config

    def shrunk(nbytes: int) -> int:
        return nbytes * limit // logs.log_size_limit_bytes

    return replace(
        config,
        ledger_storage=replace(logs, log_size_limit_bytes=limit),
        disks=replace(
            disks,
            min_usable_for_entry_log_bytes=shrunk(disks.min_usable_for_entry_log_bytes),
            min_usable_after_compaction_bytes=shrunk(disks.min_usable_after_compaction_bytes),
        ),
    )
