"""Compressed blocks, of exactly the size that was told."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_protocol.compression import decompressed

CODECS = pytest.mark.parametrize("codec", ["lz4_raw", "snappy", "zstd"])


@CODECS
@given(data=st.binary(min_size=1, max_size=300) | st.integers(1, 5000).map(lambda size: b"a" * size))
def test_exactly_what_was_compressed(codec, data):
    block = bytes(pa.Codec(codec).compress(data, asbytes=True))
    assert decompressed(codec, block, len(data)) == data
    for wrong in (0, len(data) - 1, len(data) + 1, 2 * len(data) + 100):
        with pytest.raises(ValueError, match=f"{wrong} bytes of {codec}"):
            decompressed(codec, block, wrong)


@given(st.binary(max_size=100), st.integers(0, 1000))
def test_any_bytes_are_a_block_or_none(data, size):
    try:
        assert len(decompressed("lz4_raw", data, size)) == size
    except ValueError:
        pass


def test_a_block_of_nothing():
    assert decompressed("lz4_raw", b"\0", 0) == b""
    with pytest.raises(ValueError, match="no 0 bytes of lz4_raw"):
        decompressed("lz4_raw", b"", 0)
