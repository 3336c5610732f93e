"""The check of replicas, run by an auditor: who misses what, counted and marked.

Counting copies against striping, entry by entry.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bookie_client.distribution import Quorums
from bookie_client.replication.fragments import Fragment
from bookie_client.replication.lists import LISTS_TO_GIVE_UP
from bookie_client.replication.throttle import ReplicationThrottle
from bookie_pod.autorecovery.auditor import replicas_check
from bookie_pod.autorecovery.auditor.replicas_check import (
    NOTHING,
    ReplicasCheck,
    Stored,
    count_copies,
)
from bookie_pod.autorecovery.auditor.runs import Check
from bookie_protocol.errors import BookieTimeout, BookieUnavailable, NoSuchLedger
from bookie_protocol.ledger_metadata.model import holds_entry
from bookie_protocol.wire.availability import decode_availability, encode_availability
from tests.support.auditor_rig import DAY, AuditorRig, complete, ledger

NO_COPY = "auditor_NUM_LEDGERS_HAVING_NO_REPLICA_OF_AN_ENTRY"
UNDER_ACK = "auditor_NUM_LEDGERS_HAVING_LESS_THAN_AQ_REPLICAS_OF_AN_ENTRY"
UNDER_WRITE = "auditor_NUM_LEDGERS_HAVING_LESS_THAN_WQ_REPLICAS_OF_AN_ENTRY"


async def test_missing_entries_are_counted_and_marked(rig: AuditorRig) -> None:
    await rig.store(
        ledger(1, (0, "012")),
        ledger(2, (0, "0123"), write=2),
        ledger(3, (0, "012")),
        ledger(4, (0, "012"), last=None),
        ledger(5, (0, "012")),
        ledger(6, (0, "012"), last=-1),
    )
    await rig.marks.mark(5, ("b0:1",), ctime_ms=None)
    rig.lists.stored = {
        ("b0:1", 1): NoSuchLedger("never heard of it"),
        ("b1:1", 1): range(5),
        ("b2:1", 1): range(5),
        ("b1:1", 2): (0, 1, 4, 5, 8, 9),  # all that striping wants there
        ("b2:1", 2): (1, 2, 5, 6),  # and this one misses entry 9
    }
    auditor = await rig.auditor(auditor_replicas_check_interval_s=DAY)
    last = await complete(rig, auditor, Check.REPLICAS)
    assert await rig.marked() == {1: ("b0:1", "b1:1", "b2:1"), 2: ("b2:1",), 5: ("b0:1",)}
    assert last.counts["marked"] == 2
    assert last.counts["open"] == 1
    assert last.counts["marked_before"] == 1
    assert (rig.metric(NO_COPY), rig.metric(UNDER_ACK), rig.metric(UNDER_WRITE)) == (1, 2, 2)
    assert not any(ledger_id in (4, 5, 6) for _, ledger_id in rig.lists.asked)


def looking(rig: AuditorRig) -> ReplicasCheck:
    """A check that marks nothing."""
    return ReplicasCheck(
        rig.service,
        rig.lists,
        rig._end,
        None,  # type: ignore[arg-type]  # marks
        Everybody(),
        metadata_pace=ReplicationThrottle(),
        pace=ReplicationThrottle(),
        marks=False,
    )


async def test_a_ledger_of_very_many_segments_does_not_hold_the_loop(rig: AuditorRig) -> None:
    segments = [(first, "012" if first % 2 else "013") for first in range(400)]
    metadata = ledger(1, *segments, last=400)
    check = looking(rig)
    turns, done = 0, asyncio.create_task(check._compare(metadata))
    while not done.done():
        turns += 1
        await asyncio.sleep(0)
    assert (await done).counts == {"ledgers": 1}
    assert turns >= 400


async def test_suspects_do_not_grow_with_the_ledger(rig: AuditorRig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas_check, "PIECE", 2)
    rig.lists.stored = {("b0:1", 1): NoSuchLedger("never heard of it")}
    check = looking(rig)
    look = await check._compare(ledger(1, (0, "012"), (10, "012"), last=99))
    assert {(first, each.bookie, each.runs) for first, each in look.suspects} == {
        (0, "b0:1", ((0, 0),)),
        (10, "b0:1", ((10, 10),)),
    }


class Everybody:
    """All bookies are there."""

    def is_lost(self, bookie: str) -> bool:
        return False

    def is_available(self, bookie: str) -> bool:
        return True


async def test_it_can_only_count(rig: AuditorRig) -> None:
    await rig.store(ledger(1, (0, "012")))
    rig.lists.stored = {("b0:1", 1): ()}
    auditor = await rig.auditor(auditor_replicas_check_interval_s=DAY, auditor_replicas_check_marks=False)
    last = await complete(rig, auditor, Check.REPLICAS)
    assert await rig.marked() == {}
    assert last.counts["short_of_write_quorum"] == 1


async def test_who_does_not_answer_is_unknown_and_asked_no_more(rig: AuditorRig) -> None:
    await rig.store(*(ledger(n, (0, "012")) for n in range(1, 9)))
    rig.lists.stored = {("b0:1", n): BookieTimeout("silence") for n in range(1, 9)}
    rig.lists.stored[("b1:1", 3)] = BookieUnavailable("no connection")
    auditor = await rig.auditor(auditor_replicas_check_interval_s=DAY, auditor_max_concurrent_opens=1)
    last = await complete(rig, auditor, Check.REPLICAS)
    assert await rig.marked() == {}
    assert last.counts == {"ledgers": 8, "could_not_tell": 8}
    assert sum(bookie == "b0:1" for bookie, _ in rig.lists.asked) == LISTS_TO_GIVE_UP
    assert rig.metric(UNDER_WRITE) == 0


async def test_copies_of_a_lost_bookie_are_missing_those_of_one_in_its_delay_are_not(rig: AuditorRig) -> None:
    await rig.store(ledger(1, (0, "012")))
    await rig.leave("b0:1")
    auditor = await rig.auditor(lost_bookie_recovery_delay_s=3600, auditor_replicas_check_interval_s=DAY)
    last = await complete(rig, auditor, Check.REPLICAS)
    assert last.counts == {"ledgers": 1, "could_not_tell": 1}


async def test_what_is_missing_once_only_is_not_counted(rig: AuditorRig) -> None:
    await rig.store(ledger(1, (0, "012")))
    rig.lists.stored = {("b0:1", 1): (1, 2, 3)}
    auditor = await rig.auditor(auditor_replicas_check_interval_s=DAY)
    await rig.until(lambda: rig.lists.asked)
    rig.lists.stored = {}
    last = await complete(rig, auditor, Check.REPLICAS)
    assert await rig.marked() == {}
    assert last.counts == {"ledgers": 1, "suspicious": 1, "withdrawn": 1}


@st.composite
def segments(draw: st.DrawFn) -> tuple[Fragment, dict[str, set[int] | None]]:
    size = draw(st.integers(1, 5))
    quorum = draw(st.integers(1, size))
    first = draw(st.integers(0, 50))
    last = first + draw(st.integers(0, 40))
    ensemble = [f"b{n}" for n in range(size)]
    ids = st.sets(st.integers(max(0, first - 5), last + 5))
    stored = {bookie: draw(st.none() | ids) for bookie in ensemble}
    return segment(first, last, ensemble, quorum), stored


def segment(first: int, last: int, ensemble: Sequence[str], write: int) -> Fragment:
    return Fragment(1, first, last, tuple(ensemble), Quorums(len(ensemble), write, write), is_closed=True)


@given(segments(), st.sampled_from((3, 1 << 18)))
def test_against_a_count_of_single_entries(case, piece: int) -> None:
    part, stored = case
    size, quorum = part.quorums.ensemble, part.quorums.write
    fewest = quorum
    missing: dict[str, set[int]] = {}
    for entry_id in range(part.first_entry, part.last_entry + 1):
        there = 0
        for position, bookie in enumerate(part.ensemble):
            if not holds_entry(position, entry_id, size, quorum):
                continue
            held = stored[bookie]
            there += held is None or entry_id in held
            if held is not None and entry_id not in held:
                missing.setdefault(bookie, set()).add(entry_id)
        fewest = min(fewest, there)
    lists: dict[str, Stored] = {
        bookie: None if ids is None else decode_availability(encode_availability(sorted(ids)))
        for bookie, ids in stored.items()
    }
    whole, replicas_check.PIECE = replicas_check.PIECE, piece  # type: ignore[misc]
    try:
        pieces = list(count_copies(part, lists))
    finally:
        replicas_check.PIECE = whole  # type: ignore[misc]
    assert min(each.fewest for each in pieces) == fewest
    for bookie in part.ensemble:
        assert sum(each.missing.get(bookie, 0) for each in pieces) == len(missing.get(bookie, ()))
        firsts = [each.first_missing[bookie] for each in pieces if bookie in each.first_missing]
        assert min(firsts, default=None) == min(missing.get(bookie, ()), default=None)


def test_a_long_segment_is_counted_in_pieces() -> None:
    long = segment(0, 3 * replicas_check.PIECE, "ab", 2)
    found = list(count_copies(long, {"a": NOTHING, "b": None}))
    assert len(found) == 4
    assert sum(each.missing["a"] for each in found) == 3 * replicas_check.PIECE + 1
    assert {each.fewest for each in found} == {1}
