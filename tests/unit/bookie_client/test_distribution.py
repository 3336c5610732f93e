"""Striping: the tables of the reference, and its defining properties."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_client.distribution import Quorums
from bookie_protocol.errors import BadRequest


@st.composite
def quorums(draw):
    ensemble = draw(st.integers(1, 7))
    write = draw(st.integers(1, ensemble))
    return Quorums(ensemble, write, draw(st.integers(1, write)))


@pytest.mark.parametrize(("entry", "positions"), [(0, (0, 1)), (1, (1, 2)), (2, (2, 0)), (3, (0, 1))])
def test_three_bookies_two_copies(entry, positions):
    assert Quorums(3, 2, 2).write_set(entry) == positions


@pytest.mark.parametrize(("entry", "positions"), [(7, (2, 3, 4)), (8, (3, 4, 0)), (9, (4, 0, 1))])
def test_five_bookies_three_copies(entry, positions):
    assert Quorums(5, 3, 2).write_set(entry) == positions


@given(quorums(), st.integers(0, 2**62))
def test_a_write_set_is_what_its_positions_hold(quorums, entry):
    write_set = quorums.write_set(entry)
    assert len(set(write_set)) == quorums.write
    assert set(write_set) == {p for p in range(quorums.ensemble) if quorums.holds(p, entry)}
    assert write_set[0] == entry % quorums.ensemble


def test_a_ledger_of_more_bookies_than_new_ones_may_have_is_read_and_repaired_as_it_is():
    large = Quorums(30_000, 3, 2)
    assert large.write_set(29_999) == (29_999, 0, 1)
    assert large.write_set(60_001) == (1, 2, 3)


@given(quorums())
def test_copies_are_spread_evenly(quorums):
    held = [sum(quorums.holds(p, e) for e in range(quorums.ensemble)) for p in range(quorums.ensemble)]
    assert held == [quorums.write] * quorums.ensemble


@pytest.mark.parametrize("bad", [(3, 4, 2), (3, 2, 3), (3, 2, 0), (0, 0, 0)])
def test_quorums_that_do_not_fit_are_refused(bad):
    with pytest.raises(BadRequest, match="quorum >= 1"):
        Quorums(*bad)
