"""Spans of calls and requests, and their export over OTLP (HTTP, protobuf).

A call over gRPC is a span in its client's trace (`traceparent`), and so are a read and an add of version 3 whose client
names its span (`bookie_protocol.trace_context`): those that the client samples, as far as `otelClientTracesPerSec`
goes. Of the calls without a context, and of the socket reads with adds that bring none, `otelTraceRatio` are traces of
their own. A span of adds has two stages, `admit` (decoded, checked, put into the write cache) and `journal` (until they
are durable and answered). Its attributes have what the client's errors and the log have: address, ledger, entry and
transaction id.

Threads: spans are begun on any; the SDK exports on its own, and drops what does not fit into its queue.
"""

from __future__ import annotations

import asyncio
import math
import re
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from typing import Final

import structlog
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, ParentBased, TraceIdRatioBased
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TraceState,
    set_span_in_context,
)

from bookie_pod.config.sections.telemetry import TelemetryConfig
from bookie_pod.metrics.registry import Registry
from bookie_pod.telemetry.otlp_metrics import MetricsExport
from bookie_pod.telemetry.sampling import ClientsSampled, FewInside, TracePace, call_begins
from bookie_pod.telemetry.tracing import Attributes, JoinedRequest
from bookie_protocol.trace_context import TRACE_PARENT, TRACE_STATE, TraceParent, parse_trace_parent

EXPORT_S: Final = 5.0
"""Seconds that one export may take, and all exports together while a process stops."""
_NAME: Final = "podkeeper"
_STATE_LENGTH: Final = 512
_STATE_MEMBERS: Final = 32
_STATE_MEMBER: Final = re.compile(
    r"([a-z][a-z0-9_*/-]{0,255}|[a-z0-9][a-z0-9_*/-]{0,240}@[a-z][a-z0-9_*/-]{0,13})=([ -+\--<>-~]{0,255}[!-+\--<>-~])"
)

_log = structlog.get_logger(__name__)


class Telemetry:
    """The telemetry of one process. `processor`: takes the spans, in place of an export."""

    def __init__(
        self,
        config: TelemetryConfig,
        registry: Registry,
        service: str,
        instance: str,
        processor: SpanProcessor | None = None,
    ) -> None:
        endpoint = (config.endpoint or "").rstrip("/")
        resource = Resource.create(
            {"service.name": service, "service.instance.id": instance, "service.version": version(_NAME)}
        )
        self._export = SpanExport(f"{endpoint}/v1/traces")
        self._processor = processor or BatchSpanProcessor(self._export)
        self.tracer = Tracer(config, resource, self._processor)
        self._metrics: MetricsExport | None = None
        if config.metrics_interval_s:
            self._metrics = MetricsExport(endpoint, registry, resource, config.metrics_interval_s, EXPORT_S)
            self._metrics.start()

    async def stop(self) -> None:
        """Export what is left, as far as that takes no more than `EXPORT_S` seconds."""
        await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        deadline = time.monotonic() + EXPORT_S
        self._export.end_by(deadline)
        ends = [self._processor.shutdown] if self._metrics is None else [self._metrics.stop, self._processor.shutdown]
        # Threads that no process waits for: each is in the middle of an export if the collector does not answer.
        threads = [threading.Thread(target=end, name="OtelStop", daemon=True) for end in ends]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        if any(thread.is_alive() for thread in threads):
            _log.warning("telemetry: the collector did not take the last traces or metrics in time", seconds=EXPORT_S)


class SpanExport(OTLPSpanExporter):
    """An export of spans that can have a last moment, because the SDK exports all it has when it stops."""

    def __init__(self, endpoint: str) -> None:
        super().__init__(endpoint=endpoint, timeout=EXPORT_S)
        self._deadline = math.inf

    def end_by(self, deadline: float) -> None:
        """Begin no export from then on (`time.monotonic`)."""
        self._deadline = deadline

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """See `SpanExporter`."""
        return super().export(spans) if time.monotonic() < self._deadline else SpanExportResult.FAILURE


