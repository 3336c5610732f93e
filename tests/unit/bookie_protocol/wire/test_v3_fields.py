"""Requests made of millions of fields are told from others without making anything of them."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_protocol.wire import bookkeeper_pb2 as pb
from bookie_protocol.wire.v3_fields import MANY_FIELDS, SMALL_BYTES, has_many_fields
from tests.support.frames import entry, v3_add

HEADER = pb.Request(
    header=pb.BKPacketHeader(version=pb.VERSION_THREE, operation=pb.READ_ENTRY, txnId=1)
).SerializeToString()
UNKNOWN = {
    "varint": b"\x98\x06\x01",
    "fixed64": b"\x99\x06" + bytes(8),
    "fixed32": b"\x9d\x06" + bytes(4),
    "bytes": b"\x9a\x06\x01x",
    "empty groups": b"\x9b\x06\x9c\x06",
    "groups that do not end": b"\x9b\x06",
    "contexts": pb.Request(requestContext=[pb.ContextPair()]).SerializePartialToString(),
}


def inside_the_add(fields: bytes) -> bytes:
    """Fields of a sub-message."""
    return b"\xaa\x06" + _varint(len(fields)) + fields


def _varint(value: int) -> bytes:
    out = b""
    while value > 0x7F:
        out += bytes((value & 0x7F | 0x80,))
        value >>= 7
    return out + bytes((value,))


@pytest.mark.parametrize("kind", UNKNOWN)
@pytest.mark.parametrize("nested", [False, True], ids=["outer", "inner"])
def test_many_fields(kind: str, nested: bool) -> None:
    some = UNKNOWN[kind] * max(MANY_FIELDS, SMALL_BYTES)
    assert has_many_fields(HEADER + (inside_the_add(some) if nested else some))


@pytest.mark.parametrize("end", [b"\x98", b"\x98\x06", b"\x9a\x06\xff", b"\x9a\x06\x05x", b"\x98\x06" + b"\xff" * 20])
def test_a_field_without_an_end_hides_none_before_it(end: bytes) -> None:
    assert has_many_fields(HEADER + inside_the_add(UNKNOWN["varint"] * 10 * MANY_FIELDS) + end)
    assert not has_many_fields(v3_add(entry(1, 0, bytes(1000)))[4:] + end)


def test_the_count_ends_early() -> None:
    body = HEADER + UNKNOWN["varint"] * 1_700_000
    begin = time.process_time()
    assert has_many_fields(body)
    assert time.process_time() - begin < 0.05


@pytest.mark.parametrize("size", [0, 1000, 1 << 20])
def test_an_entry_is_one_field_whatever_is_in_it(size: int) -> None:
    payload = (UNKNOWN["varint"] * (size // 3 + 1))[:size]
    assert not has_many_fields(v3_add(entry(1, 0, payload))[4:])


@given(st.binary(max_size=2000))
def test_any_bytes_are_counted_and_nothing_is_raised(body: bytes) -> None:
    assert has_many_fields(body) in (False, True)
    assert not has_many_fields(body[:SMALL_BYTES])
