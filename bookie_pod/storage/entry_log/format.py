"""Bytes of an entry log: header, entry framing, location, ledgers map (reference disk formats, 4 to 6).

Header, 1024 bytes, all integers big-endian and signed::

    0   4     "BKLO"
    4   i32   version: 0 = no ledgers map possible, 1 = current
    8   i64   offset of the ledgers map; 0 while the log is written, or if it never was closed
    16  i32   number of ledgers in the map
    20  4     "MCRC" if the next field is there (ours; the reference leaves zeros and ignores them)
    24  u32   CRC32C of the 12 bytes at 8, then of the ledgers map from its offset on
    28  4     "PKLG" if we have made the log (ours, likewise)
    32  992   zeros

Entry, packed, the first at 1024::

    size i32              bytes that follow
    entry[size]           begins with ledger id i64, entry id i64

Location of an entry, 64 bits: ``(log id << 32) | position``; position = offset of the entry's first byte,
that is *after* the size. Location 0 means "absent".

Ledgers map, at the tail of a closed log, in batches of at most 10 000 ledgers. The framing makes each batch
look like an entry of ledger -1, so a plain scan steps over it::

    size i32              20 + 16 n
    ledger id i64 = -1, entry id i64 = -2
    n i32
    n x (ledger id i64, bytes i64)      bytes include the 4-byte size of each entry

Logs written past the page cache (direct I/O) differ in two points: the header block has 4096 bytes (a dummy
entry of ledger -1 at 1024 covers the rest), and each write is padded with 0xF0 to a multiple of 4096. A
size word that begins with 0xF0 is therefore negative and means: go on at the next multiple of 4096.

Pure functions; any thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from struct import Struct

import google_crc32c

MAGIC = b"BKLO"
VERSION = 1
HEADER_SIZE = 1024
SIZE_BYTES = 4
"""Bytes of the size word before each entry."""

FIRST_POSITION = HEADER_SIZE + SIZE_BYTES
"""Smallest position that a location can have."""

HARD_LOG_SIZE = (1 << 31) - 1
"""The offset beyond which no byte of an entry may lie: positions have 31 bits."""

MIN_ENTRY_SIZE = 16

MAP_LEDGER_ID = -1
MAP_ENTRY_ID = -2
MAP_BATCH_LEDGERS = 10_000

BLOCK = 4096
"""Alignment and header block of logs written with direct I/O."""

PAD_BYTE = b"\xf0"

HEADER = Struct(">4siqi")
MAP_POINTER = Struct(">qi")
"""The part of the header that is overwritten when the log is closed: map offset, number of ledgers."""
MAP_POINTER_OFFSET = 8
MAP_CHECK = Struct(">4sI")
"""`MAP_CHECK_MAGIC` and the checksum of the map; written together with the pointer and right after it."""
MAP_CHECK_OFFSET = MAP_POINTER_OFFSET + MAP_POINTER.size
MAP_CHECK_MAGIC = b"MCRC"
MAKER_OFFSET = MAP_CHECK_OFFSET + MAP_CHECK.size
MAKER = b"PKLG"
"""Which program has made the log: this one."""

SIZE = Struct(">i")
ENTRY_HEAD = Struct(">iqq")
"""Size, ledger id, entry id."""
MAP_HEAD = Struct(">iqqi")
MAP_FIXED_SIZE = MAP_HEAD.size - SIZE_BYTES
MAP_PAIR = Struct(">qq")

if (HEADER.size, ENTRY_HEAD.size, MAP_HEAD.size, MAP_PAIR.size, MAP_POINTER.size) != (20, 20, 24, 16, 12):
    raise AssertionError("the layout of the entry log is not the documented one")
if (MAP_CHECK.size, MAP_CHECK_OFFSET, HEADER.size) != (8, 20, 20):
    raise AssertionError("the check sum of the ledgers map does not lie behind the header's fields")


@dataclass(frozen=True, slots=True)
class LogHeader:
    """The fields of a log's header; `map_offset` is 0 if the log has no ledgers map."""

    magic: bytes = MAGIC
    version: int = VERSION
    map_offset: int = 0
    ledger_count: int = 0

    @property
    def has_map(self) -> bool:
        """Return whether the header claims a ledgers map (reference disk formats, 4.5)."""
        return self.version >= 1 and self.map_offset >= HEADER_SIZE and self.ledger_count > 0


def encode_header() -> bytes:
    """Return the header of a log that is being written, `HEADER_SIZE` bytes."""
    return (HEADER.pack(MAGIC, VERSION, 0, 0).ljust(MAKER_OFFSET, b"\0") + MAKER).ljust(HEADER_SIZE, b"\0")


def encode_direct_header() -> bytes:
    """The header block of a log written with direct I/O, `BLOCK` bytes: header, then a dummy entry."""
    dummy = Struct(">iq").pack(BLOCK - HEADER_SIZE - SIZE_BYTES, MAP_LEDGER_ID)
    return (encode_header() + dummy).ljust(BLOCK, b"\0")


def decode_header(data: bytes) -> LogHeader:
    """Return the header in the first bytes of a log. `ValueError` if there are fewer than 20; nothing else is
    checked.
    """
    if len(data) < HEADER.size:
        raise ValueError(f"entry log header has {len(data)} bytes, fewer than {HEADER.size}")
    return LogHeader(*HEADER.unpack_from(data))


def make_location(log_id: int, position: int) -> int:
    """Return the location of the entry whose first byte (after the size) is at `position` of log `log_id`."""
    return (log_id << 32) | position


def split_location(location: int) -> tuple[int, int]:
    """(log id, position) of a location."""
    return location >> 32, location & 0xFFFFFFFF


def next_block(position: int) -> int:
    """Return the smallest multiple of `BLOCK` that is greater than `position`."""
    return (position // BLOCK + 1) * BLOCK


def encode_ledgers_map(ledgers: Mapping[int, int]) -> list[bytes]:
    """Return the records to append for `ledgers` (ledger id to bytes), at most `MAP_BATCH_LEDGERS` each."""
    return list(_map_batches(ledgers))


def _map_batches(ledgers: Mapping[int, int]) -> Iterator[bytes]:
    pairs = iter(ledgers.items())
    while batch := list(islice(pairs, MAP_BATCH_LEDGERS)):
        count = len(batch)
        head = MAP_HEAD.pack(MAP_FIXED_SIZE + count * MAP_PAIR.size, MAP_LEDGER_ID, MAP_ENTRY_ID, count)
        yield head + Struct(f">{2 * count}q").pack(*chain.from_iterable(batch))


def map_checksum(pointer: bytes, ledgers_map: bytes, before: int = 0) -> int:
    """CRC32C over the header's pointer and the map; `before` goes on with an earlier sum (pointer empty then)."""
    return int(google_crc32c.extend(google_crc32c.extend(before, pointer), ledgers_map))


def encode_map_pointer(offset: int, ledger_count: int, ledgers_map: bytes) -> bytes:
    """Return the bytes that closing a log writes at `MAP_POINTER_OFFSET`: the map's position and checksum."""
    pointer = MAP_POINTER.pack(offset, ledger_count)
    return pointer + MAP_CHECK.pack(MAP_CHECK_MAGIC, map_checksum(pointer, ledgers_map))


def map_checksum_in(header: bytes) -> int | None:
    """Return the checksum that a header holds, or None if the log was closed by software that stores none."""
    if len(header) < MAP_CHECK_OFFSET + MAP_CHECK.size:
        return None
    magic, checksum = MAP_CHECK.unpack_from(header, MAP_CHECK_OFFSET)
    return int(checksum) if magic == MAP_CHECK_MAGIC else None
