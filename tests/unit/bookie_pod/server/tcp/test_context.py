"""What connections share: limits on what is under way, what the metrics are told, and the look at all of them."""

from __future__ import annotations

import asyncio
import time
from types import SimpleNamespace
from typing import Any

import pytest

from bookie_pod.server.tcp import context as module
from bookie_pod.server.tcp.clients import ASLEEP_S, Clients
from bookie_pod.server.tcp.context import (
    FEW_REQUESTS,
    REQUEST_BYTES,
    REQUESTS_SHARE,
    ReadsInProgress,
    RequestsUnderWay,
    ServerContext,
)
from bookie_pod.server.tcp.wire import LENGTH_BYTES
from bookie_protocol.errors import StorageFault
from tests.support.clock import Clock
from tests.support.frames import KEY, entry, v2_add, v2_read, v3_force
from tests.support.production import production
from tests.support.server_rig import HeldJournal, ServerRig, answers


def test_nobody_has_more_requests_under_way_than_are_left_for_the_others() -> None:
    requests = RequestsUnderWay(100)
    left = []
    for requests.count in (0, 50, 100 - FEW_REQUESTS - 1, 100 - FEW_REQUESTS, 99, 200):
        left.append(requests.most_of_one)
    assert left == [100, 50, FEW_REQUESTS + 1, FEW_REQUESTS, FEW_REQUESTS, FEW_REQUESTS]


async def test_requests_may_take_an_eighth_of_what_clients_may_hold() -> None:
    rig = ServerRig(memory_bytes=1000 * REQUESTS_SHARE * REQUEST_BYTES)
    assert rig.context.requests.most_of_one == 1000
    rig.close()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock(100.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=clock, perf_counter=clock))
    return clock


def test_at_the_limit_on_reads_those_who_ask_wait_until_there_are_fewer(clock: Clock) -> None:
    blocked: list[float] = []
    going_on: list[str] = []

    def first() -> None:
        going_on.append("first")

    def second() -> None:
        going_on.append("second")

    reads = ReadsInProgress(2, blocked.append)
    assert not reads.started()
    assert reads.started()
    reads.wait(first)
    clock.now += 1
    for who in (second, first):
        assert reads.started()
        reads.wait(who)
    for _ in range(2):
        clock.now += 1
        reads.finished()
        assert (going_on, blocked) == ([], [])
    clock.now += 1
    reads.finished()
    assert (going_on, reads.count) == (["first", "second"], 1)
    assert blocked == [4.0, 3.0], "since each began to wait"
    reads.finished()
    assert (going_on, blocked) == (["first", "second"], [4.0, 3.0])


def test_who_is_gone_waits_for_no_reads(clock: Clock) -> None:
    blocked: list[float] = []
    reads = ReadsInProgress(1, blocked.append)
    assert reads.started()
    reads.wait(lambda: None)
    gone = next(iter(reads._waiting))
    reads.forget(gone)
    reads.forget(gone)
    reads.finished()
    assert blocked == []


def test_without_a_limit_nobody_waits_for_reads() -> None:
    reads = ReadsInProgress(0, lambda seconds: None)
    assert not any(reads.started() for _ in range(100))
    assert reads.count == 100


@pytest.mark.parametrize(("passed", "asleep"), [(1.0, 0.0), (ASLEEP_S, 0.0), (ASLEEP_S + 1, ASLEEP_S + 1)])
async def test_time_that_passed_while_the_process_slept_counts_for_nobody(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch, passed: float, asleep: float
) -> None:
    looks: list[tuple[str, float, float]] = []
    now = rig.clients._looked_at
    monkeypatch.setattr(time, "perf_counter", lambda: now)
    conn, _ = rig.connect()
    monkeypatch.setitem(
        rig.clients.connections, conn.wire, lambda now, asleep: looks.append(("connection", now, asleep))
    )
    monkeypatch.setattr(rig.clients.strangers, "look", lambda now, asleep: looks.append(("strangers", now, asleep)))
    relieved: list[float] = []
    monkeypatch.setattr(rig.context.memory, "relieve", relieved.append)
    told: list[bool] = []
    monkeypatch.setattr(rig.context.complaints, "look", lambda: told.append(True))
    now += passed
    rig.clients.look()
    rig.clients.look()  # no time has passed since
    assert looks[:2] == [("connection", now, pytest.approx(asleep)), ("strangers", now, pytest.approx(asleep))]
    assert looks[2:] == [("connection", now, 0.0), ("strangers", now, 0.0)]
    assert (relieved, told) == ([now, now], [True, True])


