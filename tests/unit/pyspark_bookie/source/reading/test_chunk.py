"""Archived entries in the buffers of Arrow behave as a list of them does."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_client.reading.entry import LedgerEntry
from pyspark_bookie.source.reading.arrow import batches
from pyspark_bookie.source.reading.chunk import UNKNOWN_LAC, ArchivedEntries, Chunk
from tests.unit.pyspark_bookie.source.reading.columns import schema, taken
from tests.unit.pyspark_bookie.source.snapshots import ledger

LEDGER, FIRST = 7, 100


def archived(payloads, *, with_lacs=True):
    """A batch as files give it, in which others lie in front; and the entries that it has to have."""
    ids = range(FIRST - 2, FIRST + len(payloads))
    columns = {"entry_id": pa.array(ids, pa.int64()), "value": pa.array([b"in", b"front", *payloads], pa.binary())}
    if with_lacs:
        columns["lac"] = pa.array([each - 3 for each in ids], pa.int64())
    batch = pa.RecordBatch.from_pydict(columns).slice(2)
    expected = [
        LedgerEntry(LEDGER, each, 0, payload, each - 3 if with_lacs else UNKNOWN_LAC)
        for each, payload in enumerate(payloads, FIRST)
    ]
    return ArchivedEntries.of(LEDGER, batch), expected


PAYLOADS = st.lists(st.binary(max_size=20), min_size=1, max_size=8)
PLACES = st.none() | st.integers(-9, 9)


@given(PAYLOADS, st.booleans(), PLACES, PLACES, st.sampled_from([None, 1, 2, -1]))
def test_they_are_a_list(payloads, with_lacs, start, stop, step):
    entries, expected = archived(payloads, with_lacs=with_lacs)
    assert list(entries) == expected
    assert [entries[place] for place in range(-len(entries), len(entries))] == expected * 2
    assert (len(entries), entries.nbytes, entries.first) == (len(expected), sum(map(len, payloads)), FIRST)
    part = entries[start:stop:step]
    assert list(part) == expected[start:stop:step]
    assert taken(entries) == taken(expected)
    if isinstance(part, ArchivedEntries):
        assert taken(part) == taken(list(part))
    with pytest.raises(IndexError):
        entries[len(expected)]


@given(PAYLOADS, st.integers(1, 60))
def test_pieces_are_as_large_as_they_may_be(payloads, limit):
    entries, expected = archived(payloads)
    pieces = list(entries.pieces(limit))
    assert [entry for piece in pieces for entry in piece] == expected
    for piece, following in zip(pieces, [*pieces[1:], None], strict=True):
        assert piece.nbytes <= limit or len(piece) == 1
        assert following is None or piece.nbytes + len(following[0].payload) > limit


def test_without_the_last_add_confirmed_and_without_any_byte():
    entries, _ = archived([b"", b""], with_lacs=False)
    (made,) = batches([Chunk(ledger(LEDGER, 200), entries)], schema(), 10)
    assert [(row["entry_id"], row["value"], row["lac"]) for row in made.to_pylist()] == [
        (100, b"", None),
        (101, b"", None),
    ]


@given(PAYLOADS, st.integers(1, 60))
def test_slices_of_a_chunk_are_as_large_as_they_may_be(payloads, limit):
    """Of any entries, with what is known of each row."""
    _, expected = archived(payloads)
    wrong = [None if len(each) % 2 else "odd" for each in payloads]
    pieces = list(Chunk(ledger(LEDGER, 200), expected, None, wrong).slices(limit))
    assert [entry for piece in pieces for entry in piece.entries] == expected
    assert [text for piece in pieces for text in piece.corrupt] == wrong
    for piece, following in zip(pieces, [*pieces[1:], None], strict=True):
        assert piece.nbytes <= limit or len(piece.entries) == 1
        assert following is None or piece.nbytes + len(following.entries[0].payload) > limit
