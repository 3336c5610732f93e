"""The binary protocol, versions 0 to 2: its layout, and messages in both directions.

Integers are big-endian and signed.

Header word, first 4 bytes of every frame body: version u8, opcode u8, flags u16. A word whose version byte
is 0 is the legacy form: the opcode is its low 8 bits and there are no flags. Responses carry the version
and opcode of the request and no flags, but for STEPPED.

    ADDENTRY request    word, master key (20), entry
    READENTRY request   word, ledger id i64, entry id i64 [, master key (20) with DO_FENCING and version 2]
    both responses      word, code i32, ledger id i64, entry id i64 [, entry bytes of a successful read]
    BATCH_READ_ENTRY    word, ledger id i64, first entry id i64, request id i64, max count i32, max size i64
                        [, master key (20) as above] [, step i32 with STEPPED]
      response          word, code i32, ledger id i64, first entry id i64, request id i64,
                        then pairs of length i32 and entry (`PackedEntries`)
    AUTH, both ways     word, protobuf AuthMessage

Invariants
- What was encoded here is decoded here to the same message, in any version that can carry it.
- Bytes that are no message raise `ProtocolViolation`, and nothing else.

Pure functions; any thread. A server that holds frame bodies in one buffer works with `ADD_HEADER`,
`READ_REQUEST` and `response_prefix` directly; the messages are for everything else and for clients.

Source: docs/internals/wire-protocol.md, section 3.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from enum import IntEnum, IntFlag
from functools import lru_cache
from itertools import chain
from typing import Final, NamedTuple

from bookie_protocol.errors import ProtocolViolation, V2Code
from bookie_protocol.keys import MASTER_KEY_SIZE
from bookie_protocol.wire.auth import AuthMessage, decode_auth_message, encode_auth_message
from bookie_protocol.wire.framing import LENGTH

CURRENT_VERSION: Final = 2
ACCEPTED_VERSIONS: Final = frozenset((0, 1, 2))
HEADER_WORD: Final = struct.Struct(">I")
ADD_HEADER: Final = struct.Struct(">I20sqqq")
"""Frame body of an add: header word, master key, ledger id, entry id, LAC. The entry starts at
`ADD_ENTRY_OFFSET`."""
READ_REQUEST: Final = struct.Struct(">Iqq")
"""Header word, ledger id, entry id; with DO_FENCING the master key starts behind it."""
PLAIN_READ: Final = struct.Struct(">8sqq")
"""A whole frame: `PLAIN_READ_HEAD`, ledger id, entry id."""
BATCH_READ_REQUEST: Final = struct.Struct(">Iqqqiq")
"""Header word, ledger id, first entry id, request id, max count, max size."""
RESPONSE: Final = struct.Struct(">Iiqq")
"""Header word, code, ledger id, entry id."""
BATCH_READ_RESPONSE: Final = struct.Struct(">Iiqqq")
"""Header word, code, ledger id, first entry id, request id."""
RESPONSE_FRAME: Final = struct.Struct(">IIiqq")
"""`RESPONSE` with its length word in front."""
BATCH_READ_RESPONSE_FRAME: Final = struct.Struct(">IIiqqq")
"""`BATCH_READ_RESPONSE` with its length word in front."""
ENTRY_LENGTH: Final = struct.Struct(">i")
STEP: Final = struct.Struct(">i")
ADD_ENTRY_OFFSET: Final = 24
"""Offset of the entry in the frame body of an add."""
ADD_MINIMUM: Final = 40
"""Frame body of an add that still names ledger and entry; below it nothing can be answered."""
READ_REQUEST_SIZE: Final = 20
BATCH_READ_REQUEST_SIZE: Final = 40
RESPONSE_SIZE: Final = 24
BATCH_READ_RESPONSE_SIZE: Final = 32
Buffer = bytes | bytearray | memoryview
_IDS: Final = struct.Struct(">qq")
_TWO_WORDS: Final = struct.Struct(">II")
_ADD_REQUEST_FRAME: Final = struct.Struct(">II20s")
_READ_REQUEST_FRAME: Final = struct.Struct(">IIqq")


class OpCode(IntEnum):
    """Operations that have a binary form. Numbers 4, 5 and 6 are reserved and not decodable."""

    ADDENTRY = 1
    READENTRY = 2
    AUTH = 3
    BATCH_READ_ENTRY = 7


class Flag(IntFlag):
    """Request flags. Unknown bits are ignored."""

    NONE = 0x0000
    DO_FENCING = 0x0001
    RECOVERY_ADD = 0x0002
    HIGH_PRIORITY = 0x0004
    BATCH_CLASS = 0x0008
    """Podkeeper's own, of reads: the traffic class `batch` (see `traffic_class`)."""
    STEPPED = 0x0010
    """Podkeeper's own, of batch reads: for the first entry, and not the next ones but every step-th, as bookies hold
    them of a striped ledger. An answer without it, as other bookies give, is to the same request without a step."""


assert ADD_HEADER.size == ADD_ENTRY_OFFSET + 24
assert READ_REQUEST.size == READ_REQUEST_SIZE
assert BATCH_READ_REQUEST.size == BATCH_READ_REQUEST_SIZE
assert RESPONSE.size == RESPONSE_SIZE
assert BATCH_READ_RESPONSE.size == BATCH_READ_RESPONSE_SIZE
assert RESPONSE_FRAME.size == RESPONSE_SIZE + 4
assert BATCH_READ_RESPONSE_FRAME.size == BATCH_READ_RESPONSE_SIZE + 4


