"""OpenTelemetry. All keys are our own. Frozen; any thread may read."""

from __future__ import annotations

from dataclasses import dataclass

from bookie_pod.config.keys import INT_MAX, key


@dataclass(frozen=True, slots=True, kw_only=True)
class TelemetryConfig:
    """OpenTelemetry"""

    endpoint: str | None = key("otelEndpoint", None, own=True)
    """URL of a collector that takes OTLP over HTTP, such as `http://collector:4318`: traces and metrics are sent there.
    Needs the extra `otel`, which the image has. Headers and certificates come from the environment, as
    `OTEL_EXPORTER_OTLP_HEADERS` and `OTEL_EXPORTER_OTLP_CERTIFICATE`. Unset: no telemetry."""
    trace_ratio: float = key("otelTraceRatio", 0.01, own=True, at_least=0, at_most=1)
    """The part of calls over gRPC, and of socket reads with adds, that is traced. Calls and requests whose client sent
    a `traceparent` do not count here."""
    client_traces_per_s: int = key("otelClientTracesPerSec", 100, own=True, at_least=0, at_most=INT_MAX)
    """Calls over gRPC, and adds and reads of protocol version 3, that are traced in a second at most because their
    client traces them (`traceparent`), all clients together. 0: none."""
    metrics_interval_s: int = key("otelMetricsIntervalSec", 60, own=True, at_least=0, at_most=INT_MAX)
    """Seconds between two exports of the metrics. 0: export none."""
