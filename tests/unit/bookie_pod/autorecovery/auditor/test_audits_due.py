"""When audits of lost bookies run, what is told and stored of them, and what is followed; on a virtual clock."""

from __future__ import annotations

import asyncio

import pytest

from bookie_pod.autorecovery.auditor.lost_bookies import (
    FIRST_PAUSE,
    FOLLOW_PAUSE,
    LONGEST_PAUSE,
    SAVE_PAUSE,
    SETTING_PAUSE,
)
from bookie_pod.autorecovery.auditor.membership import LATE_MS
from bookie_pod.autorecovery.auditor.runs import Check, Failure, Finished, Runs
from bookie_protocol.errors import MetadataUnavailable
from bookie_protocol.metadata_service.interface import BookieGroup
from tests.support.virtual_loop import virtually
from tests.unit.bookie_pod.autorecovery.auditor.audited_cluster import ALL, NOW_MS, Cluster


@virtually
async def test_an_audit_runs_at_the_begin_and_then_at_the_interval() -> None:
    cluster = Cluster(interval_s=100)
    cluster.audit_takes = 7.0
    await cluster.begin()
    assert cluster.audits == [0]
    assert cluster.lost.running is cluster.finds
    await asyncio.sleep(250)
    assert cluster.audits == [0, 100, 200], "from begin to begin"
    assert cluster.lost.running is None
    assert cluster.lost.next_ms == NOW_MS + 300_000
    last = Finished(NOW_MS + 200_000, NOW_MS + 207_000, 7000, cluster.finds.counts())
    assert cluster.lost.runs == Runs("a1", None, last, None) == await cluster.kept.read(Check.BOOKIES)
    assert cluster.told == [("audit", (7000, cluster.finds))] * 3


@virtually
async def test_without_an_interval_only_who_is_lost_is_a_reason() -> None:
    cluster = Cluster(delay_s=60)
    await cluster.begin()
    await asyncio.sleep(1000)
    assert (cluster.audits, cluster.lost.next_ms) == ([0], None)
    cluster.register("a", "b")
    await asyncio.sleep(10)
    cluster.register("a", "b", "c")  # back in time
    await asyncio.sleep(100)
    assert cluster.audits == [0]
    assert cluster.told[1:] == [("delayed", 1000.5), ("cancelled", 1010.5)]
    cluster.register("a", "b")
    cluster.finds.named["c"] = 3
    await asyncio.sleep(59)
    assert cluster.audits == [0]
    await asyncio.sleep(2)
    assert cluster.audits == [0, 1170.5]
    assert cluster.lost.membership.absences["c"].audited
    await asyncio.sleep(5000)
    assert len(cluster.audits) == 2
    cluster.register("a", "b", "c")
    await asyncio.sleep(1)
    assert cluster.returned == [{"c": NOW_MS + 1_000_500}, {"c": NOW_MS + 1_110_500}]


@virtually
async def test_who_comes_back_in_the_last_moment_is_not_audited() -> None:
    """The registrations are listed anew before an audit, whatever the watches told."""
    cluster = Cluster(delay_s=60)
    await cluster.begin()
    cluster.register("a", "b")
    await asyncio.sleep(30)
    cluster.writable = ALL  # which nobody is told of
    cluster.version += 1
    await asyncio.sleep(40)
    assert cluster.audits == [0]
    assert cluster.lost.membership.absences == {}


@virtually
async def test_while_auto_recovery_is_disabled_no_audit_begins() -> None:
    cluster = Cluster(delay_s=10)
    await cluster.begin()
    cluster.enabled.clear()
    cluster.register("a", "b")
    await asyncio.sleep(100)
    assert cluster.audits == [0]
    cluster.enabled.set()
    await asyncio.sleep(1)
    assert cluster.audits == [0, 100.5]


@virtually
async def test_an_audit_that_fails_is_repeated_ever_more_rarely() -> None:
    cluster = Cluster(interval_s=10_000)
    cluster.down = {"audit"}
    await cluster.begin()
    await asyncio.sleep(200)
    assert cluster.audits == [0, 1, 3, 7, 15, 31, 63, 63 + LONGEST_PAUSE, 63 + 2 * LONGEST_PAUSE]
    assert FIRST_PAUSE == 1
    assert cluster.lost.runs.failure == Failure(NOW_MS + 183_000, "no answer to audit")
    assert cluster.lost.running is None
    assert cluster.told[0] == ("audit", (0, None))
    cluster.down = set()
    await asyncio.sleep(LONGEST_PAUSE)
    assert (len(cluster.audits), cluster.lost.runs.failure) == (10, None)
    cluster.down = {"list"}
    await asyncio.sleep(10_245 - cluster.now)
    cluster.down = set()
    await asyncio.sleep(2)
    assert cluster.audits[10:] == [243 + 10_000 + 3], "the pauses begin anew"


@pytest.mark.parametrize(("value", "asked"), [(60, True), (0, True), (30, False)])
@virtually
async def test_a_delay_that_is_written_again_asks_for_an_audit(value: int, asked: bool) -> None:
    """As Apache's shell does to have one; another value is only another delay."""
    cluster = Cluster(delay_s=60)
    cluster.finds.named["b"] = 1
    await cluster.begin()
    assert cluster.audits == [0], "the first value is no request"
    cluster.register("a", "c")
    await asyncio.sleep(1)
    cluster.stored_delay = value
    cluster.change("delay")
    await asyncio.sleep(1)
    assert cluster.audits == ([0, 1.5] if asked else [0])
    assert cluster.lost.membership.delay_s == value
    assert cluster.lost.is_lost("b") == asked
    await asyncio.sleep(value)
    assert len(cluster.audits) == 2


