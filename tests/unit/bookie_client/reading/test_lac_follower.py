"""Which bookies are asked for a ledger's LAC, when, and what their answers make known. On a virtual clock."""

import asyncio
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from bookie_client.reading.lac_follower import FIRST_BACK_OFF, FIRST_PATIENCE, FIRST_PAUSE, MAX_BACK_OFF, MAX_PAUSE
from bookie_protocol.errors import BadRequest, CouldNotTell, StorageFault, Unauthorized
from bookie_protocol.metadata_service.interface import Versioned
from tests.unit.bookie_client.reading.follower_rig import LATENCY, FollowerRig
from tests.unit.bookie_client.reading.rig import now, run_virtually
from tests.unit.bookie_client.recovery.crashed import payload

LONG = {"long_poll_timeout": 1000.0}
"""No long poll's time is up during a test."""


@asynccontextmanager
async def somebody_waits(follower, entry_id):
    """For an entry, in a task."""
    async with follower.attached():
        waiting = asyncio.create_task(follower.reach(entry_id))
        try:
            yield waiting
        finally:
            waiting.cancel()
            await asyncio.wait([waiting])


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


def test_news_begin_the_patience_anew_and_leave_questions_alone_that_are_not_answered_yet():
    rig = FollowerRig(**LONG)
    rig.put_up_to(1)
    rig.silent.add("b3")

    async def main():
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

    run_virtually(main)


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


def test_news_from_a_bookie_that_failed_end_its_back_off():
    rig = FollowerRig(1, 1, 1, **LONG)
    rig.put_up_to(0)
    bookie = rig.bookie("b1")
    bookie.fail_reads = StorageFault

    async def main():
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

    run_virtually(main)


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


def test_what_a_bookies_long_poll_misses_is_found_by_looking_at_what_it_stores():
    rig = FollowerRig(1, 1, 1, long_poll_timeout=5.0)
    rig.put_up_to(1)
    rig.deaf.add("b1")

    async def main():
        async with somebody_waits(rig.follower(0), 1) as waiting:
            await asyncio.sleep(1.0)
            rig.ledger.put(2)
            assert await waiting is None
            assert now() == pytest.approx(5.0 + 2 * LATENCY)

    run_virtually(main)


def test_a_bookie_without_long_polls_is_asked_plainly_at_once_and_from_then_on():
    rig = FollowerRig()
    rig.put_up_to(1)
    rig.without_long_polls.add("b3")
    followed_for(rig, 1.0, lac=0)
    assert [(name, kind) for _, name, kind in rig.asked[:3]] == [("b3", "poll"), ("b3", "plain"), ("b3", "plain")]
    assert rig.times_of("b3")[1] == pytest.approx(LATENCY)
    assert {(name, kind) for _, name, kind in rig.asked[1:]} == {("b3", "plain")}


def test_a_bookie_that_refuses_plain_questions_too_is_left_alone_as_one_that_fails():
    rig = FollowerRig(protocol_version=2)
    rig.put_up_to(0)
    rig.bookie("b2").fail_reads = BadRequest
    followed_for(rig, 1.0)
    assert differences(rig.times_of("b2")) == pytest.approx([LATENCY + pause for pause in (FIRST_BACK_OFF, 0.2, 0.4)])


# --- what the answers make known ----------------------------------------------------------------------------------


def test_the_entry_behind_the_lac_comes_along_for_who_waits_for_it_and_for_nobody_else():
    rig = FollowerRig(**LONG)
    rig.put_up_to(1)

    async def main():
        follower = rig.follower(0)
        async with somebody_waits(follower, 1) as first, somebody_waits(follower, 2) as second:
            await asyncio.sleep(0.1)
            rig.ledger.put(3)  # the one behind entry 2, which is not there yet
            entry = await first
            assert (entry.entry_id, entry.payload, entry.lac) == (1, payload(1), 0)
            assert await second is None
        assert (rig.followed.lac, rig.served_by) == (2, [("b3", 1)])

    run_virtually(main)


