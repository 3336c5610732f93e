"""Trace context: how a request of protocol version 3 names the trace of its client.

A client that samples a call adds one pair to a request of that call, in `Request.requestContext` (field 200): key
`traceparent`, value as in W3C Trace Context (`00-<32 hex digits>-<16>-<2>`). Apache BookKeeper fills the same field
with the logging context of its clients, and its bookies put the pairs into their log lines; so a stranger to the key
ignores it. Version 2 has no room for it. A call without a trace adds no byte.

The pair comes first in the frame: protobuf takes fields in any order, and what follows stays as it is encoded
elsewhere.

Invariants
- A value that is not exactly as in the specification's version 00 is no context, and no error.
- Of several pairs with the key the first one counts.

Pure; any thread.

Source: docs/internals/wire-protocol.md, section 4.2; https://www.w3.org/TR/trace-context/, section 3.2.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from bookie_protocol.wire import bookkeeper_pb2 as pb
from bookie_protocol.wire.framing import LENGTH, LENGTH_SIZE

TRACE_PARENT: Final = "traceparent"
TRACE_STATE: Final = "tracestate"
"""The key of what vendors add; in the metadata of calls over gRPC alone."""
_VALUE: Final = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})", re.ASCII)
_LENGTH: Final = 55
_SAMPLED: Final = 0x01


class TraceParent(NamedTuple):
    """The span of the caller."""

    trace_id: int
    span_id: int
    flags: int = _SAMPLED

    @property
    def is_sampled(self) -> bool:
        """Return True if the caller records its span."""
        return bool(self.flags & _SAMPLED)


def parse_trace_parent(value: str) -> TraceParent | None:
    """Return what a value names; None if it is not a context."""
    found = _VALUE.fullmatch(value) if len(value) == _LENGTH else None
    if found is None:
        return None
    parent = TraceParent(*(int(part, 16) for part in found.groups()))
    return parent if parent.trace_id and parent.span_id else None


def trace_parent_of(request: pb.Request) -> TraceParent | None:
    """Return the context that a request carries; None if it carries none, or one that is wrong."""
    for pair in request.requestContext:
        if pair.key == TRACE_PARENT:
            value: str | bytes = pair.value  # bytes if it is not UTF-8
            return parse_trace_parent(value) if isinstance(value, str) else None
    return None


def trace_mark(parent: TraceParent) -> bytes:
    """Return the bytes of the pair, which `marked` puts into a frame."""
    value = f"00-{parent.trace_id:032x}-{parent.span_id:016x}-{parent.flags:02x}"
    return pb.Request(requestContext=[pb.ContextPair(key=TRACE_PARENT, value=value)]).SerializePartialToString()


def marked(frame: bytes, mark: bytes) -> bytes:
    """Return a frame, or the beginning of one, with the mark in it. It begins with the length word."""
    (length,) = LENGTH.unpack_from(frame)
    return b"".join((LENGTH.pack(length + len(mark)), mark, frame[LENGTH_SIZE:]))
