"""The progress of a replication worker, ledger by ledger, for people and for the admin API.

`WorkerStatus` is the snapshot; `WorkerProgress` is what the worker notes in.

Invariants
- A snapshot costs no request and does not change afterwards.
- Memory is bounded: ledgers at work are few, ledgers that wait are as many as the worker lets wait, and of those that
  failed the last `MAX_RESTING_SHOWN` are shown.
- Times are those of the event loop's clock: a snapshot tells ages in seconds, not dates.

Event loop only.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum
from typing import Final

from bookie_protocol.metadata_service.findings import Failure

MAX_RESTING_SHOWN: Final = 2_000
SHOWN_AFTER_S: Final = 60.0
"""A ledger whose rest is over for so long is another worker's by now."""


class Phase(Enum):
    """The present work on a ledger, or the reason for which it waits."""

    CHECKING = "checking"
    """Its replicas are looked at."""
    COPYING = "copying"
    MOVING = "moving"
    """Copies go to other bookies because the placement breaks the policy."""
    VERIFYING = "verifying"
    """All lost copies were made; its replicas are looked at once more."""
    WAITING_FOR_WRITER = "waiting for the writer"
    """It is open, and its writer has time to replace the lost bookie."""
    RECOVERING = "recovering"
    """It is fenced and closed."""
    BACKING_OFF = "backing off"
    """It failed; its lock was given back, and it rests."""


@dataclass(frozen=True, slots=True)
class LedgerProgress:
    """One ledger that this worker has the lock of, or that rests since this worker failed to repair it."""

    ledger_id: int
    phase: Phase
    seconds: float
    """Seconds in this phase."""
    bad_fragments: int
    """Fragments that were found to lack copies, in the round under way."""
    done_fragments: int
    entries_copied: int
    """Entries copied in the round under way, those included that their targets have already."""
    entries_to_copy: int
    bytes_copied: int
    attempts: int
    """Rounds of all workers that failed before this one."""
    reason: str
    """The reason of the last failure, or of the waiting; may be empty."""
    lost_entries: tuple[int, ...] = ()
    """Entries of which no copy can be read any more, the first few."""
    retry_in: float | None = None
    """Seconds until it is tried again, or its writer's time is over."""


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """The whole worker. Counts are since the process started."""

    is_running: bool
    ledgers: tuple[LedgerProgress, ...]
    """Ledgers at work, waiting or backing off, in ascending order of ids."""
    ledgers_repaired: int
    ledgers_failed: int
    """Rounds that ended without success."""
    ledgers_recovered: int
    """Open ledgers that were fenced and closed."""
    entries_copied: int
    bytes_copied: int
    bytes_per_second: float
    """Rate over the last half minute or so."""
    is_enabled: bool | None = None
    """True if auto-recovery is enabled in the cluster, as last seen; None: not seen yet."""


@dataclass(slots=True)
class LedgerNote:
    """The notes on one ledger while this worker has its lock."""

    ledger_id: int
    phase: Phase
    since: float
    attempts: int = 0
    bad_fragments: int = 0
    done_fragments: int = 0
    entries_copied: int = 0
    entries_to_copy: int = 0
    bytes_copied: int = 0
    reason: str = ""
    lost_entries: tuple[int, ...] = ()
    retry_at: float | None = None

    def take(self, failures: Collection[Failure]) -> None:
        """Note what earlier rounds came to, of whichever worker they were."""
        last = max(failures, key=lambda each: each.times, default=None)
        if last is not None:
            self.attempts, self.reason = last.times, last.reason
            self.lost_entries = last.entries

    def snapshot(self, now: float) -> LedgerProgress:
        return LedgerProgress(
            self.ledger_id,
            self.phase,
            max(0.0, now - self.since),
            self.bad_fragments,
            self.done_fragments,
            self.entries_copied,
            self.entries_to_copy,
            self.bytes_copied,
            self.attempts,
            self.reason,
            self.lost_entries,
            None if self.retry_at is None else max(0.0, self.retry_at - now),
        )


class Rate:
    """Bytes per second, forgetting with a time constant of `seconds`."""

    def __init__(self, clock: Callable[[], float], seconds: float = 30.0) -> None:
        self._clock = clock
        self._seconds = seconds
        self._value = 0.0
        self._at = clock()

    def add(self, nbytes: int) -> None:
        self._decay()
        self._value += nbytes / self._seconds

    @property
    def value(self) -> float:
        self._decay()
        return self._value

    def _decay(self) -> None:
        now = self._clock()
        self._value *= math.exp((self._at - now) / self._seconds)
        self._at = now


class WorkerProgress:
    """The notes of one worker. `clock`: the event loop's."""

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self.clock = clock or asyncio.get_running_loop().time
        self.notes: dict[int, LedgerNote] = {}
        self.is_running = False
        self.is_enabled: bool | None = None
        self.ledgers_repaired = 0
        self.ledgers_failed = 0
        self.ledgers_recovered = 0
        self.entries_copied = 0
        self.bytes_copied = 0
        self.moved_at = self.clock()
        """Time at which any ledger last made progress: a watchdog looks at it."""
        self._rate = Rate(self.clock)

    def begin(self, ledger_id: int) -> LedgerNote:
        """The lock of a ledger was taken."""
        self.notes.pop(ledger_id, None)
        note = self.notes[ledger_id] = LedgerNote(ledger_id, Phase.CHECKING, self.clock())
        self.moved()
        return note

    def enter(self, note: LedgerNote, phase: Phase, *, reason: str | None = None, wait: float | None = None) -> None:
        """`wait`: seconds that this phase will last, if that is known."""
        note.phase, note.since = phase, self.clock()
        note.retry_at = None if wait is None else note.since + wait
        if reason is not None:
            note.reason = reason
        self.moved()

    def end(self, note: LedgerNote, *, keep: bool = False) -> None:
        """The ledger's lock is given back. `keep`: show for a while that it rests."""
        if not keep:
            self.notes.pop(note.ledger_id, None)
        self._forget_old()
        self.moved()

    def _forget_old(self) -> None:
        """Ledgers that others took over, or of which there are too many to show."""
        over = self.clock() - SHOWN_AFTER_S
        resting = [note for note in self.notes.values() if note.phase is Phase.BACKING_OFF]
        for place, note in enumerate(resting):
            if (note.retry_at or 0.0) < over or place < len(resting) - MAX_RESTING_SHOWN:
                del self.notes[note.ledger_id]

    def copied(self, note: LedgerNote, entries: int, nbytes: int) -> None:
        """Copies reached their target."""
        note.entries_copied += entries
        note.bytes_copied += nbytes
        self.entries_copied += entries
        self.bytes_copied += nbytes
        self._rate.add(nbytes)
        self.moved()

    def moved(self) -> None:
        self.moved_at = self.clock()

    def is_busy(self) -> bool:
        """Return whether some ledger is being worked on, and not only waited for."""
        waiting = (Phase.WAITING_FOR_WRITER, Phase.BACKING_OFF)
        return any(note.phase not in waiting for note in self.notes.values())

    def status(self) -> WorkerStatus:
        now = self.clock()
        return WorkerStatus(
            is_running=self.is_running,
            ledgers=tuple(self.notes[ledger_id].snapshot(now) for ledger_id in sorted(self.notes)),
            ledgers_repaired=self.ledgers_repaired,
            ledgers_failed=self.ledgers_failed,
            ledgers_recovered=self.ledgers_recovered,
            entries_copied=self.entries_copied,
            bytes_copied=self.bytes_copied,
            bytes_per_second=self._rate.value,
            is_enabled=self.is_enabled,
        )
