"""The protobuf protocol (version 3) through generated messages, and the rule that tells it from v2.

Everything that is not hot goes through here; `v3_hot_add` and `v3_hot_read` do without message objects.

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

_START_GROUP: Final = 3


def parse_request(body: bytes | bytearray | memoryview) -> pb.Request | None:
    """The request that a frame body holds; None when it is no v3 request."""
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
    """The response that a frame body holds; raises ProtocolViolation when it is none."""
    try:
        response = pb.Response.FromString(bytes(body))
    except DecodeError:
        raise ProtocolViolation("frame is not a v3 response: closing the connection") from None
    if not response.IsInitialized():
        raise ProtocolViolation("v3 response lacks required fields: closing the connection")
    return response


def encode_frame(message: pb.Request | pb.Response) -> bytes:
    """The frame of a request or response, length word included."""
    body = message.SerializeToString()
    return LENGTH.pack(len(body)) + body


def new_request(operation: pb.OperationType, txn_id: int, priority: int = 0) -> pb.Request:
    """A request with its header; the caller fills in the sub-message. Priority 0 is left out."""
    header = pb.BKPacketHeader(version=pb.VERSION_THREE, operation=operation, txnId=txn_id)
    if priority:
        header.priority = priority
    return pb.Request(header=header)


def new_response(request: pb.Request, status: V3Status) -> pb.Response:
    """The answer's envelope; the caller fills in the sub-message and its own, equal, status."""
    header = pb.BKPacketHeader(version=pb.VERSION_THREE, operation=request.header.operation, txnId=request.header.txnId)
    return pb.Response(header=header, status=status_code(status))


def header_copied(request: pb.Request, status: V3Status) -> pb.Response:
    """The answer of AUTH and of errors that concern no sub-message (EUA before authentication, EBADREQ for an
    operation that is not served): the request's header verbatim."""
    return pb.Response(header=request.header, status=status_code(status))


def status_code(status: V3Status) -> pb.StatusCode:
    """The code for the status fields of responses and their sub-messages."""
    return cast("pb.StatusCode", int(status))


def response_status(response: pb.Response, inner: int) -> int:
    """The status that counts: the outer one unless it is EOK, else the inner one (section 9.3)."""
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
