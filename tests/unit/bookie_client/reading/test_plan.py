"""Pieces of a range: no gap, no overlap, and what is under way stays bounded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_client.reading.entry import LedgerEntry
from bookie_client.reading.plan import ENTRY_COST, FIRST_SINGLES, FRAME_COST, Piece, ReadLimits, ReadPlan
from bookie_protocol.errors import NoSuchEntry

NO_SEGMENTS = 1 << 63


def plan(first=0, last=999, average=100, segments=(), **limits):
    given_limits = {"max_entries": 100, "max_bytes": 1_000_000, "batch_entries": 50, "batch_bytes": 100_000, **limits}
    return ReadPlan(
        first,
        last,
        ReadLimits(**given_limits),
        average,
        lambda entry: next((start for start in segments if start > entry), NO_SEGMENTS),
    )


def entries(start, count):
    return [LedgerEntry(1, start + i, 0, b"") for i in range(count)]


def ask_all(under_test):
    pieces = []
    while (piece := under_test.ask()) is not None:
        pieces.append(piece)
    return pieces


def test_batches_fill_the_window_but_for_the_room_of_two():
    pieces = ask_all(plan(batch_entries=1000, last=100_000))
    assert [piece.ordinal for piece in pieces] == list(range(8))
    assert all(piece.by_batch and piece.count == 80_000 // (100 + ENTRY_COST) for piece in pieces)


@given(
    average=st.integers(0, 20_000),
    batch_entries=st.integers(2, 200),
    batch_bytes=st.integers(1000, 1_000_000),
)
def test_what_was_asked_for_before_there_was_a_plan_is_its_first_piece(average, batch_entries, batch_bytes):
    limits = {"batch_entries": batch_entries, "batch_bytes": batch_bytes}
    own, begun = plan(last=499, average=average, **limits), plan(last=499, average=average, **limits)
    (first, *others) = ask_all(own)
    if not first.by_batch or first.count < 2:
        return
    piece = begun.begin_with(first.stop)
    assert [getattr(piece, name) for name in Piece.__slots__] == [getattr(first, name) for name in Piece.__slots__]
    assert [(each.start, each.stop) for each in ask_all(begun)] == [(each.start, each.stop) for each in others]


def test_a_range_without_batches_keeps_to_its_entries():
    under_test = plan(batch_entries=1)
    pieces = ask_all(under_test)
    assert sum(piece.count for piece in pieces) == under_test.singles_in_use == 100
    assert [piece.count for piece in pieces] == [25] * 4
    under_test.took(pieces[0], entries(0, 25), 2500)
    under_test.consumed()
    assert [(piece.start, piece.count) for piece in ask_all(under_test)] == [(100, 25)]


def test_nothing_but_the_first_piece_before_a_size_is_known():
    under_test = plan(average=None, batch_entries=1)
    (piece,) = ask_all(under_test)
    assert piece.count == FIRST_SINGLES
    under_test.took(piece, entries(0, FIRST_SINGLES), FIRST_SINGLES * 100_000)
    assert ask_all(under_test) == []  # what was read is larger than the window
    under_test.consumed()
    assert sum(piece.count for piece in ask_all(under_test)) == 8


def test_head_only_holds_the_others_back():
    under_test = plan()
    under_test.head_only = True
    assert len(ask_all(under_test)) == 1
    under_test.head_only = False
    assert len(ask_all(under_test)) == 7


@pytest.mark.parametrize("limits", [{"batch_entries": 1}, {"average": 80_000}], ids=["no batches", "large entries"])
def test_single_reads_wait_for_no_proof_of_batches(limits):
    under_test = plan(**limits)
    under_test.head_only = True
    assert len(ask_all(under_test)) > 1


def test_pieces_end_with_segments():
    pieces = ask_all(plan(segments=(10, 11, 45)))
    assert [(p.start, p.stop) for p in pieces][:4] == [(0, 10), (10, 11), (11, 45), (45, 95)]
    assert [p.by_batch for p in pieces[:4]] == [True, False, True, True]


def test_the_rest_of_a_short_batch_comes_next():
    under_test = plan()
    first, second, *_ = ask_all(under_test)
    under_test.took(first, entries(0, 20), 2000)
    rest = under_test.ask()
    assert (rest.start, rest.stop, second.start) == (20, 50, 50)
    under_test.consumed()
    assert under_test.next == 20
    assert under_test.pieces[0] is rest


def test_the_rest_of_the_last_piece_is_cut_anew():
    under_test = plan(average=None)
    (piece,) = ask_all(under_test)
    under_test.took(piece, entries(0, 3), 150_000)
    pieces = ask_all(under_test)
    assert (pieces[0].start, pieces[0].count, pieces[0].by_batch) == (3, 4, False)


def test_entries_too_large_for_batches_keep_to_the_limit_of_single_reads():
    under_test = plan(average=80_000, max_entries=3)
    pieces = ask_all(under_test)
    assert not any(piece.by_batch for piece in pieces)
    assert sum(piece.count for piece in pieces) == under_test.singles_in_use == 3


def test_an_error_ends_the_piece_where_it_is():
    under_test = plan()
    piece = under_test.ask()
    under_test.took(piece, entries(0, 3), 300, NoSuchEntry("x"))
    assert (piece.stop, piece.is_done, len(piece.entries)) == (50, True, 3)


def test_refused_batches_are_read_singly_within_the_limit():
    under_test = plan(max_entries=8)
    pieces = ask_all(under_test)
    under_test.by_batch = False
    for piece in pieces:
        under_test.give_back(piece)
    assert under_test.bytes_in_use == 0
    again = ask_all(under_test)
    assert again[0] is pieces[0]
    assert [(piece.start, piece.stop, piece.by_batch) for piece in again] == [
        (0, 2, False),
        (2, 4, False),
        (4, 6, False),
        (6, 8, False),
    ]
    assert under_test.singles_in_use == 8


@pytest.mark.parametrize("average", [0, 1, 100, 10_000, 10_000_000])
def test_a_full_batch_costs_no_more_than_its_room(average):
    """What a bookie may send within `max_bytes` never takes more than was reserved."""
    under_test = plan(average=average, batch_bytes=100_000, batch_entries=100_000)
    piece = under_test.ask()
    if piece.by_batch:
        payload = piece.max_bytes - piece.count * FRAME_COST
        assert payload + piece.count * ENTRY_COST <= 100_000
        assert payload >= piece.count * average


@given(st.data())
def test_a_range_is_covered_exactly_once_and_stays_within_its_window(data):
    """Bookies answer with any prefix, in any order; some refuse batches."""
    last = data.draw(st.integers(0, 100))
    some_sizes = data.draw(st.lists(st.integers(0, 3000), min_size=1, max_size=8))
    sizes = [some_sizes[i % len(some_sizes)] for i in range(last + 1)]
    segments = sorted(data.draw(st.sets(st.integers(1, 100), max_size=3)))
    batch_entries = data.draw(st.sampled_from([1, 2, 40]))
    max_entries = data.draw(st.integers(1, 20))
    limits = {"max_entries": max_entries, "max_bytes": 60_000, "batch_entries": batch_entries, "batch_bytes": 7_500}
    under_test = plan(0, last, data.draw(st.sampled_from([None, 1500])), segments, **limits)
    under_way, delivered = [], []
    while not under_test.is_finished:
        asked = ask_all(under_test)
        under_way += asked
        assert under_test.pieces[0].is_asked
        stops = [piece.stop for piece in under_test.pieces]
        assert [piece.start for piece in under_test.pieces] == [len(delivered), *stops[:-1]]
        if all(piece.by_batch for piece in under_test.pieces if piece.is_asked):
            assert under_test.bytes_in_use <= 60_000
        assert under_test.singles_in_use <= max_entries + 1
        if under_way:
            piece = under_way.pop(data.draw(st.integers(0, len(under_way) - 1)))
            if piece.by_batch and data.draw(st.integers(0, 9)) == 0:
                under_test.by_batch = False
                under_test.give_back(piece)
                continue
            if piece.by_batch:
                fits, size = 1, 36 + 36 + sizes[piece.start]
                while fits < piece.count and size + 36 + sizes[piece.start + fits] <= piece.max_bytes:
                    size += 36 + sizes[piece.start + fits]
                    fits += 1
                count = data.draw(st.integers(1, fits))
            else:
                count = piece.count
            got = entries(piece.start, count)
            under_test.took(piece, got, sum(sizes[entry.entry_id] for entry in got))
        while under_test.pieces and under_test.pieces[0].is_done:
            delivered += [entry.entry_id for entry in under_test.pieces[0].entries]
            under_test.consumed()
    assert delivered == list(range(last + 1))
    assert under_test.bytes_in_use == under_test.singles_in_use == 0
