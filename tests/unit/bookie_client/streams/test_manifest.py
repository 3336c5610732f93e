"""Positions in a manifest: what comes first, what is gone, what lies between."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_client.streams import START, Manifest, StreamPosition, StreamSettings
from bookie_client.streams.encoding import with_ordinals
from bookie_client.streams.ledgers import LedgerEnd
from bookie_client.streams.manifest import truncated, without_first
from bookie_client.streams.owner import claimed, moved_on
from bookie_client.streams.publishing import overwritten
from bookie_protocol.errors import BadRequest, MetadataVersionConflict, StreamFenced, StreamPositionGone
from bookie_protocol.versioned import UNSTORED

P = StreamPosition


def manifest(*sizes, open_at=None, base=0, **members):
    """Ledgers 10, 20, ... of so many entries; `open_at`: one more, open."""
    rows = [(10 * (i + 1), size, size * 8, 1, None) for i, size in enumerate(sizes)]
    if open_at is not None:
        rows.append((open_at, None, None, None, None))
    return Manifest("s", UNSTORED, 0, with_ordinals(rows, base), StreamSettings(), base_ordinal=base, **members)


def test_both_names_of_a_place_are_one():
    three = manifest(3, 2, open_at=5)
    assert three.resolve(P(10, 3)) == three.resolve(P(20, 0)) == (1, 0)
    assert three.ordinal(P(10, 3)) == three.ordinal(P(20, 0)) == 3
    assert three.ordinal(P(20, 2)) == three.ordinal(P(5, 0)) == 5
    assert three.ordinal(P(5, 7)) == 12  # nobody but its writer knows how far the open one goes


def test_what_is_no_place():
    one = manifest(3)
    with pytest.raises(BadRequest, match="behind"):
        one.resolve(P(10, 4))
    with pytest.raises(BadRequest, match="behind"):
        one.position_at(4)
    for gone in (P(11, 0), P(-1, -1)):
        with pytest.raises(StreamPositionGone, match="10:0"):
            one.resolve(gone)


def test_a_stream_without_ledgers_has_one_place():
    empty = manifest()
    assert empty.earliest == empty.closed_end == START
    assert empty.resolve(START) == (0, 0)
    assert empty.spans(START) == ()
    assert empty.position_at(0) == START
    with pytest.raises(BadRequest):
        empty.resolve(P(-1, 1))


def test_the_beginning_of_an_open_ledger_is_named_by_what_stands_before():
    assert manifest(open_at=5).earliest == START
    assert manifest(3, open_at=5).closed_end == P(10, 3)
    assert manifest(3, open_at=5).position_at(3) == P(10, 3)
    assert manifest(3, open_at=5).position_at(4) == P(5, 1)


def test_spans():
    three = manifest(3, 2, 4, open_at=5)

    def told(start, end=None):
        return [(span.ledger.ledger_id, span.first, span.last) for span in three.spans(start, end)]

    assert told(P(10, 1)) == [(10, 1, 2), (20, 0, 1), (30, 0, 3), (5, 0, None)]
    assert told(P(10, 3), P(30, 0)) == [(20, 0, 1)]
    assert told(P(10, 3), P(5, 2)) == [(20, 0, 1), (30, 0, 3), (5, 0, 1)]
    assert told(P(20, 0), P(10, 3)) == []
    assert told(P(5, 2)) == [(5, 2, None)]
    with pytest.raises(BadRequest, match="before"):
        told(P(20, 1), P(20, 0))


def test_the_end_of_what_was_removed_stays_a_place():
    cut = without_first(manifest(3, 2, 4), 2, 0)
    assert cut.base_ordinal == 5
    assert cut.ordinal(P(20, 2)) == cut.ordinal(P(30, 0)) == cut.ordinal(P(-1, 5)) == 5
    for gone in (START, P(10, 3), P(20, 1), P(20, 0)):
        with pytest.raises(StreamPositionGone):
            cut.resolve(gone)
    empty = without_first(cut, 1, 0)
    assert empty.ordinal(P(30, 4)) == empty.ordinal(empty.earliest) == 9
    with pytest.raises(StreamPositionGone):
        empty.resolve(P(20, 2))


def test_truncation_within_a_ledger():
    cut = truncated(manifest(3, 4), P(20, 1), 7)
    assert cut.earliest == P(20, 1)
    assert cut.retired[0].ledger_ids == (10,)
    for gone in (P(20, 0), P(10, 3), START):
        with pytest.raises(StreamPositionGone):
            cut.resolve(gone)
    with pytest.raises(StreamPositionGone):
        cut.position_at(3)
    assert truncated(cut, P(10, 1), 7) is None
    assert truncated(cut, P(20, 1), 7) is None
    assert truncated(cut, P(20, 4), 7).earliest == P(-1, 7)
    with pytest.raises(BadRequest, match="is open"):
        truncated(manifest(3, open_at=5), P(5, 1), 7)
    assert truncated(manifest(3, open_at=5), P(5, 0), 7).ordinal(P(10, 3)) == 3


def test_an_overwrite_leaves_no_place_but_goes_on_counting():
    new = overwritten(manifest(3, 4), 1000)
    assert (new.generation, new.base_ordinal, new.earliest) == (1, 7, P(-1, 7))
    assert new.retired[0].due_ms == 1000 + 3600 * 1000
    for gone in (START, P(10, 0), P(20, 4)):
        with pytest.raises(StreamPositionGone):
            new.resolve(gone)
    assert overwritten(manifest(), 0).resolve(START) == (0, 0)  # nothing was lost


def test_a_ledger_that_was_dropped_empty_stays_a_place():
    at = claimed(manifest(3, open_at=5), "me", take_over=True)
    moved = moved_on(at, "me", LedgerEnd(5, 0, 0), 6, 0)
    assert [ledger.ledger_id for ledger in moved.ledgers] == [10, 6]
    assert moved.ordinal(P(5, 0)) == moved.ordinal(P(6, 0)) == 3
    with pytest.raises(StreamPositionGone):
        moved.resolve(P(5, 1))


def test_an_owner_that_lost_changes_nothing():
    at = claimed(manifest(3, open_at=5), "me", take_over=True)
    assert claimed(at, "me", take_over=False) is None
    theirs = claimed(at, "you", take_over=True)
    with pytest.raises(StreamFenced):
        moved_on(theirs, "me", LedgerEnd(5, 2, 2), 6, 0)
    with pytest.raises(MetadataVersionConflict, match="is open"):
        moved_on(at, "me", None, 6, 0)
    assert moved_on(at, "me", None, 5, 0) is None  # stored before


def test_positions_as_text():
    for position in (P(7, 120), START, P(2**62, 2**62)):
        assert StreamPosition.parse(str(position)) == position
    for wrong in ("", "7", "7:", ":7", "7:-1", "-2:0", "a:b", "1:2:3", " 1:2", "latest"):
        with pytest.raises(BadRequest, match="LEDGER:ENTRY"):
            StreamPosition.parse(wrong)


@pytest.mark.parametrize(
    "settings",
    [
        {"ensemble": 2},
        {"ack_quorum": 4},
        {"ack_quorum": 0},
        {"max_ledger_entries": 0},
        {"max_ledger_seconds": 0},
        {"retention_bytes": -1},
        {"deletion_lag_seconds": -0.1},
    ],
)
def test_settings_that_make_no_sense(settings):
    with pytest.raises(BadRequest):
        StreamSettings(**settings)


sizes = st.lists(st.integers(1, 5), max_size=6)


@given(sizes, st.booleans(), st.integers(0, 10), st.data())
def test_ordinals_and_positions_are_two_names_of_the_same(sizes, has_open, base, data):
    stream = manifest(*sizes, open_at=5 if has_open else None, base=base)
    total = sum(sizes)
    for ordinal in range(base, base + total + 1):
        assert stream.ordinal(stream.position_at(ordinal)) == ordinal
    first, last = sorted(data.draw(st.tuples(st.integers(0, total), st.integers(0, total))))
    spans = stream.spans(stream.position_at(base + first), stream.position_at(base + last))
    covered = [span.ledger.first_ordinal + entry for span in spans for entry in range(span.first, span.last + 1)]
    assert covered == list(range(base + first, base + last))


@given(sizes, st.booleans(), st.data())
def test_what_is_left_keeps_its_ordinals_whatever_is_removed(sizes, has_open, data):
    stream = manifest(*sizes, open_at=5 if has_open else None)
    places = {stream.position_at(ordinal): ordinal for ordinal in range(sum(sizes) + 1)}
    for ledger in stream.ledgers:
        places[P(ledger.ledger_id, 0)] = ledger.first_ordinal
    cuts = data.draw(st.lists(st.integers(0, sum(sizes)), max_size=4))
    for cut in cuts:
        try:
            stream = truncated(stream, stream.position_at(cut), 0) or stream
        except StreamPositionGone:
            assert cut < stream.first_ordinal
    lowest = max(cuts, default=0)
    assert stream.first_ordinal == lowest
    for place, ordinal in places.items():
        if ordinal > lowest:
            assert stream.ordinal(place) == ordinal
        elif ordinal < lowest:
            with pytest.raises(StreamPositionGone):
                stream.resolve(place)
    assert stream.ordinal(stream.earliest) == lowest
