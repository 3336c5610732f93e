"""The decoding of what strangers made large holds no turn of the event loop up."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

import pytest

from bookie_protocol.aside import PER_TURN, Aside, Decoding
from bookie_protocol.errors import MetadataDamaged
from bookie_protocol.ledger_metadata.codec import decoding_cost, encode_ledger_metadata
from bookie_protocol.ledger_metadata.model import LedgerMetadata


async def test_one_turn_of_the_event_loop_decodes_so_many_bytes_of_all_callers() -> None:
    decoding, turn, decoded, ticking = Decoding(), 0, Counter[int](), True

    def tick() -> None:
        nonlocal turn
        turn += 1
        if ticking:
            asyncio.get_running_loop().call_soon(tick)

    def decode() -> None:
        decoded[turn] += PER_TURN // 4

    tick()
    await asyncio.gather(*(decoding.run(decode, PER_TURN // 4) for _ in range(30)))
    ticking = False
    assert (sum(decoded.values()), max(decoded.values())) == (30 * (PER_TURN // 4), PER_TURN)


async def test_what_is_larger_is_decoded_on_a_thread() -> None:
    decoding, here = Decoding(), threading.get_ident()
    assert await decoding.run(threading.get_ident, PER_TURN) == here
    assert await decoding.run(threading.get_ident, PER_TURN + 1) != here


async def test_callers_that_give_up_leave_the_turns_to_others() -> None:
    decoding = Decoding()
    tasks = [asyncio.create_task(decoding.run(lambda: None, PER_TURN)) for _ in range(4)]
    await asyncio.sleep(0)
    for task in tasks[1:3]:
        task.cancel()
    await asyncio.wait(tasks)
    assert [task.cancelled() for task in tasks] == [False, True, True, False]


async def test_a_caller_that_is_told_twice_to_give_up_keeps_its_place_until_its_work_ends() -> None:
    aside, go, began = Aside(), threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def work() -> None:
        loop.call_soon_threadsafe(began.set)
        go.wait()

    first = asyncio.create_task(aside.run(work))
    await began.wait()
    for _ in range(2):
        first.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    second = asyncio.create_task(aside.run(go.is_set))
    try:
        await asyncio.wait([second], timeout=0.2)
        assert not second.done(), "one piece at a time"
    finally:
        go.set()
    assert await second
    assert (await asyncio.wait([first]))[0].pop().cancelled()


async def test_small_ones_do_not_starve_a_larger_one() -> None:
    decoding = Decoding()

    async def small() -> None:
        while True:
            await decoding.run(lambda: None, PER_TURN // 4)
            await asyncio.sleep(0)

    others = [asyncio.create_task(small()) for _ in range(6)]
    await asyncio.sleep(0)
    async with asyncio.timeout(10):
        await decoding.run(lambda: None, PER_TURN)
    for other in others:
        other.cancel()


async def test_an_error_is_the_same_either_way() -> None:
    def fail() -> None:
        raise MetadataDamaged("of this node")

    for nbytes in (1, PER_TURN + 1):
        with pytest.raises(MetadataDamaged):
            await Decoding().run(fail, nbytes)


def test_a_text_costs_more_than_its_bytes() -> None:
    nodes = [
        encode_ledger_metadata(LedgerMetadata(1, 1, 1, 1, {0: ("a:1",)}, format_version=version))
        for version in (1, 2, 3)
    ]
    assert [decoding_cost(node) > len(node) for node in nodes] == [False, True, False]
