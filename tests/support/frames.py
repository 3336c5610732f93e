"""Frames as clients send them and answers as clients read them, for tests that talk to a bookie."""

from __future__ import annotations

import struct

from bookie_protocol.keys import NO_LIFE, creation_token_of
from bookie_protocol.wire import bookkeeper_pb2 as pb
from bookie_protocol.wire import v2, v3, v3_encode
from bookie_protocol.wire.auth import AuthMessage, to_protobuf
from bookie_protocol.wire.v2 import Flag
from bookie_protocol.wire.varint import encode_varint
from tests.support.v2_frames import encode_add_request

KEY = bytes(range(1, 21))
OTHER_KEY = bytes(range(21, 41))
NO_KEY = bytes(20)
LAST = -1


def entry(ledger_id: int, entry_id: int, payload: bytes = b"payload", lac: int | None = None) -> bytes:
    """An entry without a digest; its LAC is the entry before it unless said otherwise."""
    lac = max(entry_id - 1, -1) if lac is None else lac
    return struct.pack(">qqqq", ledger_id, entry_id, lac, len(payload)) + payload


def lac_packet(ledger_id: int, lac: int) -> bytes:
    return struct.pack(">qqI", ledger_id, lac, 0xFEEDBEEF)


def cut(frames: bytes) -> list[bytes]:
    """Into frames, with their length words."""
    found = []
    while frames:
        end = 4 + int.from_bytes(frames[:4])
        found.append(frames[:end])
        frames = frames[end:]
    return found


# --- version 2 ----------------------------------------------------------------------------------------------


def v2_add(stored: bytes, key: bytes = KEY, flags: int = 0) -> bytes:
    return encode_add_request(key, stored, flags)


def v2_read(ledger_id: int, entry_id: int, flags: int = 0) -> bytes:
    return v2.encode_read_request(ledger_id, entry_id, flags)


def v2_fence(ledger_id: int, entry_id: int = LAST, key: bytes = KEY) -> bytes:
    return v2.encode_read_request(ledger_id, entry_id, Flag.DO_FENCING, key)


def v2_batch(ledger_id: int, first: int, count: int = 0, size: int = 1 << 20, request_id: int = 1) -> bytes:
    return v2.encode_batch_read_request(ledger_id, first, request_id, count, size)


def v2_code(frame: bytes) -> int:
    """The error code of an answer, length word included."""
    return int(v2.decode_response(frame[4:]).code)  # type: ignore[union-attr]


def v2_entry(frame: bytes) -> bytes:
    """The entry of a successful read's answer."""
    response = v2.decode_response(frame[4:])
    assert isinstance(response, v2.Response)
    assert response.code == 0, response
    return response.entry


def v2_entries(frame: bytes) -> list[bytes]:
    """The entries of a successful batch read's answer."""
    response = v2.decode_response(frame[4:])
    assert isinstance(response, v2.BatchReadResponse)
    assert response.code == 0, response
    return response.entries.split()


# --- version 3 ----------------------------------------------------------------------------------------------


def v3_add(
    stored: bytes,
    key: bytes = KEY,
    *,
    txn: int = 1,
    recovery: bool = False,
    priority: bool = False,
    sync: bool = True,
    life: bytes = NO_LIFE,
) -> bytes:
    ledger_id, entry_id = struct.unpack_from(">qq", stored)
    flags = (
        v3_encode.RECOVERY_ADD * recovery | v3_encode.HIGH_PRIORITY * priority | v3_encode.DEFERRED_SYNC * (not sync)
    )
    return b"".join(add_request(txn, ledger_id, entry_id, key, stored, flags, life))


def v3_read(ledger_id: int, entry_id: int, *, txn: int = 1, priority: bool = False) -> bytes:
    return v3_encode.read_request(txn, ledger_id, entry_id, v3_encode.HIGH_PRIORITY * priority)


def v3_fence(ledger_id: int, entry_id: int = LAST, key: bytes = KEY, *, txn: int = 1) -> bytes:
    return v3_encode.read_request(txn, ledger_id, entry_id, v3_encode.FENCE | v3_encode.HIGH_PRIORITY, key)


