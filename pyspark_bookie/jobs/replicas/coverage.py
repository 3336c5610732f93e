"""Comparing what a bookie lists with what striping puts there, by runs and by pieces, never entry by entry in Python.

Invariants
- Work is done in pieces of `PIECE` entries: memory does not grow with the ledger.
- At most `MAX_RUNS` runs are named; the rest is counted with the last one.

Pure; any thread.

Sources: docs/internals/client-protocol.md, section 4; docs/internals/wire-protocol.md, section 8.8.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from bookie_client.replication.fragments import Fragment
from bookie_protocol.wire.availability import Availability

PIECE: Final = 1 << 18
MAX_RUNS: Final = 100
"""Runs that are named for one bookie in one fragment."""
NOTHING: Final = Availability([])
"""Entries of a bookie that does not know the ledger."""

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Run:
    """Entries from `first` to `last`; `count` of them are meant (striping leaves some out between)."""

    first: int
    last: int
    count: int


def wanted(fragment: Fragment, position: int, first: int, stop: int) -> Mask:
    """Which of `first` ... `stop - 1` striping puts at the position."""
    size, write = fragment.quorums.ensemble, fragment.quorums.write
    if size == write:
        return np.ones(stop - first, dtype=np.bool_)
    turns = np.arange(first, stop, dtype=np.int64) % size
    return np.asarray((position - turns) % size < write, dtype=np.bool_)


def listed(stored: Availability, first: int, stop: int) -> Mask:
    """Which of `first` ... `stop - 1` the bookie says it stores."""
    mask = np.zeros(stop - first, dtype=np.bool_)
    for run in stored.runs_between(first, stop):
        mask[run.start - first : run.stop - first] = True
    return mask


def missing_runs(fragment: Fragment, position: int, stored: Availability, first: int, last: int) -> list[Run]:
    """The entries between `first` and `last` that should be at the position and are not listed."""
    return bounded(_runs_of(_missing_pieces(fragment, position, stored, first, last)))


def present_runs(fragment: Fragment, position: int, stored: Availability, first: int, last: int) -> Iterator[range]:
    """The entries between `first` and `last` that should be at the position and are listed, as consecutive ids."""
    for start in range(first, last + 1, PIECE):
        stop = min(start + PIECE, last + 1)
        mask = wanted(fragment, position, start, stop) & listed(stored, start, stop)
        yield from (range(begin, end) for begin, end in _edges(mask, start))


def expected_runs(fragment: Fragment, position: int, first: int, last: int) -> Iterator[range]:
    """The entries between `first` and `last` that should be at the position, as consecutive ids."""
    for start in range(first, last + 1, PIECE):
        stop = min(start + PIECE, last + 1)
        yield from (range(begin, end) for begin, end in _edges(wanted(fragment, position, start, stop), start))


def surplus_count(fragments: Iterable[tuple[Fragment, int]], stored: Availability) -> int:
    """Listed entries that none of these (fragment, position) asks for; positions of one fragment differ."""
    expected = 0
    by_fragment: dict[Fragment, list[int]] = {}
    for fragment, position in fragments:
        by_fragment.setdefault(fragment, []).append(position)
    for fragment, positions in by_fragment.items():
        for start in range(fragment.first_entry, fragment.last_entry + 1, PIECE):
            stop = min(start + PIECE, fragment.last_entry + 1)
            mask = np.zeros(stop - start, dtype=np.bool_)
            for position in positions:
                mask |= wanted(fragment, position, start, stop)
            expected += int(np.count_nonzero(mask & listed(stored, start, stop)))
    return stored.count - expected


def runs_of_entries(fragment: Fragment, position: int, entry_ids: Iterable[int]) -> list[Run]:
    """Runs of these ascending ids; two that follow each other at this position are one run."""
    return bounded(_joined(fragment, position, entry_ids))


def bounded(runs: Iterable[Run], most: int = MAX_RUNS) -> list[Run]:
    """The first ones; what comes behind is counted with the last."""
    result: list[Run] = []
    for run in runs:
        if len(result) < most:
            result.append(run)
        else:
            result[-1] = Run(result[-1].first, run.last, result[-1].count + run.count)
    return result


# --- inside -------------------------------------------------------------------------------------------------------


def _missing_pieces(
    fragment: Fragment, position: int, stored: Availability, first: int, last: int
) -> Iterator[tuple[int, Mask, Mask]]:
    for start in range(first, last + 1, PIECE):
        stop = min(start + PIECE, last + 1)
        need = wanted(fragment, position, start, stop)
        yield start, need, need & ~listed(stored, start, stop)


def _runs_of(pieces: Iterable[tuple[int, Mask, Mask]]) -> Iterator[Run]:
    """Runs of what is marked among what is needed: entries that are not needed do not end a run."""
    current: Run | None = None
    needed_before = -1
    for start, need, mask in pieces:
        places = np.flatnonzero(need)
        if not len(places):
            continue
        for begin, end in _edges(mask[places], 0):
            first, last = start + int(places[begin]), start + int(places[end - 1])
            if current is not None and begin == 0 and current.last == needed_before:
                current = Run(current.first, last, current.count + end - begin)
                continue
            if current is not None:
                yield current
            current = Run(first, last, end - begin)
        needed_before = start + int(places[-1])
    if current is not None:
        yield current


def _joined(fragment: Fragment, position: int, entry_ids: Iterable[int]) -> Iterator[Run]:
    entries, size = fragment.entries_of(position), fragment.quorums.ensemble
    current: Run | None = None
    for entry_id in entry_ids:
        if current is not None:
            # Of any `size` consecutive ids at least one is at the position.
            between = range(current.last + 1, min(entry_id, current.last + 1 + size))
            if not any(other in entries for other in between):
                current = Run(current.first, entry_id, current.count + 1)
                continue
            yield current
        current = Run(entry_id, entry_id, 1)
    if current is not None:
        yield current


def _edges(mask: Mask, offset: int) -> Iterator[tuple[int, int]]:
    """Begin and end (behind) of each stretch of True."""
    padded = np.concatenate(([False], mask, [False]))
    changes = np.flatnonzero(padded[1:] != padded[:-1])
    for begin, end in zip(changes[::2], changes[1::2], strict=True):
        yield int(begin) + offset, int(end) + offset
