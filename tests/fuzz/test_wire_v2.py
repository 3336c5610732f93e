"""Fuzz: whatever bytes arrive, the framing, v2, AUTH and list-of-entries decoders give a message or the one error
that closes the connection; what they take they give back."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from bookie_protocol.digest import DigestType, digest_manager
from bookie_protocol.entry import read_header, read_lac_packet
from bookie_protocol.errors import BadRequest, DigestMismatch, ProtocolViolation
from bookie_protocol.wire import v2
from bookie_protocol.wire.auth import decode_auth_message, encode_auth_message
from bookie_protocol.wire.availability import decode_availability
from bookie_protocol.wire.framing import FrameReader
from bookie_protocol.wire.v2 import OpCode
from tests.support import golden_frames
from tests.support.mutations import mutated
from tests.support.v2_frames import reencode_request, reencode_response

REQUESTS = [item.body for item in golden_frames.exchanged("request") if not item.is_v3]
RESPONSES = [item.body for item in golden_frames.exchanged("response") if not item.is_v3]
LISTS = [
    bytes(4) + (2).to_bytes(4) + bytes(56) + bytes(16) + b"\0\0\0\2" + bytes(4) + bytes(7) + b"\x09" * 17,
    bytes(4) + (1).to_bytes(4) + bytes(56 + 15) + b"\x08" + b"\0\0\0\2\0\0\0\4",
]


def bytes_like(samples: list[bytes]) -> st.SearchStrategy[bytes]:
    return st.one_of(st.binary(max_size=120), st.sampled_from(samples).flatmap(mutated))


def without_flags_of_version_0(body: bytes) -> bytes:
    """The legacy header word ignores two of its bytes; they do not come back."""
    return bytes(3) + body[3:] if body[0] == 0 else body


@settings(max_examples=300)
@given(bytes_like(REQUESTS))
def test_request(body):
    try:
        request = v2.decode_request(body)
    except ProtocolViolation:
        return
    if isinstance(request, v2.AuthFrame):
        assert decode_auth_message(encode_auth_message(request.message)) == request.message
        return
    # A read may have bytes behind its fixed fields, which nobody looks at.
    again = reencode_request(request)[4:]
    sent = without_flags_of_version_0(body)
    assert sent == again if isinstance(request, v2.AddRequest) else sent.startswith(again)


@settings(max_examples=300)
@given(bytes_like(RESPONSES))
def test_response(body):
    try:
        response = v2.decode_response(body)
        entries = response.entries.split() if isinstance(response, v2.BatchReadResponse) else []
    except ProtocolViolation:
        return
    again = v2.decode_response(reencode_response(response)[4:])
    if isinstance(response, v2.Response) and response.entry:
        # Only reads that succeeded have an entry when we write them.
        response = response._replace(code=0, opcode=OpCode.READENTRY)
    if isinstance(response, v2.BatchReadResponse):
        assert isinstance(again, v2.BatchReadResponse)
        assert (again[:-1], again.entries.split()) == (response[:-1], entries)
        return
    assert again == response


@settings(max_examples=300)
@given(st.lists(st.one_of(st.binary(max_size=40), bytes_like(REQUESTS)), max_size=8), st.integers(8, 400))
def test_frame_reader_is_bounded(pieces, limit):
    reader = FrameReader(max_frame_size=limit)
    fed = taken = 0
    for piece in pieces:
        fed += len(piece)
        try:
            for body in reader.feed(piece):
                assert 0 < len(body) <= limit - 4
                taken += 4 + len(body)
        except ProtocolViolation:
            return
        assert reader.pending == fed - taken < limit


@settings(max_examples=300)
@given(bytes_like([encode_auth_message(v2.decode_request(body).message) for body in REQUESTS if body[1] == 3]))
def test_auth_message(data):
    try:
        message = decode_auth_message(data)
    except ProtocolViolation:
        return
    assert decode_auth_message(encode_auth_message(message)) == message


@settings(max_examples=250)
@given(bytes_like(LISTS), st.integers(-10, 2**63))
def test_list_of_entries(data, entry_id):
    try:
        found = decode_availability(data)
    except ProtocolViolation:
        return
    assert found.count >= 0
    assert isinstance(entry_id in found, bool)
    last = None
    for _, run in zip(range(100), found.runs(), strict=False):
        assert run[0] in found
        assert run[-1] in found
        assert last is None or run[0] > last
        last = run[-1]


@settings(max_examples=200)
@given(
    st.sampled_from(list(DigestType)),
    bytes_like([bytes.fromhex(case["entry"]) for case in golden_frames.load("digests.json")]),
)
def test_entry(kind, entry):
    manager = digest_manager(kind, b"secret")
    try:
        ledger_id, entry_id, lac, length = read_header(entry)
        read_lac_packet(entry)
        payload = manager.verify(entry, ledger_id, entry_id)
    except (BadRequest, DigestMismatch):
        return
    assert manager.encode(ledger_id, entry_id, lac, length, payload) == entry
