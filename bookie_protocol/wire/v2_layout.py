"""Layout of the binary protocol, versions 0 to 2 (reference wire protocol, section 3). Integers: big-endian, signed.

A server that holds frame bodies in one buffer works with `ADD_HEADER`, `READ_REQUEST` and `response_prefix` directly;
`v2` has the messages for everything else and for clients.

Header word, first 4 bytes of every frame body: version u8, opcode u8, flags u16. A word whose version byte
is 0 is the legacy form: the opcode is its low 8 bits and there are no flags. Responses carry the version
and opcode of the request and no flags, but for STEPPED.

    ADDENTRY request    word, master key (20), entry
    READENTRY request   word, ledger id i64, entry id i64 [, master key (20) with DO_FENCING and version 2]
    both responses      word, code i32, ledger id i64, entry id i64 [, entry bytes of a successful read]
    BATCH_READ_ENTRY    word, ledger id i64, first entry id i64, request id i64, max count i32, max size i64
                        [, master key (20) as above] [, step i32 with STEPPED]
      response          word, code i32, ledger id i64, first entry id i64, request id i64,
                        then pairs of length i32 and entry
    AUTH, both ways     word, protobuf AuthMessage

Pure functions; any thread.
"""

from __future__ import annotations

import struct
from enum import IntEnum, IntFlag
from functools import lru_cache
from typing import Final

CURRENT_VERSION: Final = 2
ACCEPTED_VERSIONS: Final = frozenset((0, 1, 2))


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
"""Of the entry, in the frame body of an add."""
ADD_MINIMUM: Final = 40
"""Frame body of an add that still names ledger and entry; below it nothing can be answered."""
READ_REQUEST_SIZE: Final = 20
BATCH_READ_REQUEST_SIZE: Final = 40
RESPONSE_SIZE: Final = 24
BATCH_READ_RESPONSE_SIZE: Final = 32

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
    """The header word; version 0 has the legacy form, which cannot carry flags."""
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
"""What the frame of a read without flags begins with: length word and header word."""
