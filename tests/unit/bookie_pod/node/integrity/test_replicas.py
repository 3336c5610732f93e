"""Copies on other bookies: whom to ask again, and when; the clock is virtual."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from bookie_pod.node.integrity import replicas as replicas_of_others
from bookie_pod.node.integrity.replicas import AVOID_S, FetchedEntry, Replicas
from bookie_protocol.errors import BookieUnavailable, LedgerStateUnknown, NoSuchEntry
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from tests.support.virtual_loop import on_a_virtual_clock

ME, HERE, THERE = "me:1", "b:1", "c:1"


class Bookies:
    """Other bookies, of which some are down; `asked` notes who was asked at which second."""

    def __init__(self, *others: str) -> None:
        self.down = set(others)
        self.lacking: set[str] = set()
        self.asked: list[tuple[float, str]] = []
        ensemble = (ME, *others)
        self.metadata = LedgerMetadata(7, len(ensemble), len(ensemble), 1, {0: ensemble})
        service: Any = SimpleNamespace()
        self.replicas = Replicas(service, ME)

    async def read_stored(self, bookie: str, entry_id: int) -> bytes:
        self.asked.append((asyncio.get_running_loop().time(), bookie))
        await asyncio.sleep(0)
        if bookie in self.down:
            raise BookieUnavailable(f"{bookie} is down")
        if bookie in self.lacking:
            raise NoSuchEntry(f"{bookie} lacks it")
        return bookie.encode()

    async def fetch(self, entry_id: int = 0) -> FetchedEntry:
        reader: Any = self
        return await self.replicas._fetch_one(reader, self.metadata, entry_id)


def test_a_bookie_that_is_down_is_asked_ever_more_rarely_until_it_answers() -> None:
    async def scenario() -> None:
        bookies = Bookies(HERE)
        for _ in range(400):
            found = await bookies.fetch()
            assert isinstance(found.error, BookieUnavailable)
            assert str(found.error) == f"{HERE} is down", "never that no bookie holds it"
            await asyncio.sleep(0.5)
        times = [at for at, _ in bookies.asked]
        assert times == [0, 1, 3, 7, 15, 31, 63, 63 + AVOID_S, 63 + 2 * AVOID_S]
        bookies.down.clear()
        await asyncio.sleep(AVOID_S)
        assert (await bookies.fetch()).entry == HERE.encode()
        bookies.down.add(HERE)  # what it was before counts no more
        await bookies.fetch()
        await asyncio.sleep(1)
        bookies.down.clear()
        assert (await bookies.fetch()).entry == HERE.encode()

    on_a_virtual_clock(scenario())


def test_reads_side_by_side_that_fail_count_once() -> None:
    async def scenario() -> None:
        bookies = Bookies(HERE)
        await asyncio.gather(*(bookies.fetch(each) for each in range(50)))
        assert len(bookies.asked) == 50
        bookies.down.clear()
        await asyncio.sleep(1)
        assert (await bookies.fetch()).entry == HERE.encode()

    on_a_virtual_clock(scenario())


def test_the_next_bookie_is_asked_at_once_and_this_one_never() -> None:
    async def scenario() -> None:
        bookies = Bookies(HERE, THERE)
        bookies.down.discard(THERE)
        for entry_id in range(3):
            assert (await bookies.fetch(entry_id)).entry == THERE.encode()
        assert {bookie for _, bookie in bookies.asked} == {HERE, THERE}
        assert sum(bookie == HERE for _, bookie in bookies.asked) == 1
        bookies.down.clear()
        bookies.lacking.update((HERE, THERE))
        await asyncio.sleep(AVOID_S)
        with pytest.raises(NoSuchEntry):
            raise (await bookies.fetch()).error or AssertionError

    on_a_virtual_clock(scenario())


def test_an_entry_that_only_this_bookie_should_have() -> None:
    async def scenario() -> None:
        found = await Bookies().fetch()
        assert "no other bookie holds entry 0" in str(found.error)

    on_a_virtual_clock(scenario())


async def test_nothing_is_fetched_of_another_ledger_that_has_the_id_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be stored as an entry of the one whose metadata the caller has."""
    bookies = Bookies(HERE)
    bookies.down.clear()
    former, now = (replace(bookies.metadata, creation_token=token) for token in (1, 2))

    @asynccontextmanager
    async def opened(ledger_id: int, *, password: bytes | None) -> Any:
        yield SimpleNamespace(metadata=now, ledger_id=ledger_id)

    monkeypatch.setattr(bookies.replicas._client, "open", opened)
    monkeypatch.setattr(replicas_of_others, "replicas", lambda ledger: bookies)
    with pytest.raises(LedgerStateUnknown):
        async for _ in bookies.replicas.fetch(former, [0]):
            pass
    assert [each.entry async for each in bookies.replicas.fetch(now, [0])] == [HERE.encode()]
