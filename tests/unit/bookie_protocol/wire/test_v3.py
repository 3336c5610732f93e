"""Generated messages, telling v3 from v2, envelopes of answers.

Requests made of millions of fields are told from others without making anything of them.
"""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_protocol.errors import ProtocolViolation, V3Status
from bookie_protocol.wire import bookkeeper_pb2 as pb
from bookie_protocol.wire import v3
from bookie_protocol.wire.v3 import MANY_FIELDS, SMALL_BYTES, has_many_fields
from tests.support import golden_frames
from tests.support.frames import entry, v3_add

HEADER = bytes.fromhex("0a06080310011803")
READ = bytes.fromhex("a2060508f5031000")


def test_status_numbers_agree_with_the_error_taxonomy():
    assert dict(pb.StatusCode.items()) == {status.name: status.value for status in V3Status}


def test_field_keys_of_the_reference():
    keys = ["a206", "aa06", "b206", "ba06", "c206", "ca06", "d206", "da06", "e206"]
    for number, key in enumerate(keys, start=100):
        for kind in (pb.Request, pb.Response):
            field = kind.DESCRIPTOR.fields_by_number[number]
            message = kind()
            getattr(message, field.name).SetInParent()
            assert message.SerializePartialToString()[:2].hex() == key
    request = pb.Request(requestContext=[pb.ContextPair(key="", value="")])
    assert request.SerializePartialToString()[:2].hex() == "c20c"


def test_worked_hex_of_a_long_poll():
    request = v3.new_request(pb.READ_ENTRY, 2)
    request.readRequest.ledgerId = 7
    request.readRequest.entryId = -1
    request.readRequest.previousLAC = 2
    request.readRequest.timeOut = 1000
    request.readRequest.flag = pb.ReadRequest.ENTRY_PIGGYBACK
    assert v3.encode_frame(request).hex() == (
        "00000020" "0a06080310011802" "a206150807" "10ffffffffffffffffff01" "2002" "28e807" "a00602"
    )  # fmt: skip


def test_worked_hex_of_start_tls():
    request = v3.new_request(pb.START_TLS, 0)
    request.startTLSRequest.SetInParent()
    assert v3.encode_frame(request).hex() == "0000000b0a06080310091800d20600"


@pytest.mark.parametrize(
    ("body", "is_v3"),
    [
        (HEADER + READ, True),
        (HEADER, True),
        (HEADER + bytes.fromhex("a2060308f503"), False),  # readRequest without entryId
        (bytes.fromhex("0a06080310631803"), False),  # operation 99
        (bytes.fromhex("0a06086310011803") + READ, False),  # version 99
        (bytes.fromhex("0a0408031001"), False),  # no transaction id
        (READ, False),
        (b"", False),
        (bytes.fromhex("02010000"), False),
        (HEADER + READ + bytes.fromhex("ba3e0141"), True),  # unknown field, length-delimited
        (HEADER + READ + bytes.fromhex("b83e01"), True),  # unknown field, varint
        (HEADER + READ + bytes.fromhex("b93e") + bytes(8), True),  # unknown field, 64 bits
        (HEADER + READ + bytes.fromhex("bd3e") + bytes(4), True),  # unknown field, 32 bits
        (HEADER + READ + bytes.fromhex("bb3ebc3e"), False),  # unknown group in the envelope
        (HEADER + bytes.fromhex("a2060908f5031000bb3ebc3e"), False),  # unknown group in the sub-message
        (bytes.fromhex("0a0a08031001180 3bb3ebc3e".replace(" ", "")) + READ, False),  # in the header
        (HEADER + READ + bytes.fromhex("c20c0a0a0161120162bb3ebc3e"), False),  # in a context pair
        (HEADER + READ + bytes.fromhex("c20c060a0161120162"), True),
        (HEADER + READ + b"\xa2", False),
        (HEADER + bytes.fromhex("a2060808f5031000a0064d"), True),  # flag 77 counts as absent
    ],
)
def test_detection(body, is_v3):
    assert (v3.parse_request(body) is not None) is is_v3
    assert (v3.parse_request(memoryview(body)) is not None) is is_v3