def v3_poll(
    ledger_id: int, previous: int, timeout_ms: int | None = 60_000, *, piggyback: bool = True, txn: int = 1
) -> bytes:
    """A long poll for the entry after `previous`."""
    request = v3.new_request(pb.READ_ENTRY, txn)
    read = request.readRequest
    read.ledgerId, read.entryId, read.previousLAC = ledger_id, LAST, previous
    if timeout_ms is not None:
        read.timeOut = timeout_ms
    if piggyback:
        read.flag = pb.ReadRequest.ENTRY_PIGGYBACK
    return v3.encode_frame(request)


def v3_write_lac(ledger_id: int, lac: int, key: bytes = KEY, *, txn: int = 1, life: bytes = NO_LIFE) -> bytes:
    request = v3.new_request(pb.WRITE_LAC, txn)
    write = request.writeLacRequest
    write.ledgerId, write.lac, write.masterKey, write.body = ledger_id, lac, key, lac_packet(ledger_id, lac)
    if life:
        write.life = creation_token_of(life)
    return v3.encode_frame(request)


def v3_read_lac(ledger_id: int, *, txn: int = 1) -> bytes:
    request = v3.new_request(pb.READ_LAC, txn)
    request.readLacRequest.ledgerId = ledger_id
    return v3.encode_frame(request)


def v3_force(ledger_id: int, *, txn: int = 1) -> bytes:
    request = v3.new_request(pb.FORCE_LEDGER, txn)
    request.forceLedgerRequest.ledgerId = ledger_id
    return v3.encode_frame(request)


def v3_list(ledger_id: int, *, txn: int = 1) -> bytes:
    request = v3.new_request(pb.GET_LIST_OF_ENTRIES_OF_LEDGER, txn)
    request.getListOfEntriesOfLedgerRequest.ledgerId = ledger_id
    return v3.encode_frame(request)


def v3_start_tls(*, txn: int = 1) -> bytes:
    request = v3.new_request(pb.START_TLS, txn)
    request.startTLSRequest.SetInParent()
    return v3.encode_frame(request)


def v3_auth(message: AuthMessage | None, *, txn: int = 1) -> bytes:
    """`message` None: the request lacks its own."""
    request = v3.new_request(pb.AUTH, txn)
    if message is not None:
        request.authRequest.CopyFrom(to_protobuf(message))
    return v3.encode_frame(request)


def v3_answer(frame: bytes) -> pb.Response:
    """An answer, length word included."""
    return v3.parse_response(frame[4:])


def v3_status(frame: bytes) -> int:
    return int(v3_answer(frame).status)


def raw_pair(key: bytes, value: bytes) -> bytes:
    """Return the bytes of a pair of `Request.requestContext` that need not be UTF-8."""
    pair = b"".join((b"\x0a", encode_varint(len(key)), key, b"\x12", encode_varint(len(value)), value))
    return b"".join((b"\xc2\x0c", encode_varint(len(pair)), pair))


def raw_ids(txn_id: int, ledger_id: int, entry_id: int) -> tuple[bytes, bytes, bytes]:
    """The three numbers as the response encoders want them."""
    return encode_varint(txn_id), encode_varint(ledger_id), encode_varint(entry_id)


def add_response(txn: bytes, ledger: bytes, entry: bytes) -> bytes:
    """The frame that acknowledges an add."""
    part1, part2 = v3_encode.add_response_parts(len(txn), len(ledger), len(entry))
    return b"".join((part1, txn, part2, ledger, b"\x18", entry))


def add_request(
    txn_id: int,
    ledger_id: int,
    entry_id: int,
    master_key: bytes,
    entry: bytes,
    flags: int = 0,
    life: bytes = NO_LIFE,
) -> list[bytes]:
    """The frame of an add, in pieces. Flags: RECOVERY_ADD, HIGH_PRIORITY, DEFERRED_SYNC."""
    txn, number = encode_varint(txn_id), encode_varint(entry_id)
    before, between, behind = v3_encode.add_request_parts(
        ledger_id, master_key, len(entry), len(txn), len(number), flags, life
    )
    head, tail = b"".join((before, txn, between, number, behind)), v3_encode.add_request_tail(flags)
    return [head, entry, tail] if tail else [head, entry]
