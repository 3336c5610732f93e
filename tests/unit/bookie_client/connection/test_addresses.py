"""Where bookies listen: asked each time, remembered for when nobody answers."""

import asyncio

import pytest

from bookie_client.connection import addresses as module
from bookie_client.connection.addresses import AddressBook
from bookie_protocol.errors import MetadataDamaged, MetadataNotFound, MetadataUnavailable, NoSuchLedger
from tests.support.until import until


class Registry:
    def __init__(self, **known):
        self.known = known
        self.error = None
        self.silent = False
        self.asked = []

    async def look_up(self, bookie):
        self.asked.append(bookie)
        if self.silent:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        answer = self.known.get(bookie) or MetadataNotFound(f"bookie {bookie}")
        if isinstance(answer, Exception):
            raise answer
        return answer


async def test_a_bookie_that_moved_is_found():
    registry = Registry(a=("host", 1))
    book = AddressBook(registry.look_up)
    assert await book.resolve("a") == ("host", 1)
    registry.known["a"] = ("elsewhere", 2)
    assert await book.resolve("a") == ("elsewhere", 2)


async def test_the_last_known_address_serves_while_nobody_can_tell(monkeypatch):
    monkeypatch.setattr(module, "LOOK_UP_SECONDS", 0.01)
    registry = Registry(a=("host", 1))
    book = AddressBook(registry.look_up)
    await book.resolve("a")
    registry.error = MetadataUnavailable("no answer")
    assert await book.resolve("a") == ("host", 1)
    with pytest.raises(MetadataUnavailable):
        await book.resolve("b")
    registry.error, registry.silent = None, True
    assert await book.resolve("a") == ("host", 1)


async def test_a_bookie_that_left_is_forgotten():
    registry = Registry(a=("host", 1))
    book = AddressBook(registry.look_up)
    await book.resolve("a")
    del registry.known["a"]
    with pytest.raises(MetadataNotFound):
        await book.resolve("a")
    registry.error = MetadataUnavailable("no answer")
    with pytest.raises(MetadataUnavailable):
        await book.resolve("a")


async def test_looking_ahead_survives_an_outage():
    registry = Registry(a=("host", 1), bad=MetadataDamaged("unreadable"), c=("host", 3))
    book = AddressBook(registry.look_up)
    members = {"a", "bad"}
    changed = asyncio.Event()

    async def wait(seconds):
        await changed.wait()
        changed.clear()

    book.start(lambda: frozenset(members), wait)
    await until(lambda: registry.asked == ["a", "bad"])
    members.add("c")
    changed.set()
    await until(lambda: registry.asked[-1] == "c")
    registry.error = MetadataUnavailable("no answer")
    members.add("d")
    members.add("e")
    changed.set()
    await until(lambda: registry.asked[-1] == "bad")
    assert await book.resolve("c") == ("host", 3)
    with pytest.raises(MetadataUnavailable):
        await book.resolve("d")
    await book.close()
    await book.close()


async def test_a_client_reaches_bookies_for_the_first_time_while_the_metadata_service_is_silent(three, monkeypatch):
    async with three.client() as client:
        context = client.context
        addresses = context.pool.addresses
        await until(lambda: addresses._known.keys() == {"b1", "b2", "b3"})

        async def silent(bookie_id, *, timeout=None):
            raise MetadataUnavailable("no answer")

        monkeypatch.setattr(three.metadata.bookies, "service_info", silent)
        for bookie in ("b1", "b2", "b3"):
            with pytest.raises(NoSuchLedger):
                await context.operations.read_entry(bookie, 1, 0)
