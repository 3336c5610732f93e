"""Cutting ledgers into partitions: long ledgers are split, tiny ones packed together; those of streams in their order.

Running a task costs some 60 ms before its first byte, and one task should not take for ever. So a partition has about
`max_bytes`, whatever the sizes of the ledgers.

Invariants
- Every entry of every range is in exactly one partition, and no other entry is in any.
- A partition with more than one range is not larger than `max_bytes`, nor has it more than `max_ranges` ranges. None
  has more than `max_entries` entries.
- The same ranges and limits give the same partitions: a restarted batch reads the same entries.
- Rows of a stream keep its order within a partition, and partitions that of their numbers. A sink that puts its ledgers
  together in that order, as ours does, gives a stream in the order of the source's.

Pure; any process. Batch, streaming and jobs use it.
"""

from __future__ import annotations

import heapq
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import InputPartition

from bookie_protocol.archive import ArchivedLedger
from bookie_protocol.digest import DigestType
from bookie_protocol.ledger_metadata.model import Ensemble, LedgerMetadata, LedgerState
from bookie_protocol.versioned import UNSTORED, Identity, LedgerLife
from pyspark_bookie.common.throttle import share

if TYPE_CHECKING:
    from pyspark_bookie.source.pulsar_schema.types import Schemas

RANGE_COST: Final = 64 * 1024
"""Bytes that a range counts for beyond its entries: opening it is a request, too."""
ENTRY_COST: Final = 64
"""Bytes that an entry counts for beyond its payload: as much as travels with it."""


@dataclass(frozen=True, slots=True)
class LedgerSnapshot:
    """The metadata of a ledger that a task needs to read it without the metadata service. It has no password.

    `last_entry_id` is the last entry, of an open ledger the last one confirmed when it was looked at; `length` are the
    payload bytes up to it. `stream` is the stream or managed ledger that it was selected by.
    """

    ledger_id: int
    identity: Identity
    """Identity of its metadata in the metadata service."""
    ensemble_size: int
    write_quorum_size: int
    ack_quorum_size: int
    ensembles: tuple[tuple[int, Ensemble], ...]
    is_closed: bool
    last_entry_id: int
    length: int
    digest_type: DigestType
    stream: str | None = None
    archive: ArchivedLedger | None = None
    """The archived copy to read if the ledger is gone from the bookies."""
    token: int = 0
    """Its creation token."""

    @property
    def life(self) -> LedgerLife | None:
        """Tells it from other ledgers of its number; None of one that is in the archive alone."""
        return None if self.archive is not None else LedgerLife(self.ledger_id, self.identity.creation, self.token)

    @property
    def entries(self) -> int:
        return self.last_entry_id + 1

    @property
    def average(self) -> int:
        """Payload bytes of an entry, about."""
        return self.length // self.entries if self.entries else 0

    def fragment_of(self, entry_id: int) -> int | None:
        """The first entry of the fragment with this entry; None: bookies do not have it."""
        if self.archive is not None:
            return None
        starts = [first for first, _ in self.ensembles]
        return starts[bisect_right(starts, max(entry_id, 0)) - 1]

    def covering(self, first: int, last: int) -> LedgerSnapshot:
        """The snapshot with the fragments of these entries alone: a ledger with many would otherwise travel whole with
        each of its partitions."""
        starts = [start for start, _ in self.ensembles]
        begin, end = bisect_right(starts, max(first, 0)) - 1, bisect_right(starts, max(last, 0))
        if (begin, end) == (0, len(starts)):
            return self
        return replace(self, ensembles=self.ensembles[begin:end])

    def metadata(self) -> LedgerMetadata:
        """Return the metadata that the client needs to read the entries of its fragments; digest type and password
        are passed separately."""
        return LedgerMetadata(
            ledger_id=self.ledger_id,
            ensemble_size=self.ensemble_size,
            write_quorum_size=self.write_quorum_size,
            ack_quorum_size=self.ack_quorum_size,
            ensembles={0: self.ensembles[0][1], **dict(self.ensembles)},
            state=LedgerState.CLOSED if self.is_closed else LedgerState.OPEN,
            last_entry_id=self.last_entry_id if self.is_closed else -1,
            length=self.length if self.is_closed else 0,
            creation_token=self.token,
        )


