"""Lanes: order of a ledger, bounds, errors as results, stopping."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from bookie_pod.server.tcp.read_lanes import BatchPace, ReadLanes
from bookie_protocol.errors import NoSuchEntry, TooManyRequests
from tests.support.until import until


@pytest.fixture
async def lanes() -> AsyncIterator[ReadLanes]:
    made = ReadLanes("test", 3, 50, asyncio.get_running_loop())
    yield made
    made.stop()


class Results:
    def __init__(self) -> None:
        self.got: list[tuple[Any, BaseException | None]] = []
        self.threads: set[int] = set()

    def __call__(self, result: Any, error: BaseException | None) -> None:
        self.threads.add(threading.get_ident())
        self.got.append((result, error))


async def test_work_of_a_ledger_keeps_its_order_on_one_thread(lanes: ReadLanes) -> None:
    results, ran = Results(), []

    def work(ledger_id: int, number: int) -> Callable[[], tuple[int, int]]:
        def run() -> tuple[int, int]:
            ran.append((ledger_id, threading.current_thread().name))
            return ledger_id, number

        return run

    for number in range(16):
        for ledger_id in (4, 5, 6):
            lanes.run(ledger_id, work(ledger_id, number), results)
    await until(lambda: len(results.got) == 48)
    for ledger_id in (4, 5, 6):
        mine = [result[1] for result, _ in results.got if result[0] == ledger_id]
        assert mine == list(range(16))
        assert len({name for ledger, name in ran if ledger == ledger_id}) == 1
    assert len({name for _, name in ran}) == 3
    assert results.threads == {threading.get_ident()}  # call-backs belong to the loop
    assert lanes.pending == 0


async def test_without_a_bound_any_number_waits() -> None:
    lanes = ReadLanes("test", 1, 0, asyncio.get_running_loop())
    results = Results()
    for _ in range(100):
        lanes.run(0, lambda: 1, results)
    await until(lambda: len(results.got) == 100)
    lanes.stop()


async def test_a_call_back_that_raises_costs_nobody_else_their_answer(lanes: ReadLanes) -> None:
    results = Results()

    def broken(result: Any, error: BaseException | None) -> None:
        raise ZeroDivisionError

    for done in (broken, results, broken, results):
        lanes.run(0, lambda: 1, done)
    await until(lambda: len(results.got) == 2)
    assert lanes.pending == 0


async def test_the_queue_of_a_lane_is_bounded(lanes: ReadLanes) -> None:
    held, results = threading.Event(), Results()
    lanes.run(0, held.wait, results)
    for _ in range(49):
        lanes.run(3, int, results)
    with pytest.raises(TooManyRequests):
        lanes.run(0, int, results)
    lanes.run(1, int, results)  # another lane
    assert lanes.rejected == 1
    held.set()
    await until(lambda: len(results.got) == 51)
    lanes.run(0, int, results)
    await until(lambda: len(results.got) == 52)


async def test_whatever_the_work_raises_is_a_result(lanes: ReadLanes) -> None:
    results = Results()

    def raises(error: BaseException) -> Callable[[], None]:
        def run() -> None:
            raise error

        return run

    errors = [NoSuchEntry("gone"), ZeroDivisionError(), KeyboardInterrupt(), SystemExit()]
    for error in errors:
        lanes.run(7, raises(error), results)
    lanes.run(7, lambda: "alive", results)
    await until(lambda: len(results.got) == 5)
    assert [error for _, error in results.got[:4]] == errors
    assert results.got[4] == ("alive", None)


async def test_stop_finishes_what_was_given(lanes: ReadLanes) -> None:
    results = Results()
    for number in range(20):
        lanes.run(number, lambda: 1, results)
    await asyncio.to_thread(lanes.stop)
    await until(lambda: len(results.got) == 20)


def test_a_closed_loop_ends_the_lanes_quietly() -> None:
    loop = asyncio.new_event_loop()
    lanes = ReadLanes("test", 1, 10, loop)
    held = threading.Event()
    lanes.run(0, held.wait, lambda result, error: None)
    loop.close()
    held.set()
    lanes.stop()


async def test_a_lane_that_hangs_is_seen_at_the_same_step(lanes: ReadLanes) -> None:
    begun, go_on, results = threading.Semaphore(0), threading.Semaphore(0), Results()

    def hang() -> None:
        begun.release()
        go_on.acquire()

    def steps() -> dict[str, object | None]:
        return dict(lanes.steps())

    assert steps() == {"test-0": None, "test-1": None, "test-2": None}
    seen = []
    for _ in range(2):
        lanes.run(1, hang, results)
        await asyncio.to_thread(begun.acquire)
        assert steps()["test-1"] == steps()["test-1"] is not None
        assert steps()["test-0"] is None
        seen.append(steps()["test-1"])
        go_on.release()
        await until(lambda: len(results.got) == len(seen))
    assert seen[0] != seen[1]
    await until(lambda: steps()["test-1"] is None)


async def test_a_lane_that_waits_for_its_pace_is_at_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    pace, waiting, go_on = BatchPace(), threading.Event(), threading.Event()
    monkeypatch.setattr(pace, "must_wait", lambda given: True)
    monkeypatch.setattr(pace, "wait", lambda given: (waiting.set(), go_on.wait()))
    lanes = ReadLanes("test", 1, 50, asyncio.get_running_loop(), pace=pace)
    lanes.run(1, lambda: None, Results())
    await asyncio.to_thread(waiting.wait)
    assert [at for _, at in lanes.steps()] == [None]
    go_on.set()
    await asyncio.to_thread(lanes.stop)


async def test_a_lane_takes_as_many_reads_as_it_has_room_for(lanes: ReadLanes) -> None:
    held, results = threading.Event(), Results()
    assert (lanes.room(0, 49), lanes.room(0, 51)) == (49, 50)
    lanes.run(3, held.wait, results, 48)
    assert (lanes.room(0, 1), lanes.room(0, 2), lanes.room(0, 3), lanes.room(1, 3)) == (1, 2, 2, 3)
    with pytest.raises(TooManyRequests):
        lanes.run(0, int, results, 3)
    assert (lanes.rejected, lanes.pending) == (3, 48)
    lanes.run(0, int, results, 2)
    assert (lanes.room(0, 1), lanes.pending) == (0, 50)
    held.set()
    await until(lambda: len(results.got) == 2)
    assert (lanes.pending, lanes.room(0, 60)) == (0, 50)


async def test_how_long_the_work_has_waited_that_a_lane_is_at(monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    lanes = ReadLanes("test", 2, 0, asyncio.get_running_loop(), waits.append)
    now = 100.0
    monkeypatch.setattr("bookie_pod.server.tcp.read_lanes.time", SimpleNamespace(monotonic=lambda: now))
    assert lanes.waited_s == 0
    results, gates = Results(), [(threading.Event(), threading.Event()) for _ in range(3)]

    def give(lane: int, gate: int) -> None:
        begun, go_on = gates[gate]
        lanes.run(lane, lambda: begun.set() or go_on.wait(), results)

    async def begun(gate: int) -> None:
        await asyncio.to_thread(gates[gate][0].wait)

    give(0, 0)
    await begun(0)
    give(0, 1)
    now += 2
    give(1, 2)
    await begun(2)
    now += 3
    assert (waits, lanes.waited_s) == ([0, 0], 5), "the slowest of them"
    gates[0][1].set()
    await begun(1)
    now += 1
    assert (waits, lanes.waited_s) == ([0, 0, 5], 6), "since it was given, not since it has begun"
    for _, go_on in gates:
        go_on.set()
    await until(lambda: len(results.got) == 3)
    await until(lambda: lanes.waited_s == 0)
    await asyncio.to_thread(lanes.stop)


@pytest.mark.parametrize(("slice_s", "hops"), [(0.0, [1, 1]), (60.0, [2])])
async def test_what_a_lane_has_done_is_handed_over_at_the_end_of_a_slice(
    monkeypatch: pytest.MonkeyPatch, slice_s: float, hops: list[int]
) -> None:
    monkeypatch.setattr("bookie_pod.server.tcp.read_lanes.SLICE_S", slice_s)
    lanes, results = ReadLanes("test", 1, 0, asyncio.get_running_loop()), Results()
    handed_over: list[int] = []
    deliver = lanes._deliver

    def noted(index: int, done: list[Any]) -> None:
        handed_over.append(len(done))
        deliver(index, done)

    monkeypatch.setattr(lanes, "_deliver", noted)
    begun, first, second = threading.Event(), threading.Event(), threading.Event()
    lanes.run(0, first.wait, results)
    lanes.run(0, lambda: begun.set() or second.wait(), results)
    first.set()
    await asyncio.to_thread(begun.wait)
    if len(hops) == 2:
        await until(lambda: len(results.got) == 1)
    assert len(results.got) == len(hops) - 1
    second.set()
    await until(lambda: len(results.got) == 2)
    assert handed_over == hops
    await asyncio.to_thread(lanes.stop)
