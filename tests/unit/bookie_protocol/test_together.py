"""Many requests at the same time, but not too many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from itertools import count

import pytest

from bookie_protocol.errors import MetadataUnavailable
from bookie_protocol.together import bounded, read_ahead


class Requests:
    def __init__(self):
        self.asked, self.under_way, self.most, self.tasks, self.cancelled = [], 0, 0, 0, []

    async def ask(self, number):
        self.asked.append(number)
        self.under_way += 1
        self.most, self.tasks = max(self.most, self.under_way), max(self.tasks, len(asyncio.all_tasks()))
        try:
            for _ in range(5 - number % 5):
                await asyncio.sleep(0)
            if number == 7:
                raise ValueError(number)
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise
        finally:
            self.under_way -= 1
        return -number


@pytest.mark.parametrize("items", [[], [3], list(range(7)), list(range(10, 60))])
async def test_results_come_in_the_order_of_the_items_and_no_more_is_begun_than_there_is(items):
    requests, before = Requests(), len(asyncio.all_tasks())
    assert await bounded(iter(items), requests.ask, 8) == [-each for each in items]
    assert requests.most == min(len(items), 8)
    assert requests.tasks <= before + min(len(items), 8)


async def test_the_first_error_ends_all_others_and_nothing_further_is_begun():
    requests = Requests()
    with pytest.raises(ValueError, match="7"):
        await bounded(count(), requests.ask, 4)  # without an end: items are taken as they are asked for
    assert requests.under_way == 0
    assert requests.cancelled
    begun = len(requests.asked)
    await asyncio.sleep(0.01)
    assert len(requests.asked) == begun


async def numbers(count: int, taken: list[int]) -> AsyncGenerator[int, None]:
    for number in range(count):
        taken.append(number)
        yield number


async def test_answers_come_in_order_and_ahead() -> None:
    taken: list[int] = []
    under_way = most = 0

    async def read(number: int) -> int:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        for _ in range((number * 7) % 5):
            await asyncio.sleep(0)
        under_way -= 1
        return number * 2

    assert [found async for found in read_ahead(numbers(100, taken), read, 8)] == [2 * i for i in range(100)]
    assert 1 < most <= 8


async def test_the_source_is_not_taken_further_than_the_window() -> None:
    taken: list[int] = []

    async def read(number: int) -> int:
        return number

    async with aclosing(read_ahead(numbers(100, taken), read, 8)) as found:
        assert await anext(found) == 0
        assert len(taken) == 8
        assert await anext(found) == 1
        assert len(taken) == 9


@pytest.mark.parametrize("early", [True, False])
async def test_nothing_is_left_under_way(early: bool) -> None:
    ended: list[int] = []

    async def read(number: int) -> int:
        try:
            if number == 3 and not early:
                raise MetadataUnavailable("three")
            if number:
                await asyncio.sleep(0 if number < 3 else 60)
            return number
        finally:
            ended.append(number)

    found = read_ahead(numbers(6, []), read, 6)
    async with aclosing(found):
        assert [await anext(found) for _ in range(3)] == [0, 1, 2]
        if not early:
            with pytest.raises(MetadataUnavailable, match="three"):
                await anext(found)
    assert sorted(ended) == list(range(6))


async def test_whoever_is_cancelled_ends_whatever_a_read_makes_of_it():
    reading = asyncio.Event()

    async def source():
        yield 1

    async def read(item):
        reading.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise ConnectionError("what it waited for is gone") from None

    async def consume():
        try:
            async with aclosing(read_ahead(source(), read, 4)) as found:
                async for _ in found:
                    pass
        except ConnectionError:
            return "it goes on"

    consumer = asyncio.create_task(consume())
    await reading.wait()
    consumer.cancel()
    with pytest.raises(asyncio.CancelledError):
        await consumer