def without_bookies(
    ledger_id: int, digest_type: DigestType, stream: str | None, archive: ArchivedLedger | None = None
) -> LedgerSnapshot:
    """A ledger that has no bookies any more: what the archive has of it, or nothing."""
    return LedgerSnapshot(
        ledger_id=ledger_id,
        identity=UNSTORED,
        ensemble_size=0,
        write_quorum_size=0,
        ack_quorum_size=0,
        ensembles=((0, ()),),
        is_closed=True,
        last_entry_id=archive.counts.entries - 1 if archive is not None else -1,
        length=archive.counts.nbytes if archive is not None else 0,
        digest_type=digest_type,
        stream=stream,
        archive=archive,
    )


@dataclass(frozen=True, slots=True)
class Range:
    """Entries `first` to `last` of a ledger, both included."""

    ledger: LedgerSnapshot
    first: int
    last: int

    @property
    def ledger_id(self) -> int:
        return self.ledger.ledger_id

    @property
    def entries(self) -> int:
        return self.last - self.first + 1

    @property
    def nbytes(self) -> int:
        """Payload bytes, about."""
        return self.entries * self.ledger.average

    @property
    def cost(self) -> int:
        """Return the cost of the range, by which partitions are made."""
        return RANGE_COST + self.entries * (self.ledger.average + ENTRY_COST)


@dataclass(frozen=True, slots=True)
class LostLedger:
    """A ledger that was selected and is not there: `code` and `text` say why."""

    ledger_id: int
    stream: str | None
    code: str
    text: str


