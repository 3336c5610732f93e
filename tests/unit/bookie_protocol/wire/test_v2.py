"""The binary protocol: round trips, worked hex of the reference, header words, refusals.

Entries in the answer to a batch read.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.errors import ProtocolViolation, V2Code
from bookie_protocol.keys import master_key
from bookie_protocol.wire import v2
from bookie_protocol.wire.auth import AUTH_DISABLED_ANSWER
from bookie_protocol.wire.v2 import (
    ACCEPTED_VERSIONS,
    ADD_HEADER,
    Flag,
    OpCode,
    PackedEntries,
    carries_key,
    header_word,
    response_prefix,
    split_word,
)
from tests.support.packed import packed
from tests.support.v2_frames import encode_add_request, reencode_request, reencode_response

I32 = st.integers(-(2**31), 2**31 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
FLAGS = st.integers(0, 0xFFFF)
KEY = st.binary(min_size=20, max_size=20)
ENTRY = st.binary(min_size=16, max_size=100)

SECRET = master_key(b"secret")
HELLO = digest_manager(DigestType.CRC32C, b"secret").encode(7, 3, 2, 20, b"hello")
IDS = "00000000000000070000000000000003"


def test_worked_hex_of_requests():
    assert encode_add_request(SECRET, HELLO) == (bytes.fromhex("00000041 02010000") + SECRET + HELLO)
    assert encode_add_request(SECRET, HELLO, 6)[4:8].hex() == "02010006"
    assert v2.encode_read_request(7, 3).hex() == "0000001402020000" + IDS
    assert v2.encode_read_request(7, -1, Flag.DO_FENCING, SECRET).hex() == (
        "00000028020200010000000000000007ffffffffffffffff" + SECRET.hex()
    )
    assert v2.encode_batch_read_request(7, 0, 11, 10, 1 << 20).hex() == (
        "00000028" "02070000" "0000000000000007" "0000000000000000"
        "000000000000000b" "0000000a" "0000000000100000"
    )  # fmt: skip


def test_worked_hex_of_responses():
    assert v2.encode_response(2, OpCode.ADDENTRY, 0, 7, 3).hex() == "000000180201000000000000" + IDS
    assert v2.encode_response(2, OpCode.READENTRY, V2Code.ENOENTRY, 7, 3).hex() == ("000000180202000000000002" + IDS)
    assert b"".join(v2.encode_read_response(2, 7, 3, HELLO)).hex() == ("000000410202000000000000" + IDS + HELLO.hex())
    batch = b"".join(v2.encode_batch_read_response(2, 0, 7, 0, 11, [HELLO]))
    assert batch[4:].hex() == (
        "02070000" "00000000" "0000000000000007" "0000000000000000" "000000000000000b" "00000029" + HELLO.hex()
    )  # fmt: skip
    assert v2.encode_auth(AUTH_DISABLED_ANSWER).hex() == (
        "0000001a" "02030000" "0a12" "4175746844697361626c6564506c7567696e" "1200"
    )  # fmt: skip


def test_the_hot_path_of_an_add():
    body = encode_add_request(SECRET, HELLO, 6)[4:]
    word, key, ledger_id, entry_id, lac = ADD_HEADER.unpack_from(body)
    assert (split_word(word), key, ledger_id, entry_id, lac) == ((2, 1, 6), SECRET, 7, 3, 2)
    prefix = response_prefix(2, OpCode.ADDENTRY, V2Code.EOK)
    assert prefix + body[24:40] == v2.encode_response(2, OpCode.ADDENTRY, 0, 7, 3)


@pytest.mark.parametrize(
    ("word", "parts"),
    [
        (0x00000001, (0, 1, 0)),
        (0x00FFFF07, (0, 7, 0)),
        (0x01020005, (1, 2, 5)),
        (0x0201FFF8, (2, 1, 0xFFF8)),
        (0xFF010000, (255, 1, 0)),
    ],
)
def test_header_words(word, parts):
    assert split_word(word) == parts
    if word != 0x00FFFF07:
        assert header_word(*parts) == word


def test_answers_to_version_0_hold_the_opcode_alone():
    assert v2.encode_response(0, OpCode.ADDENTRY, 0, 7, 3)[4:8].hex() == "00000001"


def versions_and_flags():
    return st.one_of(st.tuples(st.just(0), st.just(0)), st.tuples(st.integers(1, 255), FLAGS))


@given(versions_and_flags(), KEY, ENTRY)
def test_add_round_trip(head, key, entry):
    version, flags = head
    frame = encode_add_request(key, entry, flags, version)
    request = v2.decode_request(memoryview(frame)[4:])
    assert isinstance(request, v2.AddRequest)
    assert request[:3] == (version, flags, key)
    assert request.entry == entry
    assert request.ledger_id == int.from_bytes(entry[:8], signed=True)
    assert request.entry_id == int.from_bytes(entry[8:16], signed=True)
    assert reencode_request(request) == frame


@given(versions_and_flags(), KEY, I64, I64, I64, I32, I64, I32)
def test_read_round_trips(head, key, ledger_id, entry_id, request_id, max_count, max_size, step):
    version, flags = head
    stepped = step != 1 and version > 0
    step, flags = (step, flags | Flag.STEPPED) if stepped else (1, flags & ~Flag.STEPPED)
    sent_key = key if carries_key(version, flags) else b""
    read = v2.encode_read_request(ledger_id, entry_id, flags, sent_key, version)
    assert v2.decode_request(read[4:]) == v2.ReadRequest(version, flags, ledger_id, entry_id, sent_key or None)
    batch = v2.encode_batch_read_request(
        ledger_id, entry_id, request_id, max_count, max_size, flags, sent_key, version, step
    )
    assert v2.decode_request(batch[4:]) == v2.BatchReadRequest(
        version, flags, ledger_id, entry_id, request_id, max_count, max_size, sent_key or None, step
    )
    for missing in range(1, 5) if stepped else ():
        with pytest.raises(ProtocolViolation):
            v2.decode_request(batch[4:-missing])


@given(st.integers(0, 255), I32, I64, I64, I64, st.lists(ENTRY, max_size=5))
def test_response_round_trips(version, code, ledger_id, entry_id, request_id, entries):
    stepped = version > 0 and code % 2 > 0
    flags = Flag.STEPPED | Flag.HIGH_PRIORITY if stepped else Flag.NONE
    batch = v2.encode_batch_read_response(version, code, ledger_id, entry_id, request_id, entries, flags)
    frame = b"".join(batch)
    assert int.from_bytes(frame[:4]) == len(frame) - 4
    decoded = v2.decode_response(frame[4:])
    assert decoded[:-1] == (version, code, ledger_id, entry_id, request_id)
    assert decoded.entries.split() == entries
    assert decoded.entries.stepped == stepped
    for opcode in (OpCode.ADDENTRY, OpCode.READENTRY):
        frame = v2.encode_response(version, opcode, code, ledger_id, entry_id)
        assert v2.decode_response(frame[4:]) == v2.Response(version, opcode, code, ledger_id, entry_id, b"")
    for entry in entries:
        frame = b"".join(v2.encode_read_response(version, ledger_id, entry_id, entry))
        response = v2.decode_response(frame[4:])
        assert response == v2.Response(version, OpCode.READENTRY, 0, ledger_id, entry_id, entry)
        assert reencode_response(response) == frame


@pytest.mark.parametrize("version", [0, 1, 3, 9, 127, 128, 255])
def test_other_versions_decode_so_that_they_can_be_answered(version):
    body = encode_add_request(SECRET, HELLO, 0, version)[4:]
    request = v2.decode_request(body)
    assert (request.version, request.ledger_id, request.entry_id) == (version, 7, 3)
    assert (version in ACCEPTED_VERSIONS) is (version < 2)


def test_versions_that_count_as_negative_carry_no_fencing_key():
    # 0xff is -1: below 2, so no key is read although the flag is set.
    body = v2.encode_read_request(7, -1, Flag.DO_FENCING, b"", 0xFF)[4:]
    assert v2.decode_request(body).master_key is None


@pytest.mark.parametrize("opcode", [0, 4, 5, 6, 8, 99, 255])
def test_opcodes_that_are_not_decodable(opcode):
    with pytest.raises(ProtocolViolation, match=f"opcode {opcode} is"):
        v2.decode_request(bytes((2, opcode, 0, 0)) + bytes(40))
    with pytest.raises(ProtocolViolation, match=f"opcode {opcode} is"):
        v2.decode_response(bytes((2, opcode, 0, 0)) + bytes(40))


def test_every_cut_of_the_fixed_part_is_a_violation():
    requests = [
        (encode_add_request(SECRET, HELLO), 40),
        (v2.encode_read_request(7, 3), 20),
        (v2.encode_read_request(7, 3, 1, SECRET), 40),
        (v2.encode_batch_read_request(7, 0, 11, 10, 100), 40),
        (v2.encode_batch_read_request(7, 0, 11, 10, 100, 1, SECRET), 60),
    ]
    for frame, fixed in requests:
        v2.decode_request(frame[4 : 4 + fixed])
        for size in range(fixed):
            with pytest.raises(ProtocolViolation, match=f"of {size} bytes is"):
                v2.decode_request(frame[4 : 4 + size])


def test_every_cut_of_a_response_is_a_violation_or_a_whole_number_of_entries():
    body = b"".join(v2.encode_batch_read_response(2, 0, 7, 0, 11, [HELLO, HELLO]))[4:]
    whole = {32, 32 + 45, 32 + 90}
    for size in range(len(body) + 1):
        if size in whole:
            assert v2.decode_response(body[:size]).entries.split() == [HELLO] * ((size - 32) // 45)
        else:
            with pytest.raises(ProtocolViolation):
                v2.decode_response(body[:size]).entries.split()
    with pytest.raises(ProtocolViolation, match="entry of -1 bytes"):
        v2.decode_response(body[:32] + b"\xff" * 4).entries.split()
    for size in range(24):
        with pytest.raises(ProtocolViolation):
            v2.decode_response(v2.encode_response(2, 1, 0, 7, 3)[4 : 4 + size])


@given(st.lists(st.binary(max_size=50), max_size=8))
def test_they_are_split_as_they_were_packed(entries):
    assert packed(entries).split() == entries
    assert packed(entries).is_empty is (not entries)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"\0\0\0", "length"),
        (b"\0\0\0\1a\0\0", "length"),
        (b"\0\0\0\5abcd", "5 bytes"),
        (b"\xff\xff\xff\xffabcd", "-1 bytes"),
    ],
)
def test_lengths_that_do_not_fit_are_told(body, words):
    with pytest.raises(ProtocolViolation, match=words):
        PackedEntries(body).split()
