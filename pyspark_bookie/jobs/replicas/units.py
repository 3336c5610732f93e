"""Cutting a cluster into pieces of work: whole ledgers together while they are small, slices of a ledger that is large.

Invariants
- Every entry of every ledger is in exactly one slice; slices begin at a multiple of `BLOCK`, so that no block is torn.
- A piece has at most `max_bytes` (estimated, of all replicas) and `max_ledgers`, unless a single block is larger.
- Ledgers stay in the order in which they come: ascending ids, about the order in which bookies have them on disk.

Pure; any thread. A ledger that is not closed is one slice: nobody knows its length.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from bookie_client.replication.fragments import fragments
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from pyspark_bookie.jobs.replicas.deep import BLOCK


@dataclass(frozen=True, slots=True)
class LedgerSize:
    """What planning needs to know. `nbytes`: of payload in one copy; 0 if not closed. `last_entry` None: not closed.
    `by_bookie`: estimated bytes that each bookie holds."""

    ledger_id: int
    last_entry: int | None
    nbytes: int
    by_bookie: tuple[tuple[str, int], ...]

    @property
    def replica_bytes(self) -> int:
        return sum(nbytes for _, nbytes in self.by_bookie)


@dataclass(frozen=True, slots=True)
class Slice:
    """Entries of a ledger. `last` None: to its end. `nbytes`: of all replicas, estimated."""

    ledger_id: int
    first: int
    last: int | None
    nbytes: int
    bookies: tuple[tuple[str, int], ...] = ()
    """Who holds it, and how many bytes of it."""

    @property
    def next_ledger(self) -> int:
        """The least ledger that is not done in full after this slice."""
        return self.ledger_id if self.last is not None else self.ledger_id + 1


@dataclass(frozen=True, slots=True)
class Unit:
    """One piece of work. `bookie` None: look at all replicas."""

    number: int
    slices: tuple[Slice, ...]
    bookie: str | None = None

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self.slices)


def size_of(metadata: LedgerMetadata) -> LedgerSize:
    """The estimate from length and striping."""
    ledger_id = metadata.ledger_id
    if not metadata.is_closed:
        held = tuple((bookie, 0) for bookie in sorted(metadata.all_bookies()))
        return LedgerSize(ledger_id, None, 0, held)
    entries: dict[str, int] = {}
    for fragment in fragments(ledger_id, metadata, -1):
        for position, bookie in enumerate(fragment.ensemble):
            entries[bookie] = entries.get(bookie, 0) + len(fragment.entries_of(position))
    count = metadata.last_entry_id + 1
    held = tuple((bookie, metadata.length * n // count) for bookie, n in sorted(entries.items()) if n)
    return LedgerSize(ledger_id, metadata.last_entry_id, metadata.length, held)


def slices_of(ledger: LedgerSize, max_bytes: int) -> Iterator[Slice]:
    """The ledger in slices of about `max_bytes`."""
    total, held = ledger.replica_bytes, ledger.by_bookie
    if ledger.last_entry is None or total <= max_bytes:
        yield Slice(ledger.ledger_id, 0, None, total, held)
        return
    count = ledger.last_entry + 1
    parts = -(-total // max_bytes)
    step = max(1, count // parts // BLOCK) * BLOCK
    for first in range(0, count, step):
        entries = min(step, count - first)
        last = None if first + step >= count else first + step - 1
        share = tuple((bookie, nbytes * entries // count) for bookie, nbytes in held)
        yield Slice(ledger.ledger_id, first, last, total * entries // count, share)


def groups(ledgers: Iterable[LedgerSize], max_bytes: int, max_ledgers: int) -> Iterator[tuple[Slice, ...]]:
    """Slices of consecutive ledgers, together as much as one piece may have."""
    gathered: list[Slice] = []
    nbytes = 0
    for ledger in ledgers:
        for each in slices_of(ledger, max_bytes):
            if gathered and (nbytes + each.nbytes > max_bytes or len(gathered) >= max_ledgers):
                yield tuple(gathered)
                gathered, nbytes = [], 0
            gathered.append(each)
            nbytes += each.nbytes
    if gathered:
        yield tuple(gathered)


def numbered(pieces: Iterable[tuple[Slice, ...]]) -> Iterator[Unit]:
    """Groups as pieces that look at all replicas."""
    return (Unit(number, slices) for number, slices in enumerate(pieces))


class Planned(Iterator[Unit]):
    """Pieces in ascending order, and whether all of them were taken. `next_ledger`: the least id that was not taken in
    full, by the pieces taken so far."""

    def __init__(self, units: Iterable[Unit]) -> None:
        self._units = iter(units)
        self.ended = False
        self.next_ledger = 0

    def __next__(self) -> Unit:
        try:
            unit = next(self._units)
        except StopIteration:
            self.ended = True
            raise
        self.next_ledger = unit.slices[-1].next_ledger
        return unit


def by_bookie(group: Iterable[Slice], number: int) -> list[Unit]:
    """The group as one piece for each bookie, which reads its part in the order of ids."""
    parts: dict[str, list[Slice]] = {}
    for each in group:
        for bookie, nbytes in each.bookies:
            mine = Slice(each.ledger_id, each.first, each.last, nbytes, ((bookie, nbytes),))
            parts.setdefault(bookie, []).append(mine)
    return [Unit(number + place, tuple(parts[bookie]), bookie) for place, bookie in enumerate(sorted(parts))]
