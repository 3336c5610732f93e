"""Frames that leave the hot paths: answered as what they are, told by how long they took, or the connection's end."""

from __future__ import annotations

import itertools
import time

import pytest
from structlog.testing import capture_logs

from bookie_pod.metrics.registry import Registry
from bookie_pod.metrics.requests import RequestMetrics
from bookie_protocol.errors import V3Status
from bookie_protocol.wire import bookkeeper_pb2 as pb
from bookie_protocol.wire import v2, v3
from bookie_protocol.wire.auth import AuthMessage
from tests.support.auth import TwoTokens
from tests.support.frames import (
    KEY,
    entry,
    v2_add,
    v2_code,
    v2_read,
    v3_add,
    v3_answer,
    v3_fence,
    v3_force,
    v3_list,
    v3_poll,
    v3_read,
    v3_read_lac,
)
from tests.support.frames import v3_write_lac as v3_lac
from tests.support.server_rig import ServerRig, answers


@pytest.mark.parametrize("size", [0, 1, 23])
async def test_an_add_shorter_than_its_prefix_is_answered(rig: ServerRig, size: int) -> None:
    request = v3.new_request(pb.ADD_ENTRY, 7)
    add = request.addRequest
    add.ledgerId, add.entryId, add.masterKey, add.body = 1, 0, KEY, bytes(size)
    conn, transport = rig.connect()
    conn.data_received(v3.encode_frame(request) + v3_add(entry(1, 0), txn=8))
    refused, added = await answers(rig, transport, 2)
    assert (v3_answer(refused).header.txnId, v3_answer(refused).status) == (7, V3Status.EBADREQ)
    assert (v3_answer(added).header.txnId, v3_answer(added).status) == (8, V3Status.EOK)
    assert not transport.closing


async def test_a_request_made_of_unknown_fields_ends_the_connection(rig: ServerRig) -> None:
    body = v3_force(1)[4:] + b"\x98\x06\x01" * 100_000
    conn, transport = rig.connect()
    conn.data_received(len(body).to_bytes(4, "big") + body)
    assert transport.closing
    assert transport.frames == []


async def test_a_refused_login_of_version_2_is_told_as_that(rig: ServerRig) -> None:
    rig.clients.auth = TwoTokens()
    conn, transport = rig.connect()
    with capture_logs() as logs:
        conn.data_received(v2.encode_auth(AuthMessage("TestAuth", b"wrong")))
        await rig.settle(lambda: transport.closing)
        await rig.settle()
    assert [log["log_level"] for log in logs] == ["warning"]
    assert "authentication refused" in logs[0]["reason"]
    assert transport.frames == []


class Latencies(RequestMetrics):
    """What the server says of how long things took, in milliseconds."""

    def __init__(self) -> None:
        super().__init__(Registry())
        self.told: dict[str, float] = {}

    def read_done(self, kind: str, elapsed_ms: float, success: bool) -> None:
        self.told[kind] = elapsed_ms

    def reads_done(self, entries: int, nbytes: int, elapsed_ms: float) -> None:
        self.told["reads"] = elapsed_ms

    def read_phase(self, name: str, elapsed_ms: float, success: bool) -> None:
        self.told[name] = elapsed_ms

    def entries_read(self, entries: int, nbytes: int, elapsed_ms: float) -> None:
        self.told["entries"] = elapsed_ms

    def adds_admitted(self, entries: int, nbytes: int, elapsed_ms: float) -> None:
        self.told["admitted"] = elapsed_ms

    def adds_done(self, entries: int, elapsed_ms: float, success: bool) -> None:
        self.told["added"] = elapsed_ms


async def test_latencies_are_those_of_the_request_in_milliseconds(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock that goes on by a second whenever somebody looks at it."""
    rig.context.metrics = latencies = Latencies()
    clock = itertools.count(1000)
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(clock)))
    conn, transport = rig.connect()
    conn.data_received(v2_add(entry(1, 0)))
    await answers(rig, transport, 1)
    assert v2_code(transport.frames[0]) == 0
    frames = [v3_read_lac(1), v3_force(1), v3_list(1), v3_lac(1, 0), v3_poll(1, 5, 1), v3_read(1, 9), v3_fence(1)]
    other, answered = rig.connect()
    for frame in frames:
        other.data_received(frame)
    await answers(rig, answered, len(frames))
    rig.storage.flush()
    rig.storage.cached_each = lambda ledger_id, ids: [None] * len(ids)  # type: ignore[method-assign]
    conn.data_received(v2_read(1, 0))
    await rig.settle(lambda: len(transport.frames) == 2)
    assert set(latencies.told) == {
        *("admitted", "added", "read_lac", "force", "entry_list", "write_lac", "read", "reads", "entries"),
        *("fence", "fence_read", "fence_wait"),
        *("long_poll", "long_poll_pre_wait", "long_poll_wait", "long_poll_read"),
    }
    assert all(1000 <= elapsed_ms < 300_000 and elapsed_ms % 1000 == 0 for elapsed_ms in latencies.told.values())
