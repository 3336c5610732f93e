from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from bookie_protocol.errors import MetadataDamaged, MetadataUnavailable
from bookie_protocol.metadata_service.subscription import Subscription
from bookie_protocol.metadata_service.tree import watching
from bookie_protocol.metadata_service.tree.nodes import Watch


async def test_a_slow_reader_gets_the_newest() -> None:
    published = asyncio.Event()

    async def feed(publish: Callable[[int], None]) -> None:
        for number in range(1000):
            publish(number)
        published.set()
        await asyncio.Event().wait()

    async with Subscription(feed) as numbers:
        await published.wait()
        assert await anext(numbers) == 999
        waiting = asyncio.ensure_future(anext(numbers))
        await asyncio.sleep(0)
    with pytest.raises(StopAsyncIteration):
        await waiting
    with pytest.raises(StopAsyncIteration):
        await anext(numbers)


async def test_the_end_and_an_error_come_after_the_last_snapshot() -> None:
    async def ends(publish: Callable[[int], None]) -> None:
        publish(1)

    async def fails(publish: Callable[[int], None]) -> None:
        publish(2)
        raise MetadataDamaged("unreadable")

    assert [number async for number in Subscription(ends)] == [1]
    failing = Subscription(fails)
    assert await anext(failing) == 2
    with pytest.raises(MetadataDamaged):
        await anext(failing)
    await failing.close()


async def test_following_rides_out_faults_and_misses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "RETRY_SECONDS", 0.001)
    stored, faults = 0, 3
    seen: list[int] = []

    async def read(watch: Watch) -> int:
        nonlocal stored, faults
        if faults:
            faults -= 1
            raise MetadataUnavailable("no answer")
        value = stored
        if stored < 5:  # it changes before the reader is done with what it read
            stored += 1
            watch()
        return value

    def publish(value: int) -> bool:
        seen.append(value)
        return value < 5

    async with asyncio.timeout(5):
        await watching.follow(read, publish)
    assert seen == [0, 1, 2, 3, 4, 5]
    assert faults == 0
