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
_LONGEST_VARINT: Final = 10
_MESSAGES: Final = frozenset(field.number for field in pb.Request.DESCRIPTOR.fields if field.message_type is not None)


def has_many_fields(body: bytes | memoryview) -> bool:
    """Whether a request's body has more than `MANY_FIELDS` fields, those of its parts included. Bytes that are no
    protobuf end the count."""
    if len(body) <= SMALL_BYTES:
        return False
    parts: list[tuple[int, int]] = []
    count = _count(body, 0, len(body), 0, parts)
    for start, end in parts:
        count = _count(body, start, end, count, None)
    return count > MANY_FIELDS


def _count(body: bytes | memoryview, pos: int, end: int, count: int, parts: list[tuple[int, int]] | None) -> int:
    """`count` and the fields from `pos` to `end`, though no more than `MANY_FIELDS + 1`. Messages among them that a
    request has are added to `parts`. One loop without calls, because it runs for each large request."""
    try:
        while pos < end and count <= MANY_FIELDS:
            count += 1
            tag = body[pos]
            pos += 1
            if tag >= 0x80:
                tag, pos = _varint(body, pos - 1)
            kind = tag & 7
            if tag < 8 or kind > _FIXED32:
                break  # no field has the number 0, or such a kind
            if kind == _VARINT:
                last = pos + _LONGEST_VARINT - 1
                while body[pos] >= 0x80 and pos < last:
                    pos += 1
                pos += 1
            elif kind == _BYTES:
                size = body[pos]
                pos += 1
                if size >= 0x80:
                    size, pos = _varint(body, pos - 1)
                if parts is not None and tag >> 3 in _MESSAGES:
                    parts.append((pos, min(pos + size, end)))
                pos += size
            elif kind == _FIXED64:
                pos += 8
            elif kind == _FIXED32:
                pos += 4
    except IndexError:
        pass  # the last field has no end
    return count


def _varint(body: bytes | memoryview, pos: int) -> tuple[int, int]:
    """A number and where it ends; what is longer than a number may be ends early."""
    value = shift = 0
    while shift < 7 * _LONGEST_VARINT:
        byte = body[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    return value, pos
