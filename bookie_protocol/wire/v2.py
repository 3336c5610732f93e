"""The binary protocol, versions 0 to 2: messages in both directions. `v2_layout` says how they are laid out and names
opcodes and flags.

Invariants
- What was encoded here is decoded here to the same message, in any version that can carry it.
- Bytes that are no message raise `ProtocolViolation`, and nothing else.

Pure functions; any thread. A bookie's hot path works on the layout directly.

Source: reference wire protocol, section 3.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import chain
from typing import Final, NamedTuple

from bookie_protocol.errors import ProtocolViolation, V2Code
from bookie_protocol.keys import MASTER_KEY_SIZE
from bookie_protocol.wire.auth import AuthMessage, decode_auth_message, encode_auth_message
from bookie_protocol.wire.framing import LENGTH
from bookie_protocol.wire.packed_entries import PackedEntries
from bookie_protocol.wire.v2_layout import (
    ADD_ENTRY_OFFSET,
    ADD_MINIMUM,
    BATCH_READ_REQUEST,
    BATCH_READ_REQUEST_SIZE,
    BATCH_READ_RESPONSE,
    BATCH_READ_RESPONSE_FRAME,
    BATCH_READ_RESPONSE_SIZE,
    CURRENT_VERSION,
    ENTRY_LENGTH,
    HEADER_WORD,
    READ_REQUEST,
    READ_REQUEST_SIZE,
    RESPONSE,
    RESPONSE_FRAME,
    RESPONSE_SIZE,
    STEP,
    Flag,
    OpCode,
    carries_key,
    header_word,
    split_word,
)

Buffer = bytes | bytearray | memoryview


class AddRequest(NamedTuple):
    """ADDENTRY. `entry` has at least 16 bytes; a bookie answers EBADREQ when it has fewer than 24."""

    version: int
    flags: int
    master_key: bytes
    ledger_id: int
    entry_id: int
    entry: bytes


class ReadRequest(NamedTuple):
    """READENTRY. `master_key` is there when DO_FENCING is set and the version can carry it."""

    version: int
    flags: int
    ledger_id: int
    entry_id: int
    master_key: bytes | None


class BatchReadRequest(NamedTuple):
    """BATCH_READ_ENTRY. `max_count` <= 0: no limit. `max_size` counts bytes of the response frame. `step`: 1 without
    `Flag.STEPPED`; nobody has looked at it yet."""

    version: int
    flags: int
    ledger_id: int
    entry_id: int
    request_id: int
    max_count: int
    max_size: int
    master_key: bytes | None
    step: int = 1


class AuthFrame(NamedTuple):
    """AUTH, in both directions."""

    version: int
    message: AuthMessage


class Response(NamedTuple):
    """Answer to ADDENTRY or READENTRY. `entry` is the stored entry of a successful read, else empty."""

    version: int
    opcode: OpCode
    code: int
    ledger_id: int
    entry_id: int
    entry: bytes


class BatchReadResponse(NamedTuple):
    """Answer to BATCH_READ_ENTRY. The k-th of `entries` is entry `entry_id + k`, or with a step `entry_id + k * step`;
    their lengths were not looked at."""

    version: int
    code: int
    ledger_id: int
    entry_id: int
    request_id: int
    entries: PackedEntries


Request = AddRequest | ReadRequest | BatchReadRequest | AuthFrame


def _opcode(number: int) -> OpCode:
    opcode = _OPCODES.get(number)
    if opcode is None:
        raise ProtocolViolation(f"v2 opcode {number} is not decodable: closing the connection")
    return opcode


def _truncated(what: str, size: int) -> ProtocolViolation:
    return ProtocolViolation(f"v2 {what} frame of {size} bytes is cut short: closing the connection")


# --- requests -----------------------------------------------------------------------------------------------


def decode_request(body: Buffer) -> Request:
    """A request frame body of any version byte; a bookie answers EBADVERSION when `version` is not in
    ACCEPTED_VERSIONS. Raises ProtocolViolation for opcodes that are not decodable and for bodies cut
    short."""
    if len(body) < HEADER_WORD.size:
        raise _truncated("request", len(body))
    version, number, flags = split_word(HEADER_WORD.unpack_from(body)[0])
    opcode = _opcode(number)
    if opcode is OpCode.ADDENTRY:
        return _decode_add(body, version, flags)
    if opcode is OpCode.READENTRY:
        if len(body) < READ_REQUEST_SIZE:
            raise _truncated("READENTRY", len(body))
        _, ledger_id, entry_id = READ_REQUEST.unpack_from(body)
        key = _fencing_key(body, READ_REQUEST_SIZE, version, flags)
        return ReadRequest(version, flags, ledger_id, entry_id, key)
    if opcode is OpCode.BATCH_READ_ENTRY:
        if len(body) < BATCH_READ_REQUEST_SIZE:
            raise _truncated("BATCH_READ_ENTRY", len(body))
        _, ledger_id, entry_id, request_id, max_count, max_size = BATCH_READ_REQUEST.unpack_from(body)
        key = _fencing_key(body, BATCH_READ_REQUEST_SIZE, version, flags)
        step = _step(body, BATCH_READ_REQUEST_SIZE + len(key or b""), flags)
        return BatchReadRequest(version, flags, ledger_id, entry_id, request_id, max_count, max_size, key, step)
    return AuthFrame(version, decode_auth_message(body[HEADER_WORD.size :]))


def _decode_add(body: Buffer, version: int, flags: int) -> AddRequest:
    if len(body) < ADD_MINIMUM:
        raise _truncated("ADDENTRY", len(body))
    ledger_id, entry_id = _IDS.unpack_from(body, ADD_ENTRY_OFFSET)
    key = bytes(body[HEADER_WORD.size : ADD_ENTRY_OFFSET])
    return AddRequest(version, flags, key, ledger_id, entry_id, bytes(body[ADD_ENTRY_OFFSET:]))


def _fencing_key(body: Buffer, offset: int, version: int, flags: int) -> bytes | None:
    if not carries_key(version, flags):
        return None
    key = bytes(body[offset : offset + MASTER_KEY_SIZE])
    if len(key) < MASTER_KEY_SIZE:
        raise _truncated("fencing read", len(body))
    return key


def _step(body: Buffer, offset: int, flags: int) -> int:
    if not flags & Flag.STEPPED:
        return 1
    if len(body) < offset + STEP.size:
        raise _truncated("BATCH_READ_ENTRY", len(body))
    step: int = STEP.unpack_from(body, offset)[0]
    return step


def encode_add_request(
    master_key: bytes, entry: bytes, flags: int = Flag.NONE, version: int = CURRENT_VERSION
) -> list[bytes]:
    """The frame of an add in two pieces: everything in front of the entry, and the entry itself (not copied).

    `master_key` has 20 bytes.
    """
    return [add_request_head(master_key, len(entry), flags, version), entry]


def add_request_head(master_key: bytes, size: int, flags: int = Flag.NONE, version: int = CURRENT_VERSION) -> bytes:
    """What stands in front of an entry of `size` bytes in the frame of an add."""
    word = header_word(version, OpCode.ADDENTRY, flags)
    return _ADD_REQUEST_FRAME.pack(ADD_ENTRY_OFFSET + size, word, master_key)


def encode_read_request(
    ledger_id: int,
    entry_id: int,
    flags: int = Flag.NONE,
    master_key: bytes = b"",
    version: int = CURRENT_VERSION,
) -> bytes:
    """The frame of a read; `master_key` (20 bytes) with DO_FENCING, else empty."""
    word = header_word(version, OpCode.READENTRY, flags)
    length = READ_REQUEST_SIZE + len(master_key)
    return _READ_REQUEST_FRAME.pack(length, word, ledger_id, entry_id) + master_key


def encode_batch_read_request(
    ledger_id: int,
    entry_id: int,
    request_id: int,
    max_count: int,
    max_size: int,
    flags: int = Flag.NONE,
    master_key: bytes = b"",
    version: int = CURRENT_VERSION,
    step: int = 1,
) -> bytes:
    """The frame of a batch read; see `BatchReadRequest`."""
    behind = master_key
    if step != 1 or flags & Flag.STEPPED:
        flags, behind = flags | Flag.STEPPED, master_key + STEP.pack(step)
    word = header_word(version, OpCode.BATCH_READ_ENTRY, flags)
    body = BATCH_READ_REQUEST.pack(word, ledger_id, entry_id, request_id, max_count, max_size)
    return LENGTH.pack(len(body) + len(behind)) + body + behind


def encode_auth(message: AuthMessage, version: int = CURRENT_VERSION) -> bytes:
    """The frame of an AUTH request or response."""
    body = encode_auth_message(message)
    word = header_word(version, OpCode.AUTH)
    return _TWO_WORDS.pack(HEADER_WORD.size + len(body), word) + body


# --- responses ----------------------------------------------------------------------------------------------


def encode_response(version: int, opcode: int, code: int, ledger_id: int, entry_id: int) -> bytes:
    """The frame of an add's response, or of a read that failed."""
    return RESPONSE_FRAME.pack(RESPONSE_SIZE, header_word(version, opcode), code, ledger_id, entry_id)


