"""The protobuf protocol (version 3) through generated messages, and the rule that tells it from v2.

Everything that is not hot goes through here; `v3_hot` does without message objects.

A genuine request has some twenty fields, whatever its size. One that is made of millions of unknown ones costs a second
of work, on a loop that others wait for, and before the client is authenticated: so fields are counted
(`has_many_fields`) before objects are made of them.

Invariants
- `parse_request` is the detection rule itself (reference wire protocol, section 2): a body is a v3 request
  when it parses, has no group among its unknown fields, and holds all required fields in the envelope and
  in every sub-message. An enum field with an unknown number counts as absent. There is no second, looser
  test anywhere.
- Answers have version THREE, the request's operation and transaction id, and no priority; only
  `header_copied` keeps the header as it came.

Pure functions; any thread.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, cast

from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from bookie_protocol.errors import ProtocolViolation, V3Status
from bookie_protocol.wire import bookkeeper_pb2 as pb
from bookie_protocol.wire.framing import LENGTH

HIGH_PRIORITY: Final = 100
"""Priority of recovery requests; a bookie treats every value above 0 alike."""

DEFERRED_SYNC: Final = 1
"""Bit of `AddRequest.writeFlags`: acknowledge before the sync."""

_VARINT, _FIXED64, _BYTES, _START_GROUP, _END_GROUP, _FIXED32 = range(6)


def parse_request(body: bytes | bytearray | memoryview) -> pb.Request | None:
    """Return the request that a frame body holds; None when it is no v3 request."""
    try:
        request = pb.Request.FromString(bytes(body))
    except DecodeError:
        return None
    if not request.IsInitialized():
        return None
    size = request.ByteSize()
    request.DiscardUnknownFields()
    # Hardly a request has unknown fields; only then is it worth looking at each of them.
    if request.ByteSize() != size and _has_group(pb.Request.FromString(bytes(body))):
        return None
    return request


def parse_response(body: bytes | bytearray | memoryview) -> pb.Response:
    """Return the response that a frame body holds; raises ProtocolViolation when it is none."""
    try:
        response = pb.Response.FromString(bytes(body))
    except DecodeError:
        raise ProtocolViolation("frame is not a v3 response: closing the connection") from None
    if not response.IsInitialized():
        raise ProtocolViolation("v3 response lacks required fields: closing the connection")
    return response


def encode_frame(message: pb.Request | pb.Response) -> bytes:
    """Return the frame of a request or response, length word included."""
    body = message.SerializeToString()
    return LENGTH.pack(len(body)) + body


def new_request(operation: pb.OperationType, txn_id: int, priority: int = 0) -> pb.Request:
    """Return a request with its header; the caller fills in the sub-message. Priority 0 is left out."""
    header = pb.BKPacketHeader(version=pb.VERSION_THREE, operation=operation, txnId=txn_id)
    if priority:
        header.priority = priority
    return pb.Request(header=header)


def new_response(request: pb.Request, status: V3Status) -> pb.Response:
    """Return the answer's envelope; the caller fills in the sub-message and its own, equal, status."""
    header = pb.BKPacketHeader(version=pb.VERSION_THREE, operation=request.header.operation, txnId=request.header.txnId)
    return pb.Response(header=header, status=status_code(status))


def header_copied(request: pb.Request, status: V3Status) -> pb.Response:
    """Return the answer of AUTH and of errors that concern no sub-message (EUA before authentication, EBADREQ for an
    operation that is not served): the request's header verbatim."""
    return pb.Response(header=request.header, status=status_code(status))


def status_code(status: V3Status) -> pb.StatusCode:
    """Return the code for the status fields of responses and their sub-messages."""
    return cast("pb.StatusCode", int(status))


def response_status(response: pb.Response, inner: int) -> int:
    """Return the status that counts: the outer one unless it is EOK, else the inner one (section 9.3)."""
    return response.status or inner


def _has_group(message: Message) -> bool:
    unknown: Iterable[Any] = UnknownFieldSet(message)  # type: ignore[assignment]  # it is a sequence
    if any(field.wire_type == _START_GROUP for field in unknown):
        return True
    for descriptor, value in message.ListFields():
        if descriptor.message_type is None:
            continue
        parts = value if descriptor.is_repeated else (value,)
        if any(map(_has_group, parts)):
            return True
    return False


MANY_FIELDS: Final = 256
SMALL_BYTES: Final = 512
"""A body of this size cannot have more fields than it pays to count."""

_LONGEST_VARINT: Final = 10
_MESSAGES: Final = frozenset(field.number for field in pb.Request.DESCRIPTOR.fields if field.message_type is not None)


def has_many_fields(body: bytes | memoryview) -> bool:
    """Return True if a request's body has more than `MANY_FIELDS` fields, those of its parts included. Bytes that
    are not protobuf end the count."""
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
    """Return a number and where it ends; what is longer than a number may be ends early."""
    value = shift = 0
    while shift < 7 * _LONGEST_VARINT:
        byte = body[pos]
        pos += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            break
        shift += 7
    return value, pos
