"""Waiting for what offers no event: looks that cost something are few, and what comes is seen soon."""

from __future__ import annotations

import asyncio
import time

import pytest

from tests.support.until import until, until_true

COSTLY_S = 0.005


class Condition:
    """True so many seconds after it was made; each look takes a while."""

    def __init__(self, true_after_s: float, look_s: float = 0.0) -> None:
        self.looks = 0
        self._true_at = time.monotonic() + true_after_s
        self._look_s = look_s

    def __call__(self) -> bool:
        self.looks += 1
        time.sleep(self._look_s)
        return time.monotonic() >= self._true_at


def test_looks_that_cost_something_take_a_tenth_of_the_time() -> None:
    costly = Condition(0.5, COSTLY_S)
    until_true(costly)
    assert 2 <= costly.looks <= 0.5 / (10 * COSTLY_S) + 1


def test_there_are_fewer_the_longer_it_takes() -> None:
    cheap = Condition(1.0)
    until_true(cheap)
    assert cheap.looks < 150, "at most 20 in the first 40 ms, and then 20 in each time that is e times as long"


async def test_other_tasks_go_on_meanwhile() -> None:
    done: list[bool] = []
    asyncio.get_running_loop().call_later(0.05, done.append, True)
    await until(lambda: done)


async def test_what_never_comes_ends_after_its_time() -> None:
    with pytest.raises(TimeoutError):
        until_true(lambda: False, 0.05)
    with pytest.raises(TimeoutError):
        await until(lambda: False, 0.05)
