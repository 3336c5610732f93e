"""The admission of data to the next micro-batch: how much of what can be read goes into it.

What can be read is a list of *lanes*. A lane is read in order: a stream of ledgers is one lane, an open ledger is
one, and so are all closed ledgers of a selection together. The limits are shared between lanes as evenly as their
demand allows (max-min fairness): a lane that wants less than an even share gets all it wants, the others share the
rest. What cannot be shared evenly goes to lanes by turns, and the turn comes from the start of the batch.

Invariants
- No limit is exceeded, with one exception: a batch takes at least one entry if there is any, even one that is larger
  than the limit in bytes.
- The same lanes, limits and turn give the same answer. Nothing here does I/O.

Bytes are estimates: the average entry of the segment, as far as metadata and the last add confirmed tell.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Segment:
    """Entries `first` to `last` of a ledger, both included, none of which was read; `nbytes` of payload altogether."""

    ledger_id: int
    first: int
    last: int
    nbytes: int

    @property
    def entries(self) -> int:
        return self.last - self.first + 1


Lane = Sequence[Segment]


@dataclass(frozen=True, slots=True)
class Limit:
    """The limit of one micro-batch; None: none."""

    entries: int | None = None
    nbytes: int | None = None


def admit(lanes: Sequence[Lane], limit: Limit, turn: int) -> list[int]:
    """Return how many entries of each lane the next batch takes, from the front of the lane."""
    admitted = [sum(segment.entries for segment in lane) for lane in lanes]
    if limit.entries is not None:
        admitted = fair_shares(admitted, max(limit.entries, 1), turn)
    if limit.nbytes is None:
        return admitted
    costs = [_bytes_of(lane, entries) for lane, entries in zip(lanes, admitted, strict=True)]
    budgets = fair_shares(costs, max(limit.nbytes, 1), turn)
    fitting = [_entries_within(*each) for each in zip(lanes, admitted, budgets, strict=True)]
    if any(admitted) and not any(fitting):
        chosen = _by_turns([number for number, entries in enumerate(admitted) if entries], turn)[0]
        fitting[chosen] = 1
    return fitting


def fair_shares(demands: Sequence[int], budget: int, turn: int) -> list[int]:
    """Share a budget fairly: no share exceeds its demand, and a share below its demand is no smaller than any other."""
    shares = [0] * len(demands)
    wanting = sorted((number for number, demand in enumerate(demands) if demand > 0), key=lambda n: demands[n])
    while wanting and budget >= len(wanting):
        share = budget // len(wanting)
        smallest = wanting[0]
        if demands[smallest] > share:
            for number in wanting:
                shares[number] = share
            budget -= share * len(wanting)
            break
        shares[smallest] = demands[smallest]
        budget -= demands[smallest]
        wanting = wanting[1:]
    for number in _by_turns(sorted(wanting), turn)[:budget]:
        shares[number] += 1
    return shares


def taken(lane: Lane, entries: int) -> list[Segment]:
    """The first `entries` entries of a lane."""
    found: list[Segment] = []
    for segment in lane:
        if entries <= 0:
            break
        if segment.entries > entries:
            segment = Segment(segment.ledger_id, segment.first, segment.first + entries - 1, _share(segment, entries))
        found.append(segment)
        entries -= segment.entries
    return found


def _by_turns(numbers: list[int], turn: int) -> list[int]:
    start = turn % len(numbers) if numbers else 0
    return numbers[start:] + numbers[:start]


def _bytes_of(lane: Lane, entries: int) -> int:
    return sum(segment.nbytes for segment in taken(lane, entries))


def _share(segment: Segment, entries: int) -> int:
    return -(-segment.nbytes * entries // segment.entries)


def _entries_within(lane: Lane, most: int, budget: int) -> int:
    """Return how many of the first `most` entries of a lane have, on average, no more than `budget` bytes."""
    fitting = 0
    for segment in taken(lane, most):
        if segment.nbytes > budget:
            return fitting + segment.entries * budget // segment.nbytes
        fitting += segment.entries
        budget -= segment.nbytes
    return fitting
