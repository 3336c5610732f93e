"""What the answers to a follower of the LAC make known, and how long it asks. On a virtual clock."""

import asyncio

import pytest

from bookie_client.reading.followed import FIRST_PATIENCE
from bookie_protocol.errors import CouldNotTell, Unauthorized
from bookie_protocol.metadata_service.interface import Identity, Versioned
from tests.unit.bookie_client.reading.follower_rig import LATENCY, LONG, FollowerRig, somebody_waits
from tests.unit.bookie_client.reading.rig import now, virtually
from tests.unit.bookie_client.recovery.crashed import payload


@virtually
async def test_the_entry_behind_the_lac_comes_along_for_who_waits_for_it_and_for_nobody_else():
    rig = FollowerRig(**LONG)
    rig.put_up_to(1)
    follower = rig.follower(0)
    async with somebody_waits(follower, 1) as first, somebody_waits(follower, 2) as second:
        await asyncio.sleep(0.1)
        rig.ledger.put(3)  # the one behind entry 2, which is not there yet
        entry = await first
        assert (entry.entry_id, entry.payload, entry.lac) == (1, payload(1), 0)
        assert await second is None
        assert rig.asked == [(0.0, "b3", "poll")]
    assert (rig.followed.lac, rig.served_by) == (2, [("b3", 1)])


@virtually
async def test_a_damaged_entry_makes_its_bookies_word_count_for_nothing_and_another_is_asked():
    rig = FollowerRig(**LONG)
    rig.put_up_to(1)
    rig.bookie("b3").damage(7, 1)
    async with somebody_waits(rig.follower(0), 1) as waiting:
        await asyncio.sleep(0.5)
        rig.ledger.put(2)
        assert (await waiting).payload == payload(1)
        assert now() == pytest.approx(0.5 + LATENCY)
    assert (rig.damaged_at, rig.served_by) == ([("b3", 1)], [("b2", 1)])  # b1 brought it too, in the same moment
    assert rig.asked == [(0.0, "b3", "poll"), (0.5, "b1", "poll"), (0.5, "b2", "poll")]


@virtually
async def test_a_wrong_password_ends_the_wait():
    rig = FollowerRig()
    rig.bookie("b2").fail_reads = Unauthorized
    async with somebody_waits(rig.follower(), 0) as waiting:
        with pytest.raises(Unauthorized):
            await waiting
        assert now() == pytest.approx(LATENCY)


@virtually
async def test_a_defect_reaches_those_who_wait(monkeypatch):
    rig = FollowerRig()

    async def broken(*_, **__):
        raise ValueError("a defect")

    monkeypatch.setattr(rig, "long_poll", broken)
    async with somebody_waits(rig.follower(), 0) as waiting:
        with pytest.raises(CouldNotTell, match=r"ledger 7: .*LAC .*: ValueError"):
            await waiting


@virtually
async def test_bookies_of_a_new_segment_are_asked_instead_of_those_that_left():
    rig = FollowerRig(spares=1, **LONG)
    rig.put_up_to(2)
    rig.ledger.put(2, "s0")
    changed = rig.ledger.metadata.with_ensemble(2, ("b1", "b2", "s0"))
    async with somebody_waits(rig.follower(1), 3):
        await asyncio.sleep(FIRST_PATIENCE * 4)
        assert rig.under_way == {"b1", "b2", "b3"}
        rig.followed.take(Versioned(changed, Identity(1, 1)))
        await asyncio.sleep(0.01)
        assert rig.under_way == {"b1", "b2", "s0"}


# --- as long as somebody waits ------------------------------------------------------------------------------------


@virtually
async def test_nobody_is_asked_while_nobody_waits():
    rig = FollowerRig(long_poll_timeout=1.0)
    rig.put_up_to(1)
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
        assert [name for _, name, _ in rig.asked[asked:]] == ["b1"]  # nobody was patient meanwhile
        rig.ledger.put(3)
        await reaching


@virtually
async def test_news_for_one_who_waits_leave_the_others_waiting():
    rig = FollowerRig(**LONG)
    rig.put_up_to(1)
    follower = rig.follower(0)
    async with somebody_waits(follower, 1) as first, somebody_waits(follower, 2) as second:
        await asyncio.sleep(0.1)
        rig.ledger.put(2)
        await first
        await asyncio.sleep(0.1)
        rig.ledger.put(3)
        assert (await second).payload == payload(2)
        assert now() == pytest.approx(0.2)


@virtually
async def test_what_is_under_way_ends_with_the_last_tail_and_not_before():
    rig = FollowerRig(**LONG)
    rig.put_up_to(1)
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


@virtually
async def test_a_ledger_that_is_closed_is_not_asked_for():
    rig = FollowerRig(long_poll_timeout=1.0)
    rig.put_up_to(1)
    follower = rig.follower(0)
    async with follower.attached():
        waiting = asyncio.create_task(follower.reach(5))
        await asyncio.sleep(0.5)
        rig.followed.take(Versioned(rig.ledger.metadata.closed(1, 20), Identity(1, 1)))
        assert await waiting is None
        await asyncio.sleep(60.0)
        assert rig.asked == [(0.0, "b3", "poll"), (pytest.approx(1.0 + LATENCY), "b3", "plain")]
