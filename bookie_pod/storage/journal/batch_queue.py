"""A batch, the unit of work of a journal, and the queue of batches for the journal thread.

The queue is between the appending thread and the journal thread. It decides when its records become a group, and how
that is written.

Invariants
- `append` never blocks. It wakes the journal thread only if that sleeps without a limit or a threshold is passed; else
  the thread wakes by itself when the last group has left long enough ago. So a busy journal costs one wake-up per
  group, not one per batch.
- No wake-up is lost: the thread says that it sleeps, then looks at the queue; `append` fills the queue, then looks
  whether the thread sleeps.
- Each counter is written by one side only; a difference of two may lag for a moment.

Triggers of a group (reference bookie behaviour, section 2); any one is enough, none fires while nothing waits:
1. the last group left longer ago than the group wait, or the oldest waiting record is older than that: everything that
   waits goes. So there are no more groups than if each waited, and a record that comes alone does not wait;
2. more records or more bytes wait than the thresholds allow;
3. nothing else is queued, and the journal does not wait for more.

While the process is short of processor time, thresholds and the wait of many records are stretched (`GroupPace`).

A batch is never split between groups, so thresholds are looked at between batches.

Threads: `append` on one thread (the event loop), `wait_for_group` and `take_group` on the journal thread, `wake` and
the levels on any; the functions are pure.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeAlias

from bookie_pod.config.sections.journal import JournalConfig
from bookie_pod.metrics.journal import FlushReason, JournalMetrics

OnDone: TypeAlias = Callable[[BaseException | None], None]
Deliver: TypeAlias = Callable[[Sequence["JournalBatch"], BaseException | None], None]
"""Gets the acknowledged batches of one sync (or one write), in order, on a thread of the journal."""
MANY_ENTRIES: Final = 64
"""Waiting records below which a longer wait would save nothing."""
LATENESS_SHARE: Final = 8
LONGEST_WAIT_MS: Final = 16.0
LATE_MS: Final = 0.5
"""Milliseconds from which on a wake-up counts as late."""
AVERAGED: Final = 16
MOST_LATE_MS: Final = 4.0


class JournalBatch:
    """Records that are written together and acknowledged together.

    `pieces`   length prefix, body, length prefix, body, …: written as they are (see `journal.format`). No
               piece: a force marker, acknowledged once everything queued before it is synced.
    `entries`  how many records that is (1 for a force marker)
    `nbytes`   sum of the lengths of `pieces`
    `sync`     True: acknowledge after the sync of the file; False: after the write (deferred sync)
    `on_done`  for the receiver of `deliver` to call, with None or the error; the journal never calls it
               itself
    `queued_at` monotonic seconds, set by `Journal.append`
    """

    __slots__ = ("entries", "nbytes", "on_done", "pieces", "queued_at", "sync")

    def __init__(self, pieces: list[bytes], entries: int, nbytes: int, sync: bool, on_done: OnDone | None) -> None:
        self.pieces = pieces
        self.entries = entries
        self.nbytes = nbytes
        self.sync = sync
        self.on_done = on_done
        self.queued_at = 0.0

    @classmethod
    def of(cls, *records: list[bytes], sync: bool = True, on_done: OnDone | None = None) -> JournalBatch:
        """A batch of some records of `journal.format`; for everything that is not the hot path."""
        pieces = [piece for record in records for piece in record]
        return cls(pieces, len(records) or 1, sum(map(len, pieces)), sync, on_done)


def over_threshold(options: JournalConfig, entries: int, nbytes: int, stretch: float = 1.0) -> bool:
    """Trigger 2: whether so many waiting records or bytes are too many; of a threshold that is 0 none are."""
    return (
        0 < options.buffered_writes_threshold_bytes * stretch < nbytes
        or 0 < options.buffered_entries_threshold * stretch < entries
    )


def group_wait_ms(options: JournalConfig, entries: int, stretch: float) -> float:
    """Return how many ms this number of records waits at most: as configured, but longer for many."""
    return options.max_group_wait_ms * (stretch if entries >= MANY_ENTRIES else 1.0)


def flush_reason(
    options: JournalConfig, entries: int, nbytes: int, age_ms: float, stretch: float = 1.0
) -> FlushReason | None:
    """The trigger that fires for `entries` waiting records of `nbytes`, of which the oldest has waited `age_ms`, or the
    last group left so long ago. `stretch`: of `GroupPace`."""
    if entries == 0:
        return None
    if options.waits_for_group and age_ms >= group_wait_ms(options, entries, stretch):
        return FlushReason.MAX_WAIT
    if over_threshold(options, entries, nbytes, stretch):
        return FlushReason.MAX_OUTSTANDING
    return None if options.waits_for_group else FlushReason.EMPTY_QUEUE


def slices(batches: Iterable[tuple[list[bytes], int]], limit: int) -> Iterator[list[bytes]]:
    """The pieces of all batches (each with its size) in runs of at most `limit` bytes; a longer piece is a run."""
    run: list[bytes] = []
    size = 0
    for pieces, nbytes in batches:
        if size + nbytes <= limit:
            run += pieces
            size += nbytes
            continue
        if nbytes <= limit:
            if run:
                yield run
            run, size = list(pieces), nbytes
            continue
        for piece in pieces:
            if run and size + len(piece) > limit:
                yield run
                run, size = [], 0
            run.append(piece)
            size += len(piece)
    if run:
        yield run


class GroupPace:
    """The pace of one journal: how much larger groups become while the process is short of processor time.

    For each group the journal's threads need the interpreter a few times, and each time the event loop has to give it
    away and to wake up again. That is nothing while there is time to spare; for a loop that is always busy it is a good
    part of its time. So groups grow then: adds wait some milliseconds longer for their sync, and many more of them are
    served.

    How late the journal thread wakes up tells which of the two it is: beside an idle loop a tenth of a millisecond
    after it was to, beside one that is always busy a millisecond or two. Beside one that is busy half of the time it is
    late now and then, and larger groups would only keep its clients waiting.

    Invariants
    - Groups are as configured unless the thread woke up late most of the times. Then one waits `LATENESS_SHARE` times
      as long as the thread was late lately, but as long as configured at the least and, unless more is configured,
      `LONGEST_WAIT_MS` at the most. Its thresholds grow by the same factor. Few records (`group_commit.MANY_ENTRIES`)
      wait no longer than ever: a bookie with little to write stays quick on a busy machine.
    - A single late wake-up changes little: lateness is averaged over some `AVERAGED` of them, and each counts for
      `MOST_LATE_MS` at the most.

    `stretch` is the factor for group wait and thresholds at present, at least 1.

    Threads: `woke` on the journal thread; `stretch` from any.
    """

    def __init__(self, options: JournalConfig) -> None:
        self.stretch = 1.0
        self._late_ms = 0.0
        self._late_share = 0.0
        self._wait_ms = options.max_group_wait_ms
        self._adapts = options.adaptive_group_writes and options.waits_for_group

    def woke(self, late_ms: float) -> None:
        """The journal thread began to run so many ms after it was to."""
        if not self._adapts:
            return
        self._late_ms += (min(late_ms, MOST_LATE_MS) - self._late_ms) / AVERAGED
        self._late_share += ((late_ms >= LATE_MS) - self._late_share) / AVERAGED
        longest = min(LATENESS_SHARE * self._late_ms, LONGEST_WAIT_MS) if self._late_share > 0.5 else 0.0
        self.stretch = max(1.0, longest / self._wait_ms)


class BatchQueue:
    """Batches in order; the bound on it is `Journal.has_room`, which the appender watches."""

    def __init__(self, options: JournalConfig, metrics: JournalMetrics) -> None:
        self.appended_entries = 0
        self.appended_bytes = 0
        self._taken_entries = 0
        self._taken_bytes = 0
        self._options = options
        self._metrics = metrics
        self._batches: deque[JournalBatch] = deque()
        self._wake = threading.Event()
        self._sleeping = False
        self._left_at = -math.inf
        """The time at which the last group was taken."""
        self._due_at = 0.0
        """The time at which `append` woke the thread for a threshold; 0 if it did not."""
        self.pace = GroupPace(options)

    def __bool__(self) -> bool:
        return bool(self._batches)

    @property
    def entries(self) -> int:
        """Records not taken yet."""
        return self.appended_entries - self._taken_entries

    @property
    def nbytes(self) -> int:
        """Bytes not taken yet."""
        return self.appended_bytes - self._taken_bytes

    def append(self, batch: JournalBatch) -> None:
        batch.queued_at = time.monotonic()
        self.appended_entries += batch.entries
        self.appended_bytes += batch.nbytes
        self._batches.append(batch)
        if self._sleeping:
            self._wake.set()
        elif not self._due_at and over_threshold(self._options, self.entries, self.nbytes, self.pace.stretch):
            self._due_at = batch.queued_at
            self._wake.set()

    def wake(self) -> None:
        """Make `wait_for_group` look again at what it was given."""
        self._wake.set()

    def wait_for_group(self, ending: Callable[[], bool], idle_seconds: Callable[[], float]) -> FlushReason | None:
        """Sleep until a trigger fires.

        None if nothing is queued and `ending` turned true or `idle_seconds` have passed. While `ending`,
        whatever is queued makes a group at once.
        """
        while True:
            self._wake.clear()
            self._due_at = 0.0
            if self._batches:
                # The first batches after a while without groups need not wait for others: no client was served
                # meanwhile.
                since = min(self._left_at, self._batches[0].queued_at)
                age_ms = (time.monotonic() - since) * 1000
                reason = flush_reason(self._options, max(1, self.entries), self.nbytes, age_ms, self.pace.stretch)
                if reason is None and ending():
                    return FlushReason.EMPTY_QUEUE
                if reason is not None:
                    return reason
                wait_ms = group_wait_ms(self._options, self.entries, self.pace.stretch)
                self._wait_for_company(max(0.0, wait_ms - age_ms) / 1000)
            elif ending() or (limit := idle_seconds()) <= 0:
                return None
            else:
                self._sleep_while_empty(ending, limit)

    def _wait_for_company(self, seconds: float) -> None:
        limit = time.monotonic() + seconds
        self._wake.wait(seconds)
        due = self._due_at or limit
        self.pace.woke(max(0.0, time.monotonic() - due) * 1000)

    def _sleep_while_empty(self, ending: Callable[[], bool], limit: float) -> None:
        self._sleeping = True
        if not self._batches and not ending():
            self._wake.wait(None if limit == math.inf else limit)
        self._sleeping = False

    def take_group(self, now: float) -> list[JournalBatch]:
        """Take everything queued, up to the thresholds (but the first batch whatever its size)."""
        self._left_at = now
        group: list[JournalBatch] = []
        entries = nbytes = 0
        while self._batches and not over_threshold(self._options, entries, nbytes, self.pace.stretch):
            batch = self._batches.popleft()
            group.append(batch)
            entries += batch.entries
            nbytes += batch.nbytes
            self._metrics.queue_latency.observe_ms((now - batch.queued_at) * 1000, batch.entries)
        self._taken_entries += entries
        self._taken_bytes += nbytes
        return group