# --- the header word ----------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def header_word(version: int, opcode: int, flags: int = 0) -> int:
    """Return the header word; version 0 has the legacy form, which cannot carry flags."""
    return opcode if version == 0 else version << 24 | opcode << 16 | flags


def split_word(word: int) -> tuple[int, int, int]:
    """Version (0 to 255), opcode number and flags of a header word."""
    version = word >> 24
    if version == 0:
        return 0, word & 0xFF, 0
    return version, word >> 16 & 0xFF, word & 0xFFFF


def carries_key(version: int, flags: int) -> bool:
    """True when a read request has a master key behind its fixed fields. The version byte counts as
    signed."""
    return bool(flags & Flag.DO_FENCING) and CURRENT_VERSION <= version <= 0x7F


@lru_cache(maxsize=1024)
def response_prefix(version: int, opcode: int, code: int) -> bytes:
    """Length word, header word and code of a 24-byte response: the ids (16 bytes) follow.

    For an add that succeeded the ids are the first 16 bytes of the entry as it came, so the whole response is
    `response_prefix(version, OpCode.ADDENTRY, 0) + body[24:40]`.
    """
    return RESPONSE_FRAME.pack(RESPONSE_SIZE, header_word(version, opcode), code, 0, 0)[:12]


PLAIN_READ_HEAD: Final = struct.pack(
    ">II", READ_REQUEST_SIZE, header_word(CURRENT_VERSION, OpCode.READENTRY, Flag.NONE)
)
"""Start of the frame of a read without flags: length word and header word."""


class PackedEntries:
    """The entries in the answer to a batch read, as they came: their consumer takes them apart.

    To take entries apart and to look at each later costs two passes over the bytes and twice the memory. A reader that
    verifies entries does both in one pass. `body[start:]` holds them; nothing was looked at yet. `stepped`: see
    `Flag.STEPPED`.
    """

    __slots__ = ("body", "start", "stepped")

    def __init__(self, body: bytes, start: int = 0, *, stepped: bool = False) -> None:
        self.body = body
        self.start = start
        self.stepped = stepped

    @property
    def is_empty(self) -> bool:
        return len(self.body) <= self.start

    def split(self) -> list[bytes]:
        """Raises `ProtocolViolation` for lengths that do not fit."""
        body, start, end = self.body, self.start, len(self.body)
        entries: list[bytes] = []
        append, unpack, length_size = entries.append, ENTRY_LENGTH.unpack_from, ENTRY_LENGTH.size
        while start < end:
            if start + length_size > end:
                raise ProtocolViolation("the answer to a batch read ends within the length of an entry")
            (length,) = unpack(body, start)
            start += length_size
            if length < 0 or start + length > end:
                raise ProtocolViolation(f"the answer to a batch read holds an entry of {length} bytes beyond its end")
            append(body[start : start + length])
            start += length
        return entries


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
    `Flag.STEPPED`; not checked yet."""

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


def add_request_head(master_key: bytes, size: int, flags: int = Flag.NONE, version: int = CURRENT_VERSION) -> bytes:
    """Return the bytes before an entry of `size` bytes in the frame of an add. `master_key` has 20 bytes."""
    word = header_word(version, OpCode.ADDENTRY, flags)
    return _ADD_REQUEST_FRAME.pack(ADD_ENTRY_OFFSET + size, word, master_key)


def encode_read_request(
    ledger_id: int,
    entry_id: int,
    flags: int = Flag.NONE,
    master_key: bytes = b"",
    version: int = CURRENT_VERSION,
) -> bytes:
    """Return the frame of a read; `master_key` (20 bytes) with DO_FENCING, else empty."""
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
    """Return the frame of a batch read; see `BatchReadRequest`."""
    behind = master_key
    if step != 1 or flags & Flag.STEPPED:
        flags, behind = flags | Flag.STEPPED, master_key + STEP.pack(step)
    word = header_word(version, OpCode.BATCH_READ_ENTRY, flags)
    body = BATCH_READ_REQUEST.pack(word, ledger_id, entry_id, request_id, max_count, max_size)
    return LENGTH.pack(len(body) + len(behind)) + body + behind


def encode_auth(message: AuthMessage, version: int = CURRENT_VERSION) -> bytes:
    """Return the frame of an AUTH request or response."""
    body = encode_auth_message(message)
    word = header_word(version, OpCode.AUTH)
    return _TWO_WORDS.pack(HEADER_WORD.size + len(body), word) + body


# --- responses ----------------------------------------------------------------------------------------------


def encode_response(version: int, opcode: int, code: int, ledger_id: int, entry_id: int) -> bytes:
    """Return the frame of an add's response, or of a read that failed."""
    return RESPONSE_FRAME.pack(RESPONSE_SIZE, header_word(version, opcode), code, ledger_id, entry_id)


def encode_read_response(version: int, ledger_id: int, entry_id: int, entry: bytes) -> list[bytes]:
    """Return the frame of a read that succeeded, in two pieces. `entry_id` is the id as requested, -1 included."""
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
    """Return the frame of a batch read's response in pieces; entries are not copied. No entries on errors."""
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
