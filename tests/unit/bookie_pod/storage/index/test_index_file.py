"""The format of index files, against files that the reference wrote."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import google_crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_pod.storage.index.index_file import (
    HEADER_BYTES,
    decode_header,
    encode_header,
    is_newer,
    parse_name,
    relative_path,
    slot_offset,
)
from bookie_pod.storage.index.ledger_data import MAX_KEY_BYTES, LedgerRecord
from bookie_protocol.errors import StorageFault

GOLDEN = Path(__file__).parents[4] / "golden"
FILES = sorted(GOLDEN.glob("disk-*/0/*/*.idx"))
KEY = bytes(range(20))


def test_there_are_golden_files() -> None:
    assert len(FILES) == 16


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parents[2].name}-{path.name}")
def test_headers_of_the_reference_are_read_and_written_byte_for_byte_but_for_our_check(path: Path) -> None:
    header = path.read_bytes()[:HEADER_BYTES]
    decoded = decode_header(header)
    assert decoded is not None
    version, record = decoded
    assert version == 1
    assert len(record.key) == 20
    ours = encode_header(record, version)
    assert ours[504:508] == b"PKHC"
    assert ours[:504] + bytes(8) + ours[512:] == header
    assert record.fenced == (path.stem in ("7", "1b"))
    assert (record.explicit_lac is not None) == (path.stem == "7")
    assert relative_path(parse_name(path.name)) == str(path.relative_to(path.parents[2]))


@pytest.mark.parametrize(
    ("ledger_id", "path"),
    [
        (0, "0/0/0.idx"),
        (5, "0/5/5.idx"),
        (0x1234, "12/34/1234.idx"),
        (0x123456, "34/56/123456.idx"),
        ((1 << 63) - 1, "ff/ff/7fffffffffffffff.idx"),
        (-2, "ff/fe/fffffffffffffffe.idx"),
    ],
)
def test_paths(ledger_id: int, path: str) -> None:
    assert relative_path(ledger_id) == path
    name = path.rsplit("/", 1)[1]
    assert parse_name(name) == ledger_id
    assert parse_name(f"{name}.rloc") == ledger_id


@pytest.mark.parametrize("name", ["x.idx", "05.idx", "5", "5.log", ".idx", "1ffffffffffffffff.idx", "-5.idx", "A.idx"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError):
        parse_name(name)


@given(
    key=st.binary(max_size=MAX_KEY_BYTES),
    fenced=st.booleans(),
    limbo=st.booleans(),
    lac=st.none() | st.binary(min_size=16, max_size=400),
    version=st.sampled_from([0, 1]),
)
def test_a_header_comes_back(key: bytes, fenced: bool, limbo: bool, lac: bytes | None, version: int) -> None:
    record = LedgerRecord(key, fenced, limbo, lac)
    header = encode_header(record, version)
    assert len(header) == HEADER_BYTES
    kept = record if version else LedgerRecord(key, fenced, limbo)
    assert decode_header(header) == (version, kept)


@given(st.binary(max_size=80))
def test_any_bytes_are_a_header_no_header_or_damage(data: bytes) -> None:
    try:
        decode_header(data)
    except StorageFault:
        assert len(data) >= 12


def test_a_header_that_was_never_finished_is_no_header() -> None:
    header = encode_header(LedgerRecord(KEY, explicit_lac=bytes(range(20))))
    for length in (0, 3, 11, 12, 31, 35, 39, 59):
        assert decode_header(header[:length]) is None
    assert decode_header(bytes(HEADER_BYTES)) is None
    assert decode_header(header[:60]) is not None


@pytest.mark.parametrize(
    ("offset", "data", "message"),
    [
        (0, b"BKLO", "begins"),
        (4, b"\0\0\0\2", "version 2"),
        (4, b"\xff\xff\xff\xff", "version -1"),
        (8, b"\xff\xff\xff\xff", "key of -1"),
        (8, b"\0\0\x04\0", "fields"),
        (36, b"\0\0\0\x0f", "explicit LAC of 15"),
        (36, b"\xff\xff\xff\xff", "explicit LAC of -1"),
        (36, b"\0\0\x04\0", "fields"),
    ],
)
def test_damage_is_told(offset: int, data: bytes, message: str) -> None:
    header = bytearray(encode_header(LedgerRecord(KEY)))
    header[offset : offset + len(data)] = data
    with pytest.raises(StorageFault, match="checksum"):
        decode_header(bytes(header))
    header[504:512] = bytes(8)  # as the reference writes it
    with pytest.raises(StorageFault, match=message):
        decode_header(bytes(header))


@pytest.mark.parametrize("record", [LedgerRecord(KEY, fenced=True), LedgerRecord(KEY, explicit_lac=bytes(40))])
def test_no_bit_changes_what_a_header_says(record: LedgerRecord) -> None:
    header = encode_header(record)
    taken = set()
    for bit in range(8 * 512):
        changed = bytearray(header)
        changed[bit // 8] ^= 1 << bit % 8
        assert not is_newer(bytes(changed))
        with suppress(StorageFault):
            assert decode_header(bytes(changed)) == (1, record)
            taken.add(bit // 8)
    assert taken == {504, 505, 506, 507}  # then there is no check, and nothing else is wrong


def test_a_header_of_a_release_to_come_is_told_from_damage() -> None:
    newer = bytearray(encode_header(LedgerRecord(KEY)))
    newer[7] = 9
    assert not is_newer(bytes(newer))
    newer[508:512] = google_crc32c.value(bytes(newer[:504])).to_bytes(4)
    assert is_newer(bytes(newer))
    assert is_newer(bytes(newer[:504]) + bytes(520))


def test_a_key_that_does_not_fit_is_refused_and_a_lac_that_does_not_is_left_out() -> None:
    with pytest.raises(StorageFault, match="1005 bytes"):
        encode_header(LedgerRecord(bytes(1005)))
    header = encode_header(LedgerRecord(b"k" * 512, fenced=True, explicit_lac=b"l" * 500))
    assert decode_header(header) == (1, LedgerRecord(b"k" * 512, fenced=True))


def test_slots() -> None:
    assert slot_offset(3) == 1048
    assert slot_offset(5000) == 1024 + 40_000
