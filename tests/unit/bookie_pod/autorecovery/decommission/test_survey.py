"""What is found of a bookie in a listing, what is estimated of it, and who is waited for before one counts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from bookie_pod.autorecovery.decommission.presence import Presence, Vigil, presence_of
from bookie_pod.autorecovery.decommission.survey import (
    Claims,
    Survey,
    bytes_held,
    names,
    survey,
    survey_unclaimed,
)
from bookie_protocol.errors import MetadataDamaged, MetadataNotFound
from bookie_protocol.ledger_metadata.model import LedgerMetadata, LedgerState
from bookie_protocol.metadata_service.interface import BookieGroup, LedgerRange
from bookie_protocol.metadata_service.under_replication import LockHolder, UnderreplicatedLedger
from bookie_protocol.versioned import moved
from tests.support.auditor_rig import ledger
from tests.support.virtual_loop import on_a_virtual_clock, virtually

GOING = "b0:1"


@pytest.mark.parametrize(
    ("metadata", "bookie", "nbytes"),
    [
        (ledger(1, (0, "012")), "b0:1", 1000),
        (ledger(1, (0, "012")), "b3:1", 0),
        (ledger(1, (0, "012"), (5, "034")), "b0:1", 1000),
        (ledger(1, (0, "012"), (5, "034")), "b1:1", 500),
        (ledger(1, (0, "012"), (6, "034")), "b3:1", 400),
        (ledger(1, (0, "012"), (9, "034")), "b3:1", 100),
        (ledger(1, (0, "012"), (10, "034")), "b3:1", 0),
        (ledger(1, (0, "012"), (10, "034")), "b0:1", 1000),
        (ledger(1, (0, "012"), (12, "034"), (20, "340")), "b0:1", 1000),
        (ledger(1, (0, "012"), write=2), "b0:1", 667),
        (ledger(1, (0, "012"), last=0), "b0:1", 100),
        (ledger(1, (0, "012"), last=-1), "b0:1", 0),
        (ledger(1, (0, "012"), last=None), "b0:1", 0),
    ],
)
def test_how_much_a_bookie_holds_is_estimated(metadata: LedgerMetadata, bookie: str, nbytes: int) -> None:
    assert bytes_held(metadata, bookie) == nbytes


class Cluster:
    """Ledgers, marks and locks as a test says."""

    def __init__(self, *ledgers: LedgerMetadata) -> None:
        self.stored: dict[int, LedgerMetadata | Exception] = {each.ledger_id: each for each in ledgers}
        self.listed_marks: list[UnderreplicatedLedger] = []
        self.held: dict[int, LockHolder] = {}
        self.registered: dict[BookieGroup, list[bool]] = {}
        self.ledgers = self.under_replication = self.bookies = self

    @property
    def service(self) -> Any:
        return self

    async def ranges(self) -> AsyncGenerator[LedgerRange, None]:
        yield LedgerRange(0, 100, tuple(sorted(self.stored)))

    async def read(self, ledger_id: int) -> Any:
        found = self.stored.get(ledger_id, MetadataNotFound("gone"))
        if isinstance(found, Exception):
            raise found
        return SimpleNamespace(value=found)

    async def list(self) -> AsyncGenerator[UnderreplicatedLedger, None]:
        for each in self.listed_marks:
            yield each

    async def holders(self) -> dict[int, LockHolder]:
        return dict(self.held)

    async def is_registered(self, bookie_id: str, group: BookieGroup) -> bool:
        assert bookie_id == GOING
        return self.registered[group].pop(0)


async def test_a_listing_counts_everything_and_finds_what_names_the_bookie() -> None:
    open_one = ledger(3, (0, "012"), last=None)
    cluster = Cluster(
        ledger(1, (0, "012")),
        ledger(2, (0, "1234"), write=2),
        open_one,
        replace(ledger(4, (0, "123"), last=None), state=LedgerState.IN_RECOVERY),
    )
    cluster.stored[5] = MetadataNotFound("deleted meanwhile")
    cluster.listed_marks = [
        UnderreplicatedLedger(2, (GOING,)),
        UnderreplicatedLedger(6, ("b1:1",)),
        UnderreplicatedLedger(7, (), damage="no mark"),
    ]
    looked: list[int] = []
    counts: list[int] = []
    found = await survey(
        cluster.service, GOING, look=lambda metadata: looked.append(metadata.ledger_id), progress=counts.append
    )
    assert {each: (it.nbytes, it.is_closed) for each, it in found.ledgers.items()} == {1: (1000, True), 3: (0, False)}
    assert (found.marks, found.in_recovery) == ({2, 7}, {4})
    assert (found.ledgers_seen, found.marks_seen, found.largest_ensemble) == (4, 3, 4)
    assert (found.nbytes, found.open_ledgers) == (1000, 1)
    assert (looked, counts) == ([1, 3], [1, 2, 3, 4])
    assert (found.left(), found.left([1, 7, 9])) == ({1, 2, 3, 7}, {2, 3})
    assert Survey().left() == set()


async def test_a_ledger_that_cannot_be_read_is_no_ledger_that_does_not_name_it() -> None:
    cluster = Cluster(ledger(1, (0, "123")))
    cluster.stored[2] = MetadataDamaged("ledger 2")
    with pytest.raises(MetadataDamaged, match="ledger 2"):
        await survey(cluster.service, GOING)
    with pytest.raises(MetadataDamaged, match="ledger 2"):
        await names(cluster.service, 2, GOING)
    assert not await names(cluster.service, 1, GOING)
    assert await names(cluster.service, 1, "b3:1")
    assert not await names(cluster.service, 3, GOING), "it is gone"


def holder(host: str, creation: int = 1) -> LockHolder:
    return LockHolder(host, 7, creation)


async def test_locks_of_one_moment_are_waited_for_and_no_others() -> None:
    cluster = Cluster()
    cluster.held = {each: holder(f"host{each}") for each in range(7)}
    claims, said = Claims(cluster.service), list[str]()

    async def wait(reason: str) -> None:
        said.append(reason)
        if len(said) == 1:
            cluster.held[0] = holder("host0", creation=2)  # given back, and taken anew
            cluster.held[9] = holder("host9")
            del cluster.held[1]
        else:
            cluster.held = {9: holder("host9")}

    assert claims.locked == frozenset()
    await claims.locks_end(wait)
    why = "are being re-replicated, since the bookie was a target still: waits for"
    assert said == [
        f"ledgers 0, 1, 2, 3, 4 and 2 more {why} host0, host1, host2, host3, host4",
        f"ledgers 2, 3, 4, 5, 6 {why} host2, host3, host4, host5, host6",
    ]
    await claims.locks_end(wait)
    assert len(said) == 2, "what was locked later is none of it"
    claims.reset()
    cluster.held = {}
    await claims.locks_end(wait)
    assert claims.locked == frozenset()


async def test_lock_whose_metadata_moved_to_another_service_has_not_ended() -> None:
    """A worker that takes part in the move holds it there, by another session."""
    cluster = Cluster()
    cluster.held = {0: holder("host0"), 1: holder("host1")}
    claims, asked = Claims(cluster.service), list[frozenset[int]]()

    async def wait(_: str) -> None:
        asked.append(claims.locked)
        if len(asked) == 1:
            cluster.held = {0: LockHolder("host0", 3, moved(1)), 1: LockHolder("host2", 4, moved(1))}
        elif len(asked) == 2:
            cluster.held[0] = LockHolder("host0", 3, moved(2))  # given back, and taken anew

    await claims.locks_end(wait)
    assert asked == [{0, 1}, {0}]


@pytest.mark.parametrize("named", [True, False])
async def test_recoveries_of_one_moment_come_to_their_end(named: bool) -> None:
    cluster = Cluster(ledger(1, (0, "123")), ledger(2, (0, "012" if named else "123")), ledger(3, (0, "012")))
    claims, said = Claims(cluster.service), list[str]()
    reasons: dict[int, list[str | None]] = {1: ["its writer has time", None], 2: ["its writer has time", None]}

    async def end(ledger_id: int) -> str | None:
        return reasons[ledger_id].pop(0)

    async def wait(reason: str) -> None:
        said.append(reason)

    assert await claims.recoveries_end(GOING, {1, 2}, end, wait) is named
    assert said == ["ledgers 1, 2 are IN_RECOVERY, which may name the bookie: 1: its writer has time"]
    reasons = {2: [None]}
    assert await claims.recoveries_end(GOING, {3}, end, wait) is named, "those of the first call"
    claims.reset()
    reasons = {3: [None]}
    assert await claims.recoveries_end(GOING, {3}, end, wait)


@pytest.mark.parametrize(("ends_at", "locked", "took"), [(1.2, frozenset(), 1.5), (60.0, frozenset({1}), 2.0)])
@virtually
async def test_locks_are_waited_for_no_longer_than_that(ends_at: float, locked: frozenset[int], took: float) -> None:
    cluster, loop = Cluster(ledger(1, (0, "012"))), asyncio.get_running_loop()
    cluster.held = {1: holder("host")}
    loop.call_later(ends_at, cluster.held.clear)
    found, left = await survey_unclaimed(cluster.service, GOING, 2.0)
    assert (set(found.ledgers), left, loop.time()) == ({1}, locked, took)


W, R = BookieGroup.WRITABLE, BookieGroup.READ_ONLY


@pytest.mark.parametrize(
    ("writable", "read_only", "presence"),
    [
        ([True], [], Presence.WRITABLE),
        ([False], [True], Presence.READ_ONLY),
        ([False, True], [False], Presence.WRITABLE),
        ([False, False], [False], Presence.ABSENT),
    ],
)
async def test_who_changes_sides_is_not_absent(writable: list[bool], read_only: list[bool], presence: Presence) -> None:
    cluster = Cluster()
    cluster.registered = {W: writable, R: read_only}
    assert await presence_of(cluster.service, GOING) is presence
    assert cluster.registered == {W: [], R: []}


def settled_after(settle: float, steps: Callable[[Vigil], Coroutine[Any, Any, None]]) -> float:
    times: list[float] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        vigil = Vigil(Cluster().service, GOING, settle)
        await steps(vigil)
        before = loop.time()
        await vigil.settled()
        times.append(loop.time() - before)

    on_a_virtual_clock(main())
    return times[0]


def test_what_was_said_of_a_bookie_is_settled_a_while_later() -> None:
    async def at_once(vigil: Vigil) -> None:
        return None

    async def later(vigil: Vigil) -> None:
        await asyncio.sleep(4)

    async def again(vigil: Vigil) -> None:
        vigil.seen_writable = vigil.seen_registered = True
        await asyncio.sleep(4)
        vigil.reset()
        assert (vigil.seen_writable, vigil.seen_registered) == (False, False)
        await asyncio.sleep(1)

    assert [settled_after(10, each) for each in (at_once, later, again)] == [10, 6, 9]
    assert [settled_after(3, each) for each in (later, again)] == [0, 2]
    assert settled_after(0, at_once) == 0


async def test_what_a_vigil_has_seen_stays_seen() -> None:
    cluster = Cluster()
    vigil = Vigil(cluster.service, GOING)
    cluster.registered = {W: [False, False, True, False, False], R: [False, True, False]}
    seen = []
    for _ in range(4):
        presence = await vigil.check()
        seen.append((presence, vigil.seen_writable, vigil.seen_registered))
        if presence is Presence.WRITABLE:
            break
    assert seen[0] == (Presence.ABSENT, False, False)
    assert seen[-1] == (Presence.WRITABLE, True, True)
    cluster.registered = {W: [False], R: [True]}
    assert await vigil.check() is Presence.READ_ONLY
    assert (vigil.seen_writable, vigil.seen_registered) == (True, True)
    vigil.reset()
    cluster.registered = {W: [False], R: [True]}
    await vigil.check()
    assert (vigil.seen_writable, vigil.seen_registered) == (False, True)
