"""Plain reads of protocol version 3 decoded without message objects: the server's hot path.

The decoder accepts exactly one sequence of fields (`v3_shape`) and gives None for everything else; the caller then
parses with `v3.parse_request`. It never raises.

The frame, with the bytes of a number as <name> and an optional field in brackets:

    0a HL 08 03 10 01 18 <txn> [20 PR] a2 06 LEN 08 <ledger> 10 <entry>

Invariants
- A number is echoed as it came.
- The caches of shapes are bounded: they are emptied when full.

The caches are shared: call this from one thread, the event loop.

Source: reference wire protocol, section 4.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

from bookie_protocol.wire.v3_shape import MAX_SHAPES, flags_of, free, mask_of, parse_header
from bookie_protocol.wire.varint import MAX_VARINT_SIZE, decode_int64, varint_size

ReadFields = tuple[bytes, bytes, bytes, int, int, int]
"""Transaction id, ledger id and entry id as raw varints for `v3_encode`, ledger id, entry id, flags."""

_ReadShape = tuple[int, int, Callable[..., tuple[Any, ...]], int]
"""Mask, expected, unpack, flags."""

READ_HEADER: Final = b"\x08\x03\x10\x01\x18"
"""Stands at the third byte of the body of every read that goes this way; also of some that do not."""
_READ_FIELD: Final = b"\xa2\x06"

_read_shapes: dict[int, _ReadShape] = {}
_read_layouts: dict[tuple[bytes, int, int, int], _ReadShape] = {}


def decode_read_request(buffer: bytes, start: int, end: int) -> ReadFields | None:
    """The plain read whose frame body is `buffer[start:end]`, or None.

    Fencing reads and long polls give None.
    """
    shape = _read_shapes.get(end - start)
    if shape is not None and end <= len(buffer):
        mask, expected, unpack, flags = shape
        if int.from_bytes(buffer[start:end]) & mask == expected:
            txn, ledger, entry = unpack(buffer, start)
            return txn, ledger, entry, _value(ledger), _value(entry), flags
    if end > len(buffer) or not _learn_read(buffer[start:end]):
        return None
    return decode_read_request(buffer, start, end)


def _learn_read(frame: bytes) -> bool:
    priority, txn, at = parse_header(frame, READ_HEADER, _READ_FIELD)
    ledger = varint_size(frame, at + 2)
    entry = varint_size(frame, at + 2 + ledger + 1)
    if not (0 < txn < MAX_VARINT_SIZE and 0 < ledger < MAX_VARINT_SIZE and entry > 0):
        return False
    if at + 2 + ledger + 1 + entry != len(frame):
        return False
    layout = (priority, txn, ledger, entry)
    shape = _read_layouts.get(layout)
    if shape is None:
        if len(_read_layouts) >= MAX_SHAPES:
            _read_layouts.clear()
        shape = _read_layouts[layout] = _read_shape(*layout)
    mask, expected, _, _ = shape
    if int.from_bytes(frame) & mask != expected:
        return False
    # Bounded by the longest frame of this form.
    _read_shapes[len(frame)] = shape
    return True


def _read_shape(priority: bytes, txn: int, ledger: int, entry: int) -> _ReadShape:
    header_size = len(READ_HEADER) + txn + len(priority)
    before = b"".join((b"\x0a", bytes((header_size,)), READ_HEADER, free(txn), priority, _READ_FIELD))
    field_size = 2 + ledger + entry
    # The tenth byte of a negative number is 1; it is fixed.
    negative = entry == MAX_VARINT_SIZE
    entry_bytes = free(entry)[:-1] + b"\x01" if negative else free(entry)
    entry_mask = b"\x80" * (entry - 1) + (b"\xff" if negative else b"\x80")
    expected = b"".join((before, bytes((field_size,)), b"\x08", free(ledger), b"\x10", entry_bytes))
    mask = b"".join((mask_of(before, txn, 2 + len(READ_HEADER)), b"\xff" * 2, b"\x80" * ledger, b"\xff", entry_mask))
    assert len(mask) == len(expected)
    unpack = struct.Struct(f">{2 + len(READ_HEADER)}x{txn}s{len(priority) + 2 + 2}x{ledger}sx{entry}s").unpack_from
    return int.from_bytes(mask), int.from_bytes(expected), unpack, flags_of(priority, b"")


def _value(raw: bytes) -> int:
    return raw[0] if len(raw) == 1 else _decoded(raw)


_decoded: Final = lru_cache(maxsize=65536)(decode_int64)
