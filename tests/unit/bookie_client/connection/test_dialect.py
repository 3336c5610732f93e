"""Frames of the dialects against what the Java client and bookie said to each other."""

import pytest

from bookie_client.connection.dialect_v2 import V2Dialect
from bookie_client.connection.dialect_v3 import V3Dialect
from bookie_client.connection.request import Answer
from bookie_protocol.errors import LedgerFenced, NoSuchEntry, ProtocolViolation, StorageFault, V2Code, V3Status
from bookie_protocol.versioned import LedgerLife
from bookie_protocol.wire import bookkeeper_pb2 as pb
from bookie_protocol.wire import v2, v3
from bookie_protocol.wire.v2 import Flag, OpCode
from bookie_protocol.wire.varint import encode_varint
from tests.support.golden_frames import exchanged

V2_REQUESTS = [f for f in exchanged("request") if f.decoded.get("opcode") in ("ADDENTRY", "READENTRY")]
V2_RESPONSES = [f for f in exchanged("response") if f.decoded.get("opcode") in ("ADDENTRY", "READENTRY")]


def v3_frames(direction, operation):
    parse = v3.parse_request if direction == "request" else v3.parse_response
    frames = [f for f in exchanged(direction) if f.is_v3]
    return [(f, m) for f in frames if (m := parse(f.body)).header.operation == operation]


def test_v3_adds_are_the_java_clients_bytes():
    frames = v3_frames("request", pb.ADD_ENTRY)
    assert len(frames) > 5
    recoveries = 0
    for golden, message in frames:
        add = message.addRequest
        if add.HasField("writeFlags") and add.writeFlags:
            continue  # deferred sync
        recovery = add.HasField("flag")
        recoveries += recovery
        encode = V3Dialect().add_encoder(LedgerLife(add.ledgerId, 0), add.masterKey, recovery=recovery)
        key, frame = encode(message.header.txnId, add.entryId, add.body)
        assert v3.parse_request(frame[4:]) == message
        assert len(frame) <= len(golden.frame) <= len(add.body) + V3Dialect.add_overhead
        assert key == encode_varint(message.header.txnId)
    assert recoveries


def test_v3_reads_say_what_the_java_client_says():
    checked = 0
    for _, message in v3_frames("request", pb.READ_ENTRY):
        read = message.readRequest
        if read.HasField("previousLAC"):
            continue
        fence = read.masterKey if read.HasField("flag") else None
        _, frame = V3Dialect().read(
            message.header.txnId,
            read.ledgerId,
            read.entryId,
            fence_key=fence,
            recovery=message.header.priority > 0,
        )
        assert v3.parse_request(frame[4:]) == message
        checked += 1
    assert checked > 3


def test_v3_answers_of_the_java_bookie():
    fast = 0
    for golden, message in v3_frames("response", pb.ADD_ENTRY):
        data = b"head" + golden.body + b"tail"
        key = V3Dialect().acknowledged(data, 4, 4 + len(golden.body))
        answer = V3Dialect().decode(golden.body)
        assert answer.key == encode_varint(message.header.txnId)
        assert (key is not None) == (message.status == V3Status.EOK)
        if key is not None:
            fast += 1
            assert (key, answer.error) == (answer.key, None)
    assert fast > 5
    for golden, message in v3_frames("response", pb.READ_ENTRY):
        assert V3Dialect().acknowledged(golden.body, 0, len(golden.body)) is None
        answer = V3Dialect().decode(golden.body)
        if message.status == V3Status.EOK:
            assert (answer.error, answer.entry) == (None, message.readResponse.body)
        else:
            assert answer.error.v3 == message.status
            assert answer.entry == b""


def test_v2_requests_are_the_java_clients_bytes():
    assert len(V2_REQUESTS) > 10
    for golden in V2_REQUESTS:
        request = v2.decode_request(golden.body)
        if isinstance(request, v2.AddRequest):
            recovery = bool(request.flags)
            encode = V2Dialect().add_encoder(LedgerLife(request.ledger_id, 0), request.master_key, recovery=recovery)
            assert encode(1, request.entry_id, request.entry)[1] == golden.frame
        else:
            _, frame = V2Dialect().read(
                1,
                request.ledger_id,
                request.entry_id,
                fence_key=request.master_key,
                recovery=bool(request.flags & Flag.HIGH_PRIORITY),
            )
            assert frame == golden.frame


def test_v2_answers_of_the_java_bookie():
    for golden in V2_RESPONSES:
        response = v2.decode_response(golden.body)
        added = response.opcode is OpCode.ADDENTRY and response.code == V2Code.EOK
        key = V2Dialect().acknowledged(b"1234" + golden.frame + b"more", 8, 8 + len(golden.body))
        answer = V2Dialect().decode(golden.body)
        assert (key is not None) == added
        if added:
            assert key == answer.key
        if response.code == V2Code.EOK:
            assert (answer.error, answer.entry) == (None, response.entry)
        else:
            assert answer.error.v2 == response.code


def test_keys_pair_requests_with_answers():
    ids = 7, 3
    key, _ = V2Dialect().read(1, *ids)
    assert V2Dialect().decode(v2.encode_response(2, 2, V2Code.ENOENTRY, *ids)[4:]) == Answer(key, NoSuchEntry)
    key, _ = V2Dialect().add_encoder(LedgerLife(7, 0), bytes(20), recovery=True)(1, 3, bytes(32))
    assert V2Dialect().decode(v2.encode_response(2, 1, V2Code.EFENCED, *ids)[4:]).key == key
    assert V2Dialect().decode(v2.encode_response(2, 1, V2Code.EFENCED, *ids)[4:]).error is LedgerFenced


def test_an_error_code_that_nobody_defined_is_a_fault_and_never_not_there():
    assert V2Dialect().decode(v2.encode_response(2, 2, 4711, 7, 3)[4:]).error is StorageFault


@pytest.mark.parametrize("body", [b"", b"\xff", b"\x0a\x06\x08\x03\x10\x02\x18\x01", bytes(40)])
@pytest.mark.parametrize("dialect", [V2Dialect(), V3Dialect()])
def test_bytes_that_are_no_answer(dialect, body):
    assert dialect.acknowledged(body + b"\0" * 8, 0, len(body)) is None
    with pytest.raises(ProtocolViolation):
        dialect.decode(body)
