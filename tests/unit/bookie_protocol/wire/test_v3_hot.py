"""Adds and reads without message objects: the same bytes and the same fields as protobuf."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_protocol.errors import V3Status
from bookie_protocol.keys import life_of_copies, master_key
from bookie_protocol.wire import bookkeeper_pb2 as pb
from bookie_protocol.wire import v3, v3_encode, v3_hot
from tests.support import golden_frames
from tests.support.frames import add_request, add_response, raw_ids
from tests.support.v3_frames import (
    ENTRY,
    ID,
    KEY,
    TXN,
    add_frames,
    hot_add,
    hot_read,
    parsed_add,
    parsed_read,
    read_frames,
)

SECRET = master_key(b"secret")
REQUESTS = [item for item in golden_frames.exchanged("request") if item.is_v3]
RESPONSES = [item for item in golden_frames.exchanged("response") + golden_frames.edge_case_answers() if item.is_v3]
ADDS = [item for item in REQUESTS if "addRequest" in item.decoded]
READS = [item for item in REQUESTS if "readRequest" in item.decoded]
ADD_ANSWERS = [item for item in RESPONSES if "addResponse" in item.decoded]
READ_ANSWERS = [item for item in RESPONSES if "readResponse" in item.decoded]
STATUSES = st.sampled_from(list(V3Status))


@pytest.fixture(autouse=True)
def _no_shapes():
    for cache in (
        v3_hot._add_shapes,
        v3_hot._add_families,
        v3_hot._recent_families,
        v3_hot._read_shapes,
        v3_hot._read_layouts,
    ):
        cache.clear()


def test_golden_frames_are_there():
    assert len(ADDS) > 20
    assert len(READS) > 15
    assert len(ADD_ANSWERS) > 20
    assert len(READ_ANSWERS) > 20


# --- golden frames ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("golden", ADDS, ids=repr)
def test_golden_add_is_decoded_hot_and_encoded_again(golden):
    fields = hot_add(golden.frame, 4, len(golden.frame))
    assert fields is not None
    assert fields == parsed_add(golden.body)
    txn_id, ledger_id, entry_id, key, entry, flags = fields
    pieces = add_request(txn_id, ledger_id, entry_id, key, entry, flags)
    assert b"".join(pieces) == golden.frame
    # The second time its shape is known.
    assert hot_add(golden.frame, 4, len(golden.frame)) == fields


@pytest.mark.parametrize("golden", READS, ids=repr)
def test_golden_read_is_decoded_hot_unless_it_fences_or_waits(golden):
    read = pb.Request.FromString(golden.body).readRequest
    plain = not (read.HasField("flag") or read.HasField("previousLAC"))
    for _ in range(2):
        fields = hot_read(golden.frame, 4, len(golden.frame))
        assert (fields is not None) is plain
        assert fields == parsed_read(golden.body)
    request = pb.Request.FromString(golden.body)
    if not read.HasField("previousLAC"):
        flags = v3_encode.HIGH_PRIORITY if request.header.priority else 0
        flags |= v3_encode.FENCE if read.flag == pb.ReadRequest.FENCE_LEDGER and not plain else 0
        assert golden.frame == v3_encode.read_request(
            request.header.txnId, read.ledgerId, read.entryId, flags, read.masterKey
        )


@pytest.mark.parametrize("golden", ADD_ANSWERS, ids=repr)
def test_golden_add_answer(golden):
    response = pb.Response.FromString(golden.body)
    raw = raw_ids(response.header.txnId, response.addResponse.ledgerId, response.addResponse.entryId)
    if V3Status(response.status) is V3Status.EOK:
        assert add_response(*raw) == golden.frame


@pytest.mark.parametrize("golden", READ_ANSWERS, ids=repr)
def test_golden_read_answer(golden):
    response = pb.Response.FromString(golden.body)
    read = response.readResponse
    if read.HasField("lacUpdateTimestamp") or (response.status == pb.EOK and not read.HasField("body")):
        return  # answers of long polls are built from messages
    raw = raw_ids(response.header.txnId, read.ledgerId, read.entryId)
    if response.status == pb.EOK:
        max_lac = read.maxLAC if read.HasField("maxLAC") else None
        assert b"".join(v3_encode.read_response(*raw, read.body, max_lac)) == golden.frame
    else:
        assert v3_encode.read_error(*raw, V3Status(response.status)) == golden.frame


def test_worked_hex():
    entry = bytes.fromhex("0000000000000007 0000000000000003 0000000000000002 0000000000000014 e9857074 68656c6c6f")
    add = b"".join(add_request(1, 7, 3, SECRET, entry))
    assert add == (bytes.fromhex("00000050 0a06080310021801 aa0645 08071003 1a14") + SECRET + b"\x22\x29" + entry)
    answer = bytes.fromhex("00000013 0a06080310021801 1000 aa0606 080010071803")
    assert add_response(*raw_ids(1, 7, 3)) == answer
    fields = v3_hot.decode_add_request(add, 4, len(add))
    assert fields == (answer, 7, 3, 2, SECRET, len(add) - 41, len(add), 0)


# --- agreement with protobuf --------------------------------------------------------------------------------


@given(TXN, ID, ID, KEY, ENTRY, st.sampled_from([0, 2, 4, 6, 0x10000, 0x10006]))
def test_add_request_is_what_protobuf_writes(txn_id, ledger_id, entry_id, key, entry, flags):
    request = v3.new_request(pb.ADD_ENTRY, txn_id, v3.HIGH_PRIORITY if flags & 4 else 0)
    add = request.addRequest
    add.ledgerId, add.entryId, add.masterKey, add.body = ledger_id, entry_id, key, entry
    if flags & v3_encode.DEFERRED_SYNC:
        add.writeFlags = v3.DEFERRED_SYNC
    if flags & v3_encode.RECOVERY_ADD:
        add.flag = pb.AddRequest.RECOVERY_ADD
    pieces = add_request(txn_id, ledger_id, entry_id, key, entry, flags)
    assert b"".join(pieces) == v3.encode_frame(request)
    assert pieces[1] is entry


@given(TXN, ID, ID)
def test_add_answers_are_what_protobuf_writes(txn_id, ledger_id, entry_id):
    response = v3.new_response(v3.new_request(pb.ADD_ENTRY, txn_id), V3Status.EOK)
    response.addResponse.status = v3.status_code(V3Status.EOK)
    response.addResponse.ledgerId, response.addResponse.entryId = ledger_id, entry_id
    assert add_response(*raw_ids(txn_id, ledger_id, entry_id)) == v3.encode_frame(response)


@given(TXN, ID, ID, ENTRY | st.integers(16000, 17000).map(bytes), st.none() | ID, STATUSES)
def test_read_answers_are_what_protobuf_writes(txn_id, ledger_id, entry_id, body, max_lac, status):
    request = v3.new_request(pb.READ_ENTRY, txn_id)
    raw = raw_ids(txn_id, ledger_id, entry_id)
    response = v3.new_response(request, V3Status.EOK)
    read = response.readResponse
    read.status, read.ledgerId, read.entryId, read.body = pb.EOK, ledger_id, entry_id, body
    if max_lac is not None:
        read.maxLAC = max_lac
    pieces = v3_encode.read_response(*raw, body, max_lac)
    assert b"".join(pieces) == v3.encode_frame(response)
    assert any(piece is body for piece in pieces)
    refused = v3.new_response(request, status)
    refused.readResponse.status = v3.status_code(status)
    refused.readResponse.ledgerId, refused.readResponse.entryId = ledger_id, entry_id
    assert v3_encode.read_error(*raw, status) == v3.encode_frame(refused)


@given(TXN, ID, ID, KEY, st.sampled_from([0, 1, 4, 5]), st.integers(0, 2**64 - 1))
def test_read_request_is_what_protobuf_writes(txn_id, ledger_id, entry_id, key, flags, token):
    request = v3.new_request(pb.READ_ENTRY, txn_id, v3.HIGH_PRIORITY if flags & 4 else 0)
    request.readRequest.ledgerId, request.readRequest.entryId = ledger_id, entry_id
    if flags & v3_encode.FENCE:
        request.readRequest.masterKey = key
        request.readRequest.flag = pb.ReadRequest.FENCE_LEDGER
        if token:
            request.readRequest.lifeOfCopies = token
    life = life_of_copies(token)
    assert v3_encode.read_request(txn_id, ledger_id, entry_id, flags, key, life) == v3.encode_frame(request)


@given(st.lists(st.one_of(add_frames(), read_frames()), max_size=8))
def test_frames_in_one_buffer_are_decoded_as_protobuf_reads_them(frames):
    buffer = b"".join(frames)
    start = 0
    for frame in frames:
        start, end = start + 4, start + len(frame)
        body = buffer[start:end]
        add, read = hot_add(buffer, start, end), hot_read(buffer, start, end)
        assert add in (None, parsed_add(body))
        assert read in (None, parsed_read(body))
        start = end


@given(TXN.filter(lambda txn: txn < 2**63), ID.filter(lambda n: n >= 0), st.integers(24, 40_000))
def test_ordinary_adds_of_any_size_are_hot(txn_id, ledger_id, size):
    frame = b"".join(add_request(txn_id, ledger_id, 5, SECRET, bytes(size)))
    assert v3_hot.decode_add_request(frame, 4, len(frame)) is not None


@given(TXN.filter(lambda txn: txn < 2**63), ID.filter(lambda n: n >= 0), ID)
def test_ordinary_reads_are_hot(txn_id, ledger_id, entry_id):
    frame = v3_encode.read_request(txn_id, ledger_id, entry_id)
    assert v3_hot.decode_read_request(frame, 4, len(frame)) is not None


# --- the edges of the shapes --------------------------------------------------------------------------------


def test_same_length_with_other_widths_does_not_take_the_known_shape():
    one = b"".join(add_request(1, 300, 5, SECRET, bytes(50)))
    two = b"".join(add_request(300, 1, 5, SECRET, bytes(50)))
    assert len(one) == len(two)
    for frame in (one, two, one, two):
        assert hot_add(frame, 4, len(frame)) == parsed_add(frame[4:])


@pytest.mark.parametrize("size", [0, 16, 23])
def test_an_entry_without_lac_is_left_to_protobuf(size):
    frame = b"".join(add_request(1, 7, 3, SECRET, bytes(size)))
    assert v3_hot.decode_add_request(frame, 4, len(frame)) is None


@pytest.mark.parametrize("size", [0, 19, 21])
def test_a_key_of_another_size_is_left_to_protobuf(size):
    frame = b"".join(add_request(1, 7, 3, bytes(size), bytes(40)))
    assert v3_hot.decode_add_request(frame, 4, len(frame)) is None


def test_priority_zero_and_other_write_flags():
    request = v3.new_request(pb.ADD_ENTRY, 1)
    request.header.priority = 0
    add = request.addRequest
    add.ledgerId, add.entryId, add.masterKey, add.body, add.writeFlags = 7, 3, SECRET, bytes(40), 0x7E
    frame = v3.encode_frame(request)
    fields = v3_hot.decode_add_request(frame, 4, len(frame))
    assert fields is not None
    assert fields[-1] == 0
    add.writeFlags = 0x7F
    frame = v3.encode_frame(request)
    fields = v3_hot.decode_add_request(frame, 4, len(frame))
    assert fields is not None
    assert fields[-1] == v3_encode.DEFERRED_SYNC


def test_another_tail_of_the_same_length_does_not_take_the_known_shape():
    frames = []
    for flags in (1, 0):
        request = v3.new_request(pb.ADD_ENTRY, 1)
        add = request.addRequest
        add.ledgerId, add.entryId, add.masterKey, add.body, add.writeFlags = 7, 3, SECRET, bytes(40), flags
        frames.append(v3.encode_frame(request))
    # Same length, but the last two bytes belong to the entry.
    frames.append(b"".join(add_request(1, 7, 3, SECRET, bytes(42))))
    for frame in frames * 2:
        assert hot_add(frame, 4, len(frame)) == parsed_add(frame[4:])


def test_end_beyond_the_buffer_is_refused():
    frame = b"".join(add_request(1, 7, 3, SECRET, bytes(40)))
    read = v3_encode.read_request(1, 7, 3)
    for known in (False, True):
        assert (v3_hot._add_shapes != {}) is known
        for cut in range(4, len(frame)):
            assert v3_hot.decode_add_request(frame[:cut], 4, len(frame)) is None
        for cut in range(4, len(read)):
            assert v3_hot.decode_read_request(read[:cut], 4, len(read)) is None
        assert v3_hot.decode_add_request(frame, 4, len(frame)) is not None
        assert v3_hot.decode_read_request(read, 4, len(read)) is not None


def test_the_caches_stay_bounded(monkeypatch):
    monkeypatch.setattr(v3_hot, "MAX_SHAPES", 16)
    for size in range(24, 100):
        for width in (1, 300):
            for flags in (0, 2, 4, 6):
                frame = b"".join(add_request(width, width, 3, SECRET, bytes(size), flags))
                assert v3_hot.decode_add_request(frame, 4, len(frame)) is not None
                assert len(v3_hot._add_shapes) <= 16
                assert len(v3_hot._add_families) <= 16
    for priority in range(128):
        request = v3.new_request(pb.READ_ENTRY, 1)
        request.header.priority = priority
        request.readRequest.ledgerId = request.readRequest.entryId = 1
        frame = v3.encode_frame(request)
        assert v3_hot.decode_read_request(frame, 4, len(frame)) is not None
        assert len(v3_hot._read_layouts) <= 16
