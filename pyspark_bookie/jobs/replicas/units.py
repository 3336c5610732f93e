"""The selection of ledgers for an inspection, cut into pieces of work.

Small ledgers are put together whole; a large ledger is cut into slices.

Invariants
- Every entry of every ledger is in exactly one slice; slices begin at a multiple of `BLOCK`, so that no block is torn.
- A piece has at most `max_bytes` (estimated, of all replicas) and `max_ledgers`, unless a single block is larger.
- Ledgers stay in the order in which they come: ascending ids, about the order in which bookies have them on disk.
- A ledger whose metadata cannot be read is planned all the same: that is a finding, which its task makes.
- The driver holds eight bytes for each ledger, and the sizes of those that are planned next, which it reads while the
  tasks work already.

A ledger that is not closed is one slice: its length is unknown. What takes a `JobContext` belongs to the driver;
everything else is pure, for any thread.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from bookie_client.replication.fragments import fragments
from bookie_protocol.errors import MetadataDamaged, NoSuchLedger
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.together import bounded
from pyspark_bookie.jobs.framework.context import JobContext
from pyspark_bookie.jobs.framework.ledgers import SelectionArguments, select_ledgers
from pyspark_bookie.jobs.replicas.deep import BLOCK

if TYPE_CHECKING:
    from bookie_client.client import Client

READ_AT_ONCE: Final = 64
READ_AHEAD: Final = 512
LEAST_PIECES: Final = 4
"""Minimum pieces for each slot, if there are that many ledgers: pieces differ in the time they take."""


@dataclass(frozen=True, slots=True)
class LedgerSize:
    """The sizes of a ledger that planning needs.

    `nbytes`: of payload in one copy; 0 if not closed. `last_entry` None: not closed. `by_bookie`: estimated bytes that
    each bookie holds.
    """

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
    """Bookies that hold it, and the bytes of each."""

    @property
    def next_ledger(self) -> int:
        """The least ledger that is not done in full after this slice."""
        return self.ledger_id if self.last is not None else self.ledger_id + 1


@dataclass(frozen=True, slots=True)
class Unit:
    """One piece of work. `bookie` None: inspect all replicas."""

    number: int
    slices: tuple[Slice, ...]
    bookie: str | None = None

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in self.slices)


def size_of(metadata: LedgerMetadata) -> LedgerSize:
    """Return the estimate from length and striping."""
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
    """Groups as pieces that inspect all replicas."""
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


@dataclass(frozen=True, slots=True)
class Chosen:
    """`ids`: ascending. `missing`: not among them; they had to exist, because a stream lists them, and do not."""

    ids: Sequence[int]
    missing: Sequence[int] = ()


def chosen_ids(context: JobContext[Any]) -> Sequence[int]:
    """Return the selected ledgers, as `chosen`, for jobs that ignore missing ledgers."""
    return chosen(context).ids


def chosen(context: JobContext[Any]) -> Chosen:
    """Return the ledgers that the arguments select; by default all.

    Ledgers that are named one by one need not exist: their inspection says so. Raises `UsageError`,
    `MetadataUnavailable`.
    """
    args: SelectionArguments = context.args
    if args.stream or args.ledger_pattern is not None or args.where is not None or args.older_than is not None:
        if args.ledgers is None and not args.stream and args.ledger_pattern is None and not args.all:
            context.args = replace(args, all=True)
        try:
            selected = select_ledgers(context)
            missing = selected.missing if args.stream else ()
            return Chosen(array("q", (row.ledger_id for row in selected.rows)), missing)
        finally:
            context.args = args
    within = args.ledgers
    if within is None:
        return Chosen(array("q", context.client().list()))
    named = set(within.singles())
    if all(first == last for first, last in within.spans):
        return Chosen(array("q", sorted(named)))
    return Chosen(array("q", sorted(named.union(each for each in context.client().list() if each in within))))


def fair_count(context: JobContext[Any], ids: Sequence[int]) -> int:
    """Ledgers of a piece, so that there are `LEAST_PIECES` for each slot."""
    return max(1, len(ids) // (LEAST_PIECES * context.concurrent))


def light_units(context: JobContext[Any], ids: Sequence[int], most: int) -> Iterator[Unit]:
    """Pieces of at most so many ledgers, in order, for inspections that read no data."""
    unsized = (LedgerSize(ledger_id, None, 0, ()) for ledger_id in ids)
    return numbered(groups(unsized, 1, min(most, fair_count(context, ids))))


def sized(context: JobContext[Any], ids: Sequence[int]) -> Iterator[LedgerSize]:
    """The sizes of ledgers, in the order of `ids`; deleted ones are left out. Raises `MetadataUnavailable`."""
    client = context.client()
    for start in range(0, len(ids), READ_AHEAD):
        part = ids[start : start + READ_AHEAD]
        yield from client.run(lambda each, part=part: _sizes(each, part))  # type: ignore[misc]


async def _sizes(client: Client, ids: Sequence[int]) -> list[LedgerSize]:
    async def read(ledger_id: int) -> LedgerSize | None:
        try:
            return size_of(await client.metadata(ledger_id))
        except NoSuchLedger:
            return None
        except MetadataDamaged:
            return LedgerSize(ledger_id, None, 0, ())

    return [size for size in await bounded(ids, read, READ_AT_ONCE) if size is not None]
