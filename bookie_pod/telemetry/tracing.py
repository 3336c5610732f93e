"""The interface of tracing for servers: protocols alone, so that nothing is imported where it is off."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from bookie_protocol.trace_context import TraceParent

Attributes = Mapping[str, str | int]


class JoinedRequest(NamedTuple):
    """A request that is traced because its client traces it."""

    parent: TraceParent
    received: float
    """Time of `perf_counter` at which it was read from the socket."""
    attributes: Attributes
    """Attributes of its span."""


class CallTracer(Protocol):
    """Traces calls over gRPC. Any thread."""

    def call(self, method: str, request: str, context: Mapping[str, str]) -> AbstractContextManager[object]:
        """Return the context in which a call is served: a span, in the trace that `context` (headers of W3C Trace
        Context) names."""
        ...


class RequestTracer(Protocol):
    """Traces requests of the BookKeeper protocol. Event loop.

    What is noted ends now. Times are those of `perf_counter`; results are the ids of traces.
    """

    ratio: float
    """The part of the socket reads with adds that is traced by itself."""

    def joins(self, parent: TraceParent) -> bool:
        """Return whether a request that names this span is traced. Call it once for each: it counts."""
        ...

    def adds(self, attributes: Attributes, received: float, admitted: float, *, failed: bool) -> int:
        """Note the adds of a socket read, in a trace of their own. `admitted`: when they were handed to the journal."""
        ...

    def add(self, request: JoinedRequest, admitted: float, *, failed: bool) -> int:
        """Note an add, with the same stages as `adds`, in the trace of its client."""
        ...

    def request(self, name: str, request: JoinedRequest, *, failed: bool) -> int:
        """Note a request without stages, in the trace of its client."""
        ...
