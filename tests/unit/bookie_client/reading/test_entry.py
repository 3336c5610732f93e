"""Entries in the answer that they came in behave as a list of them does."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_client.reading.entry import EntryBatch, LedgerEntry, payload_bytes, payloads_of
from tests.support.packed import FIRST, LEDGER, batch_of


@given(payloads=st.lists(st.binary(max_size=60), min_size=1, max_size=12), in_front=st.binary(max_size=5))
def test_it_has_the_entries_of_a_list(payloads, in_front):
    batch, expected = batch_of(payloads, in_front)
    assert list(batch) == expected
    assert [batch[place] for place in range(-len(batch), len(batch))] == expected + expected
    assert (len(batch), batch.nbytes) == (len(expected), sum(map(len, payloads)))
    assert list(map(bytes, batch.payloads())) == payloads
    assert all(type(entry) is LedgerEntry and type(entry.payload) is bytes for entry in batch)


@given(st.integers(0, 40), st.integers(1, 12), st.data())
def test_entries_of_one_size_are_taken_apart_as_others_are(size, count, data):
    payloads = data.draw(st.lists(st.binary(min_size=size, max_size=size), min_size=count, max_size=count))
    found, expected = batch_of(payloads)
    stride = found.payload_at + size
    starts = range(found.starts[0], found.starts[-1] + 1, stride)
    batch = EntryBatch(LEDGER, FIRST, found.body, starts, found.payload_at)
    assert (list(starts), batch.nbytes) == (list(found.starts), found.nbytes)
    assert list(batch) == list(found) == expected
    part = batch[count // 2 : count]
    assert isinstance(part.starts, range)
    assert list(part) == expected[count // 2 :]


@given(
    payloads=st.lists(st.binary(max_size=9), min_size=1, max_size=8),
    start=st.none() | st.integers(-9, 9),
    stop=st.none() | st.integers(-9, 9),
    step=st.none() | st.integers(-3, 3).filter(bool),
)
def test_a_part_of_it_is_a_part_of_the_list(payloads, start, stop, step):
    batch, expected = batch_of(payloads)
    part, wanted = batch[start:stop:step], expected[start:stop:step]
    assert list(part) == wanted
    assert payload_bytes(part) == sum(len(entry.payload) for entry in wanted)
    assert [bytes(payload) for payload in payloads_of(part)] == [entry.payload for entry in wanted]


def test_a_part_stays_in_the_answer():
    batch, expected = batch_of([b"one", b"", b"three", b"four"])
    assert isinstance(batch[1:3], EntryBatch)
    assert batch[1:3][1:][0] == expected[2]


@pytest.mark.parametrize("place", [2, -3, 100])
def test_there_is_nothing_outside(place):
    batch, _ = batch_of([b"one", b"two"])
    with pytest.raises(IndexError):
        batch[place]


def test_it_equals_a_list_of_the_same_entries():
    batch, expected = batch_of([b"one", b"two"])
    assert batch == expected
    assert batch != expected[:1]
    assert batch[:1] == batch_of([b"one"])[0]
    assert batch != "two"
    assert repr(batch) == "<2 entries of ledger 7 from 100 on, 6 bytes>"


def test_a_list_counts_as_a_batch_does():
    entries = [LedgerEntry(LEDGER, 0, 3, b"one"), LedgerEntry(LEDGER, 1, 8, b"three")]
    assert payload_bytes(entries) == 8
    assert payloads_of(entries) == [b"one", b"three"]
