"""The entry as clients produce it and bookies store it, and the packet that carries an explicit LAC.

Layout of an entry (big-endian, reference wire protocol, section 7.1):

    offset  size  field
    0       8     ledger id, i64
    8       8     entry id, i64
    16      8     last add confirmed (LAC) that the writer knew when it sent this entry, i64; -1 if none
    24      8     length, i64: payload bytes of the ledger up to and including this entry
    32      D     digest, D bytes by digest type (see `bookie_protocol.digest`)
    32+D    ...   payload of the application

Layout of a LAC packet (section 7.3): ledger id i64, LAC i64, then a digest of the same type as the ledger's
entries.

Invariants
- A bookie reads the first 24 bytes and takes everything behind them as opaque.
- Nothing here verifies a digest: `bookie_protocol.digest` does.

Pure functions; any thread.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from bookie_protocol.errors import BadRequest

ENTRY_HEADER: Final = struct.Struct(">qqqq")
"""Ledger id, entry id, LAC, length."""

ENTRY_IDS: Final = struct.Struct(">qq")
"""Ledger id, entry id; and of a LAC packet: ledger id, LAC."""

ENTRY_PREFIX: Final = struct.Struct(">qqq")
"""Ledger id, entry id, LAC: what a bookie reads of an entry."""

ENTRY_HEADER_SIZE: Final = 32
ENTRY_PREFIX_SIZE: Final = 24
LAC_PACKET_HEADER_SIZE: Final = 16

LAST_ENTRY: Final = -1
"""Entry id of a read that asks for the last entry stored."""

NO_LAC: Final = -1
"""Last add confirmed of a ledger without a confirmed entry."""

assert ENTRY_HEADER.size == ENTRY_HEADER_SIZE
assert ENTRY_PREFIX.size == ENTRY_PREFIX_SIZE
assert ENTRY_IDS.size == LAC_PACKET_HEADER_SIZE


class EntryHeader(NamedTuple):
    """The 32 bytes in front of the digest."""

    ledger_id: int
    entry_id: int
    lac: int
    length: int


class LacPacketHeader(NamedTuple):
    """The 16 bytes in front of a LAC packet's digest."""

    ledger_id: int
    lac: int


def read_header(entry: bytes | bytearray | memoryview, offset: int = 0) -> EntryHeader:
    """Return the four header fields of the entry that starts at `offset`.

    Raises BadRequest when fewer than 32 bytes are there.
    """
    try:
        return EntryHeader._make(ENTRY_HEADER.unpack_from(entry, offset))
    except struct.error:
        raise _too_short("entry", len(entry) - offset, ENTRY_HEADER_SIZE) from None


def read_prefix(entry: bytes | bytearray | memoryview) -> tuple[int, int, int]:
    """Ledger id, entry id and LAC, all that a bookie needs; BadRequest when fewer than 24 bytes are there."""
    try:
        ledger_id, entry_id, lac = ENTRY_PREFIX.unpack_from(entry)
    except struct.error:
        raise _too_short("entry", len(entry), ENTRY_PREFIX_SIZE) from None
    return ledger_id, entry_id, lac


def is_possible_lac(lac: int, entry_id: int) -> bool:
    """Return True if an entry may carry this LAC: none, or an entry before it. An entry is not confirmed when it
    is sent, so any other header is damaged, or was made up."""
    return NO_LAC <= lac < entry_id


def carried_lac(entry: bytes | bytearray | memoryview) -> int | None:
    """The LAC in an entry's header; None if it cannot be right. BadRequest when fewer than 24 bytes are there."""
    _, entry_id, lac = read_prefix(entry)
    return lac if is_possible_lac(lac, entry_id) else None


def read_lac_packet(packet: bytes | bytearray | memoryview) -> LacPacketHeader:
    """Ledger id and LAC of a LAC packet (body of WRITE_LAC, `lacBody` of READ_LAC); its digest is not
    checked.

    Raises BadRequest when fewer than 16 bytes are there.
    """
    try:
        return LacPacketHeader._make(ENTRY_IDS.unpack_from(packet))
    except struct.error:
        raise _too_short("LAC packet", len(packet), LAC_PACKET_HEADER_SIZE) from None


def _too_short(what: str, size: int, needed: int) -> BadRequest:
    return BadRequest(f"{what} of {max(size, 0)} bytes is shorter than its header of {needed} bytes")
