from __future__ import annotations

import asyncio

import pytest

from bookie_protocol.pace import Pace, doubled


async def test_a_second_may_burst_and_then_turns_are_spread(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    now, pauses = 100.0, list[float]()

    async def sleep(seconds: float) -> None:
        pauses.append(round(seconds, 6))

    monkeypatch.setattr(loop, "time", lambda: now)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    limit = Pace(10, burst_s=1.0)
    for _ in range(10):
        await limit.turn(1e9)
    assert pauses == []
    for _ in range(3):
        await limit.turn(1e9)
    assert pauses == [0.1, 0.2, 0.3]
    now += 0.3 + 0.5
    for _ in range(6):
        await limit.turn(1e9)
    assert pauses[3:] == [0.1]
    free = Pace(0)
    for _ in range(1000):
        await free.turn(1e9)
    assert len(pauses) == 4


async def test_who_cannot_be_served_in_time_uses_no_turn() -> None:
    loop = asyncio.get_running_loop()
    limit = Pace(2, burst_s=1.0)
    began = loop.time()
    await limit.turn(began + 1)
    await limit.turn(began + 1)
    for _ in range(100):
        with pytest.raises(TimeoutError):
            await limit.turn(loop.time())
    given_up = [loop.create_task(limit.turn(began + 60)) for _ in range(20)]
    await asyncio.sleep(0)
    for task in given_up:
        task.cancel()
    await asyncio.wait(given_up)
    async with asyncio.timeout(2):  # the next turn is due half a second after the burst
        await limit.turn(began + 2)


def test_what_is_used_begins_when_what_was_used_before_has_had_its_time() -> None:
    pace = Pace(100, burst_s=0.1, free_at=0.0)
    assert pace.use(1000, 0.0) == 0.0
    assert pace.use(50, 0.0) == 10.0
    pace.change(200, 0.5)  # 10 s are left at the old rate
    assert pace.free_at == 5.5
    assert pace.use(10, 60.0) == 59.9
    pace.change(0, 60.0)
    assert [pace.use(10**9, 60.0) for _ in range(3)] == [60.0] * 3


def test_pauses_double_up_to_the_longest() -> None:
    assert [doubled(1.0, 60.0, failures) for failures in (0, 1, 5, 6, 10**9)] == [1.0, 2.0, 32.0, 60.0, 60.0]
