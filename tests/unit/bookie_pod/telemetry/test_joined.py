"""Requests that bring the context of a trace: spans in it, as far as this bookie allows, and nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

import pytest
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.trace import StatusCode

from bookie_pod.server.tcp import joined as joined_module
from bookie_pod.telemetry.sampling import TracePace
from bookie_protocol.errors import V3Status
from bookie_protocol.trace_context import TRACE_PARENT, TraceParent, marked, trace_mark
from bookie_protocol.wire import bookkeeper_pb2 as pb
from tests.support.frames import OTHER_KEY, entry, raw_pair, v3_add, v3_answer, v3_read
from tests.support.server_rig import ServerRig, answers
from tests.support.traced import Traced

PARENT = TraceParent(0x4BF92F3577B34DA6A3CE929D0E0E4736, 0x00F067AA0BA902B7)
SAMPLED, NOT_SAMPLED = trace_mark(PARENT), trace_mark(PARENT._replace(flags=0))
JAVA = (("thread", "main"), ("trace_id", "4bf92f3577b34da6a3ce929d0e0e4736"), ("Traceparent", "x"))


@pytest.fixture
async def rig() -> AsyncIterator[ServerRig]:
    made = ServerRig()
    yield made
    made.close()


def pairs(*found: tuple[str, str]) -> bytes:
    context = [pb.ContextPair(key=key, value=value) for key, value in found]
    return pb.Request(requestContext=context).SerializePartialToString()


def under_way(rig: ServerRig) -> tuple[int, int]:
    return rig.context.reads_in_progress.count, rig.context.requests.count


async def served(rig: ServerRig, traced: Traced | None, *frames: bytes) -> Sequence[pb.Response]:
    rig.context.tracer = None if traced is None else traced.tracer
    conn, transport = rig.connect()
    conn.data_received(b"".join(frames))
    return [v3_answer(each) for each in await answers(rig, transport, len(frames))]


async def test_add_and_read_are_spans_of_their_client(rig: ServerRig) -> None:
    traced = Traced(0.0)
    added = [marked(v3_add(entry(7, 0), txn=41), SAMPLED), v3_add(entry(7, 1), txn=42)]
    assert {each.status for each in await served(rig, traced, *added)} == {V3Status.EOK}
    (read,) = await served(rig, traced, marked(v3_read(7, 1, txn=43), SAMPLED))
    assert read.readResponse.body == entry(7, 1)
    admit, journal, whole, reading = traced.spans.get_finished_spans()
    assert traced.names == ["bookie.adds.admit", "bookie.adds.journal", "bookie.adds", "bookie.read"]
    assert {span.context.trace_id for span in (admit, journal, whole, reading)} == {PARENT.trace_id}
    assert {whole.parent.span_id, reading.parent.span_id} == {PARENT.span_id}
    assert {admit.parent.span_id, journal.parent.span_id} == {whole.context.span_id}
    named = {"network.peer.address": "192.0.2.1:40000", "bookkeeper.ledger": 7, "bookkeeper.entry": 0}
    assert dict(whole.attributes) == {**named, "bookkeeper.txn": 41}
    assert dict(reading.attributes) == {**named, "bookkeeper.entry": 1, "bookkeeper.txn": 43}
    assert whole.start_time <= admit.end_time == journal.start_time <= whole.end_time


async def test_refused_add_has_a_span_with_an_error(rig: ServerRig) -> None:
    traced = Traced(0.0)
    refused = marked(v3_add(entry(7, 1), OTHER_KEY, txn=2), SAMPLED)
    found = await served(rig, traced, v3_add(entry(7, 0), txn=1), refused)
    assert {each.header.txnId: each.status for each in found} == {1: V3Status.EOK, 2: V3Status.EUA}
    (span,) = traced.spans.get_finished_spans()
    assert (span.name, span.status.status_code) == ("bookie.adds", StatusCode.ERROR)
    assert span.context.trace_id == PARENT.trace_id


async def test_missing_entry_is_an_answer(rig: ServerRig) -> None:
    traced = Traced(0.0)
    found = await served(rig, traced, v3_add(entry(7, 0), txn=1), marked(v3_read(7, 9, txn=2), SAMPLED))
    assert {each.header.txnId: each.status for each in found} == {1: V3Status.EOK, 2: V3Status.ENOENTRY}
    (span,) = traced.spans.get_finished_spans()
    assert (span.name, span.status.status_code) == ("bookie.read", StatusCode.UNSET)


@pytest.mark.parametrize(
    "mark",
    [
        NOT_SAMPLED,
        pairs(*JAVA),
        pairs((TRACE_PARENT, "nonsense")),
        pairs((TRACE_PARENT, "00-" + "f" * 100_000)),
        pairs((TRACE_PARENT, "")) + SAMPLED,
        raw_pair(TRACE_PARENT.encode(), b"\xff" * 55),
        raw_pair(b"\xff", b"x") + pairs((TRACE_PARENT, "")),
    ],
    ids=["not sampled", "java's", "nonsense", "long", "second", "not UTF-8", "key not UTF-8"],
)
async def test_request_with_another_context_is_served_without_a_span(rig: ServerRig, mark: bytes) -> None:
    traced = Traced(0.0)
    add, read = marked(v3_add(entry(7, 0), txn=1), mark), marked(v3_read(7, 0, txn=2), mark)
    (added,) = await served(rig, traced, add)
    (found,) = await served(rig, traced, read)
    assert (added.status, found.readResponse.body) == (V3Status.EOK, entry(7, 0))
    assert traced.names == []
    assert under_way(rig) == (0, 0)


async def test_defect_before_there_is_a_reply_leaves_nothing_counted(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr(joined_module, "trace_parent_of", broken)
    rig.context.tracer = Traced(0.0).tracer
    for frame in (v3_add(entry(7, 0)), v3_read(7, 0)):
        conn, transport = rig.connect()
        conn.data_received(marked(frame, SAMPLED))
        assert transport.is_closing()
    assert under_way(rig) == (0, 0)


@pytest.mark.parametrize("txn", [2**63, 2**64 - 1])
async def test_transaction_id_is_signed_as_in_the_clients_logs(rig: ServerRig, txn: int) -> None:
    traced = Traced(1.0)
    await served(rig, traced, v3_add(entry(7, 0), txn=txn))
    await served(rig, traced, marked(v3_add(entry(7, 1), txn=txn), SAMPLED))
    await served(rig, traced, marked(v3_read(7, 1, txn=txn), SAMPLED))
    whole = [span for span in traced.spans.get_finished_spans() if span.name in ("bookie.adds", "bookie.read")]
    assert [span.attributes["bookkeeper.txn"] for span in whole] == [txn - 2**64] * 3
    encode_spans(whole)


async def test_clients_ask_for_no_more_traces_than_the_bookie_allows(rig: ServerRig) -> None:
    traced = Traced(0.0, client_traces_per_s=0)
    (added,) = await served(rig, traced, marked(v3_add(entry(7, 0)), SAMPLED))
    assert (added.status, traced.names) == (V3Status.EOK, [])


def test_pace_of_traces() -> None:
    now = 100.0
    pace = TracePace(10, lambda: now)
    assert sum(pace.takes() for _ in range(1000)) == 11  # those of a second, and the one that begins now
    now += 1.0
    assert sum(pace.takes() for _ in range(1000)) == 10


async def test_without_telemetry_nothing_is_parsed(rig: ServerRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(joined_module, "trace_parent_of")
    (added,) = await served(rig, None, marked(v3_add(entry(7, 0)), SAMPLED))
    (found,) = await served(rig, None, marked(v3_read(7, 0), SAMPLED))
    assert (added.status, found.readResponse.body) == (V3Status.EOK, entry(7, 0))
