"""What the storage engines see of entry logs.

Threads
- `append_run`, `rotate`, `flush`, `sync`, `checkpoint`, `abandon_unsynced`: the flush thread, and later the
  compaction thread; calls take turns on one lock. Syncing itself does not hold that lock, so that appends
  go on meanwhile.
- `read`, `read_ahead`: any number of reader threads at once.
- `scan*`, `ledgers_map`, `delete`: the garbage collection thread, beside all others.

What always holds
- An entry is never split between two logs, and a location is handed out only after its bytes are buffered
  whole.
- After `sync` returned, everything appended before the call survives a crash. After a failed *write*
  nothing is lost: the same call can be repeated. After a failed *sync* the kernel may have dropped the
  bytes, so every later `append_run`, `sync` and `checkpoint` fails until `abandon_unsynced` is called by
  someone who appends those entries again.
- A log that is not yet rotated and synced is never deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import Protocol

from bookie_pod.storage.entry_log.scanned import LedgersMap, Scan

Row = tuple[int, bytes, int]
"""Entry id, entry, location."""


class EntryCheck(Protocol):
    """Looks at entries that are served. Any thread."""

    def problem(self, location: int, ledger_id: int, entry_id: int, entry: bytes) -> str | None:
        """What is wrong with the entry; None: nothing."""
        ...

    def sound(self, ledger_id: int, rows: list[Row]) -> list[Row]:
        """The rows before the first one with a problem."""
        ...


RotationListener = Callable[[int], None]
"""Called with the id of a log that was rotated, on the appending thread with the append lock held: only
note it.
"""


@dataclass(slots=True)
class EntryLogStats:
    """Counters since the logger was opened; written under the logger's locks, read by anybody."""

    entries_appended: int = 0
    logs_rotated: int = 0
    logs_deleted: int = 0
    syncs: int = 0
    damaged_reads: int = 0
    """Reads that failed because the bytes were not the entry asked for."""

    @property
    def written(self) -> int:
        """Grows with everything that is brought to the disks."""
        return self.entries_appended + self.syncs


class CompactionLog(Protocol):
    """The new log of a transactional compaction. Steps in this order, each repeatable after a crash:

    `append_run` (live entries), `mark_compacted`, `make_available`, index update by the caller, `finish`, then
    `EntryLogger.delete` of the source. `abort` instead of `mark_compacted` gives up.
    """

    log_id: int
    source_id: int

    def append_run(self, ledger_id: int, entries: Sequence[bytes]) -> list[int]:
        """Append; the locations that the entries will have. `StorageFault`."""
        ...

    def mark_compacted(self) -> None:
        """Close the log with its map and make it durable under the name `<log>.log.<source>.compacted`."""
        ...

    def make_available(self) -> None:
        """Give it its final name, durably: from now on its locations can be read."""
        ...

    def finish(self) -> None:
        """The index is updated and durable: remove the second name."""
        ...

    def abort(self) -> None:
        """Remove the incomplete file."""
        ...


