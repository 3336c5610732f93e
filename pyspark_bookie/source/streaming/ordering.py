"""Partitions of streams: as `planning.plan` cuts them, but in the order of the stream.

Rows keep the order of the stream within a partition, and partitions that of their numbers. A sink that puts its ledgers
together in that order, as ours does, gives a stream in the order of the source's.

Pure; any process.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark_bookie.source.planning import PlanLimits, Range, ReadPartition, plan


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
