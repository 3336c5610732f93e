"""How much larger groups become while the process is short of processor time.

For each group the journal's threads need the interpreter a few times, and each time the event loop has to give it away
and to wake up again. That is nothing while there is time to spare; for a loop that is always busy it is a good part of
its time. So groups grow then: adds wait some milliseconds longer for their sync, and many more of them are served.

How late the journal thread wakes up tells which of the two it is: beside an idle loop a tenth of a millisecond after it
was to, beside one that is always busy a millisecond or two. Beside one that is busy half of the time it is late now and
then, and larger groups would only keep its clients waiting.

Invariants
- Groups are as configured unless the thread woke up late most of the times. Then one waits `LATENESS_SHARE` times as
  long as the thread was late lately, but as long as configured at the least and, unless more is configured,
  `LONGEST_WAIT_MS` at the most. Its thresholds grow by the same factor. Few records (`group_commit.MANY_ENTRIES`) wait
  no longer than ever: a bookie with little to write stays quick on a busy machine.
- A single late wake-up changes little: lateness is averaged over some `AVERAGED` of them, and each counts for
  `MOST_LATE_MS` at the most.

Threads: `woke` on the journal thread; `stretch` from any.
"""

from __future__ import annotations

from typing import Final

from bookie_pod.storage.journal.options import JournalOptions

LATENESS_SHARE: Final = 8
LONGEST_WAIT_MS: Final = 16.0
LATE_MS: Final = 0.5
"""From so many ms on a wake-up is late."""
AVERAGED: Final = 16
MOST_LATE_MS: Final = 4.0


class GroupPace:
    """The pace of one journal. `stretch`: by what group wait and thresholds are multiplied at present, at least 1."""

    def __init__(self, options: JournalOptions) -> None:
        self.stretch = 1.0
        self._late_ms = 0.0
        self._late_share = 0.0
        self._wait_ms = options.max_group_wait_ms
        self._adapts = options.adaptive_groups and options.waits_for_group

    def woke(self, late_ms: float) -> None:
        """The journal thread began to run so many ms after it was to."""
        if not self._adapts:
            return
        self._late_ms += (min(late_ms, MOST_LATE_MS) - self._late_ms) / AVERAGED
        self._late_share += ((late_ms >= LATE_MS) - self._late_share) / AVERAGED
        longest = min(LATENESS_SHARE * self._late_ms, LONGEST_WAIT_MS) if self._late_share > 0.5 else 0.0
        self.stretch = max(1.0, longest / self._wait_ms)
