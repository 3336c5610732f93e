"""The event loop with a virtual clock."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.support.simulation.clock import START, Deadlock, Livelock, VirtualLoop


@pytest.fixture
def loop():
    loop = VirtualLoop()
    yield loop
    loop.close()


def test_time_jumps_to_the_next_timer_and_nobody_waits(loop):
    async def day() -> float:
        await asyncio.sleep(24 * 3600)
        return loop.time()

    started = time.perf_counter()
    assert loop.run_until_complete(day()) == START + 24 * 3600
    assert time.perf_counter() - started < 5


def test_timers_fire_in_order_of_time_those_of_one_moment_together(loop):
    seen = []
    for name, delay in (("c", 2.0), ("a", 1.0), ("b", 1.0), ("d", 2.0)):
        loop.call_later(delay, seen.append, name)
    loop.run_until_complete(asyncio.sleep(3))
    assert sorted(seen[:2]) == ["a", "b"]
    assert sorted(seen[2:]) == ["c", "d"]


def test_time_outs_and_cancellation_work_as_ever(loop):
    async def work() -> tuple[bool, float]:
        event = asyncio.Event()
        try:
            async with asyncio.timeout(7.5):
                await event.wait()
        except TimeoutError:
            return True, loop.time()
        return False, 0.0

    assert loop.run_until_complete(work()) == (True, START + 7.5)


def test_waiting_for_ever_is_told_with_who_waits_where(loop):
    async def forever() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        waiter = asyncio.create_task(forever(), name="the one that waits")
        await waiter

    with pytest.raises(Deadlock, match=r"forever \(.*\) > wait"):
        loop.run_until_complete(main())
    for task in asyncio.all_tasks(loop):
        task.cancel()
    with pytest.raises(asyncio.CancelledError):
        loop.run_until_complete(asyncio.gather(*asyncio.all_tasks(loop)))


def test_call_backs_without_end_are_told(loop):
    def again() -> None:
        loop.call_soon(again)

    loop.call_soon(again)
    with pytest.raises(Livelock, match="turns"):
        loop.run_forever()


def test_what_a_call_back_raises_is_kept(loop):
    loop.call_soon(lambda: 1 // 0)
    loop.run_until_complete(asyncio.sleep(1))
    assert len(loop.unhandled) == 1
    assert "ZeroDivisionError" in loop.unhandled[0]


def test_there_are_no_threads(loop):
    with pytest.raises(AssertionError, match="no threads"):
        loop.run_until_complete(asyncio.wait_for(loop_executor(loop), 1))


async def loop_executor(loop: VirtualLoop) -> None:
    await loop.run_in_executor(None, time.sleep, 0)
