"""Calls that come all at once begin a few at a time."""

from __future__ import annotations

import asyncio
import itertools

from bookie_pod.server.turns import Turns


async def test_others_have_their_turn_between_a_few_calls_and_the_next() -> None:
    turns, loop, begun, seen = Turns(3), asyncio.get_running_loop(), list[int](), [0]

    async def call(number: int) -> None:
        await turns.one()
        begun.append(number)

    def other() -> None:
        seen.append(len(begun))
        if len(begun) < 19:
            loop.call_soon(other)

    loop.call_soon(other)
    calls = [asyncio.create_task(call(number)) for number in range(20)]
    calls[10].cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    assert begun == [number for number in range(20) if number != 10]
    assert max(after - before for before, after in itertools.pairwise(seen)) <= 2 * 3
    await asyncio.sleep(0)
    await asyncio.wait_for(turns.one(), 1)
