"""What a client knows of the cluster's bookies."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from bookie_client.bookies import Bookies, FollowedGroup
from bookie_protocol.errors import MetadataNotFound
from bookie_protocol.metadata_service.interface import BookieGroup
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
    loop = asyncio.get_running_loop()
    began = loop.time()
    await bookies.changed(0.01)
    assert loop.time() - began >= 0.01


async def test_addresses(registry):
    bookies = Bookies(registry)
    assert await bookies.address("b1") == ("127.0.0.1", 1)
    with pytest.raises(MetadataNotFound):
        await bookies.address("nobody")


async def test_the_read_only_set_is_followed_apart(registry):
    registry.register_address("b2", "127.0.0.1", 2, group=BookieGroup.READ_ONLY)
    bookies = Bookies(registry)
    assert bookies.known_read_only == bookies.known_writable == frozenset()  # nobody was asked
    assert await bookies.read_only() == {"b2"}
    bookies.start()
    await until(lambda: bookies.known_writable == {"b1"})
    registry.drop("b2", BookieGroup.READ_ONLY)
    registry.register_address("b2", "127.0.0.1", 2)
    await until(lambda: bookies.known_writable == {"b1", "b2"} and not bookies.known_read_only)
    await bookies.close()


async def test_what_a_bookie_says_is_asked_once_for_each_registration(registry):
    bookies = Bookies(registry)
    bookies.start()
    await until(lambda: bookies.known_writable == {"b1"})
    assert (await bookies.info("b1")).properties == {}
    assert (await bookies.info("b1")).bookie_address() == ("127.0.0.1", 1)
    assert registry.info_reads == 1
    registry.drop("b1")
    registry.register_address("b1", "127.0.0.1", 9, {"zone": "z2"})
    await until(lambda: bookies.known_writable == {"b1"} and not bookies._infos)
    assert (await bookies.info("b1")).properties == {"zone": "z2"}
    assert registry.info_reads == 2
    # Came back between two looks: the set is the same, its version is not.
    registry.properties["b1"] = {"zone": "z3"}
    registry._tell()
    await until(lambda: not bookies._infos)
    assert (await bookies.info("b1")).properties == {"zone": "z3"}
    await bookies.close()


async def test_nothing_is_kept_of_a_bookie_that_is_not_registered(registry):
    bookies = Bookies(registry)
    with pytest.raises(MetadataNotFound):
        await bookies.info("b7")
    await bookies.info("b1")  # no set was seen yet, so nobody would tell when it leaves
    await bookies.info("b1")
    assert registry.info_reads == 3


async def test_whoever_saw_no_cluster_follows_the_next_one(registry, monkeypatch):
    follow, looks = registry.watch, iter([MetadataNotFound("there is no cluster")])

    @asynccontextmanager
    async def watch(group):
        for error in looks:
            raise error
        async with follow(group) as snapshots:
            yield snapshots

    bookies = FollowedGroup(registry, BookieGroup.WRITABLE, lambda before, after: None)
    monkeypatch.setattr("bookie_client.bookies.FOLLOW_PAUSE", 0)
    monkeypatch.setattr(registry, "watch", watch)
    bookies.start()
    for name in ("b2", "b3"):
        registry.register_address(name, "127.0.0.1", 2)
        await until(lambda name=name: name in bookies.known)
    await bookies.close()


async def test_whoever_is_cancelled_while_he_closes_ends(registry, monkeypatch):
    """That what he closes is cancelled too must not hide it from him."""
    bookies, ended = Bookies(registry), asyncio.Event()

    @asynccontextmanager
    async def watch(group):
        try:
            await asyncio.Event().wait()
        finally:
            await ended.wait()
        yield

    monkeypatch.setattr(registry, "watch", watch)
    bookies.start()
    await asyncio.sleep(0)
    closing = asyncio.create_task(bookies.close())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.sleep(0)
    ended.set()
    with pytest.raises(asyncio.CancelledError):
        await closing
    await bookies.close()
