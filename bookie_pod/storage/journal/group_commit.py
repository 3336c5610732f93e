"""When waiting records become a group, and how a group is cut into writes.

Triggers (reference bookie behaviour, section 2); any one is enough, none fires while nothing waits:
1. the oldest waiting record is older than the group wait: everything that waits goes with it;
2. more records or more bytes wait than the thresholds allow;
3. nothing else is queued, and the journal does not wait for more.

A batch is never split between groups, so thresholds are looked at between batches.

Pure functions: any thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum

from bookie_pod.storage.journal.options import JournalOptions


class FlushReason(Enum):
    """Which trigger made a group."""

    MAX_WAIT = "max wait"
    MAX_OUTSTANDING = "max outstanding"
    EMPTY_QUEUE = "empty queue"


def over_threshold(options: JournalOptions, entries: int, nbytes: int) -> bool:
    """Trigger 2: whether so many waiting records or bytes are too many."""
    return nbytes > options.group_bytes or 0 < options.group_entries < entries


def flush_reason(options: JournalOptions, entries: int, nbytes: int, age_ms: float) -> FlushReason | None:
    """The trigger that fires for `entries` waiting records of `nbytes` whose oldest has waited `age_ms`."""
    if entries == 0:
        return None
    if options.waits_for_group and age_ms >= options.max_group_wait_ms:
        return FlushReason.MAX_WAIT
    if over_threshold(options, entries, nbytes):
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
