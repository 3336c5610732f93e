"""A client with a tracer: spans of its calls, and the bytes that it sends."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, cast

import pytest
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ALWAYS_ON, Sampler
from opentelemetry.trace import NoOpTracer, Span, StatusCode

from bookie_client import LedgerClosed
from bookie_client.connection.connection import BookieConnection
from bookie_client.reading.range_read import RangeRead
from bookie_client.streams import Streams
from bookie_client.tracing import CallTrace
from bookie_protocol.errors import BadRequest
from bookie_protocol.trace_context import TraceParent, trace_parent_of
from bookie_protocol.wire import v3
from tests.support.frames import cut
from tests.support.traced import TracedProgram
from tests.unit.bookie_client.blocking.conftest import ServedCluster
from tests.unit.bookie_client.conftest import ModelCluster

MARK_BYTES = 73


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Whatever is sent to bookies, in pieces."""
    found: list[bytes] = []
    put = BookieConnection._put

    def note(self: BookieConnection, frames: bytes) -> None:
        found.append(frames)
        put(self, frames)

    monkeypatch.setattr(BookieConnection, "_put", note)
    return found


async def work(sent: list[bytes], program: TracedProgram | None, **options: object) -> list[bytes]:
    """The frames of some appends and reads, in a cluster of its own."""
    sent.clear()
    cluster = ModelCluster()
    await cluster.add_bookie("b1")
    tracer = None if program is None else program.tracer
    try:
        async with cluster.client(tracer=tracer, batch_reads=False, **options) as client:
            async with client.create(ensemble=1, write_quorum=1, ack_quorum=1) as ledger:
                await ledger.append(b"0")
                await (await ledger.submit(b"1"))
                await ledger.append_many([b"2", b"3", b"4"])
                assert [each.entry_id for each in await ledger.read(0, 2)] == [0, 1, 2]
            async with client.open(ledger.ledger_id) as reader:
                assert [each.payload async for each in reader.entries()] == [b"0", b"1", b"2", b"3", b"4"]
    finally:
        await cluster.stop()
    return cut(b"".join(sent))


@pytest.mark.parametrize("version", [2, 3])
async def test_call_that_is_not_sampled_sends_the_same_bytes(sent: list[bytes], version: int) -> None:
    program = TracedProgram(ALWAYS_OFF)
    plain = await work(sent, None, protocol_version=version)
    assert await work(sent, program, protocol_version=version) == plain
    assert program.names == []


async def test_call_that_is_sampled_names_its_span_once(sent: list[bytes]) -> None:
    program = TracedProgram()
    plain = await work(sent, None)
    traced = await work(sent, program)
    spans = program.spans.get_finished_spans()
    assert program.names == ["bookkeeper.append"] * 3 + ["bookkeeper.read"] * 2
    entries = [(each.attributes["bookkeeper.entry"], each.attributes["bookkeeper.entries"]) for each in spans]
    assert entries == [(0, 1), (1, 1), (2, 3), (0, 3), (0, 5)]
    longer = [after for before, after in zip(plain, traced, strict=True) if after != before]
    assert {len(after) - len(before) for before, after in zip(plain, traced, strict=True)} == {0, MARK_BYTES}
    named = [trace_parent_of(request) for each in longer if (request := v3.parse_request(each[4:])) is not None]
    assert named == [
        TraceParent(each.context.trace_id, each.context.span_id, each.context.trace_flags) for each in spans
    ]
    assert all(before.end_time <= after.end_time for before, after in pairwise(spans))


async def test_version_2_has_spans_and_sends_nothing_of_them(sent: list[bytes]) -> None:
    program = TracedProgram()
    plain = await work(sent, None, protocol_version=2)
    assert await work(sent, program, protocol_version=2) == plain
    assert program.names == ["bookkeeper.append"] * 3 + ["bookkeeper.read"] * 2


@pytest.mark.parametrize("sampler", [ALWAYS_ON, ALWAYS_OFF])
async def test_largest_entry_fits_its_frame(three: ModelCluster, sampler: Sampler) -> None:
    limit = 100_000
    async with (
        three.client(tracer=TracedProgram(sampler).tracer, max_frame_size=limit) as client,
        client.create() as ledger,
    ):
        with pytest.raises(BadRequest):
            await ledger.append(bytes(limit))
        largest = bytes(ledger._pipeline.intake._max_payload)
        assert await ledger.append(largest) == 0
        assert await ledger.append_many([largest, b"small"]) == [1, 2]


