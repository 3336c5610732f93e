"""Who is asked for free space, and when."""

import asyncio

import pytest

from bookie_client.bookies import Bookies
from bookie_client.placement import weighted
from bookie_client.placement.weighted import FreeSpace
from bookie_protocol.errors import BookieUnavailable
from tests.support.memory_metadata import MemoryBookies
from tests.support.until import until


class Disks:
    def __init__(self, **free):
        self.free = free
        self.asked = []
        self.under_way = self.most = 0

    async def ask(self, bookie):
        self.asked.append(bookie)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        await asyncio.sleep(0)
        self.under_way -= 1
        if bookie not in self.free:
            raise BookieUnavailable(f"bookie {bookie} is down")
        return self.free[bookie]


@pytest.fixture
async def follow():
    opened = []

    async def make(disks, names, **intervals):
        registry = MemoryBookies()
        for name in names:
            registry.register_address(name, "127.0.0.1", 1)
        bookies = Bookies(registry)
        bookies.start()
        space = FreeSpace(bookies, disks.ask, **{"interval": 60.0, "retry_interval": 60.0, **intervals})
        space.start()
        opened.extend([space, bookies])
        return registry, space

    yield make
    for one in opened:
        await one.close()


async def test_each_bookie_is_asked_when_it_appears_and_forgotten_when_it_leaves(follow):
    disks = Disks(b0=10, b1=20, b2=30)
    registry, space = await follow(disks, ["b0", "b1"])
    await until(lambda: space.known == {"b0": 10, "b1": 20})
    registry.register_address("b2", "127.0.0.1", 1)
    await until(lambda: space.known == {"b0": 10, "b1": 20, "b2": 30})
    registry.drop("b0")
    await until(lambda: space.known == {"b1": 20, "b2": 30})
    assert sorted(disks.asked) == ["b0", "b1", "b2"]


async def test_answers_are_refreshed(follow):
    disks = Disks(b0=10)
    _, space = await follow(disks, ["b0"], interval=0.01)
    await until(lambda: space.known == {"b0": 10})
    disks.free["b0"] = 5
    await until(lambda: space.known == {"b0": 5})


async def test_one_that_does_not_answer_is_asked_again_sooner_and_its_last_word_counts(follow):
    disks = Disks(b0=10)
    _, space = await follow(disks, ["b0", "b1"], retry_interval=0.01)
    await until(lambda: disks.asked.count("b1") > 3)
    assert disks.asked.count("b0") == 1
    assert space.known == {"b0": 10}
    disks.free["b1"] = 7
    await until(lambda: space.known == {"b0": 10, "b1": 7})


async def test_few_are_asked_at_once(follow):
    disks = Disks(**{f"b{i}": i for i in range(40)})
    _, space = await follow(disks, list(disks.free))
    await until(lambda: len(space.known) == 40)
    assert disks.most == weighted.MAX_ASKED


async def test_nobody_is_asked_after_the_end(follow):
    disks = Disks(b0=1)
    registry, space = await follow(disks, ["b0"])
    await until(lambda: space.known == {"b0": 1})
    await space.close()
    registry.register_address("b1", "127.0.0.1", 1)
    await asyncio.sleep(0.01)
    assert disks.asked == ["b0"]
