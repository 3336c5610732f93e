"""Telemetry: traces of calls and adds, metrics, and nothing at all where it is off."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator

import grpc
import numpy as np
import pytest
from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from opentelemetry.util.re import parse_env_headers

from bookie_pod.config.load import load_config
from bookie_pod.config.sections.telemetry import TelemetryConfig
from bookie_pod.metrics.registry import Registry
from bookie_pod.telemetry import otlp
from bookie_pod.telemetry.otlp import SpanExport, Telemetry
from bookie_pod.telemetry.otlp_metrics import metrics_data
from bookie_pod.telemetry.sampling import MOST_INSIDE
from bookie_pod.telemetry.start import check_telemetry, start_telemetry
from bookie_protocol.errors import InvalidConfiguration
from bookie_protocol.ledger_service import ledger_service_pb2 as pb
from tests.support.frames import entry, v3_add
from tests.support.otlp_collector import Collector
from tests.support.server_rig import ServerRig, answers
from tests.support.traced import Traced
from tests.unit.bookie_client.conftest import ModelCluster
from tests.unit.bookie_pod.gateway.conftest import serve

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SAMPLED, NOT_SAMPLED = (f"00-{TRACE}-00f067aa0ba902b7-0{flag}" for flag in (1, 0))


@pytest.fixture
async def rig() -> AsyncIterator[ServerRig]:
    made = ServerRig()
    yield made
    made.close()


async def test_adds_have_a_span_for_each_stage(rig: ServerRig) -> None:
    traced = Traced(1.0)
    rig.context.tracer = traced.tracer
    conn, transport = rig.connect()
    conn.data_received(v3_add(entry(7, 0), txn=41) + v3_add(entry(7, 1), txn=42))
    await answers(rig, transport, 2)
    admit, journal, whole = traced.spans.get_finished_spans()
    assert traced.names == ["bookie.adds.admit", "bookie.adds.journal", "bookie.adds"]
    assert {each.parent.span_id for each in (admit, journal)} == {whole.context.span_id}
    assert (whole.start_time, admit.end_time, whole.end_time) == (
        admit.start_time,
        journal.start_time,
        journal.end_time,
    )
    assert whole.start_time <= admit.end_time <= whole.end_time
    assert dict(whole.attributes) == {
        "network.peer.address": "192.0.2.1:40000",
        "bookkeeper.adds": 2,
        "bookkeeper.ledger": 7,
        "bookkeeper.entry": 0,
        "bookkeeper.txn": 41,
    }


async def test_adds_that_are_not_sampled_have_none(rig: ServerRig) -> None:
    traced = Traced(0.0)
    rig.context.tracer = traced.tracer
    conn, transport = rig.connect()
    conn.data_received(v3_add(entry(7, 0)))
    await answers(rig, transport, 1)
    assert traced.names == []


async def test_call_is_in_the_trace_of_its_client_and_sampled_as_the_client_says() -> None:
    cluster, traced = ModelCluster(), Traced(0.0)
    await cluster.add_bookie("b1")
    try:
        async with serve(cluster, tracer=traced.tracer) as served:
            for parent in (SAMPLED, NOT_SAMPLED, "nonsense"):
                call = served.stub.List(pb.ListRequest(), metadata=(("traceparent", parent), ("x-request-id", "r-1")))
                assert [each async for each in call] == []
            with pytest.raises(grpc.aio.AioRpcError):
                await served.stub.GetMetadata(pb.GetMetadataRequest(ledger_id=9), metadata=(("traceparent", SAMPLED),))
    finally:
        await cluster.stop()
    listed, got = traced.spans.get_finished_spans()
    assert f"{listed.context.trace_id:032x}" == f"{got.context.trace_id:032x}" == TRACE
    assert (listed.attributes["rpc.method"], listed.attributes["podkeeper.request_id"]) == ("List", "r-1")
    assert (listed.status.status_code, got.status.status_code) == (StatusCode.UNSET, StatusCode.ERROR)


@pytest.mark.parametrize(
    ("state", "taken"),
    [
        ("", {}),
        ("congo=t61rcWkgMzE,  rojo=00f067aa0ba902b7 ,", {"congo": "t61rcWkgMzE", "rojo": "00f067aa0ba902b7"}),
        ("1t@sys=a b", {"1t@sys": "a b"}),
        ("s3cret 1=1", {}),
        ("k=v,s3cret", {}),
        ("s3cret=v,s3cret=v", {}),
        ("k=s3cr\x01t", {}),
        ("k=s3crèt", {}),
        ("k=" + "s3cret" * 100, {}),
        (",".join(f"s3cret{number}=v" for number in range(33)), {}),
    ],
)
def test_context_of_a_call_is_taken_or_left_without_a_line(
    caplog: pytest.LogCaptureFixture, state: str, taken: dict[str, str]
) -> None:
    traced = Traced(0.0)
    with traced.tracer.call("/x.Ledgers/Read", "r-1", {"traceparent": SAMPLED, "tracestate": state}):
        pass
    (span,) = traced.spans.get_finished_spans()
    assert (f"{span.context.trace_id:032x}", dict(span.context.trace_state)) == (TRACE, taken)
    assert caplog.messages == []


@pytest.mark.parametrize("parent", [SAMPLED + "x" * 1000, "s3cret" * 100, f"01-{SAMPLED[3:]}", ""])
def test_call_with_another_context_is_none_of_its_clients_trace(caplog: pytest.LogCaptureFixture, parent: str) -> None:
    traced = Traced(1.0)
    with traced.tracer.call("/x.Ledgers/Read", "r-1", {"traceparent": parent, "tracestate": "k=v"}):
        pass
    (span,) = traced.spans.get_finished_spans()
    assert (span.parent, dict(span.context.trace_state), caplog.messages) == (None, {}, [])


def test_call_has_few_spans_of_the_client_inside() -> None:
    traced = Traced(0.0)
    for _ in range(2):
        with traced.tracer.call("/x.Ledgers/Append", "r-1", {"traceparent": SAMPLED}):
            for _ in range(100):
                traced.tracer.client.start_span("inside").end()
    with traced.tracer.call("/x.Ledgers/Append", "r-1", {"traceparent": NOT_SAMPLED}):
        traced.tracer.client.start_span("inside").end()
    traced.tracer.client.start_span("outside").end()
    assert traced.names == [*["inside"] * MOST_INSIDE, "x.Ledgers/Append"] * 2


def test_metrics_have_the_names_and_labels_of_the_page() -> None:
    registry = Registry()
    scope = registry.scope("a", place='x"\n\\')
    scope.counter("added").add(3)
    scope.gauge("level", lambda: 2.5)
    scope.op_stats("latency", summed=True).observe_ms(3.0, 2)
    data = metrics_data(registry, Resource.create({}), 5)
    found = {each.name: each.data for each in data.resource_metrics[0].scope_metrics[0].metrics}
    assert set(found) == {"a_added", "a_level", "a_latency_count", "a_latency_sum", "a_latency_hist"}
    (added,) = found["a_added"].data_points
    assert (added.value, added.start_time_unix_nano, added.attributes) == (3, 5, {"place": 'x"\n\\'})
    (histogram,) = [each for each in found["a_latency_hist"].data_points if each.attributes["success"] == "true"]
    assert (histogram.count, histogram.sum, sum(histogram.bucket_counts)) == (2, 6.0, 2)
    assert histogram.bucket_counts[histogram.explicit_bounds.index(4.0)] == 2


@pytest.mark.parametrize("value", [True, np.int64(3), np.float32(2.5), 2**63, -(2**70), math.inf])
def test_value_of_any_type_can_be_exported(value: float) -> None:
    registry = Registry()
    registry.scope().gauge("level", lambda: value)
    encoded = encode_metrics(metrics_data(registry, Resource.create({}), 5))
    (point,) = encoded.resource_metrics[0].scope_metrics[0].metrics[0].gauge.data_points
    assert (point.as_int or point.as_double) == value


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as made:
        yield made


async def test_collector_gets_traces_and_metrics_at_the_latest_when_the_process_stops(collector: Collector) -> None:
    registry = Registry()
    registry.scope("a").counter("added").add(3)
    config = TelemetryConfig(endpoint=f"http://127.0.0.1:{collector.server_port}/", trace_ratio=1.0)
    telemetry = await start_telemetry(config, registry, "podkeeper-bookie", "b1")
    assert telemetry is not None
    with telemetry.tracer.call("/x.Ledgers/Read", "r-1", {}):
        pass
    await telemetry.stop()
    (traces,) = map(ExportTraceServiceRequest.FromString, collector.bodies["/v1/traces"])
    assert traces.resource_spans[0].scope_spans[0].spans[0].name == "x.Ledgers/Read"
    named = {each.key: each.value.string_value for each in traces.resource_spans[0].resource.attributes}
    assert (named["service.name"], named["service.instance.id"]) == ("podkeeper-bookie", "b1")
    (metrics,) = map(ExportMetricsServiceRequest.FromString, collector.bodies["/v1/metrics"])
    assert [each.name for each in metrics.resource_metrics[0].scope_metrics[0].metrics] == ["a_added"]


async def test_collector_that_is_away_ends_nothing() -> None:
    config = TelemetryConfig(endpoint="http://127.0.0.1:1", metrics_interval_s=1)
    processor = SimpleSpanProcessor(InMemorySpanExporter())
    telemetry = await asyncio.to_thread(Telemetry, config, Registry(), "podkeeper-bookie", "b1", processor)
    async with asyncio.timeout(30):
        await telemetry.stop()


class HungProcessor(SpanProcessor):
    """A processor whose last export gets no answer."""

    def __init__(self) -> None:
        self.answered = threading.Event()

    def shutdown(self) -> None:
        self.answered.wait()


async def test_stop_does_not_wait_for_a_collector_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "EXPORT_S", 0.05)
    processor = HungProcessor()
    telemetry = Telemetry(TelemetryConfig(metrics_interval_s=0), Registry(), "podkeeper-bookie", "b1", processor)
    try:
        async with asyncio.timeout(30):
            await telemetry.stop()
    finally:
        processor.answered.set()


def test_no_batch_is_exported_behind_the_last_moment(collector: Collector) -> None:
    exporter = SpanExport(f"http://127.0.0.1:{collector.server_port}/v1/traces")
    traced = Traced(1.0)
    with traced.tracer.call("/x.Ledgers/Read", "r-1", {}):
        pass
    spans = traced.spans.get_finished_spans()
    assert exporter.export(spans) is SpanExportResult.SUCCESS
    exporter.end_by(time.monotonic())
    assert exporter.export(spans) is SpanExportResult.FAILURE
    assert len(collector.bodies["/v1/traces"]) == 1
    exporter.shutdown()


async def test_nothing_is_started_or_imported_without_an_endpoint() -> None:
    assert await start_telemetry(TelemetryConfig(), Registry(), "x", "y") is None
    program = (
        "import sys, podkeeper, bookie_pod.telemetry.start;"
        "import bookie_pod.server.tcp.context, bookie_pod.server.grpc.access;"
        "print([name for name in sys.modules if name.startswith('opentelemetry')])"
    )
    found = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", program], capture_output=True, check=True)
    assert found.stdout.strip() == b"[]"


@pytest.mark.parametrize(
    ("headers", "usable"),
    [
        ("", True),
        ("x-team=s3cret, other=s3cret==,", True),
        ("authorization=Basic s3cret%3D", True),
        ("x-team: s3cret", False),
        ("a=b,s3cret", False),
        ("a=b;s3cret", False),
        ("x team=s3cret", False),
        ("x-team=s3crèt", False),
    ],
)
@pytest.mark.parametrize("kind", ["", "TRACES_", "METRICS_"])
def test_headers_that_the_sdk_cannot_read_are_refused_and_not_shown(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str, headers: str, usable: bool
) -> None:
    monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{kind}HEADERS", headers)
    config = TelemetryConfig(endpoint="http://c:4318")
    parse_env_headers(headers, liberal=True)
    assert bool(caplog.messages) is not usable, "the SDK would complain, with the header"
    if usable:
        check_telemetry(config)
        return
    with pytest.raises(InvalidConfiguration) as caught:
        check_telemetry(config)
    assert ("s3cr" in str(caught.value), f"{kind}HEADERS" in str(caught.value)) == (False, True)


@pytest.mark.parametrize(
    "endpoint",
    ["collector:4318", "ftp://c", "http://", "http://u:s3cret@c", "http://s3cret@c", "http://c/?a", "http://c:x"],
)
def test_endpoint_that_is_no_address_is_refused_when_it_is_read(endpoint: str) -> None:
    required = {"metadataServiceUri": "zk://z/l", "journalDirectories": "/j", "ledgerDirectories": "/l"}
    with pytest.raises(InvalidConfiguration, match="otelEndpoint") as caught:
        load_config(None, overrides={**required, "otelEndpoint": endpoint})
    assert "s3cret" not in str(caught.value)
