"""Columns of entries in their answer are those of the same entries as objects."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_bookie.source.reading import columns
from pyspark_bookie.source.reading.columns import LARGE, columns_of
from tests.unit.bookie_client.reading.test_entry import batch_of


def taken(entries):
    """Sizes, payloads one behind the other, last adds confirmed."""
    found = columns_of(entries)
    sizes, lacs = found.sizes(), found.lacs()
    assert (sizes.dtype, lacs.dtype) == (np.int32, np.int64)
    values = np.full(int(sizes.sum()), 255, np.uint8)
    found.copy_payloads(values)
    return sizes.tolist(), values.tobytes(), lacs.tolist()


ANY = st.lists(st.binary(max_size=40), min_size=1, max_size=12)
OF_ONE_SIZE = st.integers(0, 40).flatmap(
    lambda size: st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=12)
)


@given(
    payloads=ANY | OF_ONE_SIZE, in_front=st.binary(max_size=9), cut=st.tuples(st.integers(0, 11), st.integers(1, 12))
)
def test_they_are_those_of_the_entries(payloads, in_front, cut):
    batch, expected = batch_of(payloads, in_front)
    wanted = [len(each) for each in payloads], b"".join(payloads), [entry.lac for entry in expected]
    assert taken(batch) == taken(expected) == wanted
    start, stop = min(cut[0], len(batch) - 1), max(cut[0] + 1, cut[1])
    assert taken(batch[start:stop]) == taken(expected[start:stop])


@pytest.mark.parametrize("sizes", [[LARGE, LARGE + 1], [3 * LARGE, 0, 1]])
def test_large_ones_of_different_sizes(monkeypatch, sizes):
    monkeypatch.setattr(columns._Packed, "_gathered", lambda self: pytest.fail("large payloads are not gathered"))
    batch, expected = batch_of([bytes([number + 1]) * size for number, size in enumerate(sizes)])
    assert taken(batch) == taken(expected)
