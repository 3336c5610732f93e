"""Partitions: every entry exactly once, bounded, the same each time."""

from __future__ import annotations

import pickle
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bookie_protocol.archive import ArchivedLedger, Counts
from bookie_protocol.digest import DigestType
from pyspark_bookie.source.batch import limits_of
from pyspark_bookie.source.planning import (
    ENTRY_COST,
    RANGE_COST,
    PlanLimits,
    Range,
    plan,
    plan_in_order,
    without_bookies,
)
from tests.unit.pyspark_bookie.source.reads import options
from tests.unit.pyspark_bookie.source.snapshots import BOOKIES, ledger, ranges

MIB = 1024 * 1024


@st.composite
def some_ranges(draw):
    found = []
    for ledger_id in range(draw(st.integers(0, 12))):
        entries = draw(st.integers(0, 300))
        starts = {0, *draw(st.sets(st.integers(1, max(1, entries)), max_size=3))}
        ensemble = draw(st.permutations(BOOKIES))[:3]
        made = ledger(ledger_id, entries, draw(st.integers(0, 50_000)), sorted(starts), tuple(ensemble))
        cut = draw(st.integers(0, entries))
        for first, last in ((0, cut - 1), (cut, entries - 1)):
            found.append(Range(made, first, last))
    return found


limits = st.builds(
    PlanLimits,
    max_bytes=st.integers(1, 20 * MIB),
    min_partitions=st.integers(1, 50),
    max_ranges=st.integers(1, 6),
    max_entries=st.none() | st.integers(1, 400),
)


@settings(max_examples=40)
@given(some_ranges(), limits)
def test_every_entry_is_in_exactly_one_partition(ranges, limits):
    wanted = Counter((each.ledger_id, entry) for each in ranges for entry in range(each.first, each.last + 1))
    planned = Counter(
        (each.ledger_id, entry)
        for partition in plan(ranges, limits)
        for each in partition.ranges
        for entry in range(each.first, each.last + 1)
    )
    assert planned == wanted


@settings(max_examples=40)
@given(some_ranges(), limits)
def test_partitions_are_bounded_and_none_is_empty(ranges, limits):
    for partition in plan(ranges, limits):
        assert partition.ranges
        assert all(each.first <= each.last for each in partition.ranges)
        assert len(partition.ranges) <= limits.max_ranges
        single = partition.ranges[0].entries == 1
        assert partition.cost <= limits.max_bytes or (len(partition.ranges) == 1 and single)
        assert limits.max_entries is None or sum(each.entries for each in partition.ranges) <= limits.max_entries


@settings(max_examples=40)
@given(some_ranges(), limits)
def test_the_same_ranges_give_the_same_partitions(ranges, limits):
    first, second = plan(ranges, limits), plan(ranges, limits)
    assert [partition.ranges for partition in first] == [partition.ranges for partition in second]
    travelled = pickle.loads(pickle.dumps(first))
    assert [partition.ranges for partition in travelled] == [partition.ranges for partition in first]


def test_a_long_ledger_is_split_and_tiny_ones_are_packed():
    long = Range(ledger(1, 100_000, 10_000), 0, 99_999)
    tiny = [Range(ledger(2 + number, 10, 100), 0, 9) for number in range(10_000)]
    partitions = plan([long, *tiny], PlanLimits(max_bytes=128 * MIB))
    of_long = [p for p in partitions if p.ranges[0].ledger_id == 1]
    assert len(of_long) == pytest.approx(100_000 * (10_000 + ENTRY_COST) / (128 * MIB), abs=2)
    assert sum(len(p.ranges) for p in partitions) == len(of_long) + 10_000
    least = -(-10_000 // 1_000)
    assert least <= len(partitions) - len(of_long) <= least + 1


def test_tiny_ledgers_are_spread_evenly():
    ranges = [Range(ledger(number, 1 + number % 50, 5_000), 0, number % 50) for number in range(2_000)]
    costs = [partition.cost for partition in plan(ranges, PlanLimits(max_bytes=32 * MIB))]
    assert max(costs) - min(costs) <= max(each.cost for each in ranges)


def test_min_partitions_splits_what_is_there():
    ranges = [Range(ledger(1, 1_000, 10_000), 0, 999)]
    assert len(plan(ranges, PlanLimits(max_bytes=128 * MIB))) == 1
    for count in (2, 8, 40, 1_000):
        assert count <= len(plan(ranges, PlanLimits(max_bytes=128 * MIB, min_partitions=count))) <= count + 1
    small = [Range(ledger(1, 100, 10), 0, 99)]
    assert len(plan(small, PlanLimits(max_bytes=128 * MIB, min_partitions=50))) == 50
    tiny = [Range(ledger(number, 1, 10), 0, 0) for number in range(100)]
    assert len(plan(tiny, PlanLimits(max_bytes=128 * MIB, min_partitions=10))) == 10


def test_a_cut_falls_on_the_beginning_of_a_fragment():
    per_piece = (10 * MIB - RANGE_COST) // (1_000 + ENTRY_COST)
    start = per_piece - 100
    made = ledger(1, 3 * per_piece, 1_000, (0, start))
    found = plan([Range(made, 0, 3 * per_piece - 1)], PlanLimits(max_bytes=10 * MIB))
    assert start in {each.first for partition in found for each in partition.ranges}


def test_tasks_that_start_together_begin_with_different_bookies():
    ranges = []
    for number in range(30):
        ensemble = BOOKIES[number // 10 :][:2] + BOOKIES[: number // 10]
        ranges.append(Range(ledger(number, 100, 100_000, ensemble=ensemble[:2]), 0, 99))
    found = plan(ranges, PlanLimits(max_bytes=10 * MIB))
    assert len(found) == 30
    assert [len({p.bookie for p in found[at : at + 3]}) for at in range(0, 30, 3)] == [3] * 10


@pytest.mark.parametrize(("tasks", "share"), [(None, 25.0), (2, 50.0), (100, 25.0)])
def test_the_rate_is_shared_by_the_tasks_that_can_run_at_once(tasks, share):
    ranges = [Range(ledger(number, 100, 10_000), 0, 99) for number in range(4)]
    limits = PlanLimits(max_bytes=MIB + 200_000, bytes_per_second=100.0, concurrent_tasks=tasks)
    found = plan(ranges, limits)
    assert len(found) == 4
    assert {partition.bytes_per_second for partition in found} == {share}


def test_the_options_of_a_read_are_the_limits_of_its_plan():
    tiny = [Range(ledger(number, 1, 10), 0, 0) for number in range(7)]
    assert [len(each.ranges) for each in plan(tiny, limits_of(options(scope="all")))] == [7]
    rated = {"rateLimit.bytesPerSecond": "600", "rateLimit.concurrentTasks": 2}
    found = plan(tiny, limits_of(options(scope="all", maxLedgersPerPartition=2, **rated)))
    assert sorted(len(each.ranges) for each in found) == [1, 2, 2, 2]
    assert {each.bytes_per_second for each in found} == {300.0}
    large = [Range(ledger(1, 100, 10_000), 0, 99)]
    assert len(plan(large, limits_of(options(scope="all", maxBytesPerPartition="300k")))) > 1
    assert len(plan(large, limits_of(options(scope="all", minPartitions=3)))) >= 3
    found = plan(large, limits_of(options(scope="all", maxEntriesPerPartition=30)))
    assert sorted(each.ranges[0].entries for each in found) == [10, 30, 30, 30]


SIZES = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 60), st.integers(0, 50_000)), max_size=8)


