"""Entries in the answer to a batch read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_protocol.errors import ProtocolViolation
from bookie_protocol.wire.packed_entries import PackedEntries
from tests.support.packed import packed


@given(st.lists(st.binary(max_size=50), max_size=8))
def test_they_are_split_as_they_were_packed(entries):
    assert packed(entries).split() == entries
    assert packed(entries).is_empty is (not entries)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"\0\0\0", "within the length"),
        (b"\0\0\0\1a\0\0", "within the length"),
        (b"\0\0\0\5abcd", "5 bytes beyond its end"),
        (b"\xff\xff\xff\xffabcd", "-1 bytes beyond its end"),
    ],
)
def test_lengths_that_do_not_fit_are_told(body, words):
    with pytest.raises(ProtocolViolation, match=words):
        PackedEntries(body).split()