def encode_read_response(version: int, ledger_id: int, entry_id: int, entry: bytes) -> list[bytes]:
    """The frame of a read that succeeded, in two pieces. `entry_id` is the id as requested, -1 included."""
    word = header_word(version, OpCode.READENTRY)
    head = RESPONSE_FRAME.pack(RESPONSE_SIZE + len(entry), word, V2Code.EOK, ledger_id, entry_id)
    return [head, entry]


def encode_batch_read_response(
    version: int,
    code: int,
    ledger_id: int,
    entry_id: int,
    request_id: int,
    entries: Sequence[bytes],
    flags: int = Flag.NONE,
) -> list[bytes]:
    """The frame of a batch read's response in pieces; entries are not copied. No entries on errors."""
    size = BATCH_READ_RESPONSE_SIZE + sum(map(len, entries)) + ENTRY_LENGTH.size * len(entries)
    word = header_word(version, OpCode.BATCH_READ_ENTRY, flags & Flag.STEPPED)
    pieces = [BATCH_READ_RESPONSE_FRAME.pack(size, word, code, ledger_id, entry_id, request_id)]
    lengths = map(ENTRY_LENGTH.pack, map(len, entries))
    pieces.extend(chain.from_iterable(zip(lengths, entries, strict=True)))
    return pieces


