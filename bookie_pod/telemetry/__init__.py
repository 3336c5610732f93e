"""OpenTelemetry, of the extra `otel`: traces and metrics to a collector (`otelEndpoint`).

    start.py     starts it if it is configured: imports the rest, and OpenTelemetry, only then
    tracing.py   what servers note of a request, without OpenTelemetry
    otlp.py      spans and their export          otlp_metrics.py   the metrics of the registry and their export
    sampling.py  the bound of traces that clients ask for

Promises: without `otelEndpoint` nothing is imported, and a call or a socket read costs one comparison. A collector
that is away, or slow, costs spans and metrics, never a request: both have threads of their own, and what waits is
bounded. What clients sample is traced as far as this process allows; their context is trusted for nothing else.
"""
