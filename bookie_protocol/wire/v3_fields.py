"""How many fields a protobuf request has, before anybody makes objects of them.

A request that somebody has reason to send has some twenty fields, whatever its size. One that is made of millions of
unknown ones costs a second of work, on a loop that others wait for, and before anybody has said who they are.

Pure; any thread.
"""

from __future__ import annotations

from typing import Final

from bookie_protocol.wire import bookkeeper_pb2 as pb

MANY_FIELDS: Final = 256
SMALL_BYTES: Final = 512
"""A body of this size cannot have more fields than it pays to count."""

_VARINT, _FIXED64, _BYTES, _START_GROUP, _END_GROUP, _FIXED32 = range(6)
_MESSAGES: Final = frozenset(field.number for field in pb.Request.DESCRIPTOR.fields if field.message_type is not None)


def has_many_fields(body: bytes | memoryview) -> bool:
    """Whether a request's body has more than `MANY_FIELDS` fields, those of its parts included. Bytes that are no
    protobuf end the count."""
    if len(body) <= SMALL_BYTES:
        return False
    count = 0
    parts = [(0, len(body))]
    at_top = True
    while parts:
        pos, end = parts.pop()
        inner: list[tuple[int, int]] = []
        while pos < end:
            count += 1
            if count > MANY_FIELDS:
                return True
            number, kind, start, pos = _field(body, pos, end)
            if not number or pos > end:
                break
            if at_top and kind == _BYTES and number in _MESSAGES:
                inner.append((start, pos))
        if at_top:
            parts, at_top = inner, False
    return False


def _field(body: bytes | memoryview, pos: int, end: int) -> tuple[int, int, int, int]:
    """Number (0: there is no field), kind, where its value starts, and where the next field does."""
    tag, pos = _varint(body, pos, end)
    kind = tag & 7
    start = pos
    if kind == _VARINT:
        _, pos = _varint(body, pos, end)
    elif kind == _FIXED64:
        pos += 8
    elif kind == _BYTES:
        size, start = _varint(body, pos, end)
        pos = start + size
    elif kind == _FIXED32:
        pos += 4
    elif kind > _FIXED32:
        return 0, kind, start, end
    return tag >> 3, kind, start, pos


def _varint(body: bytes | memoryview, pos: int, end: int) -> tuple[int, int]:
    """A number and where it ends; 0 and a place behind `end` if it has no end."""
    value = shift = 0
    while pos < end and shift < 70:
        byte = body[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, pos
        shift += 7
    return 0, end + 1