class ReadPartition(InputPartition):
    """The ranges that one task reads, in this order. `bytes_per_second` is its share of the rate; `lost` are
    reported in rows. `schemas`: of the topic that they are of, if values are decoded by them."""

    schemas: Schemas | None = None

    def __init__(
        self, ranges: Sequence[Range], bytes_per_second: float | None = None, lost: Sequence[LostLedger] = ()
    ) -> None:
        super().__init__(None)
        self.ranges = tuple(ranges)
        self.bytes_per_second = bytes_per_second
        self.lost = tuple(lost)

    @property
    def cost(self) -> int:
        return sum(each.cost for each in self.ranges)

    @property
    def bookie(self) -> str:
        """The bookie, or the archive, that its first read goes to, if nothing speaks against it."""
        first = self.ranges[0]
        if first.ledger.archive is not None:
            return first.ledger.archive.target
        return first.ledger.metadata().bookies_for(first.first)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanLimits:
    """`min_partitions` is a hint: fewer entries than that give fewer partitions."""

    max_bytes: int
    min_partitions: int = 1
    max_ranges: int = 1_000
    max_entries: int | None = None
    bytes_per_second: float | None = None
    """Bytes per second of all tasks together."""
    concurrent_tasks: int | None = None
    """Tasks that can run at the same time; None: all of them."""

    def weight(self, piece: Range, target: int) -> int:
        """Return the share that a piece has of a partition that may cost `target`."""
        if self.max_entries is None:
            return piece.cost
        return max(piece.cost, -(-piece.entries * target // self.max_entries))

    def rate_of_one(self, partitions: int) -> float | None:
        """Return the share of the rate that each of so many partitions has."""
        tasks = partitions if self.concurrent_tasks is None else min(partitions, self.concurrent_tasks)
        return share(self.bytes_per_second, tasks)


def plan(ranges: Sequence[Range], limits: PlanLimits) -> list[ReadPartition]:
    """The partitions, ordered so that tasks that start together begin with different bookies."""
    wanted = [each for each in ranges if each.entries > 0]
    longest = _longest(wanted, limits)  # looks at all ranges
    pieces = [piece for each in wanted for piece in _cut(each, longest, limits.max_entries)]
    # Cutting has added ranges and their cost; so what is shared by the partitions is known only now.
    total = sum(piece.cost for piece in pieces)
    target = max(1, min(limits.max_bytes, -(-total // limits.min_partitions)))
    place = {id(piece): number for number, piece in enumerate(pieces)}
    bins = [sorted(found, key=lambda piece: place[id(piece)]) for found in _packed(pieces, target, limits)]
    rate = limits.rate_of_one(len(bins))
    ordered = sorted(bins, key=lambda found: place[id(found[0])])
    return _spread([ReadPartition(found, rate) for found in ordered])


def _cut(whole: Range, target: int, max_entries: int | None) -> Iterator[Range]:
    """Pieces of at most `target` and `max_entries`; where a fragment begins in the second half of a piece, the piece
    ends there, so that tasks keep to one ensemble."""
    per_entry = whole.ledger.average + ENTRY_COST
    most = max(1, (target - RANGE_COST) // per_entry)
    if max_entries is not None:
        most = min(most, max_entries)
    starts = [first for first, _ in whole.ledger.ensembles]
    first = whole.first
    while first <= whole.last:
        end = min(first + most, whole.last + 1)
        if end <= whole.last:
            fragment = starts[bisect_right(starts, end) - 1]
            end = fragment if fragment > first + most // 2 else end
        yield Range(whole.ledger.covering(first, end - 1), first, end - 1)
        first = end


def _packed(pieces: Sequence[Range], target: int, limits: PlanLimits) -> list[list[Range]]:
    """Pack pieces by longest processing time first: the largest piece goes to the bin with the least in it.

    A piece that does not fit there fits nowhere, since the other bins have more: it gets a new one.
    """
    weighed = [(limits.weight(piece, target), piece) for piece in pieces]
    small = sorted((each for each in weighed if each[0] < target), key=lambda each: -each[0])
    bins: list[list[Range]] = [[piece] for weight, piece in weighed if weight >= target]
    total = sum(weight for weight, _ in small)
    count = max(-(-total // target), -(-len(small) // limits.max_ranges))
    open_bins: list[tuple[int, int, list[Range]]] = [(0, number, []) for number in range(min(count, len(small)))]
    bins += [found for _, _, found in open_bins]
    made = len(open_bins)
    for weight, piece in small:
        filled, number, found = open_bins[0] if open_bins else (target, 0, [])
        if filled + weight > target:
            bins.append([piece])
            heapq.heappush(open_bins, (weight, made, bins[-1]))
            made += 1
            continue
        found.append(piece)
        if len(found) < limits.max_ranges:
            heapq.heapreplace(open_bins, (filled + weight, number, found))
        else:
            heapq.heappop(open_bins)
    return [found for found in bins if found]


def _spread(partitions: Sequence[ReadPartition]) -> list[ReadPartition]:
    """Return the partitions in turn, one of each bookie."""
    queues: dict[str, deque[ReadPartition]] = {}
    for partition in partitions:
        queues.setdefault(partition.bookie, deque()).append(partition)
    waiting = deque(queues.values())
    result: list[ReadPartition] = []
    while waiting:
        queue = waiting.popleft()
        result.append(queue.popleft())
        if queue:
            waiting.append(queue)
    return result


def plan_in_order(ranges: Sequence[Range], limits: PlanLimits) -> list[ReadPartition]:
    """Every entry of every range once, in order; a partition with several ranges is within the limits."""
    wanted = [each for each in ranges if each.entries > 0]
    target = _longest(wanted, limits)
    alone = PlanLimits(max_bytes=target, max_entries=limits.max_entries)
    found: list[list[Range]] = []
    filled = target + 1
    for piece in (piece for each in wanted for piece in _pieces(each, alone)):
        weight = limits.weight(piece, target)
        if filled + weight > target or len(found[-1]) >= limits.max_ranges:
            found.append([])
            filled = 0
        found[-1].append(piece)
        filled += weight
    rate = limits.rate_of_one(len(found))
    return [ReadPartition(pieces, rate) for pieces in found]


def _longest(wanted: Sequence[Range], limits: PlanLimits) -> int:
    """Return what a piece may cost so that there are enough of them. Each costs `RANGE_COST`, however short it is."""
    contents = sum(each.cost - RANGE_COST for each in wanted)
    return max(1, min(limits.max_bytes, RANGE_COST - (-contents // limits.min_partitions)))


def _pieces(whole: Range, limits: PlanLimits) -> list[Range]:
    if limits.weight(whole, limits.max_bytes) <= limits.max_bytes:
        return [whole]
    cut = [piece for partition in plan([whole], limits) for piece in partition.ranges]
    return sorted(cut, key=lambda piece: piece.first)
