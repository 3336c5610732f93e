"""Requests that are traced because their client traces them: how they are known, and their spans.

Only requests that the hot paths leave come here: one with a context has a shape of its own. Without telemetry, or
without a context, such a request costs one comparison.

Threads: event loop only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from bookie_pod.server.tcp.request_log import RequestId, traced
from bookie_pod.telemetry.tracing import JoinedRequest
from bookie_protocol.errors import NotThere
from bookie_protocol.trace_context import trace_parent_of
from bookie_protocol.wire import bookkeeper_pb2 as pb

if TYPE_CHECKING:
    from bookie_pod.server.tcp.connection import Connection


def joined(conn: Connection, request: pb.Request, identify: Callable[[], RequestId]) -> JoinedRequest | None:
    """Return a request with its context, if it carries one and is traced. Call it once for each request."""
    tracer = conn.context.tracer
    if tracer is None or not request.requestContext:
        return None
    parent = trace_parent_of(request)
    if parent is None or not tracer.joins(parent):
        return None
    return JoinedRequest(parent, conn.received_at, traced(conn.peer, identify()))


def add_ended(conn: Connection, request: JoinedRequest, admitted: float, elapsed_ms: float, *, failed: bool) -> None:
    """Note an add that the journal has acknowledged. `elapsed_ms`: what the metrics have of it."""
    if conn.context.tracer is not None:
        trace_id = conn.context.tracer.add(request, admitted, failed=failed)
        conn.context.metrics.add_traced(elapsed_ms, trace_id, success=not failed)


def add_refused(conn: Connection, request: JoinedRequest) -> None:
    """Note an add that was answered with an error."""
    if conn.context.tracer is not None:
        conn.context.tracer.request("bookie.adds", request, failed=True)


def read_ended(
    conn: Connection, request: JoinedRequest, kind: str, elapsed_ms: float, error: BaseException | None
) -> None:
    """Note a read that is answered. That there is no such entry is an answer, too."""
    if conn.context.tracer is not None:
        failed = error is not None and not isinstance(error, NotThere)
        trace_id = conn.context.tracer.request("bookie.read", request, failed=failed)
        conn.context.metrics.read_traced(kind, elapsed_ms, trace_id, success=error is None)