async def test_reads_that_memory_answered_are_told_together_and_once(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TOLD_AFTER_S", 0.0)
    told: list[tuple[int, int, float]] = []
    monkeypatch.setattr(rig.context.metrics, "reads_done", lambda *counts: told.append(counts))
    for _ in range(2):
        rig.context.read_from_memory(3, 300)
        rig.context.read_from_memory(1, 50)
        assert told == []
        await rig.settle(lambda: told)
        await rig.settle()
        assert told == [(4, 350, 0.0)]
        told.clear()


async def test_nobody_is_served_before_the_bookie_says_so(rig: ServerRig) -> None:
    context = ServerContext(rig.context.loop, rig.operations, rig.admission, production())
    clients = Clients(context, rig.handlers)
    assert not clients.accepting
    assert (clients.auth, clients.tls, rig.handlers.questions, clients.connections) == (None, None, None, {})
    assert not context.busy


async def test_a_bookie_is_busy_while_an_answer_is_outstanding(rig: ServerRig) -> None:
    assert not rig.context.busy
    rig.context.specials_in_progress = 1
    assert rig.context.busy
    rig.context.specials_in_progress = 0
    rig.context.reads_in_progress.count = 1
    assert rig.context.busy
    rig.context.reads_in_progress.count = 0
    rig.admission.adds_in_progress = 1
    assert rig.context.busy


async def test_a_half_that_hot_adds_have_filled_is_flushed() -> None:
    rig = ServerRig(half_bytes=4096)
    conn, transport = rig.connect()
    conn.data_received(v2_add(entry(1, 0)))
    assert (rig.admission.hot, rig.flush_requests) == (True, [])
    conn.data_received(v2_add(entry(1, 1, bytes(5000))))
    assert (rig.admission.hot, rig.flush_requests) == (False, [1])
    await answers(rig, transport, 2)
    rig.close()


async def test_adds_count_and_are_told_once_whatever_way_they_took(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    admitted: list[tuple[int, int]] = []
    done: list[tuple[int, bool]] = []
    monkeypatch.setattr(
        rig.context.metrics, "adds_admitted", lambda entries, nbytes, ms: admitted.append((entries, nbytes, ms >= 0))
    )
    monkeypatch.setattr(
        rig.context.metrics, "adds_done", lambda entries, ms, success: done.append((entries, success, 0 <= ms < 10_000))
    )
    conn, _ = rig.connect()
    conn.data_received(v2_add(entry(1, 0)) + v2_add(entry(1, 1)) + v2_add(entry(1, 2)))
    assert rig.admission.adds_in_progress == 3
    size = len(entry(1, 0))
    assert admitted == [(3, 3 * size, True)]
    assert LENGTH_BYTES == 4
    assert done == []
    rig.journal.acknowledge()
    assert (done, rig.admission.adds_in_progress) == ([(3, True, True)], 0)


async def test_adds_that_a_failed_journal_does_not_take_are_not_answered(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    conn, transport = rig.connect()
    done: list[bool] = []
    monkeypatch.setattr(rig.context.metrics, "adds_done", lambda entries, ms, success: done.append(success))
    rig.journal.error = StorageFault("the disk is gone")
    conn.data_received(v2_add(entry(1, 0)))
    await rig.settle()
    assert (transport.frames, done, rig.admission.adds_in_progress) == ([], [False], 0)


async def test_of_a_force_whose_journal_has_failed_nothing_is_outstanding() -> None:
    journal = HeldJournal()
    rig = ServerRig(journals=[journal])
    journal.error = StorageFault("the disk is gone")
    rig.storage.set_master_key(1, KEY)
    conn, transport = rig.connect()
    conn.data_received(v3_force(1) + v2_read(1, 0))
    await rig.settle(lambda: transport.frames)
    assert not rig.context.busy
    rig.close()


async def test_thousands_of_connections_are_looked_at_in_many_turns(rig: ServerRig) -> None:
    looked_at: list[int] = []
    for number in range(1000):
        wire: Any = object()
        rig.clients.connections[wire] = lambda now, asleep, number=number: looked_at.append(number)
    rig.clients.look()
    assert 0 < len(looked_at) < 500
    await rig.settle(lambda: len(looked_at) >= 1000)
    assert looked_at == [*range(1000)]


async def test_a_look_begins_when_the_last_one_is_over_and_is_whole_when_the_process_slept(
    rig: ServerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[float] = []
    for wire in [object() for _ in range(1000)]:
        rig.clients.connections[wire] = lambda now, asleep: looked_at.append(asleep)  # type: ignore[index]
    for _ in range(3):
        rig.clients.look()
        rig.clients._looked_at -= 3.0  # a slow look, while the process is awake
    await rig.settle(lambda: len(looked_at) >= 1000)
    assert looked_at == [0.0] * 1000
    rig.clients.look()
    rig.clients._looked_at -= 60.0
    looked_at.clear()
    rig.clients.look()  # the process slept in the middle of one
    await asyncio.sleep(0)
    assert len(looked_at) == 1000
    assert min(looked_at) >= 60.0
