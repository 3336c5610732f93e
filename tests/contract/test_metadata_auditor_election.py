"""The auditor's election, on every metadata driver."""

from __future__ import annotations

import asyncio

import pytest

from bookie_protocol.metadata_service.tree.nodes import NodeStat, Watch
from bookie_protocol.metadata_service.tree.service import MetadataService
from tests.support.metadata_drivers import MetadataDriverUnderTest
from tests.support.metadata_fixtures import driver

__all__ = ["driver"]


async def votes(
    service: MetadataService, driver: MetadataDriverUnderTest, *, count: int, other_than: list[str] | None = None
) -> list[str]:
    """The votes as soon as there are so many (and others than these)."""
    path = f"{driver.root}/underreplication/auditorelection"
    async with asyncio.timeout(15):
        while True:
            changed = asyncio.Event()
            names = sorted((await service.tree.children(path, watch=changed.set)).names)
            if len(names) == count and names != other_than:
                return names
            await changed.wait()


async def test_the_oldest_vote_wins_and_the_next_follows(driver: MetadataDriverUnderTest) -> None:
    one, two, three = [await driver.open() for _ in range(3)]
    await one.cluster.initialize()
    first = await one.auditor_election.elect("a:1")
    assert first.bookie_id == "a:1"
    assert await three.auditor_election.current_auditor() == "a:1"
    waiting = asyncio.create_task(two.auditor_election.elect("b:1"))
    await votes(three, driver, count=2)
    last = asyncio.create_task(three.auditor_election.elect("c:1"))
    await votes(three, driver, count=3)
    assert await one.auditor_election.current_auditor() == "a:1"
    assert not waiting.done()
    lost = asyncio.create_task(first.lost())
    await first.resign()
    await first.resign()
    async with asyncio.timeout(5):
        second = await waiting
        await lost
    assert not last.done()
    assert await one.auditor_election.current_auditor() == second.bookie_id == "b:1"
    named = await one.tree.get(f"{driver.root}/underreplication/auditorelection")
    assert named.data == b'bookieId: "b:1"\n'
    last.cancel()
    await asyncio.wait([last])
    await votes(one, driver, count=1)  # a candidate that gives up takes its vote back
    again = await one.auditor_election.current_auditor()
    assert again == "b:1"


async def test_an_expired_session_ends_the_office(driver: MetadataDriverUnderTest) -> None:
    one, two = await driver.open(), await driver.open()
    await one.cluster.initialize()
    first = await one.auditor_election.elect("a:1")
    waiting = asyncio.create_task(two.auditor_election.elect("b:1"))
    await votes(two, driver, count=2)
    await driver.expire(one)
    async with asyncio.timeout(15):
        await first.lost()
        second = await waiting
    await first.resign()  # nobody else's vote goes
    assert await two.auditor_election.current_auditor() == second.bookie_id == "b:1"


async def test_a_candidate_whose_session_expires_votes_again(driver: MetadataDriverUnderTest) -> None:
    # With time enough for what is under way when the session ends: `elect` passes on what cannot be told in time.
    one, two = await driver.open(), await driver.open(timeout=10)
    await one.cluster.initialize()
    first = await one.auditor_election.elect("a:1")
    waiting = asyncio.create_task(two.auditor_election.elect("b:1"))
    before = await votes(one, driver, count=2)
    await driver.expire(two)
    again = asyncio.create_task(votes(one, driver, count=2, other_than=before))
    await asyncio.wait([again, waiting], return_when=asyncio.FIRST_COMPLETED)
    if not again.done():
        await waiting  # raises what it ended with
    await again
    await first.resign()
    async with asyncio.timeout(15):
        assert (await waiting).bookie_id == "b:1"


async def test_a_session_that_expires_while_the_vote_in_front_is_looked_at(
    driver: MetadataDriverUnderTest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That look succeeds, in a session that has no vote: what is to be done then is to vote, not to wait."""
    one, two = await driver.open(), await driver.open(timeout=10)
    await one.cluster.initialize()
    first = await one.auditor_election.elect("a:1")
    exists, expired, voted = two.tree.exists, False, asyncio.Event()

    async def expiring(path: str, *, watch: Watch | None = None, timeout: float | None = None) -> NodeStat | None:
        nonlocal expired
        if watch is not None and not expired:
            expired = True
            await voted.wait()
            await driver.expire(two)
        return await exists(path, watch=watch, timeout=timeout)

    monkeypatch.setattr(two.tree, "exists", expiring)
    waiting = asyncio.create_task(two.auditor_election.elect("b:1"))
    before = await votes(one, driver, count=2)
    voted.set()
    assert await votes(one, driver, count=2, other_than=before) != before
    assert expired
    await first.resign()
    async with asyncio.timeout(15):
        assert (await waiting).bookie_id == "b:1"
