"""What protobuf reads in a v3 frame, to compare with the codecs that do without it; and frames to start from."""

from __future__ import annotations

from hypothesis import strategies as st

from bookie_protocol.keys import COPIES_TAG, LIFE_TAG, life_of, life_of_copies
from bookie_protocol.wire import bookkeeper_pb2 as pb
from bookie_protocol.wire import v3, v3_encode, v3_hot
from tests.support.frames import add_request

I64 = st.integers(-(2**63), 2**63 - 1)
ID = st.one_of(st.integers(0, 300), st.integers(0, 2**63 - 1), st.just(-1), I64)
TXN = st.one_of(st.integers(0, 300), st.integers(0, 2**64 - 1))
ENTRY = st.binary(min_size=24, max_size=60) | st.integers(100, 300).map(bytes) | st.integers(0, 24).map(bytes)
KEY = st.binary(min_size=20, max_size=20) | st.binary(max_size=30)
_TOKEN = st.sampled_from([0, 1, 2**63 - 1, 2**64 - 1])
LIFE = _TOKEN.map(life_of) | _TOKEN.map(life_of_copies)
ADD_FLAGS = st.sampled_from([0, 2, 4, 6, 0x10000, 0x10002, 0x10006])


@st.composite
def add_frames(draw: st.DrawFn) -> bytes:
    """Frames of adds as a client of ours writes them."""
    pieces = add_request(draw(TXN), draw(ID), draw(ID), draw(KEY), draw(ENTRY), draw(ADD_FLAGS), draw(LIFE))
    return b"".join(pieces)


@st.composite
def read_frames(draw: st.DrawFn) -> bytes:
    """Frames of reads as a client of ours writes them."""
    return v3_encode.read_request(draw(TXN), draw(ID), draw(ID), draw(st.sampled_from([0, 1, 4, 5])), draw(KEY))


def parsed_add(body: bytes) -> tuple[object, ...] | None:
    """The fields that the hot decoder gives for `body`, read by protobuf; None when it is no such add."""
    request = v3.parse_request(body)
    if request is None or request.header.operation != pb.ADD_ENTRY:
        return None
    if request.header.version != pb.VERSION_THREE or not request.HasField("addRequest"):
        return None
    add = request.addRequest
    flags = v3_encode.HIGH_PRIORITY if request.header.priority else 0
    flags |= v3_encode.RECOVERY_ADD if add.flag == pb.AddRequest.RECOVERY_ADD and add.HasField("flag") else 0
    flags |= v3_encode.DEFERRED_SYNC if add.writeFlags & v3.DEFERRED_SYNC else 0
    # A life of 0 is none, and no client sends it: the hot decoder need not know.
    named = ((add.HasField("life"), LIFE_TAG, add.life), (add.HasField("lifeOfCopies"), COPIES_TAG, add.lifeOfCopies))
    key = add.masterKey + b"".join(tag + token.to_bytes(8, "little") for is_named, tag, token in named if is_named)
    return request.header.txnId, add.ledgerId, add.entryId, key, add.body, flags


def hot_add(buffer: bytes, start: int, end: int) -> tuple[object, ...] | None:
    """The same fields from the hot decoder; checks the parts of its answer against one another."""
    fields = v3_hot.decode_add_request(buffer, start, end)
    if fields is None:
        return None
    response_frame, ledger_id, entry_id, lac, key, body_start, body_end, flags = fields
    entry = buffer[body_start:body_end]
    assert start < body_start <= body_end <= end
    assert ledger_id == int.from_bytes(entry[:8], signed=True)
    assert entry_id == int.from_bytes(entry[8:16], signed=True)
    assert lac == int.from_bytes(entry[16:24], signed=True)
    assert int.from_bytes(response_frame[:4]) == len(response_frame) - 4
    response = v3.parse_response(response_frame[4:])
    assert response.status == response.addResponse.status == pb.EOK
    assert response.header.operation == pb.ADD_ENTRY
    assert response.header.version == pb.VERSION_THREE
    return (
        response.header.txnId,
        response.addResponse.ledgerId,
        response.addResponse.entryId,
        key,
        entry,
        flags,
    )


def parsed_read(body: bytes) -> tuple[object, ...] | None:
    """The fields that the hot decoder gives for `body`, read by protobuf; None when it is no plain read."""
    request = v3.parse_request(body)
    if request is None or request.header.operation != pb.READ_ENTRY:
        return None
    if request.header.version != pb.VERSION_THREE or not request.HasField("readRequest"):
        return None
    read = request.readRequest
    if any(read.HasField(name) for name in ("masterKey", "previousLAC", "timeOut", "flag")):
        return None
    flags = v3_encode.HIGH_PRIORITY if request.header.priority else 0
    return request.header.txnId, read.ledgerId, read.entryId, flags


def hot_read(buffer: bytes, start: int, end: int) -> tuple[object, ...] | None:
    """The same fields from the hot decoder; checks that the raw numbers are those of the integers."""
    fields = v3_hot.decode_read_request(buffer, start, end)
    if fields is None:
        return None
    txn, ledger, entry, ledger_id, entry_id, flags = fields
    response = v3.parse_response(b"".join(v3_encode.read_response(txn, ledger, entry, b"x"))[4:])
    assert (response.readResponse.ledgerId, response.readResponse.entryId) == (ledger_id, entry_id)
    return response.header.txnId, ledger_id, entry_id, flags