def decode_response(body: Buffer) -> Response | BatchReadResponse | AuthFrame:
    """A response frame body. `code` may be a number that V2Code does not know. Raises ProtocolViolation."""
    if len(body) < HEADER_WORD.size:
        raise _truncated("response", len(body))
    version, number, flags = split_word(HEADER_WORD.unpack_from(body)[0])
    opcode = _opcode(number)
    if opcode is OpCode.AUTH:
        return AuthFrame(version, decode_auth_message(body[HEADER_WORD.size :]))
    if opcode is OpCode.BATCH_READ_ENTRY:
        if len(body) < BATCH_READ_RESPONSE_SIZE:
            raise _truncated("BATCH_READ_ENTRY response", len(body))
        _, code, ledger_id, entry_id, request_id = BATCH_READ_RESPONSE.unpack_from(body)
        entries = PackedEntries(bytes(body), BATCH_READ_RESPONSE_SIZE, stepped=bool(flags & Flag.STEPPED))
        return BatchReadResponse(version, code, ledger_id, entry_id, request_id, entries)
    if len(body) < RESPONSE_SIZE:
        raise _truncated(f"{opcode.name} response", len(body))
    _, code, ledger_id, entry_id = RESPONSE.unpack_from(body)
    return Response(version, opcode, code, ledger_id, entry_id, bytes(body[RESPONSE_SIZE:]))


_OPCODES: Final[dict[int, OpCode]] = {opcode.value: opcode for opcode in OpCode}
_IDS: Final = struct.Struct(">qq")
_TWO_WORDS: Final = struct.Struct(">II")
_ADD_REQUEST_FRAME: Final = struct.Struct(">II20s")
_READ_REQUEST_FRAME: Final = struct.Struct(">IIqq")
