"""Cutting ledgers into partitions: long ledgers are split, tiny ones packed together; those of streams in their order.

Running a task costs some 60 ms before its first byte, and one task should not take for ever. So a partition has about
`max_bytes`, whatever the sizes of the ledgers.

Invariants
- Every entry of every range is in exactly one partition, and no other entry is in any.
- A partition with more than one range is not larger than `max_bytes`, nor has it more than `max_ranges` ranges.
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
from typing import Final

from pyspark.sql.datasource import InputPartition

from bookie_protocol.archive import ArchivedLedger
from bookie_protocol.digest import DigestType
from bookie_protocol.ledger_metadata.model import Ensemble, LedgerMetadata, LedgerState
from pyspark_bookie.common.throttle import share

RANGE_COST: Final = 64 * 1024
"""Bytes that a range counts for beyond its entries: opening it is a request, too."""
ENTRY_COST: Final = 64
"""Bytes that an entry counts for beyond its payload: as much as travels with it."""


@dataclass(frozen=True, slots=True)
class LedgerSnapshot:
    """What a task has to know of a ledger to read it without asking the metadata service. It carries no password.

    `last_entry_id` is the last entry, of an open ledger the last one confirmed when it was looked at; `length` are the
    payload bytes up to it. `stream` is the stream or managed ledger that it was selected by."""

    ledger_id: int
    version: int
    """Of its metadata in the metadata service."""
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
    """Where it is read from instead of bookies, which it is gone from."""

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

    def metadata(self) -> LedgerMetadata:
        """As the client needs it; without digest type and password, which it is told apart."""
        return LedgerMetadata(
            ledger_id=self.ledger_id,
            ensemble_size=self.ensemble_size,
            write_quorum_size=self.write_quorum_size,
            ack_quorum_size=self.ack_quorum_size,
            ensembles=dict(self.ensembles),
            state=LedgerState.CLOSED if self.is_closed else LedgerState.OPEN,
            last_entry_id=self.last_entry_id if self.is_closed else -1,
            length=self.length if self.is_closed else 0,
        )


def without_bookies(
    ledger_id: int, digest_type: DigestType, stream: str | None, archive: ArchivedLedger | None = None
) -> LedgerSnapshot:
    """A ledger that has no bookies any more: what the archive has of it, or nothing."""
    return LedgerSnapshot(
        ledger_id=ledger_id,
        version=0,
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
        """What it counts for when partitions are made."""
        return RANGE_COST + self.entries * (self.ledger.average + ENTRY_COST)


@dataclass(frozen=True, slots=True)
class LostLedger:
    """A ledger that was selected and is not there: `code` and `text` say why."""

    ledger_id: int
    stream: str | None
    code: str
    text: str


class ReadPartition(InputPartition):
    """What one task reads, in this order. `bytes_per_second` is its share of the rate; `lost` are told in rows."""

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
    bytes_per_second: float | None = None
    """Of all tasks together."""
    concurrent_tasks: int | None = None
    """Tasks that can run at the same time; None: all of them."""

    def rate_of_one(self, partitions: int) -> float | None:
        """The share of the rate that each of so many partitions has."""
        tasks = partitions if self.concurrent_tasks is None else min(partitions, self.concurrent_tasks)
        return share(self.bytes_per_second, tasks)


def plan(ranges: Sequence[Range], limits: PlanLimits) -> list[ReadPartition]:
    """The partitions, ordered so that tasks that start together begin with different bookies."""
    wanted = [each for each in ranges if each.entries > 0]
    # Cutting adds ranges and their cost; so what is shared by the partitions is known only afterwards.
    contents = sum(each.cost - RANGE_COST for each in wanted)
    longest = max(1, min(limits.max_bytes, RANGE_COST - (-contents // limits.min_partitions)))
    pieces = [piece for each in wanted for piece in _cut(each, longest)]
    total = sum(piece.cost for piece in pieces)
    target = max(1, min(limits.max_bytes, -(-total // limits.min_partitions)))
    place = {id(piece): number for number, piece in enumerate(pieces)}
    bins = [sorted(found, key=lambda piece: place[id(piece)]) for found in _packed(pieces, target, limits.max_ranges)]
    rate = limits.rate_of_one(len(bins))
    ordered = sorted(bins, key=lambda found: place[id(found[0])])
    return _spread([ReadPartition(found, rate) for found in ordered])


def _cut(whole: Range, target: int) -> Iterator[Range]:
    """Pieces of at most `target`; where a fragment begins in the second half of a piece, the piece ends there, so that
    tasks keep to one ensemble."""
    per_entry = whole.ledger.average + ENTRY_COST
    most = max(1, (target - RANGE_COST) // per_entry)
    starts = [first for first, _ in whole.ledger.ensembles]
    first = whole.first
    while first <= whole.last:
        end = min(first + most, whole.last + 1)
        if end <= whole.last:
            fragment = starts[bisect_right(starts, end) - 1]
            end = fragment if fragment > first + most // 2 else end
        yield replace(whole, first=first, last=end - 1)
        first = end


def _packed(pieces: Sequence[Range], target: int, max_ranges: int) -> list[list[Range]]:
    """Longest processing time first: the largest piece goes to the bin with the least in it. A bin that cannot take it
    cannot take it for all, since the others have more: then there is a new one."""
    small = sorted((piece for piece in pieces if piece.cost < target), key=lambda piece: -piece.cost)
    bins: list[list[Range]] = [[piece] for piece in pieces if piece.cost >= target]
    total = sum(piece.cost for piece in small)
    count = max(-(-total // target), -(-len(small) // max_ranges))
    open_bins: list[tuple[int, int, list[Range]]] = [(0, number, []) for number in range(min(count, len(small)))]
    bins += [found for _, _, found in open_bins]
    made = len(open_bins)
    for piece in small:
        cost, number, found = open_bins[0] if open_bins else (target, 0, [])
        if cost + piece.cost > target:
            bins.append([piece])
            heapq.heappush(open_bins, (piece.cost, made, bins[-1]))
            made += 1
            continue
        found.append(piece)
        if len(found) < max_ranges:
            heapq.heapreplace(open_bins, (cost + piece.cost, number, found))
        else:
            heapq.heappop(open_bins)
    return [found for found in bins if found]


def _spread(partitions: Sequence[ReadPartition]) -> list[ReadPartition]:
    """The partitions in turn, one of each bookie."""
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
    total = sum(each.cost for each in wanted)
    target = max(1, min(limits.max_bytes, -(-total // limits.min_partitions)))
    alone = PlanLimits(max_bytes=target)
    found: list[list[Range]] = []
    cost = target + 1
    for piece in (piece for each in wanted for piece in _pieces(each, alone)):
        if cost + piece.cost > target or len(found[-1]) >= limits.max_ranges:
            found.append([])
            cost = 0
        found[-1].append(piece)
        cost += piece.cost
    rate = limits.rate_of_one(len(found))
    return [ReadPartition(pieces, rate) for pieces in found]


def _pieces(whole: Range, limits: PlanLimits) -> list[Range]:
    if whole.cost <= limits.max_bytes:
        return [whole]
    cut = [piece for partition in plan([whole], limits) for piece in partition.ranges]
    return sorted(cut, key=lambda piece: piece.first)
