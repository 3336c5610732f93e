"""A tracer of a bookie or a gateway, and one of a program, whose spans stay in memory."""

from __future__ import annotations

from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import Sampler

from bookie_pod.config.sections.telemetry import TelemetryConfig
from bookie_pod.telemetry.otlp import Tracer


class Traced:
    """The tracer of one process; `client_traces_per_s` as in `TelemetryConfig`."""

    def __init__(self, ratio: float, client_traces_per_s: int = 100) -> None:
        self.spans = InMemorySpanExporter()
        config = TelemetryConfig(trace_ratio=ratio, client_traces_per_s=client_traces_per_s)
        self.tracer = Tracer(config, Resource.create({}), SimpleSpanProcessor(self.spans))

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.spans.get_finished_spans()]


class TracedProgram:
    """The tracer of a program that uses the client."""

    def __init__(self, sampler: Sampler | None = None) -> None:
        self.spans = InMemorySpanExporter()
        self.provider = TracerProvider(sampler, shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self.spans))
        self.tracer = self.provider.get_tracer("program")

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.spans.get_finished_spans()]


def trace_ids(*spans: ReadableSpan) -> set[int]:
    return {span.context.trace_id for span in spans}
