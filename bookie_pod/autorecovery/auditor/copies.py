"""Counting copies: what bookies say they store of a segment against what striping demands.

Invariants
- "Missing" is said only of bookies that answered, or that are lost. Where nobody can tell, a copy counts as neither
  there nor missing, so that an entry is called short of copies only when it is for certain.
- Work is done in pieces of `PIECE` entries: memory does not grow with the ledger.

Pure; any thread.

Sources: reference client protocol, section 4; reference auto-recovery, section 4.3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from bookie_protocol.wire.availability import Availability

PIECE: Final = 1 << 18

Stored = Availability | None
"""What a bookie says it stores; None: nobody can tell."""
NOTHING: Final = Availability([])

_Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Segment:
    """Entries `first` to `last` of one ensemble."""

    first: int
    last: int
    ensemble: Sequence[str]


@dataclass(slots=True)
class Copies:
    """What was found in one segment, or several: the worst entry, and who misses what."""

    fewest: int
    """Copies of the entry that has the fewest, with all that could not be told taken as there."""
    missing: dict[str, int]
    """Entries that each bookie should hold and does not."""
    first_missing: dict[str, int]
    """The first of them."""


def count_copies(segment: Segment, write_quorum: int, stored: Mapping[str, Stored]) -> Iterator[Copies]:
    """One `Copies` for each piece of the segment; `stored` has every bookie of the ensemble."""
    for first in range(segment.first, segment.last + 1, PIECE):
        yield _piece(segment, range(first, min(first + PIECE, segment.last + 1)), write_quorum, stored)


def _piece(segment: Segment, entries: range, write_quorum: int, stored: Mapping[str, Stored]) -> Copies:
    size = len(segment.ensemble)
    turns = np.arange(entries.start, entries.stop, dtype=np.int64) % size
    copies = np.zeros(len(entries), dtype=np.int16)
    found = Copies(write_quorum, {}, {})
    for position, bookie in enumerate(segment.ensemble):
        wanted = (position - turns) % size < write_quorum
        availability = stored[bookie]
        if availability is None:
            copies += wanted
            continue
        there = _mask(availability, entries)
        copies += wanted & there
        gone = np.flatnonzero(wanted & ~there)
        if len(gone):
            found.missing[bookie] = found.missing.get(bookie, 0) + len(gone)
            found.first_missing[bookie] = entries.start + int(gone[0])
    found.fewest = int(copies.min(initial=write_quorum))
    return found


def _mask(availability: Availability, entries: range) -> _Mask:
    mask = np.zeros(len(entries), dtype=np.bool_)
    for run in availability.runs_between(entries.start, entries.stop):
        mask[run.start - entries.start : run.stop - entries.start] = True
    return mask
