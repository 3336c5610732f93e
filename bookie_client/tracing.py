"""Spans of a client's calls, by the OpenTelemetry tracer of its options; nothing imports this module without one.

`bookkeeper.append` lasts from the call until the last of its entries is acknowledged, `bookkeeper.read` until all
entries are there, or the iteration has ended. They are children of the span that is current where the call is made,
and it is the program's own sampler that decides.

Invariants
- A call that is sampled sends its context once, in the first of its requests of protocol version 3 that reads or adds a
  single entry: a bookie looks at such a request by itself, and a call may have a million. Version 2 has no room for a
  context, and batch reads are of version 2.
- A call that is not sampled sends the same bytes as without a tracer.
- A tracer that raises fails no call: spans begin and end here alone, and the call goes on without.

Any thread; the spans of one call belong to its event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeAlias, TypeVar

from opentelemetry.context import Context, attach, detach, get_current
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from bookie_protocol.logs import get_logger
from bookie_protocol.trace_context import TraceParent, trace_mark

NO_ATTRIBUTES: Final[Mapping[str, int]] = MappingProxyType({})

_log = get_logger(__name__)

T = TypeVar("T")
Within: TypeAlias = Callable[[Awaitable[Any]], Awaitable[Any]]


class CallTrace:
    """The span of one call; `end` it."""

    __slots__ = ("_faults", "_mark", "_span")

    def __init__(self, faults: TracerFaults, span: Span | None, mark: bytes) -> None:
        """`span`: None if the tracer did not make one."""
        self._faults = faults
        self._span = span
        self._mark = mark

    def take_mark(self) -> bytes:
        """Return the bytes that name the span in a request; none from the second time on, or if it is not sampled."""
        mark, self._mark = self._mark, b""
        return mark

    def end(self, error: BaseException | None = None, attributes: Mapping[str, int] = NO_ATTRIBUTES) -> None:
        """The call is over. Calling it again changes nothing."""
        span, self._span = self._span, None
        if span is None:
            return
        try:
            if span.is_recording():
                span.set_attributes(attributes)
                if isinstance(error, Exception):
                    span.set_attribute("error.type", type(error).__name__)
                    span.set_status(Status(StatusCode.ERROR, str(error)))
            span.end()
        except Exception as fault:
            self._faults.note("end", fault)

    def end_appends(self, ended: asyncio.Future[Any]) -> None:
        """End the span as this future of one or more entries has ended."""
        if ended.cancelled():
            self.end()
            return
        error = ended.exception()
        if error is not None:
            self.end(error)
            return
        result = ended.result()
        ids: Sequence[int] = [result] if isinstance(result, int) else result
        first = {"bookkeeper.entry": ids[0]} if ids else {}
        self.end(attributes={"bookkeeper.entries": len(ids), **first})


class CallTraces:
    """Begins the spans of one client."""

    def __init__(self, tracer: Tracer, protocol_version: int) -> None:
        self._tracer = tracer
        self._marks = protocol_version == 3
        self._faults = TracerFaults()

    def append(self, ledger_id: int) -> CallTrace:
        """Begin the span of an append of one or more entries."""
        return self._begin("bookkeeper.append", {"bookkeeper.ledger": ledger_id})

    def read(self, ledger_id: int, first: int, last: int) -> CallTrace:
        """Begin the span of a read from one entry to another, both included."""
        named = {"bookkeeper.ledger": ledger_id, "bookkeeper.entry": first, "bookkeeper.entries": last + 1 - first}
        return self._begin("bookkeeper.read", named)

    def here(self) -> Within:
        """Return what awaits a call in another task, or on another thread, as if it were made here: its spans are in
        the one that is current now."""
        return partial(_within, get_current())

    def _begin(self, name: str, attributes: dict[str, int]) -> CallTrace:
        span: Span | None = None
        mark = b""
        try:
            span = self._tracer.start_span(name, kind=SpanKind.CLIENT, attributes=attributes)
            known = span.get_span_context()
            if self._marks and known.is_valid and known.trace_flags.sampled:
                mark = trace_mark(TraceParent(known.trace_id, known.span_id, known.trace_flags))
        except Exception as fault:
            self._faults.note("begin", fault)
        return CallTrace(self._faults, span, mark)


async def _within(parent: Context, call: Awaitable[T]) -> T:
    token = attach(parent)
    try:
        return await call
    finally:
        detach(token)


class TracerFaults:
    """Logs what a tracer raises: one line for each kind, because each call may fail."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def note(self, what: str, fault: Exception) -> None:
        """Note that a span could not `begin` or `end`."""
        if what not in self._seen:
            self._seen.add(what)
            _log.warning(
                "the tracer failed: calls go on without their spans; further failures are not logged",
                span=what,
                error=repr(fault),
                exc_info=fault,
            )
