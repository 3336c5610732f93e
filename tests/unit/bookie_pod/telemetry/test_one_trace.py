"""One trace from a client, or a caller of the gateway, to the stages of a bookie. A whole bookie in this process."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased
from opentelemetry.trace import SpanKind, format_span_id, format_trace_id
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from bookie_client import Client, ClientOptions
from bookie_pod.metrics.registry import Registry
from bookie_pod.metrics.text import OPEN_METRICS
from bookie_protocol.ledger_service import ledger_service_pb2 as pb
from tests.support.live_bookie import live_bookie
from tests.support.traced import Traced, TracedProgram, trace_ids
from tests.unit.bookie_pod.gateway.conftest import serve

STAGES = ["bookie.adds.admit", "bookie.adds.journal", "bookie.adds"]


def exemplars_of(registry: Registry) -> set[tuple[str, str]]:
    """The series that have some, and the ids of their traces, by another reader of all that a bookie exports."""
    families = text_string_to_metric_families(registry.render(OPEN_METRICS))
    samples = [each for family in families for each in family.samples]
    return {(each.name, each.exemplar.labels["trace_id"]) for each in samples if each.exemplar is not None}


async def test_append_and_read_are_one_trace_from_client_to_bookie(tmp_path: Path) -> None:
    program, at_bookie = TracedProgram(), Traced(0.0)
    async with live_bookie(tmp_path) as bookie:
        bookie._server.context.tracer = at_bookie.tracer
        options = ClientOptions(tracer=program.tracer)
        async with (
            Client(bookie._metadata, options) as client,
            client.create(ensemble=1, write_quorum=1, ack_quorum=1) as ledger,
        ):
            with program.tracer.start_as_current_span("the program's") as whole:
                await ledger.append(b"first")
                await ledger.append_many([b"second", b"third"])
                await ledger.read(1, 1)
        exemplars = exemplars_of(bookie.registry)
    assert program.names == ["bookkeeper.append", "bookkeeper.append", "bookkeeper.read", "the program's"]
    assert at_bookie.names == [*STAGES, *STAGES, "bookie.read"]
    *calls, _ = program.spans.get_finished_spans()
    requests = [each for each in at_bookie.spans.get_finished_spans() if each.kind is SpanKind.SERVER]
    assert trace_ids(*calls, *at_bookie.spans.get_finished_spans()) == {whole.get_span_context().trace_id}
    assert [each.parent.span_id for each in requests] == [each.context.span_id for each in calls]
    assert [each.attributes["bookkeeper.entry"] for each in requests] == [0, 1, 1]
    trace_id = format_trace_id(whole.get_span_context().trace_id)
    assert exemplars == {
        ("bookkeeper_server_ADD_ENTRY_REQUEST_hist_bucket", trace_id),
        ("bookkeeper_server_READ_ENTRY_REQUEST_hist_bucket", trace_id),
    }


async def test_call_of_the_gateway_is_one_trace_to_the_bookie(tmp_path: Path) -> None:
    program, at_gateway, at_bookie = TracedProgram(ParentBased(ALWAYS_ON)), Traced(0.0), Traced(0.0)
    async with live_bookie(tmp_path) as bookie:
        bookie._server.context.tracer = at_bookie.tracer
        async with serve(SimpleNamespace(metadata=bookie._metadata), tracer=at_gateway.tracer) as served:
            with program.tracer.start_as_current_span("the program's") as whole:
                known = whole.get_span_context()
            parent = f"00-{format_trace_id(known.trace_id)}-{format_span_id(known.span_id)}-01"
            create = pb.CreateRequest(ensemble_size=1, write_quorum=1, ack_quorum=1)
            call = served.stub.Append(
                iter([pb.AppendRequest(create=create, entries=[b"entry"])]), metadata=(("traceparent", parent),)
            )
            ledger_id = [each async for each in call][-1].ledger_id
            read = served.stub.Read(pb.ReadRequest(ledger_id=ledger_id), metadata=(("traceparent", parent),))
            assert [entry async for each in read for entry in each.entries] == [b"entry"]
    spans = at_gateway.spans.get_finished_spans()
    assert {"bookkeeper.append", "bookkeeper.read"} < set(at_gateway.names)
    assert at_bookie.names == [*STAGES, "bookie.read"]
    assert trace_ids(*spans, *at_bookie.spans.get_finished_spans()) == {known.trace_id}
