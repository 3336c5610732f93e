"""Entries with chosen ids leave in order, once, and what waits is bounded."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_client.writing.advanced import HeldEntry, ReorderBuffer
from bookie_protocol.errors import BadRequest, DuplicateEntry


class Entry:
    """Stands for a waiter where nobody waits."""


def entry(body=b"x"):
    return HeldEntry(body, Entry())


@given(st.permutations(range(12)))
def test_any_order_of_calls_leaves_in_the_order_of_ids(order):
    buffer = ReorderBuffer(7, 100, 1000)
    sent = []
    for entry_id in order:
        buffer.claim(entry_id)
        if entry_id == buffer.next:
            buffer.sent(entry_id)
            sent.append(entry_id)
            for ready, _ in buffer.ready():
                buffer.sent(ready)
                sent.append(ready)
        else:
            buffer.hold(entry_id, entry())
        assert sent == list(range(len(sent)))
    assert sent == list(range(12))
    assert len(buffer) == 0


def test_an_id_is_taken_once():
    buffer = ReorderBuffer(7, 10, 100)
    buffer.claim(0)
    with pytest.raises(DuplicateEntry, match="ledger 7: entry 0 was appended before"):
        buffer.claim(0)
    buffer.sent(0)
    with pytest.raises(DuplicateEntry):
        buffer.claim(0)
    buffer.claim(5)
    buffer.hold(5, entry())
    with pytest.raises(DuplicateEntry):
        buffer.claim(5)
    with pytest.raises(BadRequest, match="negative"):
        buffer.claim(-1)


def test_an_id_that_was_given_back_can_be_taken_again():
    buffer = ReorderBuffer(7, 10, 100)
    buffer.claim(3)
    buffer.release(3)
    buffer.claim(3)


def test_what_waits_behind_a_gap_is_bounded_in_entries_and_bytes():
    buffer = ReorderBuffer(7, 2, 10)
    assert buffer.has_room(50)  # alone, an entry of any size
    for entry_id, body in ((1, b"12345"), (2, b"1")):
        buffer.claim(entry_id)
        assert buffer.has_room(len(body))
        buffer.hold(entry_id, entry(body))
    assert not buffer.has_room(1)
    buffer.claim(0)
    buffer.sent(0)
    assert [ready for ready, _ in _take(buffer)] == [1, 2]
    buffer.claim(4)
    buffer.hold(4, entry(b"123456"))
    assert not buffer.has_room(5)
    assert buffer.has_room(4)


def _take(buffer):
    taken = []
    for ready in buffer.ready():
        buffer.sent(ready[0])
        taken.append(ready)
    return taken


def test_what_is_left_at_the_end_comes_out_in_order():
    buffer = ReorderBuffer(7, 10, 100)
    for entry_id in (9, 4, 6):
        buffer.claim(entry_id)
        buffer.hold(entry_id, entry())
    assert [entry_id for entry_id, _ in buffer.drain()] == [4, 6, 9]
    assert len(buffer) == 0
    assert buffer.has_room(100)
