"""What goes with a session with ZooKeeper ends with the pause: locks, holds and votes of ours."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from bookie_protocol.errors import (
    MetadataError,
    MetadataExists,
    MetadataNotFound,
    MetadataRefused,
    MetadataUnavailable,
)
from bookie_protocol.metadata_service.tree.nodes import ConnectionLost, Node
from tests.support.migration_world import MigrationWorld, Process, seen
from tests.support.virtual_loop import virtually

LOCKS = "/ledgers/underreplication/locks"
VOTES = "/ledgers/underreplication/auditorelection"


@pytest.mark.parametrize("is_lock", [False, True], ids=["hold", "lock"])
@virtually
async def test_what_the_session_before_still_has_in_the_pause_is_not_the_next_ones(is_lock: bool) -> None:
    """It ends before writes are let through, so whoever took it for theirs would work beside another process."""
    world = MigrationWorld()
    process, other = await world.begin(), await world.open()
    marks = process.service.under_replication
    await marks.mark(7, ["b:1"], ctime_ms=1)
    deletes, lost = asyncio.Event(), asyncio.Event()

    async def disturb(request: str, path: str) -> None:
        if request == "delete":
            await deletes.wait()
        if request == "exists" and not lost.is_set() and process.is_paused and path.startswith(LOCKS):
            lost.set()
            raise ConnectionLost("the answer was lost")

    async def take(each: Process) -> object:
        if is_lock:
            return await each.service.under_replication.lock(7, timeout=3)
        return await each.service.cluster._hold(3)

    await take(process)
    process.source.before = disturb
    world.set_phase("PREPARATION")
    await seen(lambda: process.is_paused)
    again = asyncio.create_task(take(process))
    await asyncio.sleep(1)
    deletes.set()
    await seen(lambda: not world.participants())
    world.set_phase("FAILED")
    await seen(lambda: process.is_connected and other.is_connected)
    results = await asyncio.gather(again, take(other), return_exceptions=True)
    assert [isinstance(each, MetadataExists) for each in results].count(False) == 1


@virtually
async def test_what_was_not_made_is_not_remembered() -> None:
    world = MigrationWorld()
    holder, loser = await world.begin(), await world.open()
    for ledger_id in range(100, 130):
        await holder.service.under_replication.mark(ledger_id, ["b:1"], ctime_ms=1)
        lock = await holder.service.under_replication.lock(ledger_id)
        with pytest.raises(MetadataExists):
            await loser.service.under_replication.lock(ledger_id)
        await holder.service.under_replication.release(lock)
    assert (loser.gate.ephemeral, holder.gate.ephemeral) == (set(), set())


@virtually
async def test_deletion_whose_answer_was_lost_is_not_remembered() -> None:
    world = MigrationWorld()
    process = await world.begin()
    lost: list[str] = []

    async def lose(request: str, path: str) -> None:
        if request == "delete" and "/idgen/" in path and path not in lost:
            lost.append(path)
            raise ConnectionLost("the answer was lost")

    process.source.after = lose
    for _ in range(10):
        await process.service.ledgers.generate_id()
    await asyncio.sleep(5)
    assert (len(lost), process.gate.ephemeral) == (10, set())


@virtually
async def test_many_locks_are_looked_up_together() -> None:
    world = MigrationWorld()
    process = await world.begin()
    for number in range(1000):
        process.gate.ephemeral.add(f"{LOCKS}/urL{number:010d}")
    before = process.source.requests
    await world.prepare()
    assert process.source.requests - before < 100


class Lagging:
    """The server of a session that does not know of the newest nodes before a sync."""

    def __init__(self, process: Process) -> None:
        self._read = process.source.get_each
        self.lags = False
        process.source.get_each = self.get_each  # type: ignore[method-assign]
        process.source.before = self.before

    async def before(self, request: str, _: str) -> None:
        if request == "sync":
            self.lags = False

    async def get_each(
        self, paths: Sequence[str], *, childless: bool = False, timeout: float
    ) -> list[Node | MetadataError]:
        if self.lags:
            return [MetadataNotFound(path) for path in paths]
        return await self._read(paths, timeout=timeout)


@virtually
async def test_lock_that_a_server_does_not_know_of_yet_ends_with_the_pause() -> None:
    world = MigrationWorld()
    process, other = await world.begin(), await world.open()
    server = Lagging(process)

    async def lose(request: str, path: str) -> None:
        if request == "create" and path.startswith(f"{LOCKS}/") and not process.is_paused:
            world.set_phase("PREPARATION")
            await seen(lambda: process.is_paused)  # it has read the flag, behind a sync
            server.lags = True
            raise MetadataUnavailable("no answer in time")

    process.source.after = lose
    with pytest.raises(MetadataUnavailable):
        await process.service.under_replication.lock(7, timeout=1)
    await seen(lambda: not world.participants())
    world.set_phase("FAILED")
    await seen(lambda: process.is_connected and other.is_connected)
    await other.service.under_replication.lock(7, timeout=1)


@pytest.mark.parametrize("is_refused", [False, True], ids=["unavailable", "refused"])
@virtually
async def test_lock_that_cannot_be_looked_up_is_looked_up_again(is_refused: bool) -> None:
    """A node that may not be read is not ours."""
    world = MigrationWorld()
    process = await world.begin()
    await process.service.under_replication.mark(7, ["b:1"], ctime_ms=1)
    await process.service.under_replication.lock(7)
    read, asked = process.source.get_each, list[Sequence[str]]()

    async def get_each(paths: Sequence[str], *, timeout: float) -> list[Node | MetadataError]:
        if len(asked) < 3 and any(LOCKS in each for each in paths):
            asked.append(paths)
            return [MetadataRefused("no") if is_refused else MetadataUnavailable("broken") for _ in paths]
        return await read(paths, timeout=timeout)

    process.source.get_each = get_each  # type: ignore[method-assign]
    await world.prepare()
    assert (len(asked), bool(world.zookeeper.children(LOCKS))) == ((1, True) if is_refused else (3, False))
    assert process.gate.ephemeral == set()


@virtually
async def test_vote_of_a_candidacy_that_ended_without_an_answer_ends_with_the_pause() -> None:
    world = MigrationWorld()
    process, other = await world.begin(), await world.open()
    lost: list[str] = []

    async def lose(request: str, path: str) -> None:
        if request == "create" and path.startswith(f"{VOTES}/") and not lost:
            lost.append(path)
            world.set_phase("PREPARATION")
            raise ConnectionLost("the answer was lost")

    process.source.after = lose
    candidacy = asyncio.create_task(process.service.auditor_election.elect("b:1"))
    await seen(lambda: lost)
    await asyncio.sleep(1)
    candidacy.cancel()
    await seen(lambda: not world.participants())
    assert world.zookeeper.children(VOTES) == ()
    world.set_phase("FAILED")
    await seen(lambda: process.is_connected and other.is_connected)
    async with asyncio.timeout(5):
        await other.service.auditor_election.elect("b:2")


@virtually
async def test_vote_of_the_session_before_the_pause_wins_no_election_in_it() -> None:
    world = MigrationWorld()
    holder, process = await world.begin(), await world.open()
    term = await holder.service.auditor_election.elect("b:1")
    candidacy = asyncio.create_task(process.service.auditor_election.elect("b:2"))
    await seen(lambda: len(world.zookeeper.children(VOTES)) == 2)
    ends = asyncio.Event()

    async def hold(request: str, path: str) -> None:
        if request == "delete":
            await ends.wait()

    process.source.before = hold
    world.set_phase("PREPARATION")
    await seen(lambda: len(world.zookeeper.children(VOTES)) == 1)
    await asyncio.sleep(1)
    world.set_phase("FAILED")
    await asyncio.sleep(1)
    ends.set()
    won = await candidacy
    assert world.zookeeper.children(VOTES) == (won.term,)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(60):
            await won.lost()
    await term.lost()
