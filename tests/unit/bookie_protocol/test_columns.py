"""A field of many records, all values at once."""

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_protocol.columns import byte_column


@given(st.binary(min_size=30, max_size=400), st.integers(0, 30), st.integers(1, 40), st.integers(0, 40))
def test_values_are_slices_of_the_records(data, at, size, behind):
    step = size + behind
    starts = range(at, len(data) - size + 1, step)
    column = byte_column(data, at, size, step, len(starts))
    assert column == [data[start : start + size] for start in starts]
    assert all(type(value) is bytes for value in column)


def test_zeros_at_the_end_of_a_value_stay():
    assert byte_column(bytes(12), 0, 4, 4, 3) == [bytes(4)] * 3


def test_a_record_beyond_the_end_is_refused():
    with pytest.raises(ValueError, match="strides"):
        byte_column(bytes(11), 0, 4, 4, 3)


def test_without_arrays_the_values_are_the_same(monkeypatch):
    """A process that has no descriptor left at the first call cannot load them."""
    data = bytes(range(40))
    expected = byte_column(data, 3, 4, 7, 5)
    monkeypatch.setitem(sys.modules, "numpy", None)
    assert byte_column(data, 3, 4, 7, 5) == expected
    assert byte_column(data, 3, 4, 7, 0) == []
    with pytest.raises(ValueError, match="strides"):
        byte_column(bytes(11), 0, 4, 4, 3)
