"""Many requests at the same time, but not too many."""

import asyncio
from itertools import count

import pytest

from bookie_protocol.together import bounded


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
