"""Entry header and LAC packet."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_protocol.entry import (
    ENTRY_HEADER,
    EntryHeader,
    LacPacketHeader,
    read_header,
    read_lac_packet,
    read_prefix,
)
from bookie_protocol.errors import BadRequest

I64 = st.integers(-(2**63), 2**63 - 1)


@given(I64, I64, I64, I64, st.binary(max_size=20), st.sampled_from([bytes, bytearray, memoryview]))
def test_fields_come_back_from_any_buffer_and_offset(ledger_id, entry_id, lac, length, before, kind):
    entry = kind(before + ENTRY_HEADER.pack(ledger_id, entry_id, lac, length) + b"rest")
    offset = len(before)
    assert read_header(entry, offset) == EntryHeader(ledger_id, entry_id, lac, length)
    assert read_prefix(entry[offset:]) == (ledger_id, entry_id, lac)


@pytest.mark.parametrize(("read", "needed"), [(read_header, 32), (read_prefix, 24)])
def test_one_byte_less_is_a_bad_request_that_names_the_sizes(read, needed):
    read(bytes(needed))
    with pytest.raises(BadRequest, match=f"entry of {needed - 1} bytes.*{needed} bytes"):
        read(bytes(needed - 1))


def test_lac_packet_of_the_reference():
    packet = bytes.fromhex("000000000000000700000000000000039640a704")
    assert read_lac_packet(packet) == LacPacketHeader(ledger_id=7, lac=3)
    with pytest.raises(BadRequest, match="of 15 bytes"):
        read_lac_packet(packet[:15])
