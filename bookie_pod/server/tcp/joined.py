"""Requests that are traced because their client traces them: how they are known, and their spans.

Only requests that the hot paths leave come here: one with a context has a shape of its own. Without telemetry, or
without a context, such a request costs one comparison.

Threads: event loop only.
"""

from __future__ import annotations

from collections.abc import Callable

from bookie_pod.server.tcp.context import ServerContext
from bookie_pod.server.tcp.request_log import RequestId, traced
from bookie_pod.telemetry.tracing import JoinedRequest
from bookie_protocol.errors import NotThere
from bookie_protocol.trace_context import trace_parent_of
from bookie_protocol.wire import bookkeeper_pb2 as pb


def joined(
    context: ServerContext, request: pb.Request, came_at: float, peer: str, identify: Callable[[], RequestId]
) -> JoinedRequest | None:
    """Return a request with its context, if it carries one and is traced. Call it once for each request."""
    tracer = context.tracer
    if tracer is None or not request.requestContext:
        return None
    parent = trace_parent_of(request)
    if parent is None or not tracer.joins(parent):
        return None
    return JoinedRequest(parent, came_at, traced(peer, identify()))


def add_ended(
    context: ServerContext, request: JoinedRequest, admitted: float, elapsed_ms: float, *, failed: bool
) -> None:
    """Note an add that the journal has acknowledged. `elapsed_ms`: what the metrics have of it."""
    if context.tracer is not None:
        trace_id = context.tracer.add(request, admitted, failed=failed)
        context.metrics.add_traced(elapsed_ms, trace_id, success=not failed)


def add_refused(context: ServerContext, request: JoinedRequest) -> None:
    """Note an add that was answered with an error."""
    if context.tracer is not None:
        context.tracer.request("bookie.adds", request, failed=True)


def read_ended(
    context: ServerContext, request: JoinedRequest, kind: str, elapsed_ms: float, error: BaseException | None
) -> None:
    """Note a read that is answered. That there is no such entry is an answer, too."""
    if context.tracer is not None:
        failed = error is not None and not isinstance(error, NotThere)
        trace_id = context.tracer.request("bookie.read", request, failed=failed)
        context.metrics.read_traced(kind, elapsed_ms, trace_id, success=error is None)
