"""A ledger as a handle knows it, and requests to several bookies at once.

Which bookies are asked for a ledger's LAC, and when. On a virtual clock.
"""

import asyncio
from itertools import pairwise

import pytest

from bookie_client.options import ClientOptions
from bookie_client.reading.followed import (
    FIRST_BACK_OFF,
    FIRST_PATIENCE,
    FIRST_PAUSE,
    MAX_BACK_OFF,
    MAX_PAUSE,
    FollowedLedger,
)
from bookie_client.reading.lac import Ballot
from bookie_protocol.errors import (
    BadRequest,
    BadVersion,
    CouldNotTell,
    LedgerClosed,
    MetadataUnavailable,
    NoSuchLedger,
    StorageFault,
)
from bookie_protocol.ledger_metadata.model import LedgerMetadata
from bookie_protocol.metadata_service.interface import Identity, Versioned
from tests.support.memory_metadata import MemoryLedgers
from tests.support.until import until
from tests.unit.bookie_client.reading.follower_rig import LATENCY, LONG, FollowerRig, somebody_waits
from tests.unit.bookie_client.reading.rig import now, run_virtually, virtually
from tests.unit.bookie_client.recovery.crashed import payload

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
    ledger = FollowedLedger(context, Versioned(OPEN, Identity(0, 1)))
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
    assert ledger.take(Versioned(newer, Identity(2, 1)))
    assert not ledger.take(Versioned(OPEN, Identity(1, 1)))
    assert not ledger.take(Versioned(OPEN, Identity(2, 1)))
    assert (ledger.metadata, ledger.lac) == (newer, 3)


async def test_closing_ends_every_wait_and_later_words_about_the_lac(ledger):
    waiting = asyncio.create_task(ledger.reach(100))
    await asyncio.sleep(0)
    ledger.take(Versioned(OPEN.closed(6, 60), Identity(1, 1)))
    await waiting
    ledger.heard(9)
    assert (ledger.is_closed, ledger.lac) == (True, 6)


async def test_the_end_of_a_closed_ledger_counts_whatever_was_heard(ledger, caplog):
    ledger.heard(9)
    ledger.take(Versioned(OPEN.closed(6, 60), Identity(1, 1)))
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
    stored = await context.ledgers.write(
        OPEN.with_ensemble(2, ("A", "B", "D")), context.ledgers.stored[OPEN.ledger_id].identity
    )
    await until(lambda: ledger.metadata == stored.value)
    await context.ledgers.write(stored.value.closed(4, 4), stored.identity)
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
    await context.ledgers.write(OPEN.with_ensemble(2, ("A", "B", "D")), context.ledgers.stored[OPEN.ledger_id].identity)
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
    with pytest.raises(LedgerClosed, match=r"ledger 1: .*reader"):
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
        with pytest.raises(CouldNotTell, match=r"ledger 1: .*: ValueError"):
            await ledger.reach(5)


def followed_for(rig, seconds, *, lac=-1):
    """Wait in vain for so long."""

    async def main():
        async with somebody_waits(rig.follower(lac), lac + 100) as waiting:
            await asyncio.sleep(seconds)
            assert not waiting.done()
        assert not rig.under_way

    run_virtually(main)


def differences(times):
    return [later - earlier for earlier, later in pairwise(times)]


# --- who is asked first ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("quorums", "lac", "asked"),
    [
        ((3, 3, 2), -1, ["b2"]),
        ((3, 3, 2), 0, ["b3"]),
        ((3, 3, 2), 1, ["b1"]),
        ((5, 3, 2), 1, ["b4", "b2"]),
        ((5, 2, 1), 3, ["b1", "b3", "b5"]),
        ((4, 1, 1), 3, ["b2", "b3", "b4", "b1"]),
    ],
)
def test_as_many_are_asked_as_have_one_in_every_write_set_first_the_one_that_gets_the_next_two(quorums, lac, asked):
    rig = FollowerRig(*quorums, **LONG)
    rig.put_up_to(lac + 1 + quorums[0])
    for bookie in rig.bookies.values():
        bookie.ledgers[7].lac = lac
    followed_for(rig, FIRST_PATIENCE / 2, lac=lac)
    assert rig.asked == [(0.0, name, "poll") for name in asked]
    assert all(set(asked) & set(rig.ledger.metadata.bookies_for(entry_id)) for entry_id in range(quorums[0]))


