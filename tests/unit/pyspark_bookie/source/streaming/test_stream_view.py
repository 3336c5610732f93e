from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bookie_client.streams.model import StreamPosition
from pyspark_bookie.common.errors import PodkeeperSparkError
from pyspark_bookie.source.positions import Positions, positions
from pyspark_bookie.source.streaming.offsets import Place
from pyspark_bookie.source.streaming.stream_view import StreamView
from tests.unit.pyspark_bookie.source.streaming.made_up_streams import view

SIZES = st.lists(st.integers(1, 20), max_size=6)
TAILS = st.none() | st.integers(0, 20)


def entries_of(segments):
    return [(each.ledger_id, entry) for each in segments for entry in range(each.first, each.last + 1)]


@given(SIZES, TAILS, st.integers(0, 50), st.data())
def test_between_two_ordinals_are_as_many_entries_and_always_the_same(sizes, tail, base, data):
    seen = view(sizes, tail, base=base)
    assert (seen.first_ordinal, seen.end_ordinal) == (base, base + sum(sizes) + (tail or 0))
    first = data.draw(st.integers(seen.first_ordinal, seen.end_ordinal))
    middle = data.draw(st.integers(first, seen.end_ordinal))
    end = data.draw(st.integers(middle, seen.end_ordinal))
    whole = entries_of(seen.segments(first, end))
    assert len(whole) == end - first
    assert whole == entries_of(seen.segments(first, middle)) + entries_of(seen.segments(middle, end))
    grown = view([*sizes, (tail or 0) + 3, 4], 5, base=base) if tail is not None else view([*sizes, 7], 5, base=base)
    assert whole == entries_of(grown.segments(first, end))


@given(SIZES, TAILS, st.integers(0, 50), st.data())
def test_a_place_is_where_it_was_when_the_stream_has_grown(sizes, tail, base, data):
    seen = view(sizes, tail, base=base)
    ordinal = data.draw(st.integers(seen.first_ordinal, seen.end_ordinal))
    place = seen.place(ordinal)
    assert seen.checked(place) == place
    grown = view([*sizes, 7] if tail is None else [*sizes, tail + 1], 5, base=base)
    assert grown.place(ordinal) == place
    assert grown.checked(place) == place


@given(SIZES, st.integers(1, 3), st.data())
def test_a_ledger_that_was_read_to_its_end_may_go(sizes, removed, data):
    assume(removed < len(sizes))
    gone = sum(sizes[:removed])
    kept = view(sizes[removed:], base=gone, first_id=100 - removed)
    whole = view(sizes)
    for ordinal in range(gone, whole.end_ordinal + 1):
        assert kept.checked(whole.place(ordinal)).ordinal == ordinal
    for ordinal in range(gone):
        with pytest.raises(PodkeeperSparkError, match=f"{gone - ordinal} entries .*truncated"):
            kept.checked(whole.place(ordinal))


def test_an_empty_open_ledger_that_its_next_writer_drops_is_no_place():
    assert view([5], 0).place(5) == Place(100, 5, 5)
    assert view([], 0).place(0) == Place(-1, 0, 0)
    assert view([]).checked(Place(-1, 0, 0)) == Place(-1, 0, 0)


def test_a_stream_that_was_made_anew_is_noticed():
    place = view([5, 5]).place(7)
    for anew in (view([3], first_id=50), view([5, 5], first_id=50), view([])):
        with pytest.raises(PodkeeperSparkError, match=r"position 99:2 .*deleted"):
            anew.checked(place)


def test_an_overwrite_is_a_loss_only_of_what_was_not_read():
    overwritten = view([3], base=10, first_id=50)
    assert overwritten.checked(view([5, 5]).place(10)).ordinal == 10
    with pytest.raises(PodkeeperSparkError, match=r"3 entries .* 99:2 .*truncated"):
        overwritten.checked(view([5, 5]).place(7))


def test_the_middle_of_a_ledger_may_be_truncated():
    cut = view([5, 5], truncated_before=StreamPosition(100, 3))
    assert cut.first_ordinal == 3
    assert entries_of(cut.segments(3, 6)) == [(100, 3), (100, 4), (99, 0)]
    with pytest.raises(PodkeeperSparkError, match=r"2 entries .* 100:1 .*truncated"):
        cut.checked(Place(100, 1, 1))
    with pytest.raises(PodkeeperSparkError, match=r"3 of .* 0 to 4 are"):
        cut.segments(0, 5)
    assert entries_of(cut.what_is_left(0, 5)) == [(100, 3), (100, 4)]


def test_the_open_ledger_is_read_as_far_as_it_once_was_confirmed():
    behind = view([5], 2)
    place = Place(99, 4, 9)
    assert behind.checked(place) == place
    assert entries_of(behind.reaching(place).segments(6, 9)) == [(99, 1), (99, 2), (99, 3)]


def test_where_a_new_query_begins():
    seen = view([5, 5], 3)
    assert seen.begin(positions("earliest")).ordinal == 0
    assert seen.begin(positions("latest")).ordinal == 13
    assert seen.begin(positions('{"99": 2}')) == Place(99, 2, 7)
    assert seen.begin(positions('{"99": -1}')).ordinal == 10
    assert seen.begin(positions('{"99": -2}')).ordinal == 5
    assert seen.begin(positions('{"4711": 3}')).ordinal == 0
    with pytest.raises(PodkeeperSparkError, match=r"orders \(100, 99\)"):
        seen.begin(positions('{"99": 2, "100": 1}'))


def test_ledgers_that_pulsar_has_moved_away_are_a_loss():
    seen = StreamView(view([5, 5]).manifest, unreadable=frozenset({100}))
    with pytest.raises(PodkeeperSparkError, match=r"ledger 100 .*Pulsar"):
        seen.segments(3, 7)
    assert entries_of(seen.segments(5, 7)) == [(99, 0), (99, 1)]
    assert entries_of(seen.what_is_left(3, 7)) == [(99, 0), (99, 1)]


def test_a_query_may_begin_behind_what_bookies_tell_of_an_open_ledger():
    """They know of an entry when the next one comes, and whoever names the place may have read it."""
    assert view([5], 3).begin(Positions(None, {99: 4})).ordinal == 9
    assert view([5, 2]).begin(Positions(None, {99: 4})).ordinal == 7, "of a closed one all is known"


def test_bytes_of_a_part_are_those_of_average_entries():
    seen = view([5, 3], 4)
    assert [each.nbytes for each in seen.segments(1, 11)] == [40, 30, 30]
    assert [each.nbytes for each in seen.segments(2, 3)] == [10]
    empty = view([], 0)
    assert empty.segments(0, 0) == []
