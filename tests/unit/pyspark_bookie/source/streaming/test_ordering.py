from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bookie_protocol.digest import DigestType
from pyspark_bookie.source.planning import LedgerSnapshot, PlanLimits, Range, plan_in_order


def ranges(sizes):
    made = []
    for ledger_id, (first, entries, average) in enumerate(sizes):
        ledger = LedgerSnapshot(
            ledger_id=100 - ledger_id,
            version=0,
            ensemble_size=1,
            write_quorum_size=1,
            ack_quorum_size=1,
            ensembles=((0, ("bookie-1",)), (7, ("bookie-2",))),
            is_closed=True,
            last_entry_id=first + entries,
            length=average * (first + entries + 1),
            digest_type=DigestType.CRC32C,
        )
        made.append(Range(ledger, first, first + entries - 1))
    return made


SIZES = st.lists(st.tuples(st.integers(0, 20), st.integers(0, 60), st.integers(0, 50_000)), max_size=8)


@given(SIZES, st.integers(1, 2_000_000), st.integers(1, 6), st.integers(1, 5))
def test_partitions_are_the_ranges_in_order(sizes, max_bytes, min_partitions, max_ranges):
    wanted = ranges(sizes)
    limits = PlanLimits(max_bytes=max_bytes, min_partitions=min_partitions, max_ranges=max_ranges)
    partitions = plan_in_order(wanted, limits)
    pieces = [piece for partition in partitions for piece in partition.ranges]
    entries = [(piece.ledger_id, entry) for piece in pieces for entry in range(piece.first, piece.last + 1)]
    assert entries == [(each.ledger_id, entry) for each in wanted for entry in range(each.first, each.last + 1)]
    for partition in partitions:
        assert 1 <= len(partition.ranges) <= max_ranges
        assert len(partition.ranges) == 1 or partition.cost <= max_bytes


def test_tasks_share_the_rate():
    limits = PlanLimits(max_bytes=1, bytes_per_second=100.0)
    partitions = plan_in_order(ranges([(0, 4, 10)]), limits)
    assert [partition.bytes_per_second for partition in partitions] == [25.0] * 4
    two = PlanLimits(max_bytes=1, bytes_per_second=100.0, concurrent_tasks=2)
    assert plan_in_order(ranges([(0, 4, 10)]), two)[0].bytes_per_second == 50.0