async def test_call_that_fails_has_a_span_with_the_error(three: ModelCluster) -> None:
    program = TracedProgram()
    async with three.client(tracer=program.tracer) as client:
        async with client.create() as ledger:
            pass
        with pytest.raises(LedgerClosed):
            await ledger.append(b"late")
    (span,) = program.spans.get_finished_spans()
    assert (span.status.status_code, span.attributes["error.type"]) == (StatusCode.ERROR, "LedgerClosed")


async def test_append_to_a_stream_is_within_the_span_of_its_caller(three: ModelCluster) -> None:
    program = TracedProgram()
    async with three.client(tracer=program.tracer) as client:
        streams = Streams(client)
        await streams.create("s")
        with program.tracer.start_as_current_span("start"):
            writer = streams.writer("s")
            await writer.start()
        for name in ("first", "second"):
            with program.tracer.start_as_current_span(name):
                await writer.append(b"entry")
        await writer.append(b"alone")
        await writer.close()
    assert parents(program, "bookkeeper.append") == ["first", "second", None]


def test_append_of_a_thread_is_within_the_span_of_its_caller() -> None:
    program = TracedProgram()
    cluster = ServedCluster(bookies=1)
    try:
        with (
            cluster.client(tracer=program.tracer) as client,
            client.create(ensemble=1, write_quorum=1, ack_quorum=1) as ledger,
        ):
            cluster.hold()
            sent = []
            for name in ("first", "second", "third"):
                with program.tracer.start_as_current_span(name):
                    sent.append(ledger.submit(b"entry"))
            cluster.release()
            assert [each.result() for each in sent] == [0, 1, 2]
    finally:
        cluster.stop()
    assert parents(program, "bookkeeper.append") == ["first", "second", "third"]


class FaultyTracer(NoOpTracer):
    """A tracer with a processor of spans: both raise at the places in `faults`."""

    def __init__(self) -> None:
        self.faults: set[str] = set()
        self._program = TracedProgram()
        self._program.provider.add_span_processor(FaultyProcessor(self))

    def at(self, place: str) -> None:
        if place in self.faults:
            raise RuntimeError(place)

    def start_span(self, *args: Any, **named: Any) -> Span:
        self.at("start_span")
        if "nothing" in self.faults:
            return cast("Span", None)
        return self._program.tracer.start_span(*args, **named)


class FaultyProcessor(SpanProcessor):
    def __init__(self, tracer: FaultyTracer) -> None:
        self._tracer = tracer

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        self._tracer.at("on_start")

    def on_end(self, span: ReadableSpan) -> None:
        self._tracer.at("on_end")


@pytest.mark.parametrize("place", ["start_span", "nothing", "on_start", "on_end"])
async def test_tracer_that_raises_fails_no_call(
    three: ModelCluster, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    tracer = FaultyTracer()
    async with three.client(tracer=tracer) as client:
        streams = Streams(client)
        await streams.create("s")
        async with streams.writer("s") as writer, client.create() as ledger:
            tracer.faults = {place}
            for count in range(3):
                assert await ledger.append(b"1") == 3 * count
                assert await ledger.append_many([b"2", b"3"]) == [3 * count + 1, 3 * count + 2]
                assert [each.entry_id for each in await ledger.read(0, 2)] == [0, 1, 2]
                assert (await ledger.read(0, 0))[0].payload == b"1"
                assert [each.entry_id async for each in ledger.entries(0, 1)] == [0, 1]
                assert (await writer.append(b"entry")).entry_id == count
            with pytest.raises(BadRequest):
                await ledger.append(bytes(10_000_000))
            tracer.faults = set()
            assert (await writer.append(b"entry")).entry_id == 3
    assert len([each for each in caplog.records if each.name == "bookie_client.tracing"]) == 1


async def test_range_ends_although_its_span_does_not(three: ModelCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = []
    stop = RangeRead.stop

    async def note(self: RangeRead) -> None:
        stopped.append(self)
        await stop(self)

    monkeypatch.setattr(RangeRead, "stop", note)
    async with three.client(tracer=TracedProgram().tracer) as client, client.create() as ledger:
        await ledger.append(b"1")
        monkeypatch.setattr(CallTrace, "end", lambda *_: 1 / 0)
        entries = ledger.entries(0, 0)
        with pytest.raises(ZeroDivisionError):
            assert [each.entry_id async for each in entries] == [0]
    assert len(stopped) == 1


def parents(program: TracedProgram, name: str) -> list[str | None]:
    spans = program.spans.get_finished_spans()
    names = {each.context.span_id: each.name for each in spans}
    return [None if each.parent is None else names[each.parent.span_id] for each in spans if each.name == name]