class Tracer:
    """Traces calls over gRPC (any thread) and requests of the BookKeeper protocol (event loop).

    What is noted of a request ends now. Times are those of `perf_counter`; results are the ids of traces.
    """

    def __init__(self, config: TelemetryConfig, resource: Resource, processor: SpanProcessor) -> None:
        self.ratio = config.trace_ratio
        """The part of the socket reads with adds that is traced by itself."""
        self._pace = TracePace(config.client_traces_per_s)
        joined = ClientsSampled(self._pace)
        calls = TracerProvider(
            ParentBased(TraceIdRatioBased(config.trace_ratio), remote_parent_sampled=joined),
            resource,
            shutdown_on_exit=False,
        )
        # Requests of the BookKeeper protocol: the caller has sampled already.
        requests = TracerProvider(ALWAYS_ON, resource, shutdown_on_exit=False)
        few = ParentBased(ALWAYS_OFF, local_parent_sampled=FewInside())
        inside = TracerProvider(few, resource, shutdown_on_exit=False)
        for provider in (calls, requests, inside):
            provider.add_span_processor(processor)
        self._calls = calls.get_tracer(_NAME)
        self._requests = requests.get_tracer(_NAME)
        self.client = inside.get_tracer(_NAME)
        """The tracer for the client of a gateway, whose spans are within those of the calls that are traced."""

    @contextmanager
    def call(self, method: str, request: str, context: Mapping[str, str]) -> Iterator[object]:
        """Return the context in which a call is served: a span, in the trace that `context` (headers of W3C Trace
        Context) names."""
        named = parse_trace_parent(context.get(TRACE_PARENT, ""))
        parent = _context_of(named, _trace_state(context.get(TRACE_STATE, "")))
        service, _, name = method.lstrip("/").rpartition("/")
        attributes = {"rpc.system": "grpc", "rpc.service": service, "rpc.method": name, "podkeeper.request_id": request}
        began = self._calls.start_as_current_span(
            method.lstrip("/"), parent, SpanKind.SERVER, attributes, record_exception=False
        )
        with call_begins(), began as span:
            yield span

    def joins(self, parent: TraceParent) -> bool:
        """Return whether a request that names this span is traced. Call it once for each: it counts."""
        return parent.is_sampled and self._pace.takes()

    def adds(self, attributes: Attributes, received: float, admitted: float, *, failed: bool) -> int:
        """Note the adds of a socket read, in a trace of their own. `admitted`: when they were handed to the journal."""
        return self._note("bookie.adds", None, attributes, received, admitted, failed)

    def add(self, request: JoinedRequest, admitted: float, *, failed: bool) -> int:
        """Note an add, with the same stages as `adds`, in the trace of its client."""
        return self._note("bookie.adds", request.parent, request.attributes, request.received, admitted, failed)

    def request(self, name: str, request: JoinedRequest, *, failed: bool) -> int:
        """Note a request without stages, in the trace of its client."""
        return self._note(name, request.parent, request.attributes, request.received, None, failed)

    def _note(
        self,
        name: str,
        parent: TraceParent | None,
        attributes: Attributes,
        received: float,
        admitted: float | None,
        failed: bool,
    ) -> int:
        now, wall = time.perf_counter(), time.time_ns()
        began = wall - round((now - received) * 1e9)
        span = self._requests.start_span(name, _context_of(parent), SpanKind.SERVER, attributes, start_time=began)
        if admitted is not None:
            inside = set_span_in_context(span)
            handed = wall - round((now - admitted) * 1e9)
            for stage, start, end in (("admit", began, handed), ("journal", handed, wall)):
                self._requests.start_span(f"{name}.{stage}", inside, start_time=start).end(end)
        if failed:
            span.set_status(Status(StatusCode.ERROR))
        span.end(wall)
        return span.get_span_context().trace_id


def _context_of(parent: TraceParent | None, state: TraceState | None = None) -> Context:
    """Return the context of a remote parent; an empty one makes a new trace, whatever is current."""
    if parent is None:
        return Context()
    flags = TraceFlags(parent.flags)
    known = SpanContext(parent.trace_id, parent.span_id, is_remote=True, trace_flags=flags, trace_state=state)
    return set_span_in_context(NonRecordingSpan(known), Context())


def _trace_state(header: str) -> TraceState | None:
    """Return what a header `tracestate` says; None if it is not exactly as in W3C Trace Context.

    The SDK would write what it cannot read, a stranger's text, into the log.
    """
    if len(header) > _STATE_LENGTH:
        return None
    members = [each for part in header.split(",") if (each := part.strip(" \t"))]
    found = {match[1]: match[2] for each in members if (match := _STATE_MEMBER.fullmatch(each)) is not None}
    if len(found) < len(members) or len(found) > _STATE_MEMBERS:  # one is wrong, or there twice
        return None
    return TraceState(list(found.items()))
