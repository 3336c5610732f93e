"""One coarse clock for all connections."""

import asyncio

from bookie_client.connection.ticker import Ticker


async def test_everybody_sees_the_same_ticks():
    ticker = Ticker(0.001)
    seen: dict[str, list[int]] = {"a": [], "b": []}
    done = asyncio.Event()

    def a():
        seen["a"].append(ticker.now)

    def b():
        seen["b"].append(ticker.now)
        if len(seen["b"]) == 3:
            done.set()

    ticker.attach(a)
    ticker.attach(b)
    await done.wait()
    ticker.detach(a)
    ticker.detach(b)
    assert seen["a"] == seen["b"] == [1, 2, 3]


async def test_it_runs_only_while_somebody_listens():
    ticker = Ticker(0.001)
    first = asyncio.Event()
    ticker.attach(first.set)
    await first.wait()
    ticker.detach(first.set)
    stopped_at = ticker.now
    assert ticker._timer is None
    again = asyncio.Event()
    ticker.attach(again.set)
    await again.wait()
    assert ticker.now == stopped_at + 1
    ticker.detach(again.set)
    ticker.detach(again.set)


async def test_a_loop_that_was_held_up_counts_one_tick():
    """So that answers that came meanwhile are read before their requests are given up."""
    loop = asyncio.get_running_loop()
    ticker = Ticker(0.001)
    ticked = asyncio.Event()
    ticker.attach(ticked.set)
    until = loop.time() + 0.02
    while loop.time() < until:
        pass
    await ticked.wait()
    assert ticker.now == 1
    ticker.detach(ticked.set)
