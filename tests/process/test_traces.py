"""One trace over processes: a program, the gateway, the bookie, and the collector that they export to."""

from __future__ import annotations

from pathlib import Path

import aiohttp
import grpc
from opentelemetry.trace import format_span_id, format_trace_id
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from bookie_client import Client, ClientOptions
from bookie_protocol.ledger_service import ledger_service_pb2 as pb
from bookie_protocol.ledger_service.ledger_service_pb2_grpc import LedgerServiceStub
from tests.support.otlp_collector import Collector
from tests.support.standalone_command import StandaloneCommand
from tests.support.traced import TracedProgram

AT_BOOKIE = {
    ("podkeeper-bookie", name) for name in ("bookie.adds", "bookie.adds.admit", "bookie.adds.journal", "bookie.read")
}
SERVICE = "podkeeper.ledger.v1.LedgerService"
AT_GATEWAY = {
    ("podkeeper-gateway", name)
    for name in (f"{SERVICE}/Append", f"{SERVICE}/Read", "bookkeeper.append", "bookkeeper.read")
}


async def test_traces_and_exemplars_of_real_processes(tmp_path: Path) -> None:
    program = TracedProgram()
    with program.tracer.start_as_current_span("by gRPC") as by_grpc:
        known = by_grpc.get_span_context()
    with Collector() as collector:
        keys = (
            "--bookies",
            "1",
            "--set",
            "otelTraceRatio=0",
            "--set",
            f"otelEndpoint=http://127.0.0.1:{collector.server_port}",
        )
        with StandaloneCommand(tmp_path / "data", *keys) as cluster:
            async with (
                Client(cluster.uri, ClientOptions(tracer=program.tracer)) as client,
                client.create(ensemble=1, write_quorum=1, ack_quorum=1) as ledger,
            ):
                with program.tracer.start_as_current_span("direct") as direct:
                    await ledger.append(b"entry")
                    await ledger.read(0, 0)
            await append_and_read(
                cluster.grpc[0], f"00-{format_trace_id(known.trace_id)}-{format_span_id(known.span_id)}-01"
            )
            exemplars = await exemplars_at(cluster.http[0])
    ids = {direct.get_span_context().trace_id, known.trace_id}
    assert exemplars
    assert {int(each, 16) for each in exemplars} <= ids
    assert collector.spans(direct.get_span_context().trace_id) == AT_BOOKIE
    assert collector.spans(known.trace_id) == AT_BOOKIE | AT_GATEWAY


async def append_and_read(address: str, parent: str) -> None:
    metadata = (("traceparent", parent),)
    create = pb.CreateRequest(ensemble_size=1, write_quorum=1, ack_quorum=1)
    async with grpc.aio.insecure_channel(address) as channel:
        stub = LedgerServiceStub(channel)
        call = stub.Append(iter([pb.AppendRequest(create=create, entries=[b"entry"])]), metadata=metadata)
        ledger_id = [each async for each in call][-1].ledger_id
        read = stub.Read(pb.ReadRequest(ledger_id=ledger_id), metadata=metadata)
        assert [entry async for each in read for entry in each.entries] == [b"entry"]


async def exemplars_at(address: str) -> set[str]:
    """The ids of the traces in the metrics, as Prometheus asks for them."""
    accept = {"Accept": "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;version=0.0.4;q=0.3"}
    async with aiohttp.ClientSession() as session, session.get(f"http://{address}/metrics", headers=accept) as answer:
        families = list(text_string_to_metric_families(await answer.text()))
    return {each.exemplar.labels["trace_id"] for family in families for each in family.samples if each.exemplar}