@given(SIZES, st.integers(1, 2_000_000), st.integers(1, 6), st.integers(1, 5), st.none() | st.integers(1, 90))
def test_partitions_are_the_ranges_in_order(sizes, max_bytes, min_partitions, max_ranges, max_entries):
    wanted = ranges(sizes)
    limits = PlanLimits(
        max_bytes=max_bytes, min_partitions=min_partitions, max_ranges=max_ranges, max_entries=max_entries
    )
    partitions = plan_in_order(wanted, limits)
    pieces = [piece for partition in partitions for piece in partition.ranges]
    entries = [(piece.ledger_id, entry) for piece in pieces for entry in range(piece.first, piece.last + 1)]
    assert entries == [(each.ledger_id, entry) for each in wanted for entry in range(each.first, each.last + 1)]
    for partition in partitions:
        assert 1 <= len(partition.ranges) <= max_ranges
        assert max_entries is None or sum(each.entries for each in partition.ranges) <= max_entries
        assert len(partition.ranges) == 1 or partition.cost <= max_bytes


@pytest.mark.parametrize("planned", [plan, plan_in_order])
def test_many_partitions_of_small_entries_are_no_more_than_were_asked_for(planned):
    """Each piece costs as much as a thousand of its entries, so many of them cost more than what they read."""
    whole = ranges([(0, 1000, 64)])
    for wanted in (1, 2, 8):
        assert len(planned(whole, PlanLimits(max_bytes=128 * MIB, min_partitions=wanted))) == wanted


def test_what_has_no_bookies_has_an_end_all_the_same():
    there = ArchivedLedger(7, "file:///a", "u", (), Counts(3, 30, 0, 0))
    found = without_bookies(7, DigestType.MAC, "orders", there)
    assert (found.entries, found.length, found.average, found.is_closed) == (3, 30, 10, True)
    assert (found.digest_type, found.stream, found.archive, found.fragment_of(1)) == (
        DigestType.MAC,
        "orders",
        there,
        None,
    )
    nothing = without_bookies(7, DigestType.MAC, None)
    assert (nothing.entries, nothing.length, nothing.average, nothing.is_closed) == (0, 0, 0, True)
    assert Range(nothing, 0, -1).cost == RANGE_COST
    assert [each.bookie for each in plan([Range(found, 0, 2)], PlanLimits(max_bytes=MIB))] == ["file:///a"]


def test_tasks_share_the_rate():
    limits = PlanLimits(max_bytes=1, bytes_per_second=100.0)
    partitions = plan_in_order(ranges([(0, 4, 10)]), limits)
    assert [partition.bytes_per_second for partition in partitions] == [25.0] * 4
    two = PlanLimits(max_bytes=1, bytes_per_second=100.0, concurrent_tasks=2)
    assert plan_in_order(ranges([(0, 4, 10)]), two)[0].bytes_per_second == 50.0


@pytest.mark.parametrize("planned", [plan, plan_in_order])
def test_a_partition_carries_the_fragments_that_it_reads_and_no_others(planned):
    whole = ledger(7, 10_000, starts=range(0, 10_000, 10))
    partitions = planned([Range(whole, 5, 9_994)], PlanLimits(max_bytes=500_000))
    assert sum(len(each.ledger.ensembles) for part in partitions for each in part.ranges) <= 1000 + 2 * len(partitions)
    assert max(len(pickle.dumps(part)) for part in partitions) * 5 < len(pickle.dumps(whole))
    for part in partitions:
        for each in part.ranges:
            for entry in (each.first, each.last):
                assert each.ledger.metadata().bookies_for(entry) == whole.metadata().bookies_for(entry)
                assert each.ledger.fragment_of(entry) == whole.fragment_of(entry) == entry // 10 * 10
