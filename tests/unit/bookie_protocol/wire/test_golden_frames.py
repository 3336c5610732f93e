"""Every frame between a Java client and a Java bookie is decoded, and encoded again to the same bytes."""

from __future__ import annotations

from bookie_protocol.errors import ProtocolViolation
from bookie_protocol.wire import bookkeeper_pb2 as pb
from bookie_protocol.wire import v2, v3
from bookie_protocol.wire.framing import FrameReader
from bookie_protocol.wire.v2 import Flag
from tests.support import golden_frames
from tests.support.v2_frames import reencode_request, reencode_response

REQUESTS = golden_frames.exchanged("request")
RESPONSES = golden_frames.exchanged("response") + golden_frames.edge_case_answers()
OPERATIONS = dict(pb.OperationType.items())


def v2_fields(decoded):
    """The fields of the golden file's aid, under our names."""
    names = {
        "ledgerId": "ledger_id",
        "entryId": "entry_id",
        "requestId": "request_id",
        "maxCount": "max_count",
        "maxSize": "max_size",
        "version": "version",
    }
    return {ours: decoded[theirs] for theirs, ours in names.items() if theirs in decoded}


def test_golden_files_are_there():
    assert len([item for item in REQUESTS if item.is_v3]) > 40
    assert len([item for item in REQUESTS if not item.is_v3]) >= 40
    assert len(RESPONSES) > 120


def test_requests():
    for golden in REQUESTS:
        check_request(golden)


def check_request(golden):
    request = v3.parse_request(golden.body)
    assert (request is not None) is golden.is_v3
    if request is not None:
        assert v3.encode_frame(request) == golden.frame
        assert request.header.operation == OPERATIONS[golden.decoded["header"]["operation"]]
        assert request.header.txnId == golden.decoded["header"]["txnId"]
        return
    decoded = v2.decode_request(golden.body)
    assert reencode_request(decoded) == golden.frame
    for name, value in v2_fields(golden.decoded).items():
        assert getattr(decoded, name) == value
    if "flags" in golden.decoded and not isinstance(decoded, v2.AuthFrame):
        assert [flag.name for flag in Flag if decoded.flags & flag] == golden.decoded["flags"]


def test_responses():
    for golden in RESPONSES:
        check_response(golden)


def check_response(golden):
    if golden.is_v3:
        response = v3.parse_response(golden.body)
        assert v3.encode_frame(response) == golden.frame
        assert pb.StatusCode.Name(response.status) == golden.decoded["status"]
        assert response.header.txnId == golden.decoded["header"]["txnId"]
        return
    decoded = v2.decode_response(golden.body)
    assert reencode_response(decoded) == golden.frame
    if decoded.version == 0:
        return  # the aid does not know the legacy header word
    for name, value in v2_fields(golden.decoded).items():
        assert getattr(decoded, name) == value
    if "errorCode" in golden.decoded and not isinstance(decoded, v2.AuthFrame):
        assert v2.V2Code(decoded.code).name == golden.decoded["errorCode"]


def closes_connection(frames: list[bytes]) -> bool:
    """What a server that follows the detection rule does with these frames, by the codecs alone."""
    try:
        binary = False
        for body in FrameReader().feed(b"".join(frames)):
            binary = binary or v3.parse_request(body) is None
            if binary:
                v2.decode_request(body)
    except ProtocolViolation:
        return True
    return False


def test_the_connection_is_closed_exactly_when_the_reference_closed_it():
    cases = golden_frames.edge_cases()
    assert [case["case"] for case in cases if closes_connection(case["sent"]) is not case["closedByBookie"]] == []


def test_both_outcomes_occur():
    outcomes = [case["closedByBookie"] for case in golden_frames.edge_cases()]
    assert outcomes.count(True) > 10
    assert outcomes.count(False) > 40
