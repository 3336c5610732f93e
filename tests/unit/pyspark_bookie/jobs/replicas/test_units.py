"""Cutting a cluster into pieces of work."""

from hypothesis import given
from hypothesis import strategies as st

from bookie_protocol.ledger_metadata.model import LedgerMetadata, LedgerState
from pyspark_bookie.jobs.replicas.deep import BLOCK
from pyspark_bookie.jobs.replicas.units import LedgerSize, Planned, Slice, Unit, by_bookie, groups, size_of


@st.composite
def clusters(draw):
    ledgers = []
    for ledger_id in sorted(draw(st.sets(st.integers(0, 1000), max_size=30))):
        if draw(st.booleans()):
            ledgers.append(LedgerSize(ledger_id, None, 0, (("a", 0), ("b", 0))))
            continue
        last, nbytes = draw(st.integers(0, 20 * BLOCK)), draw(st.integers(0, 5000))
        ledgers.append(LedgerSize(ledger_id, last, nbytes, (("a", nbytes), ("b", nbytes // 2))))
    return ledgers


@given(clusters(), st.integers(1, 4000), st.integers(1, 10))
def test_every_entry_is_in_one_slice(ledgers, max_bytes, max_ledgers):
    pieces = list(groups(ledgers, max_bytes, max_ledgers))
    slices = [each for piece in pieces for each in piece]
    assert list(dict.fromkeys(each.ledger_id for each in slices)) == [ledger.ledger_id for ledger in ledgers]
    for ledger in ledgers:
        mine = [each for each in slices if each.ledger_id == ledger.ledger_id]
        assert mine[0].first == 0
        assert mine[-1].last is None
        assert [each.first for each in mine[1:]] == [each.last + 1 for each in mine[:-1]]
        assert all(each.first % BLOCK == 0 for each in mine)
    for piece in pieces:
        assert len(piece) <= max_ledgers
        assert sum(each.nbytes for each in piece) <= max_bytes or len(piece) == 1


@given(clusters())
def test_each_bookie_gets_its_part_in_order(ledgers):
    for piece in groups(ledgers, 2000, 8):
        units = by_bookie(piece, 5)
        assert [unit.bookie for unit in units] == sorted({bookie for each in piece for bookie, _ in each.bookies})
        for unit in units:
            mine = [(each.ledger_id, each.first, each.last) for each in unit.slices]
            assert mine == [
                (each.ledger_id, each.first, each.last) for each in piece if unit.bookie in dict(each.bookies)
            ]
        assert sum(unit.nbytes for unit in units) == sum(nbytes for each in piece for _, nbytes in each.bookies)


def test_sizes_follow_from_length_and_striping():
    metadata = LedgerMetadata(
        3,
        3,
        2,
        2,
        {0: ("a", "b", "c"), 60: ("a", "b", "d")},
        state=LedgerState.CLOSED,
        last_entry_id=89,
        length=9000,
    )
    size = size_of(metadata)
    assert dict(size.by_bookie) == {"a": 6000, "b": 6000, "c": 4000, "d": 2000}
    assert size.replica_bytes == 2 * 9000
    assert size_of(LedgerMetadata(4, 2, 2, 2, {0: ("a", "b")})) == LedgerSize(4, None, 0, (("a", 0), ("b", 0)))


def test_planned_knows_whether_all_was_taken():
    planned = Planned([Unit(0, (Slice(1, 0, None, 0),)), Unit(1, (Slice(2, 0, None, 0),))])
    assert next(planned).number == 0
    assert (planned.ended, planned.next_ledger) == (False, 2)
    assert [unit.number for unit in planned] == [1]
    assert (planned.ended, planned.next_ledger) == (True, 3)
    torn = Planned([Unit(0, (Slice(1, 0, None, 0), Slice(7, 0, BLOCK - 1, 0)))])
    next(torn)
    assert torn.next_ledger == 7
