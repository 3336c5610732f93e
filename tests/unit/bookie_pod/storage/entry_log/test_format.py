"""Bytes of the format, against the worked example of the reference."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_pod.storage.entry_log import format as fmt
from bookie_pod.storage.log_ids import MAX_LOG_ID


def test_header_of_a_log_being_written() -> None:
    header = fmt.encode_header()
    assert len(header) == 1024
    assert header[:20] == bytes.fromhex("424b4c4f 00000001 0000000000000000 00000000")
    assert header[20:32] == bytes(8) + b"PKLG"
    assert not any(header[32:])


def test_header_of_the_worked_example() -> None:
    header = fmt.decode_header(bytes.fromhex("424b4c4f00000001000000000000042d00000001"))
    assert header == fmt.LogHeader(b"BKLO", 1, 0x42D, 1)
    assert header.has_map


@pytest.mark.parametrize(
    "header",
    [
        fmt.LogHeader(version=0, map_offset=2000, ledger_count=1),
        fmt.LogHeader(map_offset=0, ledger_count=1),
        fmt.LogHeader(map_offset=-5, ledger_count=1),
        fmt.LogHeader(map_offset=2000, ledger_count=0),
        fmt.LogHeader(map_offset=2000, ledger_count=-1),
    ],
)
def test_headers_without_a_map(header: fmt.LogHeader) -> None:
    assert not header.has_map


def test_a_short_header_is_refused() -> None:
    with pytest.raises(ValueError, match="19 bytes"):
        fmt.decode_header(bytes(19))


def test_map_of_the_worked_example() -> None:
    assert b"".join(fmt.encode_ledgers_map({7: 45})) == bytes.fromhex(
        "00000024 ffffffffffffffff fffffffffffffffe 00000001 0000000000000007 000000000000002d"
    )


def test_map_batches_hold_ten_thousand_ledgers() -> None:
    batches = fmt.encode_ledgers_map(dict.fromkeys(range(25_000), 9))
    assert [fmt.MAP_HEAD.unpack_from(batch) for batch in batches] == [
        (20 + 16 * count, -1, -2, count) for count in (10_000, 10_000, 5_000)
    ]
    assert [len(batch) for batch in batches] == [24 + 16 * count for count in (10_000, 10_000, 5_000)]


def test_no_ledgers_no_map() -> None:
    assert fmt.encode_ledgers_map({}) == []


def test_location_of_the_worked_example() -> None:
    assert fmt.make_location(5, 0x404) == 21474837508
    assert fmt.split_location(21474837508) == (5, 0x404)


@given(st.integers(0, MAX_LOG_ID), st.integers(0, 2**31 - 1))
def test_location_round_trip(log_id: int, position: int) -> None:
    assert fmt.split_location(fmt.make_location(log_id, position)) == (log_id, position)


def test_direct_header_covers_a_block() -> None:
    block = fmt.encode_direct_header()
    assert len(block) == 4096
    assert block[:1024] == fmt.encode_header()
    assert block[1024:1036] == bytes.fromhex("00000bfc ffffffffffffffff")
    assert 1024 + 4 + 0xBFC == 4096


def test_next_block() -> None:
    assert [fmt.next_block(p) for p in (0, 1, 4095, 4096, 4097)] == [4096, 4096, 4096, 8192, 8192]


def test_the_check_sum_of_a_map_lies_in_the_28_bytes_that_a_log_begins_with() -> None:
    pointer = fmt.encode_map_pointer(2000, 3, b"map")
    header = fmt.encode_header()[:8] + pointer
    assert len(header) == 28
    assert fmt.map_checksum_in(header) == fmt.map_checksum(pointer[:12], b"map")
    assert fmt.map_checksum_in(header[:27]) is None
    assert fmt.map_checksum_in(fmt.encode_header()) is None
