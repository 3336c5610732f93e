"""A ledger as a handle knows it, and requests to several bookies at once."""

import asyncio

import pytest

from bookie_client.options import ClientOptions
from bookie_client.reading.followed import FollowedLedger
from bookie_client.reading.lac import Ballot
from bookie_protocol.errors import CouldNotTell, LedgerClosed, MetadataUnavailable, NoSuchLedger, StorageFault
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.interface import Versioned
from tests.support.memory_metadata import MemoryLedgers
from tests.support.until import until

OPEN = LedgerMetadata(1, 3, 3, 2, {0: ("A", "B", "C")})


class Context:
    def __init__(self):
        self.ledgers = MemoryLedgers()
        self.options = ClientOptions(degraded_retry_interval=0.01)


@pytest.fixture
async def context():
    context = Context()
    await context.ledgers.create(OPEN)
    return context


@pytest.fixture
async def ledger(context):
    ledger = FollowedLedger(context, Versioned(OPEN, 0))
    yield ledger
    await ledger.close()


async def test_the_lac_only_rises_and_wakes_those_who_wait(ledger):
    waiting = asyncio.create_task(ledger.reach(5))
    for lac in (2, 1, 4):
        ledger.heard(lac)
        await asyncio.sleep(0)
    assert (ledger.lac, waiting.done()) == (4, False)
    ledger.heard(7)
    await waiting
    assert ledger.lac == 7


async def test_older_metadata_are_dropped(ledger):
    newer = OPEN.with_ensemble(4, ("A", "B", "D"))
    assert ledger.take(Versioned(newer, 2))
    assert not ledger.take(Versioned(OPEN, 1))
    assert not ledger.take(Versioned(OPEN, 2))
    assert (ledger.metadata, ledger.lac) == (newer, 3)


async def test_closing_ends_every_wait_and_later_words_about_the_lac(ledger):
    waiting = asyncio.create_task(ledger.reach(100))
    await asyncio.sleep(0)
    ledger.take(Versioned(OPEN.closed(6, 60), 1))
    await waiting
    ledger.heard(9)
    assert (ledger.is_closed, ledger.lac) == (True, 6)


async def test_the_end_of_a_closed_ledger_counts_whatever_was_heard(ledger, caplog):
    ledger.heard(9)
    ledger.take(Versioned(OPEN.closed(6, 60), 1))
    assert ledger.lac == 6
    assert "closed below its LAC" in caplog.text


async def test_it_follows_the_store_through_faults_until_the_ledger_is_closed(context, ledger):
    watch, attempts = context.ledgers.watch, []

    def failing(ledger_id):
        attempts.append(ledger_id)
        if len(attempts) < 3:
            raise MetadataUnavailable("away")
        return watch(ledger_id)

    context.ledgers.watch = failing
    ledger.follow()
    await until(lambda: len(attempts) == 3)
    stored = await context.ledgers.write(OPEN.with_ensemble(2, ("A", "B", "D")), 0)
    await until(lambda: ledger.metadata == stored.value)
    await context.ledgers.write(stored.value.closed(4, 4), stored.version)
    await until(lambda: ledger.is_closed)
    await until(lambda: ledger._task.done())


async def test_a_deleted_ledger_is_told_once_what_is_known_is_used_up(context, ledger):
    ledger.heard(3)
    ledger.follow()
    await context.ledgers.delete(1)
    await until(lambda: ledger.is_deleted)
    await ledger.reach(3)
    with pytest.raises(NoSuchLedger):
        await ledger.reach(4)


async def test_refreshing_tells_whether_there_is_news(context, ledger):
    assert not await ledger.refresh()
    await context.ledgers.write(OPEN.with_ensemble(2, ("A", "B", "D")), 0)
    assert await ledger.refresh()
    assert not await ledger.refresh()
    read = context.ledgers.read

    async def away(ledger_id, *, timeout=None):
        raise MetadataUnavailable("away")

    context.ledgers.read = away
    assert not await ledger.refresh()
    context.ledgers.read = read
    await context.ledgers.delete(1)
    assert not await ledger.refresh()
    assert ledger.is_deleted


async def test_closing_the_handle_tells_those_who_wait(ledger):
    waiting = asyncio.create_task(ledger.reach(5))
    await asyncio.sleep(0)
    await ledger.close()
    with pytest.raises(LedgerClosed, match="ledger 1: this reader was closed"):
        await waiting
    await ledger.close()


# --- Ballot ---------------------------------------------------------------------------------------------------


async def later(answer, seconds=0.0):
    await asyncio.sleep(seconds)
    if isinstance(answer, Exception):
        raise answer
    return answer


async def test_answers_come_as_they_are_given_and_errors_in_their_place():
    is_next = {"slow": asyncio.Event(), "fault": asyncio.Event()}

    async def after(event, answer):
        await event.wait()
        return await later(answer)

    waiting = {0: after(is_next["slow"], "slow"), 1: later("fast"), 2: after(is_next["fault"], StorageFault("x"))}
    async with Ballot(waiting) as ballot:
        assert await anext(ballot) == (1, "fast")
        is_next["fault"].set()
        position, answer = await anext(ballot)
        assert (position, type(answer), str(answer)) == (2, StorageFault, "x")
        is_next["slow"].set()
        assert await anext(ballot) == (0, "slow")
        assert [answer async for answer in ballot] == []


async def test_answers_of_one_moment_come_in_the_order_of_positions():
    async with Ballot({position: later(position) for position in (3, 1, 2, 0)}) as ballot:
        assert [position async for position, _ in ballot] == [0, 1, 2, 3]


async def test_who_is_not_waited_for_is_given_up():
    ended = []

    async def hanging():
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(True)

    async with Ballot({0: later("x"), 1: hanging()}) as ballot:
        assert await anext(ballot) == (0, "x")
    assert ended == [True]


async def test_a_defect_is_no_answer():
    with pytest.raises(ZeroDivisionError):
        async with Ballot({0: later(ZeroDivisionError())}) as ballot:
            await anext(ballot)


async def test_a_defect_of_the_watch_reaches_those_who_wait(context, ledger):
    def broken(_):
        raise ValueError("a driver's defect")

    context.ledgers.watch = broken
    ledger.follow()
    async with asyncio.timeout(5):
        with pytest.raises(CouldNotTell, match="ledger 1: following its metadata failed: ValueError"):
            await ledger.reach(5)