# --- patience ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("silent", [True, False])
def test_one_more_is_asked_after_each_wait_without_news_and_waits_double(silent):
    """Whether those before keep silent, or tell that they have no news."""
    rig = FollowerRig(5, 5, 3, **LONG)
    rig.put_up_to(1)  # so all know of LAC 0
    if silent:
        rig.silent.update(rig.names)
    followed_for(rig, 20, lac=0)
    assert rig.asked == [
        (0.0, "b3", "poll"),
        (1.5, "b4", "poll"),
        (4.5, "b5", "poll"),
        (9.5, "b1", "poll"),
        (14.5, "b2", "poll"),
    ]


@virtually
async def test_news_begin_the_patience_anew_and_leave_questions_alone_that_are_not_answered_yet():
    rig = FollowerRig(**LONG)
    rig.put_up_to(1)
    rig.silent.add("b3")
    follower = rig.follower(0)
    async with somebody_waits(follower, 1) as waiting:
        await asyncio.sleep(2.0)
        assert rig.asked == [(0.0, "b3", "poll"), (1.5, "b1", "poll")]
        rig.ledger.put(2)
        assert (await waiting).payload == payload(1)
        heard = now()
        async with somebody_waits(follower, 2):
            await asyncio.sleep(3.0)
    assert heard == pytest.approx(2.0)
    assert rig.asked[2:] == [(heard, "b1", "poll"), (heard + FIRST_PATIENCE, "b2", "poll")]


# --- bookies that fail, or have no news ---------------------------------------------------------------------------


def test_a_bookie_that_fails_is_left_alone_for_longer_each_time_and_all_others_are_asked_instead():
    rig = FollowerRig(**LONG)
    rig.put_up_to(0)
    rig.bookie("b2").fail_reads = StorageFault
    followed_for(rig, 11)
    assert rig.asked[:3] == [(0.0, "b2", "poll"), (LATENCY, "b3", "poll"), (LATENCY, "b1", "poll")]
    back_offs = [FIRST_BACK_OFF, 0.2, 0.4, 0.8, 1.6, MAX_BACK_OFF, MAX_BACK_OFF, MAX_BACK_OFF]
    assert differences(rig.times_of("b2")) == pytest.approx([LATENCY + back_off for back_off in back_offs])
    assert [len(rig.times_of(name)) for name in ("b1", "b3")] == [1, 1]


def test_a_bookie_outside_the_cover_that_fails_calls_nobody_to_help():
    rig = FollowerRig(5, 5, 3, **LONG)
    rig.put_up_to(1)
    rig.bookie("b4").fail_reads = StorageFault
    followed_for(rig, 4.0, lac=0)
    assert rig.asked[:2] == [(0.0, "b3", "poll"), (1.5, "b4", "poll")]
    assert rig.times_of("b5") == [1.5 + LATENCY]
    assert not rig.times_of("b1")


@pytest.mark.parametrize("version", [2, 3])
@virtually
async def test_news_end_the_back_off_of_a_bookie_that_failed(version):
    rig = FollowerRig(1, 1, 1, protocol_version=version, **LONG)
    rig.put_up_to(0)
    bookie = rig.bookie("b1")
    bookie.fail_reads = StorageFault
    follower = rig.follower()
    async with somebody_waits(follower, 0) as waiting:
        await asyncio.sleep(5.0)
        bookie.fail_reads = None
        rig.ledger.put(1)
        await waiting
        bookie.fail_reads = StorageFault
        begin = len(rig.asked)
        async with somebody_waits(follower, 1):
            await asyncio.sleep(0.5)
    assert differences(rig.times_of("b1")[begin:]) == pytest.approx([FIRST_BACK_OFF + LATENCY, 0.2 + LATENCY])


