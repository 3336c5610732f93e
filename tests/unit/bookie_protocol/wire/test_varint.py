"""Varints against the protobuf runtime."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bookie_protocol.errors import ProtocolViolation
from bookie_protocol.wire import bookkeeper_pb2 as pb
from bookie_protocol.wire.varint import (
    consecutive_varints,
    decode_int64,
    decode_uint64,
    encode_varint,
    varint_size,
)

EDGES = [0, 1, 127, 128, 2**63 - 1, -1, -(2**63), *(2**bits + off for bits in range(14, 63, 7) for off in (-1, 0))]


@given(st.integers(-(2**63), 2**63 - 1))
def test_same_bytes_as_protobuf(value):
    raw = encode_varint(value)
    assert pb.ReadLacRequest(ledgerId=value).SerializeToString() == b"\x08" + raw
    assert decode_int64(raw) == value
    assert decode_uint64(raw) == value % 2**64
    assert varint_size(raw + b"\x80", 0) == len(raw)


@pytest.mark.parametrize("value", EDGES)
def test_edges(value):
    raw = encode_varint(value)
    assert decode_int64(raw) == value
    assert pb.ReadLacRequest(ledgerId=value).SerializeToString() == b"\x08" + raw


@given(st.binary(min_size=1, max_size=12))
@example(bytes.fromhex("ffffffffffffffffff7f"))
@example(b"\x80\x00")
def test_reads_what_protobuf_reads(raw):
    try:
        message = pb.ReadLacRequest.FromString(b"\x08" + raw)
    except Exception:
        message = None
    size = varint_size(raw, 0)
    if message is None or size != len(raw):
        assert message is not None or size != len(raw)
        return
    assert decode_int64(raw) == message.ledgerId


def test_what_is_not_one_varint_is_refused():
    for raw in (b"", b"\x80", b"\x01\x01", b"\x80" * 10 + b"\x01"):
        with pytest.raises(ProtocolViolation):
            decode_int64(raw)
    for value in (2**64, -(2**63) - 1):
        with pytest.raises(ValueError, match="64 bits"):
            encode_varint(value)
    assert encode_varint(2**64 - 1) == b"\xff" * 9 + b"\x01"


@given(
    st.one_of(
        st.integers(0, 2**63 - 2000),
        *(st.integers(max(0, edge - 100), edge + 100) for edge in (2**7, 2**14, 2**28, 2**35)),
    ),
    st.integers(1, 300),
)
def test_consecutive_numbers_are_encoded_as_each_alone(first, count):
    assert consecutive_varints(first, count) == [encode_varint(value) for value in range(first, first + count)]
