"""Generated messages, telling v3 from v2, envelopes of answers."""

from __future__ import annotations

import pytest

from bookie_protocol.errors import ProtocolViolation, V3Status
from bookie_protocol.wire import bookkeeper_pb2 as pb
from bookie_protocol.wire import v3
from tests.support import golden_frames

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
