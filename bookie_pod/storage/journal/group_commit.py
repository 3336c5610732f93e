"""When waiting records become a group, and how a group is cut into writes.

Triggers (reference bookie behaviour, section 2); any one is enough, none fires while nothing waits:
1. the last group left longer ago than the group wait, or the oldest waiting record is older than that: everything
   that waits goes. So there are no more groups than if each waited, and a record that comes alone does not wait;
2. more records or more bytes wait than the thresholds allow;
3. nothing else is queued, and the journal does not wait for more.

While the process is short of processor time, thresholds and the wait of many records are stretched (`GroupPace`).

A batch is never split between groups, so thresholds are looked at between batches.

Pure functions: any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from bookie_pod.metrics.journal import FlushReason
from bookie_pod.storage.journal.options import JournalOptions

MANY_ENTRIES: Final = 64
"""Waiting records below which a longer wait would save nothing."""


def over_threshold(options: JournalOptions, entries: int, nbytes: int, stretch: float = 1.0) -> bool:
    """Trigger 2: whether so many waiting records or bytes are too many; of a threshold that is 0 none are."""
    return 0 < options.group_bytes * stretch < nbytes or 0 < options.group_entries * stretch < entries


def group_wait_ms(options: JournalOptions, entries: int, stretch: float) -> float:
    """How long so many records wait at the most: as configured unless there are many."""
    return options.max_group_wait_ms * (stretch if entries >= MANY_ENTRIES else 1.0)


def flush_reason(
    options: JournalOptions, entries: int, nbytes: int, age_ms: float, stretch: float = 1.0
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