@virtually
async def test_an_answer_without_news_ends_the_back_off_too():
    rig = FollowerRig(1, 1, 1, protocol_version=2)
    rig.bookie("b1").fail_reads = StorageFault
    async with somebody_waits(rig.follower(), 0):
        await asyncio.sleep(2.0)
        rig.bookie("b1").fail_reads = None
        await asyncio.sleep(2.0)
        failing = now()
        rig.bookie("b1").fail_reads = StorageFault
        await asyncio.sleep(2.0)
    first, second, *_ = [at for at in rig.times_of("b1") if at >= failing]
    # What it does not know it is asked for after pauses; these go on where they were.
    assert FIRST_BACK_OFF < second - first < FIRST_BACK_OFF + MAX_PAUSE + 2 * LATENCY


@virtually
async def test_news_end_the_pauses_of_a_bookie_that_had_none():
    rig = FollowerRig(1, 1, 1, protocol_version=2)
    follower = rig.follower()
    async with somebody_waits(follower, 0) as waiting:
        await asyncio.sleep(3.0)
        rig.put_up_to(1)
        await waiting
        begin = len(rig.asked)
        async with somebody_waits(follower, 1):
            await asyncio.sleep(0.1)
    pauses = [0.0, FIRST_PAUSE, 0.04]  # the first question is put at once
    news = rig.asked[begin - 1][0]
    assert differences([news, *rig.times_of("b1")[begin:]]) == pytest.approx([LATENCY + pause for pause in pauses])


@pytest.mark.parametrize("version", [2, 3])
def test_a_bookie_that_knows_nothing_is_asked_again_after_pauses_that_double(version):
    rig = FollowerRig(protocol_version=version)
    followed_for(rig, FIRST_PATIENCE)
    pauses = [FIRST_PAUSE, 0.04, 0.08, 0.16, 0.32, MAX_PAUSE]
    assert differences(rig.times_of("b2")) == pytest.approx([LATENCY + pause for pause in pauses])
    assert {kind for *_, kind in rig.asked} == {"plain" if version == 2 else "poll"}


def test_a_long_poll_whose_time_is_up_is_followed_by_a_look_at_what_is_stored_and_the_next_one_without_pause():
    rig = FollowerRig(1, 1, 1, long_poll_timeout=5.0)
    rig.put_up_to(1)
    followed_for(rig, 11, lac=0)
    waited = 5.0 + LATENCY
    assert (
        rig.asked
        == [
            (pytest.approx(round_ * (waited + LATENCY) + after), "b1", kind)
            for round_ in range(3)
            for after, kind in ((0.0, "poll"), (waited, "plain"))
        ][:-1]
    )


@virtually
async def test_what_a_bookies_long_poll_misses_is_found_by_looking_at_what_it_stores():
    rig = FollowerRig(1, 1, 1, long_poll_timeout=5.0)
    rig.put_up_to(1)
    rig.deaf.add("b1")
    async with somebody_waits(rig.follower(0), 1) as waiting:
        await asyncio.sleep(1.0)
        rig.ledger.put(2)
        assert await waiting is None
        assert now() == pytest.approx(5.0 + 2 * LATENCY)


def test_a_bookie_without_long_polls_is_asked_plainly_at_once_and_from_then_on():
    rig = FollowerRig()
    rig.put_up_to(1)
    rig.without_long_polls.add("b3")
    followed_for(rig, 1.0, lac=0)
    assert [(name, kind) for _, name, kind in rig.asked[:3]] == [("b3", "poll"), ("b3", "plain"), ("b3", "plain")]
    assert rig.times_of("b3")[1] == pytest.approx(LATENCY)
    assert {(name, kind) for _, name, kind in rig.asked[1:]} == {("b3", "plain")}


@pytest.mark.parametrize(("version", "error"), [(2, BadRequest), (3, BadRequest), (3, BadVersion)])
def test_a_bookie_that_refuses_plain_questions_too_is_left_alone_as_one_that_fails(version, error):
    rig = FollowerRig(protocol_version=version)
    rig.put_up_to(0)
    rig.bookie("b2").fail_reads = error
    followed_for(rig, 1.0)
    plain = [at for at, name, kind in rig.asked if (name, kind) == ("b2", "plain")]
    assert differences(plain) == pytest.approx([LATENCY + back_off for back_off in (FIRST_BACK_OFF, 0.2, 0.4)])
    assert len(rig.times_of("b2")) - len(plain) == (version == 3)
