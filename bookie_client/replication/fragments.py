"""Fragments: the segments of a ledger as re-replication sees them, and the entries of each bookie.

A fragment is one segment with its last known entry. Of a ledger that is not closed, what lies behind the last add
confirmed belongs to its writer alone: such entries are in no fragment.

Invariants
- The fragments of a ledger follow each other without gap or overlap from entry 0 to the last known entry. Only the last
  one may be empty (`last_entry < first_entry`).
- A fragment is closed when only re-replication can change its ensemble: every segment of a closed ledger, and every
  segment but the last of one that is not. (The reference also compares ensembles; the writer replaces the last segment
  in place and never an earlier one, so the position in the ledger says the same.)
- Positions count, not bookies: striping is by position, and a position keeps its entries when its bookie is exchanged.

Pure and immutable; any thread.

Source: docs/internals/auto-recovery.md, sections 5 and 8; docs/internals/client-protocol.md, section 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from bookie_client.distribution import Quorums
from bookie_protocol.ledger_metadata.model import Ensemble, LedgerMetadata


class StripedEntries:
    """The ids from `first` to `last` that striping puts at one position, ascending; nothing is stored.

    In each period of E consecutive ids there are Qw of them.
    """

    __slots__ = ("_count", "_first", "_last", "_offsets", "_period")

    def __init__(self, first: int, last: int, position: int, ensemble_size: int, write_quorum: int) -> None:
        held = [k for k in range(ensemble_size) if (position - first - k) % ensemble_size < write_quorum]
        periods, rest = divmod(max(0, last - first + 1), ensemble_size)
        self._first = first
        self._last = last
        self._period = ensemble_size
        self._offsets = held
        self._count = periods * len(held) + sum(k < rest for k in held)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> int:
        """Return the index-th id; negative indices count from the end."""
        if index < 0:
            index += self._count
        if not 0 <= index < self._count:
            raise IndexError(f"index {index} of {self._count} entries")
        period, place = divmod(index, len(self._offsets))
        return self._first + period * self._period + self._offsets[place]

    def __contains__(self, entry_id: object) -> bool:
        if not isinstance(entry_id, int) or not self._first <= entry_id <= self._last:
            return False
        return (entry_id - self._first) % self._period in self._offsets

    def __iter__(self) -> Iterator[int]:
        for start in range(self._first, self._last + 1, self._period):
            for offset in self._offsets:
                if start + offset > self._last:
                    return
                yield start + offset


@dataclass(frozen=True, slots=True)
class Fragment:
    """One segment of a ledger, from `first_entry` (its key in the metadata) to `last_entry`; empty if that is less."""

    ledger_id: int
    first_entry: int
    last_entry: int
    ensemble: Ensemble
    quorums: Quorums
    is_closed: bool

    @property
    def count(self) -> int:
        """Number of entries, each counted once."""
        return max(0, self.last_entry - self.first_entry + 1)

    def positions(self, bookie: str) -> tuple[int, ...]:
        """Return the positions at which the ensemble names this bookie; empty if it does not."""
        return tuple(position for position, member in enumerate(self.ensemble) if member == bookie)

    def entries_of(self, position: int) -> StripedEntries:
        """Return the entries that striping puts at this position."""
        sizes = self.quorums.ensemble, self.quorums.write
        return StripedEntries(self.first_entry, self.last_entry, position, *sizes)

    def write_set(self, entry_id: int) -> tuple[int, ...]:
        """Return the positions that hold an entry, first choice first."""
        return self.quorums.write_set(entry_id)


def fragments(ledger_id: int, metadata: LedgerMetadata, lac: int) -> tuple[Fragment, ...]:
    """Return all fragments of a ledger, one for each segment, in order.

    `lac`: the last add confirmed of a ledger that is not closed, or -1 if it is unknown: then everything in front of
    the last segment is known, and the last segment counts as empty. Of a closed ledger it is not looked at.
    """
    quorums = Quorums.of(metadata)
    starts = metadata.first_entry_ids
    end = metadata.last_entry_id if metadata.is_closed else lac
    # Segments may begin behind the last entry of a closed ledger (apache/bookkeeper#3917): nothing is stored there.
    most = end if metadata.is_closed else starts[-1] - 1
    result = [
        Fragment(ledger_id, first, max(min(behind - 1, most), first - 1), metadata.ensembles[first], quorums, True)
        for first, behind in pairwise(starts)
    ]
    first = starts[-1]
    last = max(end, first - 1)
    result.append(Fragment(ledger_id, first, last, metadata.last_ensemble, quorums, metadata.is_closed))
    return tuple(result)


class Naming(Enum):
    """The meaning of a segment that names a bookie.

    NOTHING: by the metadata, the bookie stores no entry of it. ENTRIES: striping puts entries there. GROWING: the
    segment's end is not known yet, so entries may come at any time.
    """

    NOTHING = "nothing"
    ENTRIES = "entries"
    GROWING = "growing"


def naming(metadata: LedgerMetadata, bookie: str) -> dict[int, Naming]:
    """Every segment that names the bookie, by its first entry, and what that means."""
    named: dict[int, Naming] = {}
    for fragment in fragments(metadata.ledger_id, metadata, -1):
        positions = fragment.positions(bookie)
        if not positions:
            continue
        if not fragment.is_closed:
            named[fragment.first_entry] = Naming.GROWING
        elif any(len(fragment.entries_of(position)) for position in positions):
            named[fragment.first_entry] = Naming.ENTRIES
        else:
            named[fragment.first_entry] = Naming.NOTHING
    return named