class EntryLogger(Protocol):
    """Entry logs of one or more ledger directories with one space of log ids."""

    stats: EntryLogStats

    @property
    def log_size_limit(self) -> int:
        """Bytes beyond which no log grows: `logSizeLimit`, or less on a small disk."""
        ...

    def append_run(
        self, ledger_id: int, entry_ids: Sequence[int], entries: Sequence[bytes], *, roll: bool = True
    ) -> list[int]:
        """Append `entries` of one ledger; their locations, in order.

        With `roll` a new log is begun where `logSizeLimit` would be exceeded; without, only at 2^31 - 1
        bytes (memtable flush). `StorageFault` if a write fails, `NoWritableDirectory` if no directory may
        take a new log; then none of the entries counts as appended, though some may lie in the log
        unreferenced.
        """
        ...

    def flush(self) -> None:
        """Hand buffered bytes to the operating system. Makes nothing durable."""
        ...

    def sync(self) -> None:
        """Make everything appended so far durable, rotated logs and the current ones. `StorageFault`."""
        ...

    def checkpoint(self) -> None:
        """Make rotated logs durable, not the current one (with one log per ledger: all of them)."""
        ...

    def rotate(self, log_ids: Container[int] | None = None) -> None:
        """Close the current logs, or those of them that are named, with their ledgers map; the next append begins a new
        one."""
        ...

    def abandon_unsynced(self) -> None:
        """After a failed `sync`: take back what was appended since the last one that succeeded, and go on in new logs.
        Where nothing failed, nothing is taken back.

        The caller must throw away every location it got since the last successful `sync` and append again. One
        owner only (the flush of the write cache) calls this; others look at `generation`.
        """
        ...

    def give_up(self, directory: str) -> None:
        """The disk of this directory failed: nothing is written there any more, and what its open logs hold will never
        be durable, so whoever owns the journal's marks must not move them. Reads go on as far as the disk bears it."""
        ...

    @property
    def generation(self) -> int:
        """Grows when `abandon_unsynced` gave up a log.

        Whoever appends beside the owner (compaction) reads it before its first append and again after its
        `sync` returned: if it differs, its locations may be void, although that `sync` succeeded.
        """
        ...

    @property
    def sync_failed(self) -> bool:
        """Whether a sync has failed and nothing was given up since: every append and sync fails until
        `abandon_unsynced`."""
        ...

    def prepare_memtable_flush(self) -> None:
        """Before a memtable flush with `roll=False`: remember the current log."""
        ...

    def commit_memtable_flush(self) -> bool:
        """After it: rotate if the log is full or another than before; whether that is so (checkpoint
        wanted).
        """
        ...

    def read(self, location: int, ledger_id: int, entry_id: int) -> bytes:
        """The entry. `EntryDamaged` if other bytes are there, `StorageFault` if the log is gone or too
        short.
        """
        ...

    def read_run(self, location: int, ledger_id: int, entry_id: int, more: int, max_bytes: int) -> list[Row]:
        """The entry, for somebody who serves it, and up to `more` that lie behind it, about `max_bytes` of them. Their
        ids ascend, and may have gaps: of a striped ledger others hold what is between.

        Raises what `read` does for the first, and `EntryDamaged` if the check of `check_with` refuses it. The others
        end without an error at the first record that is no later entry of this ledger, or is refused.
        """
        ...

    def check_with(self, check: EntryCheck) -> None:
        """Have `check` look at every entry that `read_run` returns from now on."""
        ...

    def scan(self, log_id: int, ledgers: Container[int] | None = None) -> Scan[bytes]:
        """All entries of a log (of these ledgers only, if given)."""
        ...

    def scan_sizes(self, log_id: int, ledgers: Container[int] | None = None) -> Scan[int]:
        """As `scan`, without reading the entries' bodies."""
        ...

    def ledgers_map(
        self, log_id: int, pay: Callable[[int, int], None] | None = None, *, scan: bool = False
    ) -> LedgersMap:
        """Bytes per ledger, from the tail of the log or else by a scan; with `scan` always by one. `StorageFault` if
        the log is not there. `pay(entries, bytes)` is called now and then in a scan, with what was read since.
        """
        ...

    def log_ids(self) -> list[int]:
        """Ids of all logs on disk, ascending, current and preallocated ones included."""
        ...

    def is_flushed(self, log_id: int) -> bool:
        """Whether the log is from an earlier process, or rotated and synced: only then may it be
        collected.
        """
        ...

    def least_unflushed_log_id(self) -> int:
        """The oldest log of this process that is not rotated and synced; without any, the id that comes
        next.
        """
        ...

    def current_log_id(self, ledger_id: int = 0) -> int | None:
        """The log that the next entry (of this ledger) goes to, if one is open."""
        ...

    def current_sizes(self) -> dict[int, dict[int, int]]:
        """Bytes by ledger of each current log that is not empty."""
        ...

    def exists(self, log_id: int) -> bool: ...
    def path(self, log_id: int) -> str:
        """The log's file. `StorageFault` if it is in none of the directories."""
        ...

    def size(self, log_id: int) -> int:
        """Bytes of the log's file."""
        ...

    def written_ms(self, log_id: int) -> int:
        """When the log's file was written last, in ms since the epoch."""
        ...

    def delete(self, log_id: int) -> bool:
        """Unlink the log, whose id is never given out again; False if it was gone already. `StorageFault` if it is not
        flushed or cannot be unlinked.
        """
        ...

    def begin_compaction(self, source_id: int, live_bytes: int) -> CompactionLog:
        """A separate log for transactional compaction of log `source_id`, of which so many bytes live at most.
        Used by one thread. `NoWritableDirectory` if every directory is full and none has room for them.
        """
        ...

    def recover_compactions(self) -> Sequence[CompactionLog]:
        """Compactions that a crash left complete but perhaps not indexed; incomplete ones are removed.

        Call it when no compaction is running. For each: `make_available`, scan the log and update the index,
        `finish`, delete the source.
        """
        ...

    def add_listener(self, listener: RotationListener) -> None: ...
    def close(self) -> None:
        """Rotate and sync what is open, stop background work, close every file.

        `StorageFault` if something could not be made durable; every file is closed all the same.
        """
        ...

    def force_close(self) -> None:
        """Close every file and stop background work without writing anything."""
        ...
