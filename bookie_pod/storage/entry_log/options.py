"""Settings of the entry logger, already converted from the configuration file's units."""

from __future__ import annotations

from dataclasses import dataclass, replace

from bookie_protocol.errors import InvalidConfiguration

MAX_LOG_SIZE = 1 << 30
"""Largest legal `logSizeLimit`, bytes (1 GiB)."""

LOGS_IN_HEADROOM = 2
"""Logs that fit into what a full file system keeps free, at least: one that is written and the copy of another."""

LEAST_FITTED_LOG_SIZE = 1 << 20
"""Bytes below which no log is made smaller than configured."""

HARD_LOG_SIZE = (1 << 31) - 1
"""The offset beyond which no byte of an entry may lie: positions are 31 bits."""


@dataclass(frozen=True, slots=True)
class EntryLogOptions:
    """Every field names its configuration key, its unit and its default (reference bookie behaviour, sections 1.5 and
    1.6).
    """

    log_size_limit: int = MAX_LOG_SIZE
    """`logSizeLimit`, bytes, default and maximum 1 GiB: a log is rotated before it would grow beyond this."""

    write_buffer_bytes: int = 64 << 10
    """`writeBufferSizeBytes`, bytes, default 65 536: appended bytes collect up to this before a write."""

    read_buffer_bytes: int = 512
    """`readBufferSizeBytes`, bytes, default 512: the least that one read of an entry fetches."""

    flush_interval_bytes: int = 0
    """`flushEntrylogBytes`, bytes, default 0 (off): force a log to disk each time it grew by this much."""

    preallocate: bool = True
    """`entryLogFilePreallocationEnabled`, default true: create the next log in the background."""

    min_usable_bytes: int | None = None
    """`minUsableSizeForEntryLogCreation`, bytes, default `logSizeLimit`: free space that a directory which is
    not writable any more must have to take a new log all the same (journal replay, recovery adds)."""

    usable_bytes_after_compaction: int = 0
    """`minUsableSizeAfterCompaction`, bytes: free space that a copy of what lives in a log leaves in such a
    directory."""

    full_share: float = 1.0
    """`diskUsageThreshold`: used share above which a file system counts as full. 1: logs have their configured size
    on every disk."""

    max_entry_bytes: int = 5 * (1 << 20) - 500
    """`nettyMaxFrameSizeBytes` - 500, bytes: a longer entry is read all the same, with a warning."""

    max_open_files: int = 256
    """Own setting, files, default 256: read handles kept open; those in use come on top."""

    per_ledger: bool = False
    """`entryLogPerLedgerEnabled`, default false: one active log per ledger instead of one for all."""

    max_active_logs: int = 500
    """`maximumNumberOfActiveEntryLogs`, logs, default 500. Only with `per_ledger`."""

    active_log_idle_seconds: float = 300.0
    """`entrylogMapAccessExpiryTimeInSeconds`, seconds, default 300. Only with `per_ledger`."""

    isolates: bool = False
    """`isolateFailedLedgerDirectories`, default false, of a logger over several directories: a sync that fails concerns
    its directory, which is given up for it, and not all logs."""

    direct_io: bool = False
    """`dbStorage_directIOEntryLogger`, default false: write logs past the page cache (Linux)."""

    direct_write_buffer_bytes: int = 1 << 20
    """Own setting, bytes, default 1 MiB, multiple of 4096: bytes per direct write. Each write is padded to
    4096 bytes, so a small value wastes space. Only with `direct_io`."""

    def __post_init__(self) -> None:
        if not 0 <= self.log_size_limit <= MAX_LOG_SIZE:
            raise InvalidConfiguration(f"logSizeLimit={self.log_size_limit} is not between 0 and {MAX_LOG_SIZE} bytes")
        positive = {
            "writeBufferSizeBytes": self.write_buffer_bytes,
            "readBufferSizeBytes": self.read_buffer_bytes,
            "maximumNumberOfActiveEntryLogs": self.max_active_logs,
            "maximum number of open entry log files": self.max_open_files,
            "maximum entry size (nettyMaxFrameSizeBytes - 500)": self.max_entry_bytes,
        }
        for key, value in positive.items():
            if value <= 0:
                raise InvalidConfiguration(f"{key}={value} must be greater than 0")
        if self.flush_interval_bytes < 0:
            raise InvalidConfiguration(f"flushEntrylogBytes={self.flush_interval_bytes} must not be negative")
        if self.direct_write_buffer_bytes <= 0 or self.direct_write_buffer_bytes % 4096:
            raise InvalidConfiguration(
                f"direct write buffer of {self.direct_write_buffer_bytes} bytes is not a multiple of 4096"
            )

    @property
    def usable_bytes_for_new_log(self) -> int:
        """Free bytes asked of a directory that is not writable any more."""
        return self.log_size_limit if self.min_usable_bytes is None else self.min_usable_bytes

    def fitted(self, total_bytes: int) -> EntryLogOptions:
        """Return these options, fitted to a file system of this size.

        Logs become so small that compaction has room to copy the live entries of one when the disk is full. The room
        for a new log and the room that a copy leaves shrink with the logs.
        """
        headroom = int(total_bytes * (1 - self.full_share))
        limit = max(headroom // LOGS_IN_HEADROOM, LEAST_FITTED_LOG_SIZE)
        if self.full_share >= 1 or limit >= self.log_size_limit:
            return self
        return replace(
            self,
            log_size_limit=limit,
            min_usable_bytes=self.usable_bytes_for_new_log * limit // self.log_size_limit,
            usable_bytes_after_compaction=self.usable_bytes_after_compaction * limit // self.log_size_limit,
        )
