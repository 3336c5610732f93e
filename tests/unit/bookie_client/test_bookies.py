"""What a client knows of the cluster's bookies."""

import asyncio

import pytest

from bookie_client.bookies import Bookies
from bookie_protocol.errors import MetadataNotFound
from tests.support.memory_metadata import MemoryBookies
from tests.support.until import until


@pytest.fixture
async def registry():
    registry = MemoryBookies()
    registry.register_address("b1", "127.0.0.1", 1)
    return registry


async def test_the_writable_set_is_known_before_and_after_the_watch_tells(registry):
    bookies = Bookies(registry)
    assert await bookies.writable() == {"b1"}
    registry.register_address("b2", "127.0.0.1", 2)
    assert await bookies.writable() == {"b1", "b2"}  # not following: asked again
    bookies.start()
    await until(lambda: bookies.is_following)
    changed = asyncio.create_task(bookies.changed(5))
    await asyncio.sleep(0)
    registry.drop("b1")
    await changed
    assert await bookies.writable() == {"b2"}
    await bookies.close()
    registry.drop("b2")
    assert await bookies.writable() == frozenset()


async def test_waiting_for_a_change_ends_by_itself(registry):
    bookies = Bookies(registry)
    await bookies.changed(0.01)


async def test_addresses(registry):
    bookies = Bookies(registry)
    assert await bookies.address("b1") == ("127.0.0.1", 1)
    with pytest.raises(MetadataNotFound):
        await bookies.address("nobody")