def test_a_damaged_entry_makes_its_bookies_word_count_for_nothing_and_another_is_asked():
    rig = FollowerRig(**LONG)
    rig.put_up_to(1)
    rig.bookie("b3").damage(7, 1)

    async def main():
        async with somebody_waits(rig.follower(0), 1) as waiting:
            await asyncio.sleep(0.5)
            rig.ledger.put(2)
            assert (await waiting).payload == payload(1)
            assert now() == pytest.approx(0.5 + LATENCY)
        assert (rig.damaged_at, rig.served_by) == ([("b3", 1)], [("b2", 1)])  # b1 brought it too, in the same moment
        assert rig.asked == [(0.0, "b3", "poll"), (0.5, "b1", "poll"), (0.5, "b2", "poll")]

    run_virtually(main)


def test_a_wrong_password_ends_the_wait():
    rig = FollowerRig()
    rig.bookie("b2").fail_reads = Unauthorized

    async def main():
        async with somebody_waits(rig.follower(), 0) as waiting:
            with pytest.raises(Unauthorized):
                await waiting
            assert now() == pytest.approx(LATENCY)

    run_virtually(main)


def test_a_defect_reaches_those_who_wait(monkeypatch):
    rig = FollowerRig()

    async def broken(*_, **__):
        raise ValueError("a defect")

    async def main():
        monkeypatch.setattr(rig, "long_poll", broken)
        async with somebody_waits(rig.follower(), 0) as waiting:
            with pytest.raises(CouldNotTell, match="ledger 7: following its LAC failed: ValueError"):
                await waiting

    run_virtually(main)


def test_bookies_of_a_new_segment_are_asked_instead_of_those_that_left():
    rig = FollowerRig(spares=1, **LONG)
    rig.put_up_to(2)
    rig.ledger.put(2, "s0")
    changed = rig.ledger.metadata.with_ensemble(2, ("b1", "b2", "s0"))

    async def main():
        async with somebody_waits(rig.follower(1), 3):
            await asyncio.sleep(FIRST_PATIENCE * 4)
            assert rig.under_way == {"b1", "b2", "b3"}
            rig.followed.take(Versioned(changed, 1))
            await asyncio.sleep(0.01)
            assert rig.under_way == {"b1", "b2", "s0"}

    run_virtually(main)


# --- as long as somebody waits ------------------------------------------------------------------------------------


def test_nobody_is_asked_while_nobody_waits():
    rig = FollowerRig(long_poll_timeout=1.0)
    rig.put_up_to(1)

    async def main():
        follower = rig.follower(0)
        async with follower.attached():
            reaching = asyncio.create_task(follower.reach(1))
            await asyncio.sleep(0.1)
            rig.ledger.put(2)
            await reaching
            await asyncio.sleep(2.0)
            asked = len(rig.asked)
            await asyncio.sleep(60.0)
            assert (len(rig.asked), rig.under_way) == (asked, set())
            reaching = asyncio.create_task(follower.reach(2))
            await asyncio.sleep(0.1)
            assert len(rig.asked) > asked
            rig.ledger.put(3)
            await reaching

    run_virtually(main)


def test_what_is_under_way_ends_with_the_last_tail_and_not_before():
    rig = FollowerRig(**LONG)
    rig.put_up_to(1)

    async def main():
        follower = rig.follower(0)
        async with somebody_waits(follower, 1):
            async with somebody_waits(follower, 1):
                await asyncio.sleep(1.0)
            assert rig.under_way == {"b3"}
        assert rig.under_way == set()
        async with somebody_waits(follower, 1) as waiting:  # and a later tail begins anew
            await asyncio.sleep(1.0)
            rig.ledger.put(2)
            await waiting
        assert rig.times_of("b3") == [0.0, 1.0]

    run_virtually(main)


def test_a_ledger_that_is_closed_is_not_asked_for():
    rig = FollowerRig(long_poll_timeout=1.0)
    rig.put_up_to(1)

    async def main():
        follower = rig.follower(0)
        async with follower.attached():
            waiting = asyncio.create_task(follower.reach(5))
            await asyncio.sleep(0.5)
            rig.followed.take(Versioned(rig.ledger.metadata.closed(1, 20), 1))
            assert await waiting is None
            await asyncio.sleep(60.0)
            assert rig.asked == [(0.0, "b3", "poll"), (pytest.approx(1.0 + LATENCY), "b3", "plain")]

    run_virtually(main)
