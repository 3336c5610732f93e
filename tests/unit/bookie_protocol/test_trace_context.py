"""The context of a trace in a request: exactly W3C's, and in a frame that every parser of protobuf takes."""

from __future__ import annotations

import pytest

from bookie_protocol.trace_context import TRACE_PARENT, TraceParent, marked, parse_trace_parent, trace_mark
from bookie_protocol.trace_context import trace_parent_of as parent_of
from bookie_protocol.wire import bookkeeper_pb2 as pb
from bookie_protocol.wire import v3
from tests.support.frames import entry, raw_pair, v3_add, v3_read

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
ARABIC_ONE = "\u0661"
PARENT = TraceParent(int(TRACE, 16), int(SPAN, 16), 1)


@pytest.mark.parametrize(
    ("value", "is_sampled"),
    [(f"00-{TRACE}-{SPAN}-01", True), (f"00-{TRACE}-{SPAN}-00", False), (f"00-{TRACE}-{SPAN}-03", True)],
)
def test_value_of_the_specification_is_a_context(value: str, is_sampled: bool) -> None:
    parent = parse_trace_parent(value)
    assert parent is not None
    assert (parent.trace_id, parent.span_id, parent.is_sampled) == (*PARENT[:2], is_sampled)


@pytest.mark.parametrize(
    "value",
    [
        "",
        "00",
        f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}-01 ",
        f" 00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
        f"00-{TRACE}-{SPAN}-01-x",
        f"01-{TRACE}-{SPAN}-01",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-0x",
        f"00_{TRACE}_{SPAN}_01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{ARABIC_ONE * 32}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01" * 100_000,
    ],
)
def test_any_other_value_is_none(value: str) -> None:
    assert parse_trace_parent(value) is None


@pytest.mark.parametrize("frame", [v3_add(entry(7, 3), txn=300), v3_read(7, 3, txn=300)])
def test_marked_frame_is_the_same_request_with_the_context(frame: bytes) -> None:
    mark = trace_mark(PARENT)
    sent = marked(frame, mark)
    assert len(sent) == len(frame) + len(mark) == len(frame) + 73
    assert int.from_bytes(sent[:4]) == len(sent) - 4
    request, plain = v3.parse_request(sent[4:]), v3.parse_request(frame[4:])
    assert request is not None
    assert plain is not None
    assert parent_of(request) == PARENT
    assert parent_of(plain) is None
    request.ClearField("requestContext")
    assert request == plain


@pytest.mark.parametrize("value", [b"\xff" * 55, f"00-{TRACE}-{SPAN}-0".encode() + b"\xff", b"\xff"])
def test_value_that_is_not_utf_8_is_none(value: bytes) -> None:
    request = v3.parse_request(marked(v3_read(7, 3), raw_pair(b"traceparent", value))[4:])
    assert request is not None
    assert isinstance(request.requestContext[0].value, bytes)
    assert parent_of(request) is None


def test_first_pair_with_the_key_counts() -> None:
    values = [("trace_id", TRACE), (TRACE_PARENT, "x"), (TRACE_PARENT, f"00-{TRACE}-{SPAN}-01")]
    request = pb.Request(requestContext=[pb.ContextPair(key=key, value=value) for key, value in values])
    assert parent_of(request) is None
    del request.requestContext[1]
    assert parent_of(request) == PARENT