@virtually
async def test_an_audit_that_was_asked_for_counts_whom_it_met_once_more() -> None:
    cluster = Cluster(delay_s=600)
    await cluster.begin()
    cluster.finds.named["ghost"] = 1
    cluster.finds.skipped = {"ghost"}  # nobody but a ledger names it
    cluster.change("delay")
    await asyncio.sleep(0.5)
    assert cluster.audits == [0, 0.5, 0.5]
    assert cluster.lost.is_lost("ghost")
    assert cluster.lost.membership.absences["ghost"].audited


@virtually
async def test_whom_nobody_needs_is_looked_for_once_more_and_forgotten() -> None:
    cluster = Cluster(delay_s=0)
    await cluster.begin()
    cluster.register("a", "b")
    cluster.known = frozenset({"a", "b"})
    await asyncio.sleep(1)
    assert await cluster.kept.absences() == {"c": NOW_MS + 500}
    assert cluster.audits == [0, 0.5]
    await asyncio.sleep(LATE_MS / 1000)
    assert cluster.audits == [0, 0.5, 0.5 + LATE_MS / 1000]
    assert cluster.lost.membership.absences == {}
    assert await cluster.kept.absences() == {}


@virtually
async def test_times_of_loss_that_cannot_be_stored_are_stored_later() -> None:
    cluster = Cluster(delay_s=600)
    await cluster.begin()
    tries: list[float] = []

    def fails(line: str) -> None:
        tries.append(cluster.now)
        raise MetadataUnavailable("no answer")

    cluster.memory.before = fails
    cluster.register("a", "b")
    await asyncio.sleep(2 * SAVE_PAUSE + 1)
    assert tries == [0.5, 0.5 + SAVE_PAUSE, 0.5 + 2 * SAVE_PAUSE]
    cluster.memory.before = lambda line: None
    await asyncio.sleep(SAVE_PAUSE)
    assert await cluster.kept.absences() == {"c": NOW_MS + 500}


@virtually
async def test_where_nobody_came_or_left_nothing_is_stored() -> None:
    cluster = Cluster(delay_s=600)
    await cluster.begin()
    before = list(cluster.memory.writes)
    cluster.register(*ALL)
    await asyncio.sleep(1)
    assert (cluster.memory.writes, cluster.audits) == (before, [0])


@virtually
async def test_what_cannot_be_followed_is_followed_again() -> None:
    cluster = Cluster(delay_s=600)
    cluster.down = {"watch available", "watch delay", f"watch {BookieGroup.WRITABLE.value}"}
    await cluster.begin()
    cluster.down = set()
    await asyncio.sleep(FOLLOW_PAUSE + SETTING_PAUSE)
    followed = [(what, at) for what, at in cluster.followed if what != BookieGroup.READ_ONLY.value]
    assert sorted(followed, key=lambda each: (each[1], each[0])) == sorted(
        [
            ("delay", 0.0),
            (BookieGroup.WRITABLE.value, 0.0),
            ("delay", SETTING_PAUSE),
            (BookieGroup.WRITABLE.value, FOLLOW_PAUSE),
        ],
        key=lambda each: (each[1], each[0]),
    )
    cluster.register("a")
    await asyncio.sleep(1)
    assert set(cluster.lost.membership.absences) == {"b", "c"}


@pytest.mark.parametrize(("stored", "damaged", "delay"), [(None, False, 60), (5, False, 5), (5, True, 60)])
@virtually
async def test_the_stored_delay_counts(stored: int | None, damaged: bool, delay: int) -> None:
    cluster = Cluster(delay_s=60)
    cluster.stored_delay, cluster.damaged = stored, damaged
    await cluster.lost.prepare()
    assert cluster.lost.membership.delay_s == delay
    assert cluster.stored_delay == (stored or 60)


@virtually
async def test_while_a_delay_runs_the_note_stays_young() -> None:
    cluster = Cluster(delay_s=3600)
    await cluster.begin()
    cluster.register("a", "b")
    left_ms = NOW_MS + 500
    for _ in range(20):
        await asyncio.sleep(170)
        now_ms = cluster.clock.now_ms()
        assert await cluster.kept.absences_to_go_on_with(now_ms) == {"c": left_ms}
    await asyncio.sleep(3600)
    assert cluster.lost.is_lost("c")
    writes = len(cluster.memory.writes)
    await asyncio.sleep(3600)
    assert len(cluster.memory.writes) == writes


@virtually
async def test_what_the_auditor_before_left_is_gone_on_with() -> None:
    cluster = Cluster(delay_s=60)
    runs = Runs("a0", None, Finished(1, 2, 3), None)
    await cluster.kept.write(Check.BOOKIES, runs)
    await cluster.kept.write_absences({"b": NOW_MS - 50_000, "c": NOW_MS - 1000}, NOW_MS - 1000)
    cluster.writable = frozenset({"a", "c"})
    await cluster.lost.prepare()
    assert cluster.lost.runs == runs
    assert cluster.returned == [{"c": NOW_MS - 1000}], "it came back while there was no auditor"
    assert {bookie: each.since_ms for bookie, each in cluster.lost.membership.absences.items()} == {
        "b": NOW_MS - 50_000
    }
    running = asyncio.create_task(cluster.lost.run())
    await asyncio.sleep(9)
    assert not cluster.lost.is_lost("b")
    assert await cluster.kept.absences() == {"b": NOW_MS - 50_000}
    await asyncio.sleep(2)
    assert cluster.lost.is_lost("b")
    assert (cluster.lost.is_available("a"), cluster.lost.is_available("b")) == (True, False)
    assert cluster.audits == [0, 10]
    running.cancel()