def test_a_flag_with_an_unknown_number_counts_as_absent():
    request = v3.parse_request(HEADER + bytes.fromhex("a2060808f5031000a0064d"))
    assert request is not None
    assert not request.readRequest.HasField("flag")


def answers_of(case: str) -> tuple[pb.Request, bytes]:
    cases = golden_frames.edge_cases() + golden_frames.edge_cases("wire-edge-cases-unauthenticated.json")
    (found,) = [item for item in cases if item["case"] == case]
    request = v3.parse_request(found["sent"][0][4:])
    assert request is not None
    return request, found["answers"][0]


@pytest.mark.parametrize(
    ("case", "status"),
    [
        ("v3_range_read", V3Status.EBADREQ),
        ("v3_range_add", V3Status.EBADREQ),
        ("v3_batch_read", V3Status.EBADREQ),
        ("v3_auth_other_plugin", V3Status.EUA),
    ],
)
def test_answers_without_sub_message_copy_the_header(case, status):
    request, answer = answers_of(case)
    assert v3.encode_frame(v3.header_copied(request, status)) == answer


def test_answers_with_sub_message_have_version_three_and_no_priority():
    request, answer = answers_of("v3_header_version_2")
    response = v3.new_response(request, V3Status.EBADVERSION)
    response.readResponse.status = v3.status_code(V3Status.EBADVERSION)
    response.readResponse.ledgerId = request.readRequest.ledgerId
    response.readResponse.entryId = request.readRequest.entryId
    assert v3.encode_frame(response) == answer
    urgent = v3.new_request(pb.READ_LAC, 5, v3.HIGH_PRIORITY)
    assert urgent.header.priority == 100
    assert not v3.new_response(urgent, V3Status.EOK).header.HasField("priority")
    assert v3.header_copied(urgent, V3Status.EUA).header.priority == 100


def test_the_outer_status_decides_unless_it_is_ok():
    response = v3.new_response(v3.new_request(pb.READ_LAC, 5), V3Status.EOK)
    assert v3.response_status(response, V3Status.EIO) == V3Status.EIO
    response.status = v3.status_code(V3Status.EUA)
    assert v3.response_status(response, V3Status.EIO) == V3Status.EUA


@pytest.mark.parametrize("body", [b"", b"\x0a", HEADER, b"\xff" * 30])
def test_no_response(body):
    with pytest.raises(ProtocolViolation):
        v3.parse_response(body)


HEADER_of_v3_fields = pb.Request(
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
    assert has_many_fields(HEADER_of_v3_fields + (inside_the_add(some) if nested else some))


@pytest.mark.parametrize("end", [b"\x98", b"\x98\x06", b"\x9a\x06\xff", b"\x9a\x06\x05x", b"\x98\x06" + b"\xff" * 20])
def test_a_field_without_an_end_hides_none_before_it(end: bytes) -> None:
    assert has_many_fields(HEADER_of_v3_fields + inside_the_add(UNKNOWN["varint"] * 10 * MANY_FIELDS) + end)
    assert not has_many_fields(v3_add(entry(1, 0, bytes(1000)))[4:] + end)


def test_the_count_ends_early() -> None:
    body = HEADER_of_v3_fields + UNKNOWN["varint"] * 1_700_000

    def count() -> float:
        begin = time.thread_time()
        assert has_many_fields(body)
        return time.thread_time() - begin

    assert min(count() for _ in range(3)) < 0.05, "a collection of garbage may come into one of them"


@pytest.mark.parametrize("size", [0, 1000, 1 << 20])
def test_an_entry_is_one_field_whatever_is_in_it(size: int) -> None:
    payload = (UNKNOWN["varint"] * (size // 3 + 1))[:size]
    assert not has_many_fields(v3_add(entry(1, 0, payload))[4:])


@given(st.binary(max_size=2000))
def test_any_bytes_are_counted_and_nothing_is_raised(body: bytes) -> None:
    assert has_many_fields(body) in (False, True)
    assert not has_many_fields(body[:SMALL_BYTES])
